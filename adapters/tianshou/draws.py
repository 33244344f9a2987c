"""Draws of rows in proportion to their masses: of all rows, or of those with all their frames."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import ReplayBuffer

import kary_replay
from kary_replay.adapters.tianshou.segment_tree import SegmentTree
from kary_replay.errors import EmptyBufferError

_MAX_REDRAWS = 16


def draw(tree: kary_replay.SumTree, rng: np.random.RandomState, n: int) -> np.ndarray:
    """Return n rows, int64 [n], each drawn independently and with replacement.

    Raises EmptyBufferError, a ValueError, if no row has mass. The cost is O(n · log(rows)).
    """
    total = tree.total
    if total <= 0:
        raise EmptyBufferError(
            f"sample: cannot draw {n} rows from an empty buffer; "
            "add some first, or let a collector do so"
        )
    return tree.find(rng.random_sample(n) * total)


def draw_available(
    buffer: ReplayBuffer, weight: SegmentTree, rng: np.random.RandomState, n: int
) -> np.ndarray:
    """Return n rows that have all their earlier frames, int64 [n], each drawn independently.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer, made with ``sample_avail``. Its `stack_num` and `prev` decide which rows have
        all their earlier frames, and `sample_indices(0)` lists them.
    weight : SegmentTree
        The masses of the rows.
    rng : RandomState
        The random stream of the draws.
    n : int
        The number of draws, which are with replacement.

    Raises
    ------
    EmptyBufferError
        If none of these rows has mass. The error is a ValueError as well.
    """
    index = draw(weight.sum_tree, rng, n)
    # Another draw in place of each unavailable row keeps the proportions of the available ones.
    for _ in range(_MAX_REDRAWS):
        unavailable = np.flatnonzero(~_is_available(buffer, index))
        if not len(unavailable):
            return index
        index[unavailable] = draw(weight.sum_tree, rng, len(unavailable))
    # So few rows are available that draws from all rows hardly ever hit one.
    available = buffer.sample_indices(0)
    mass = weight[available]
    if not mass.sum() > 0:
        raise EmptyBufferError(
            f"sample: cannot draw {n} rows, because with sample_avail=True none has the "
            "stack_num - 1 earlier frames it needs; add longer episodes first"
        )
    return rng.choice(available, n, p=mass / mass.sum())


def stream(state: tuple[Any, ...]) -> np.random.RandomState:
    """Return a random stream in the `state` that `RandomState.get_state` returned."""
    rng = np.random.RandomState(0)
    rng.set_state(state)
    return rng


def _is_available(buffer: ReplayBuffer, index: np.ndarray) -> np.ndarray:
    """Return which rows have all their earlier frames, as bool in the shape of `index`."""
    for _ in range(buffer.stack_num - 2):
        index = buffer.prev(index)
    return index != buffer.prev(index)
