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
    """Sums and prefix sums over masses, with the methods of `tianshou.data.SegmentTree`.

    Parameters
    ----------
    size : int
        The number of masses, at least 0.

    Attributes
    ----------
    sum_tree : kary_replay.SumTree
        The native tree that holds the masses.
    may_have_gaps : bool
        Whether a mass of 0 was set among the others.

    Raises
    ------
    ValueError, TypeError
        If size is negative or not a whole number.

    Notes
    -----
    Three things differ from Tianshou's tree. Masses must be finite and at least 0. Negative indices
    are refused; Tianshou's tree returns the sum of an inner node for them. And `get_prefix_sum_idx`
    does not change its argument. Any number of threads may call the methods at once. The methods
    release the GIL, and writers take turns.

    Examples
    --------
    >>> import numpy as np
    >>> from kary_replay.adapters.tianshou import SegmentTree
    >>> tree = SegmentTree(4)
    >>> tree[np.arange(4)] = np.array([1.0, 0.0, 2.0, 1.0])
    >>> tree.reduce(), tree.reduce(1, -1), tree.get_prefix_sum_idx(1.5)
    (4.0, 2.0, 2)
    """

    # Tianshou's __init__ is not called. It would allocate a second tree, and compile functions that
    # are never used here.
    def __init__(self, size: int) -> None:
        number = as_real("size", size)
        if not number.is_integer():
            raise TypeError(f"size must be a whole number, got {size!r}")
        if number < 0:
            raise ValueError(f"size must be at least 0, got {size!r}")
        self._size = int(number)
        self.may_have_gaps = False
        self.sum_tree = kary_replay.SumTree(max(self._size, 1))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int | np.ndarray) -> float | np.ndarray:
        """Return the masses at `index`, as float64 in the shape of `index`.

        Raises IndexError if an index is not in 0 … size - 1, and TypeError for a slice or a mask.
        The cost is O(B).
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
            The indices. If one comes twice, the last value wins.
        value : float or array of float [B]
            The masses, finite and at least 0. A single number is set at every index.

        Raises
        ------
        AssertionError
            If an index is not in 0 … size - 1. The error is an IndexError as well.
        ValueError, TypeError
            If a value is NaN, infinite or negative, a length differs, or a slice is given. No mass
            has changed after any of these errors.

        Notes
        -----
        The cost is O(B · log(size)).
        """
        try:
            self._check_size()
            self.sum_tree.set(index, value)
            if not (value > 0 if isinstance(value, float) else np.all(np.asarray(value) > 0)):
                self.may_have_gaps = True
        except IndexRangeError as error:
            raise LeafIndexError(str(error)) from None

    def n_with_mass(self, n: int) -> int:
        """Return how many masses are above 0, where n have been set.

        The cost is O(1), and O(size) once a mass of 0 was set.
        """
        return len(self.with_mass()) if self.may_have_gaps else n

    def with_mass(self) -> npt.NDArray[np.int64]:
        """Return the indices whose masses are above 0, int64 [n]; O(size)."""
        return np.flatnonzero(self.sum_tree.get(np.arange(self._size)))

    def reduce(self, start: int = 0, end: int | None = None) -> float:
        """Return the sum of the masses start … end - 1.

        As in a slice, a negative number counts from the right. The sum of all masses costs one
        load, and that of any other range O(end - start).
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
            The prefix sums, each at least 0 and below the total.

        Returns
        -------
        int or int64 [B]
            The indices. None of them has mass 0. Tianshou's tree differs in one case: it returns 0
            for the value 0, even if index 0 has no mass.

        Raises
        ------
        AssertionError
            If a value is NaN, negative, or not below the total. The error is a ValueError as well.
        TypeError
            If a value is not a real number.

        Notes
        -----
        The cost is O(B · log(size)). All B searches descend together, one level at a time.
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
        # The native tree returns the first i with value < sum, Tianshou's the first with
        # value <= sum. The next smaller float64 turns one condition into the other.
        below = np.maximum(np.nextafter(prefix.astype(np.float64), -np.inf), 0.0)
        return self.sum_tree.find(below)

    def __getstate__(self) -> dict[str, Any]:
        mass = self.sum_tree.get(np.arange(self._size))
        return {"format": _FORMAT, "mass": mass, "may_have_gaps": self.may_have_gaps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        check_format("SegmentTree", state["format"], _FORMAT)
        self.__init__(len(state["mass"]))
        self.sum_tree.set(np.arange(self._size), state["mass"])
        self.may_have_gaps = bool(state.get("may_have_gaps", True))

    def _check_size(self) -> None:
        """Raise if the size is 0, for which the native tree has a leaf that must not be used."""
        if not self._size:
            raise IndexRangeError("the tree has size 0: it has no masses")


def as_segment_tree(tree: tianshou.data.SegmentTree) -> SegmentTree:
    """Return `tree`, or for a tree of Tianshou's own class one of ours with the same masses."""
    if isinstance(tree, SegmentTree):
        return tree
    ours = SegmentTree(len(tree))
    index: npt.NDArray[np.int64] = np.arange(len(tree))
    if len(tree):
        ours[index] = tree[index]
    return ours
