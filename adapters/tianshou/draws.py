"""Drawing rows in proportion to their masses, from all of a buffer's rows or from those with all their frames."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import ReplayBuffer

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
        raise EmptyBufferError(
            f"sample: cannot draw {n} rows from an empty buffer; add some first, or let a collector do so"
        )
    return tree.find(rng.random_sample(n) * total)


def draw_available(
    buffer: ReplayBuffer, weight: SegmentTree, rng: np.random.RandomState, n: int
) -> np.ndarray:
    """Return n of the rows that have all their earlier frames, int64 [n], each drawn independently, with replacement.

    Parameters
    ----------
    buffer : ReplayBuffer
        Whose `stack_num` and `prev` decide which rows those are; with ``sample_avail``,
        `sample_indices(0)` lists them.
    weight : SegmentTree
        The masses.
    rng : RandomState
        Where the draws come from.
    n : int
        How many.

    Raises
    ------
    EmptyBufferError
        If none has mass; a ValueError, too.
    """
    index = draw(weight.sum_tree, rng, n)
    # redrawing what is not available leaves the others' proportions as they are
    for _ in range(_MAX_REDRAWS):
        unavailable = np.flatnonzero(~_is_available(buffer, index))
        if not len(unavailable):
            return index
        index[unavailable] = draw(weight.sum_tree, rng, len(unavailable))
    available = buffer.sample_indices(0)  # too few to be hit by chance
    mass = weight[available]
    if not mass.sum() > 0:
        raise EmptyBufferError(
            f"sample: cannot draw {n} rows, because with sample_avail=True none has the stack_num - 1 earlier frames it needs; "
            "add longer episodes first"
        )
    return rng.choice(available, n, p=mass / mass.sum())


def stream(state: tuple[Any, ...]) -> np.random.RandomState:
    """Return the stream of draws that goes on from `state`, which `RandomState.get_state` returned."""
    rng = np.random.RandomState(0)
    rng.set_state(state)
    return rng


def _is_available(buffer: ReplayBuffer, index: np.ndarray) -> np.ndarray:
    """Tell which rows have all their earlier frames: bool, in the shape of `index`."""
    for _ in range(buffer.stack_num - 2):
        index = buffer.prev(index)
    return index != buffer.prev(index)
