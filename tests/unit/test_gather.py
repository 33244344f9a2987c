"""Rows of several arrays at once, against NumPy's own indexing."""

import numpy as np
import pytest

from kary_replay.errors import IndexRangeError
from kary_replay.gather import gather

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", ">i4"]


@pytest.mark.parametrize("n", [0, 1, 11, 12, 13, 300])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (84, 84)])
def test_like_numpy(rng, n, shape):
    arrays = [rng.integers(0, 100, (40, *shape)).astype(dtype) for dtype in DTYPES]
    index = rng.integers(-40, 40, n)
    before = index.copy()
    for array, rows in zip(arrays, gather(arrays, index), strict=True):
        assert rows.dtype == array.dtype and rows.flags.c_contiguous and rows.base is None
        np.testing.assert_array_equal(rows, array[index])
    np.testing.assert_array_equal(index, before)


def test_nothing_to_gather():
    assert gather([], [0]) == []
    (rows,) = gather([np.zeros((0, 3))], np.zeros(0, int))
    assert rows.shape == (0, 3)


@pytest.mark.parametrize(
    ("arrays", "index", "error", "match"),
    [
        ([np.zeros(5)], [5], IndexRangeError, "index 5 is out of range: it must be in -5 … 4"),
        ([np.zeros(5)], [0, -6], IndexRangeError, "index -6"),
        ([np.zeros(0)], [0], IndexRangeError, "index 0"),
        ([np.zeros(5)], [0.5], TypeError, "index"),
        ([np.zeros(5)], [[0]], ValueError, "one-dimensional"),
        ([np.zeros(5), np.zeros(4)], [0], ValueError, r"arrays\[1\] has 4 rows"),
        ([np.zeros((5, 4))[:, :2]], [0], ValueError, "C-contiguous"),
        ([np.zeros(5, object)], [0], ValueError, "numbers"),
        ([np.zeros(5, "U3")], [0], ValueError, "numbers"),
        ([np.float64(1)], [0], TypeError, "must be an array"),
        ([np.array(1.0)], [0], ValueError, "axis"),
    ],
)
def test_refusals(arrays, index, error, match):
    with pytest.raises(error, match=match):
        gather(arrays, index)
