"""Rows with frames that name each other by numbers, until they have their places in a shard."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from ..errors import ShardError
from ..types import HANDLE_DTYPE

__all__ = ["NumberedRows"]


class NumberedRows:
    """Adds rows to a FrameReplayBuffer whose histories name rows that were added before.

    Parameters
    ----------
    buffer : FrameReplayBuffer
        Where the rows go.

    Notes
    -----
    The n-th row has the number n. Whoever sends rows from afar does not know where they will lie,
    but knows their numbers. One thread at a time may add; ``len`` is the number of rows added. It
    keeps 16 to 32 bytes a row.
    """

    def __init__(self, buffer: PrioritizedReplayBuffer) -> None:
        self._buffer = buffer
        self._handles: npt.NDArray[np.int64] = np.empty((0, 2), np.int64)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def add(self, columns: dict[str, Any], priority: Any) -> None:
        """Add rows; ShardError, before any is added, if one cannot be.

        Parameters
        ----------
        columns : dict of arrays [B, ...]
            By the names of the leaves. ``history`` [B, frames before the row's own, 2] has the
            number of a row that was added before, and 1; or twice 0, where there is no frame.
        priority : float64 [B]
            At least 0. Rows of priority 0 hold a frame for others, and are never drawn.
        """
        history = columns["history"]
        n = len(history)
        number, is_named = history[..., 0], history[..., 1]
        end = np.where(is_named == 1, self._n + np.arange(n)[:, None], 1)
        is_wrong = (is_named >> 1 != 0) | (number < 0) | (number >= end)
        if is_wrong.any():
            raise ShardError("a history names something else than rows that came before")
        checked = self._checked(priority, n)
        if self._n + n > len(self._handles):
            room = np.zeros((max(self._n + n, 2 * len(self._handles)), 2), np.int64)
            room[: self._n] = self._handles[: self._n]
            self._handles = room
        latest = np.where(is_named == 1, number, -1).max(axis=1, initial=-1)
        first, added = 0, np.empty(n, HANDLE_DTYPE)
        for stop in _groups(latest, self._n):
            rows = {name: column[first:stop] for name, column in columns.items()}
            rows["history"] = self._handles[number[first:stop]] * is_named[first:stop, :, None]
            self._buffer._writer.add(rows, checked=checked[first:stop], handles=added[first:stop])
            places = added[first:stop].view(np.int64).reshape(-1, 2)
            self._handles[self._n + first : self._n + stop] = places
            first = stop
        self._n += n

    def _checked(self, priority: Any, n: int) -> npt.NDArray[np.float64]:
        """Return priorities of n rows; ShardError if they are none."""
        given = np.array(priority, np.float64, ndmin=1)
        largest = float(self._buffer._slots.largest)
        if given.shape != (n,) or not ((given >= 0) & (given <= largest)).all():
            raise ShardError(f"rows with frames have priorities from 0 to {largest:.3g} each")
        return given


def _groups(latest: npt.NDArray[np.int64], first: int) -> list[int]:
    """Return where to divide rows so that histories name rows of former parts alone.

    ``latest`` is the largest number in each row's history, and ``first`` the first row's number.
    """
    ends, begin = [], first
    for own, newest in enumerate(latest.tolist(), first):
        if newest >= begin:
            ends.append(own - first)
            begin = own
    return [*ends, len(latest)]
