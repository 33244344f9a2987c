"""Large arrays for batches of images, which are used again when nobody holds them any more.

The C library gives the pages of a large array back when it is freed. The next batch then has its
pages mapped and cleared anew, huge ones, which can take longer than the copy of its rows.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_LARGE_NBYTES = 1 << 22  # from here on, NumPy asks for huge pages
_N_KEPT = 4  # two observations of a batch, and two of the rows that its n-step returns end with


class RecycledArrays:
    """The last large arrays of one buffer, to be filled again once only this object holds them.

    A view of an array, a tensor that shares its memory and a memoryview all hold the array. Copies
    and pickles of this object hold none.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []  # the one that was filled last is the last

    def take(self, field: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Return rows of a field [size, …] as an array of `index.shape` and the rows' own shape.

        Parameters
        ----------
        field : np.ndarray
            The field, numeric.
        index : array of int
            The rows, in any shape.

        Returns
        -------
        np.ndarray
            The rows, which are the caller's for as long as it holds the array.

        Raises
        ------
        IndexError
            If an index is out of range.
        """
        is_large = index.size * field.strides[0] >= _LARGE_NBYTES
        # Of other indices, NumPy counts some from the end, and refuses the rest.
        if not is_large or not 0 <= index.min() <= index.max() < len(field):
            return field.take(index, axis=0)
        array = self._free_array(index.shape + field.shape[1:], field.dtype)
        # Indices are in range. With the default mode, take would fill a copy of `out` first.
        field.take(index, axis=0, out=array, mode="clip")
        self._arrays.append(array)
        del self._arrays[:-_N_KEPT]
        return array

    def _free_array(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """Return a kept array that nobody else holds, which is no longer kept, or a new one."""
        for i in reversed(range(len(self._arrays))):
            # The list and the argument of getrefcount are two references.
            kept = self._arrays[i].shape == shape and self._arrays[i].dtype == dtype
            if kept and sys.getrefcount(self._arrays[i]) == 2:
                return self._arrays.pop(i)
        return np.empty(shape, dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        return RecycledArrays, ()
