"""Draws of rows by their masses, some of them alike: of all, or of those with all their frames."""

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
    alike = _with_mass(buffer, n_alike)
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
    if not mass.sum() > 0:
        raise EmptyBufferError(
            f"sample: cannot draw {n} rows, because with sample_avail=True none has the "
            "stack_num - 1 earlier frames it needs; add longer episodes first"
        )
    chance = (mass > 0) * buffer._share.chance(buffer._relative(mass))
    return buffer._random_state.choice(available, n, p=chance / chance.sum())


def stream(state: tuple[Any, ...]) -> np.random.RandomState:
    """Return a random stream in the `state` that `RandomState.get_state` returned."""
    rng = np.random.RandomState(0)
    rng.set_state(state)
    return rng


def _with_mass(buffer: PrioritizedReplayBuffer, n: int) -> np.ndarray:
    """Return n of the rows that have mass, int64 [n], each drawn alike."""
    n_rows = len(buffer)
    if buffer.weight.may_have_gaps or not n_rows:
        return buffer._random_state.choice(buffer.weight.with_mass(), n)
    nth = buffer._random_state.randint(n_rows, size=n)
    if not isinstance(buffer, ReplayBufferManager):
        return nth
    ends = np.cumsum(buffer._lengths)
    ring = np.searchsorted(ends, nth, side="right")
    return buffer._offset[ring] + nth - (ends - buffer._lengths)[ring]


def _is_available(buffer: ReplayBuffer, index: np.ndarray) -> np.ndarray:
    """Return which rows have all their earlier frames, as bool in the shape of `index`."""
    for _ in range(buffer.stack_num - 2):
        index = buffer.prev(index)
    return index != buffer.prev(index)
