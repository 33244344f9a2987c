"""Drawing rows in proportion to their masses, from all of a buffer's rows or from those with all their frames."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import kary_replay
from kary_replay.adapters.tianshou.segment_tree import SegmentTree
from kary_replay.errors import EmptyBufferError

_MAX_REDRAWS = 16


def draw(tree: kary_replay.SumTree, rng: np.random.RandomState, n: int) -> np.ndarray:
    """Return n rows, int64 [n], each drawn independently, with replacement.

    Raises EmptyBufferError, a ValueError, if no row has mass. O(n · log(rows)).
    """
    total = tree.total
    if total <= 0:
        raise EmptyBufferError(f"sample: cannot draw {n} rows from an empty buffer; add some first, or let a collector do so")
    return tree.find(rng.random_sample(n) * total)


def draw_available(
    weight: SegmentTree,
    rng: np.random.RandomState,
    n: int,
    is_available: Callable[[np.ndarray], np.ndarray],
    all_available: Callable[[], np.ndarray],
) -> np.ndarray:
    """Return n of the rows that are available, int64 [n], each drawn independently, with replacement.

    Parameters
    ----------
    weight : SegmentTree
        The masses.
    rng : RandomState
        Where the draws come from.
    n : int
        How many.
    is_available : callable
        Tells it of an array of rows.
    all_available : callable
        Returns all of them; called only where they are too few to be hit by chance.

    Raises
    ------
    EmptyBufferError
        If none has mass; a ValueError, too.
    """
    index = draw(weight.sum_tree, rng, n)
    for _ in range(_MAX_REDRAWS):  # redrawing what is not available leaves the others' proportions as they are
        unavailable = np.flatnonzero(~is_available(index))
        if not len(unavailable):
            return index
        index[unavailable] = draw(weight.sum_tree, rng, len(unavailable))
    available = all_available()
    mass = weight[available]
    if not mass.sum() > 0:
        raise EmptyBufferError(
            f"sample: cannot draw {n} rows, because with sample_avail=True none has the stack_num - 1 earlier frames it needs; "
            "add longer episodes first"
        )
    return rng.choice(available, n, p=mass / mass.sum())
