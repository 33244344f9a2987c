"""Rows of a checkpoint whose observations are stacks of frames, on their way to shards.

A row's history names rows of the same shard. Where a row goes to another shard than the rows that
it names, their frames go there, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from .local_shard import LocalShard
from .remote_shard import RemoteShard

__all__ = ["deal_frames"]

SLICES = 8  # of the ages of rows, each of which is dealt to all shards
FEWEST_ROWS = 1000  # of a slice that a shard gets, for where rows part, frames are copied
CHUNK_ROWS = 256  # handed over at once: some megabytes of frames


def deal_frames(
    saved: Sequence[PrioritizedReplayBuffer],
    shards: Sequence[LocalShard | RemoteShard],
    room: Sequence[int],
) -> None:
    """Add all transitions of some FrameReplayBuffers, and the frames that they need, to shards.

    Each saved shard goes to one, if there are as many and these have room; else all share as their
    room is. Within a shard older rows come first.
    """
    parts = [_Part(buffer) for buffer in saved]
    if len(parts) == len(shards) and all(len(p) <= r for p, r in zip(parts, room, strict=True)):
        for number, part in enumerate(parts):
            part.send(0, len(part), number, shards[number])
        return
    share = np.cumsum(room) / sum(room)
    n = max(1, min(SLICES, sum(map(len, parts)) // (FEWEST_ROWS * len(shards))))
    for one in range(n):
        ranges = [(len(p) * one // n, len(p) * (one + 1) // n) for p in parts]
        ends = np.round(share * sum(stop - first for first, stop in ranges)).astype(np.int64)
        at = 0
        for part, (first, stop) in zip(parts, ranges, strict=True):
            while first < stop:
                number = int(np.searchsorted(ends, at, side="right"))
                n_rows = min(stop - first, int(ends[number]) - at)
                part.send(first, first + n_rows, number, shards[number])
                first, at = first + n_rows, at + n_rows


class _Part:
    """A saved shard: what of it is needed, oldest first, and where it has gone."""

    def __init__(self, buffer: PrioritizedReplayBuffer) -> None:
        self._columns = {name: buffer._slots.view(i) for i, name in enumerate(buffer._names)}
        slots, priority = buffer._slots.by_age()
        handles = buffer._slots.handles()
        present = np.zeros(buffer.capacity, np.uint64)
        present[handles["index"]] = handles["generation"]
        history = self._columns["history"][slots]
        named, generation = history[..., 0], history[..., 1].view(np.uint64)
        is_there = (generation == 0) | (present[named % buffer.capacity] == generation)
        is_whole = is_there.all(axis=1)  # else a frame is gone, and the row would never be drawn
        slots, priority = slots[is_whole], priority[is_whole]
        self._priority = np.zeros(buffer.capacity)  # of transitions, by slot
        self._priority[slots] = priority
        is_needed = self._priority > 0
        is_needed[named[is_whole][generation[is_whole] > 0]] = True
        self._slots = handles["index"][is_needed[handles["index"]]]
        self._order = np.empty(buffer.capacity, np.int64)  # of the slots, by age
        self._order[self._slots] = np.arange(len(self._slots))
        self._numbers: dict[int, npt.NDArray[np.int64]] = {}  # in each shard, by slot; -1: none

    def __len__(self) -> int:
        return len(self._slots)

    def send(self, first: int, stop: int, number: int, shard: LocalShard | RemoteShard) -> None:
        """Add some of the rows to a shard, after the frames that they need and it has not got."""
        if number not in self._numbers:
            self._numbers[number] = np.full(len(self._priority), -1)
        known, slots = self._numbers[number], self._slots[first:stop]
        is_missing = known < 0
        is_missing[slots] = False
        named = self._named(slots[self._priority[slots] > 0])
        missing = np.unique(named[is_missing[named]])
        missing = missing[np.argsort(self._order[missing])]
        for rows, is_frame in ((missing, True), (slots, False)):
            for begin in range(0, len(rows), CHUNK_ROWS):
                self._add(rows[begin : begin + CHUNK_ROWS], is_frame, known, shard)

    def _named(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the slots that the histories of some rows name."""
        history = self._columns["history"][slots]
        named: npt.NDArray[np.int64] = history[..., 0][history[..., 1] != 0]
        return named

    def _add(
        self,
        slots: npt.NDArray[np.int64],
        are_frames: bool,
        known: npt.NDArray[np.int64],
        shard: LocalShard | RemoteShard,
    ) -> None:
        """Add rows to a shard, as transitions, or their frames alone."""
        known[slots] = shard.n_sent + np.arange(len(slots))
        columns: dict[str, Any] = {name: column[slots] for name, column in self._columns.items()}
        priority = self._priority[slots] * (not are_frames)
        history = columns["history"]
        is_named = (history[..., 1] != 0) & (priority > 0)[:, None]
        history[..., 0] = np.where(is_named, known[history[..., 0] % len(known)], 0)
        history[..., 1] = is_named
        shard.add(columns, priority)
