"""Tianshou's segment tree over a K-ary sum tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tianshou.data

import kary_replay
from kary_replay.adapters.tianshou.errors import (
    ArgumentError,
    LeafIndexError,
    as_real,
    check_format,
)
from kary_replay.errors import IndexRangeError

_FORMAT = 1


class SegmentTree(tianshou.data.SegmentTree):
    """Sums and prefix sums over an array of masses, with the methods of `tianshou.data.SegmentTree`.

    Parameters
    ----------
    size : int
        Number of masses, at least 0.

    Attributes
    ----------
    sum_tree : kary_replay.SumTree
        The tree underneath, to which arrays go straight.

    Raises
    ------
    ValueError, TypeError
        If size is negative or no whole number.

    Notes
    -----
    Beside stock's: masses are checked (finite, at least 0), negative indices are refused rather
    than answered with an inner node's sum, and `get_prefix_sum_idx` leaves its argument as it is.
    Any number of threads may call the methods at once; they release the GIL, and writers take
    turns.

    Examples
    --------
    >>> import numpy as np
    >>> from kary_replay.adapters.tianshou import SegmentTree
    >>> tree = SegmentTree(4)
    >>> tree[np.arange(4)] = np.array([1.0, 0.0, 2.0, 1.0])
    >>> tree.reduce(), tree.reduce(1, -1), tree.get_prefix_sum_idx(1.5)
    (4.0, 2.0, 2)
    """

    # Stock's __init__ is not called: it would allocate a second tree, and compile functions that
    # nothing here calls.
    def __init__(self, size: int) -> None:
        number = as_real("size", size)
        if not number.is_integer():
            raise TypeError(f"size must be a whole number, got {size!r}")
        if number < 0:
            raise ValueError(f"size must be at least 0, got {size!r}")
        self._size = int(number)
        self.sum_tree = kary_replay.SumTree(max(self._size, 1))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int | np.ndarray) -> float | np.ndarray:
        """Return one mass or, for an array of indices, as many, float64 in the shape of `index`.

        Raises IndexError for an index that is not in 0 … size - 1, TypeError for a slice or a mask.
        O(B).
        """
        if type(index) is np.ndarray and index.ndim == 1 and self._size:
            return self.sum_tree.get(index)
        at = np.asarray(index)
        if at.ndim == 0 or not self._size:
            self._check_size()
            return np.float64(self.sum_tree.get(index))
        return self.sum_tree.get(at.reshape(-1)).reshape(at.shape)

    def __setitem__(self, index: int | np.ndarray, value: float | np.ndarray) -> None:
        """Set one mass or many.

        Parameters
        ----------
        index : int or array of int [B]
            Where one comes twice, the last value wins.
        value : float or array of float [B]
            Finite and at least 0; one number is set at every index.

        Raises
        ------
        AssertionError
            If an index is not in 0 … size - 1; it is an IndexError, too.
        ValueError, TypeError
            If a value is NaN, infinite or negative, a length differs, or a slice is given.

        Notes
        -----
        Nothing has changed when it raises. O(B · log(size)).
        """
        try:
            self._check_size()
            self.sum_tree.set(index, value)
        except IndexRangeError as error:
            raise LeafIndexError(str(error)) from None

    def reduce(self, start: int = 0, end: int | None = None) -> float:
        """Return the sum of the masses start … end - 1, as of a slice: negative ends count from the right.

        The total costs one load, any other range O(end - start).
        """
        if start == 0 and end is None:
            return self.sum_tree.total
        first, last, _ = slice(start, end).indices(self._size)
        return float(self.sum_tree.get(np.arange(first, last)).sum())

    def get_prefix_sum_idx(self, value: float | np.ndarray) -> int | np.ndarray:
        """Return the smallest i with ``value <= mass[0] + … + mass[i]``.

        Parameters
        ----------
        value : float or array of float [B]
            Each at least 0 and below the total.

        Returns
        -------
        int or int64 [B]
            Never an index of mass 0. That is the one difference from stock, which answers 0 for the
            value 0 whatever is there.

        Raises
        ------
        AssertionError
            If a value is NaN, negative, or not below the total; it is a ValueError, too.
        TypeError
            If a value is no real number.

        Notes
        -----
        O(B · log(size)); all B descend together.
        """
        prefix = np.asarray(value)
        if prefix.dtype.kind not in "biuf":
            raise TypeError(
                f"value must be a real number or an array of them, got dtype {prefix.dtype}"
            )
        total = self.sum_tree.total
        inside = (prefix >= 0) & (prefix < total)
        if not inside.all():
            wrong = prefix[~inside].flat[0]
            raise ArgumentError(
                f"value must be at least 0 and below the total, {total}, got {wrong}"
            )
        # find() wants the prefix below the sum, Tianshou not above it; in floating point that is
        # one step down.
        below = np.maximum(np.nextafter(prefix.astype(np.float64), -np.inf), 0.0)
        return self.sum_tree.find(below)

    def __getstate__(self) -> dict[str, Any]:
        return {"format": _FORMAT, "mass": self.sum_tree.get(np.arange(self._size))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        check_format("SegmentTree", state["format"], _FORMAT)
        self.__init__(len(state["mass"]))
        self.sum_tree.set(np.arange(self._size), state["mass"])

    def _check_size(self) -> None:
        """Raise if the tree is empty: the one leaf of its sum tree is not for use."""
        if not self._size:
            raise IndexRangeError("the tree has size 0: it has no masses")


def as_segment_tree(tree: tianshou.data.SegmentTree) -> SegmentTree:
    """Return `tree` if it is one of ours, or one of ours with the masses of stock's."""
    if isinstance(tree, SegmentTree):
        return tree
    ours = SegmentTree(len(tree))
    index: npt.NDArray[np.int64] = np.arange(len(tree))
    if len(tree):
        ours[index] = tree[index]
    return ours
