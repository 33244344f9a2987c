"""Draws of rows in proportion to their masses: of all rows, or of those with all their frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from tianshou.data import ReplayBuffer, ReplayBufferManager

from kary_replay.errors import EmptyBufferError

if TYPE_CHECKING:
    from kary_replay.adapters.tianshou.replay_buffer import PrioritizedReplayBuffer

_MAX_REDRAWS = 16


def draw(buffer: PrioritizedReplayBuffer, n: int) -> np.ndarray:
    """Return n rows, int64 [n], each drawn independently and with replacement.

    The uniform share of the buffer is drawn from all rows with mass alike, the rest in proportion
    to mass.

    Raises EmptyBufferError, a ValueError, if no row has mass. The cost is O(n · log(rows)).
    """
    tree, rng, share = buffer.weight.sum_tree, buffer._random_state, buffer.uniform_share
    total = tree.total
    if total <= 0:
        raise EmptyBufferError(
            f"sample: cannot draw {n} rows from an empty buffer; "
            "add some first, or let a collector do so"
        )
    if not share:
        return tree.find(rng.random_sample(n) * total)
    n_alike = n if share == 1 else rng.binomial(n, share)
    alike = _rows(buffer, n_alike)
    # Another draw in place of one without mass keeps those with mass alike.
    for _ in range(_MAX_REDRAWS):
        empty = np.flatnonzero(tree.get(alike) <= 0)
        if not len(empty):
            break
        alike[empty] = _rows(buffer, len(empty))
    else:  # hardly a row has mass: the masses know which
        empty = np.flatnonzero(tree.get(alike) <= 0)
        alike[empty] = tree.find(rng.random_sample(len(empty)) * total)
    return np.concatenate([alike, tree.find(rng.random_sample(n - n_alike) * total)])


def draw_available(buffer: PrioritizedReplayBuffer, n: int) -> np.ndarray:
    """Return n rows that have all their earlier frames, int64 [n], each drawn independently.

    The buffer was made with ``sample_avail``. Its `stack_num` and `prev` decide which rows have all
    their earlier frames, and `sample_indices(0)` lists them.

    Raises EmptyBufferError, a ValueError, if none of these rows has mass.
    """
    index = draw(buffer, n)
    # Another draw in place of each unavailable row keeps the proportions of the available ones.
    for _ in range(_MAX_REDRAWS):
        unavailable = np.flatnonzero(~_is_available(buffer, index))
        if not len(unavailable):
            return index
        index[unavailable] = draw(buffer, len(unavailable))
    # So few rows are available that draws from all rows hardly ever hit one.
    available = buffer.sample_indices(0)
    mass = buffer.weight[available]
    has_mass = mass > 0
    if not has_mass.any():
        raise EmptyBufferError(
            f"sample: cannot draw {n} rows, because with sample_avail=True none has the "
            "stack_num - 1 earlier frames it needs; add longer episodes first"
        )
    share = buffer.uniform_share
    chance = (1 - share) * mass / mass.sum() + share * has_mass / has_mass.sum()
    return buffer._random_state.choice(available, n, p=chance)


def stream(state: tuple[Any, ...]) -> np.random.RandomState:
    """Return a random stream in the `state` that `RandomState.get_state` returned."""
    rng = np.random.RandomState(0)
    rng.set_state(state)
    return rng


def _rows(buffer: PrioritizedReplayBuffer, n: int) -> np.ndarray:
    """Return n of the rows that were written, int64 [n], each drawn alike."""
    nth = buffer._random_state.randint(len(buffer), size=n)
    if not isinstance(buffer, ReplayBufferManager):
        return nth
    lengths = np.array([len(ring) for ring in buffer.buffers])
    ends = np.cumsum(lengths)
    ring = np.searchsorted(ends, nth, side="right")
    return buffer._offset[ring] + nth - (ends - lengths)[ring]


def _is_available(buffer: ReplayBuffer, index: np.ndarray) -> np.ndarray:
    """Return which rows have all their earlier frames, as bool in the shape of `index`."""
    for _ in range(buffer.stack_num - 2):
        index = buffer.prev(index)
    return index != buffer.prev(index)
