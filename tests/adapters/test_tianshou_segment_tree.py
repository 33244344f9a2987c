"""The segment tree against Tianshou's own and against plain NumPy sums."""

import copy
import pickle

import numpy as np
import pytest
import tianshou.data
from hypothesis import given
from hypothesis import strategies as st
from tianshou_rows import BOTH

from kary_replay.adapters.tianshou import SegmentTree
from kary_replay.adapters.tianshou.segment_tree import as_segment_tree

# Sums of small whole numbers are exact whatever their order, so ties are ties in every tree.
MASSES = st.lists(st.integers(0, 9), min_size=1, max_size=40)


def trees(masses):
    """Stock and ours with the same masses."""
    index = np.arange(len(masses))
    pair = tianshou.data.SegmentTree(len(masses)), SegmentTree(len(masses))
    for tree in pair:
        tree[index] = np.array(masses, float)
    return pair


@given(MASSES, st.data())
def test_the_same_answers_as_stock(masses, data):
    stock, ours = trees(masses)
    size = len(masses)
    writes = data.draw(
        st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 9)), min_size=1, max_size=8)
    )
    for tree in (stock, ours):
        tree[np.array([i for i, _ in writes])] = np.array([float(v) for _, v in writes])
    start, end = data.draw(st.integers(0, size)), data.draw(st.integers(-size, size))
    assert ours.reduce() == stock.reduce()
    assert ours.reduce(start) == stock.reduce(start)
    if (end + size if end < 0 else end) >= start:  # else stock adds up what is not in the range
        assert ours.reduce(start, end) == stock.reduce(start, end)
    np.testing.assert_array_equal(ours[np.arange(size)], stock[np.arange(size)])
    if stock.reduce() > 0:
        tops = st.integers(1, int(4 * stock.reduce()) - 1) if stock.reduce() * 4 > 1 else st.just(1)
        # quarters: ties and others
        prefix = np.array(data.draw(st.lists(tops, min_size=1, max_size=8))) / 4
        np.testing.assert_array_equal(
            ours.get_prefix_sum_idx(prefix), stock.get_prefix_sum_idx(prefix.copy())
        )
        one = ours.get_prefix_sum_idx(float(prefix[0]))
        assert type(one) is int and one == stock.get_prefix_sum_idx(float(prefix[0]))


@BOTH
def test_random_masses_against_numpy(module, rng):
    for size in (1, 2, 7, 8, 1000, 16384):
        tree, naive = module.SegmentTree(size), np.zeros(size)
        assert len(tree) == size and tree[0] == tree[size - 1] == tree.reduce() == 0.0
        tree[size // 2] = naive[size // 2] = 0.5  # one at a time, too
        for _ in range(20):
            index, value = rng.integers(size, size=64), rng.random(64)
            naive[index] = tree[index] = value
            left = int(rng.integers(size))
            right = int(rng.integers(left, size + 1))
            assert np.isclose(tree.reduce(left, right), naive[left:right].sum())
        assert np.isclose(tree.reduce(end=-1), naive[:-1].sum())
        prefix = rng.random(256) * tree.reduce()
        index, cumulated = tree.get_prefix_sum_idx(prefix.copy()), np.cumsum(naive)
        assert np.all(prefix <= cumulated[index] + 1e-9) and np.all(
            cumulated[index] - naive[index] <= prefix + 1e-9
        )


def test_prefix_of_zero_finds_the_first_mass():
    stock, ours = trees([0, 0, 3, 1])
    assert stock.get_prefix_sum_idx(0.0) == 0  # an empty leaf
    assert ours.get_prefix_sum_idx(0.0) == 2
    assert trees([1, 2])[1].get_prefix_sum_idx(0.0) == 0


def test_the_argument_is_left_alone():
    stock, ours = trees([1, 1, 1, 1])
    for tree, changed in ((stock, True), (ours, False)):
        prefix = np.array([0.5, 2.5])
        tree.get_prefix_sum_idx(prefix)
        assert (prefix.tolist() != [0.5, 2.5]) is changed


@pytest.mark.parametrize("which", [0, 1], ids=["stock", "ours"])
def test_refusals_have_the_types_of_stock(which):
    tree = trees([0.0] * 7 + [2.0])[which]
    for value in (2.0, -0.1, np.nan, np.array([0.5, 2.5])):
        with pytest.raises(AssertionError):
            tree.get_prefix_sum_idx(value)
    with pytest.raises(IndexError):
        tree[8]
    for index in (8, -1, np.array([0, 8])):
        with pytest.raises(AssertionError):
            tree[index] = 1.0
    for refused in (slice(None), slice(1, 3)):
        with pytest.raises(TypeError):
            tree[refused]
        with pytest.raises(TypeError):
            tree[refused] = 1.0


def test_bad_masses_change_nothing():
    tree = trees([1.0, 2.0])[1]
    for value in (np.nan, np.inf, -1.0):
        with pytest.raises(ValueError, match="mass"):
            tree[np.array([0, 1])] = np.array([5.0, value])
    assert tree[np.arange(2)].tolist() == [1.0, 2.0]
    with pytest.raises(IndexError):
        tree[2] = 1.0
    with pytest.raises(ValueError, match="size"):
        SegmentTree(-1)
    for size in (2.5, "3", None):
        with pytest.raises(TypeError, match="size"):
            SegmentTree(size)


def test_sizes_and_shapes():
    empty = SegmentTree(0)
    assert len(empty) == 0 and empty.reduce() == 0.0
    with pytest.raises(IndexError):
        empty[0]
    tree = SegmentTree(6)
    tree[np.arange(6)] = 1.0
    assert tree[np.array([[0, 1], [2, 3]])].shape == (2, 2)
    assert isinstance(tree[0], np.floating) and isinstance(tree, tianshou.data.SegmentTree)


def test_copies():
    tree = trees([3, 1, 4])[1]
    for other in (
        copy.deepcopy(tree),
        pickle.loads(pickle.dumps(tree)),
        as_segment_tree(trees([3, 1, 4])[0]),
    ):
        other[0] = 9.0
        assert tree[0] == 3.0 and other.reduce() == 14.0
    state = tree.__getstate__()
    with pytest.raises(ValueError, match="later version"):
        SegmentTree.__new__(SegmentTree).__setstate__(state | {"format": 99})
