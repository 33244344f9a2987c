"""Steps of episodes in a native buffer, each linked to the next one of its episode."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

import kary_replay as kr
from kary_replay.adapters.rllib.chunks import Chunk, Columns, is_observation
from kary_replay.errors import EmptyBufferError

# Beside the columns of an episode. `next` says how many rows later the next step was added, and is
# 0 for the newest observation of an episode, which is no step yet, and none ever if the episode has
# ended there.
_FIELDS = {
    "reward": kr.Field((), np.float32),
    "terminated": kr.Field((), np.bool_),
    "truncated": kr.Field((), np.bool_),
    "next": kr.Field((), np.int32),
    "time": kr.Field((), np.int32),
}


class Steps:
    """A ring of steps, from which n-step transitions of any n are drawn by priority.

    A row is an observation, with what was done there and what came of it. The newest observation of
    an episode is a row without mass; the next chunk of the episode completes it.

    Parameters
    ----------
    capacity : int
        Rows kept, at least 2.
    columns : Columns
        What an observation and an action consist of.
    **options
        For `kary_replay.PrioritizedReplayBuffer`.

    Notes
    -----
    One thread at a time may use it.

    Row number r is in slot r % capacity. The next step of a row is younger than the row itself, so
    the ring never loses it first.
    """

    def __init__(self, capacity: int, columns: Columns, **options: Any) -> None:
        self.columns = columns
        self.native = kr.PrioritizedReplayBuffer(capacity, {**columns.fields, **_FIELDS}, **options)
        # numbers of the newest rows, oldest first, and whose they are
        self.tails: OrderedDict[int, str] = OrderedDict()
        self.open: dict[str, int] = {}  # the newest rows of the episodes that go on
        self.n_episodes = 0  # ever begun
        self._see_rows()

    def _see_rows(self) -> None:
        self._views = {name: self.native.field_view(name) for name in self.native.fields}

    def __len__(self) -> int:
        """Return the number of steps that can be drawn."""
        return len(self.native) - len(self.tails)

    def without_rows(self) -> dict[str, Any]:
        """Return what is known beside the native buffer, for `with_rows`."""
        return {name: value for name, value in self.__getstate__().items() if name != "native"}

    @classmethod
    def with_rows(cls, state: dict[str, Any], native: kr.PrioritizedReplayBuffer) -> Steps:
        """Return steps of the rows that were saved with the state."""
        steps = cls.__new__(cls)
        steps.__setstate__({**state, "native": native})
        return steps

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_views"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._see_rows()

    # ----------------------------------------------------------------------------------------- add

    def add(self, chunks: Sequence[Chunk], priority: float | None) -> None:
        """Append chunks of episodes, each to what is there of its episode.

        A chunk that does not begin where its episode's rows end, or whose episode has left the
        ring, begins anew. `priority` None is the largest one seen. Nothing is changed if it raises.
        """
        capacity = self.native.capacity
        n_rows = sum(chunk.n_steps + 1 for chunk in chunks)
        if n_rows > capacity and len(chunks) > 1:
            for chunk in chunks:
                self.add([chunk], priority)
        elif n_rows > capacity:
            self._add([chunks[0].last(capacity - 1)], priority)
        else:
            self._add(chunks, priority)

    def _add(self, chunks: Sequence[Chunk], priority: float | None) -> None:
        begin = self.native.n_added
        continued = self._continued(chunks, begin)
        ends = begin + np.cumsum(
            [chunk.n_steps + (row is None) for chunk, row in zip(chunks, continued, strict=True)]
        )
        rows = self._rows(chunks, continued, ends - begin)
        self.native.add(priority=priority, **rows)
        tails = ends - 1
        self.native.tree.set(tails % self.native.capacity, np.zeros(len(tails)))
        self._complete(chunks, continued, ends, priority)
        for chunk, row, tail in zip(chunks, continued, tails.tolist(), strict=True):
            if row is None:
                self.n_episodes += 1
            else:
                del self.tails[row]
            self.tails[tail] = chunk.id
            self.open[chunk.id] = tail
            if chunk.is_done:
                del self.open[chunk.id]
        self._forget(self.native.n_added - self.native.capacity)

    def _continued(self, chunks: Sequence[Chunk], begin: int) -> list[int | None]:
        """Return the row that each chunk completes, or None where it begins anew.

        It begins anew, too, where these chunks push out the row that it would complete.
        """
        oldest = begin + sum(chunk.n_steps + 1 for chunk in chunks) - self.native.capacity
        newest: dict[str, tuple[int, int]] = {}  # row and time, of episodes in this very call
        found: list[int | None] = []
        for chunk in chunks:
            row, time = newest.get(chunk.id, (None, -1))
            if row is None and (row := self.open.get(chunk.id)) is not None:
                time = int(self._views["time"][row % self.native.capacity])
            if row is not None and (time != chunk.first or row < oldest):
                row = None
            found.append(row)
            begin += chunk.n_steps + (row is None)
            newest[chunk.id] = (
                (-1, -1) if chunk.is_done else (begin - 1, chunk.first + chunk.n_steps)
            )
        return found

    def _rows(
        self, chunks: Sequence[Chunk], continued: Sequence[int | None], ends: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the new rows of all chunks, field by field."""
        n = int(ends[-1])
        rows = {
            name: np.zeros((n, *view.shape[1:]), view.dtype) for name, view in self._views.items()
        }
        begin = 0
        for chunk, row, end in zip(chunks, continued, ends.tolist(), strict=True):
            skipped = row is not None  # the row that it completes has its first observation
            rows["time"][begin:end] = np.arange(
                chunk.first + skipped, chunk.first + chunk.n_steps + 1
            )
            rows["next"][begin : end - 1] = 1
            rows["reward"][begin : end - 1] = chunk.reward[skipped:]
            for name, array in chunk.leaves.items():
                stop = begin + len(array) - skipped
                rows[name][begin:stop] = array[skipped:]
            if end - 1 > begin:
                rows["terminated"][end - 2] = chunk.is_terminated
                rows["truncated"][end - 2] = chunk.is_truncated
            begin = end
        return rows

    def _complete(
        self,
        chunks: Sequence[Chunk],
        continued: Sequence[int | None],
        ends: np.ndarray,
        priority: float | None,
    ) -> None:
        """Make steps of the rows that were the newest ones until now."""
        capacity = self.native.capacity
        pairs = [
            (chunk, row, int(end) - chunk.n_steps)
            for chunk, row, end in zip(chunks, continued, ends, strict=True)
            if row is not None
        ]
        if not pairs:
            return
        views = self._views
        for chunk, row, successor in pairs:
            slot = row % capacity
            for name, array in chunk.leaves.items():
                if not is_observation(name):
                    views[name][slot] = array[0]
            views["reward"][slot] = chunk.reward[0]
            views["next"][slot] = successor - row
            if chunk.n_steps == 1:
                views["terminated"][slot] = chunk.is_terminated
                views["truncated"][slot] = chunk.is_truncated
        largest = self.native.max_priority if priority is None else priority
        slots = np.array([row % capacity for _, row, _ in pairs])
        self.native.tree.set(slots, np.full(len(pairs), largest**self.native.alpha))

    def _forget(self, oldest: int) -> None:
        """Drop what is known of newest rows that have left the ring."""
        while self.tails and next(iter(self.tails)) < oldest:
            row, whose = self.tails.popitem(last=False)
            if self.open.get(whose) == row:
                del self.open[whose]

    # ---------------------------------------------------------------------------------------- draw

    def draw(self, n_rows: int, n_step: np.ndarray, gamma: float) -> kr.Batch:
        """Draw rows, and follow each for up to ``n_step`` steps [n_rows].

        A return has fewer steps if its episode, or what is there of it, ends earlier. The batch has
        ``reward`` (discounted sums), ``terminated`` and ``truncated`` of the last step, ``n_step``
        (how many there are), and the leaves of the observation after it as ``next_observation``,
        beside the columns of the rows.

        Raises EmptyBufferError if there is no step.
        """
        if not len(self):
            raise EmptyBufferError(
                f"sample: cannot draw {n_rows} rows from a buffer without a complete step; "
                "add episodes first"
            )
        batch = self.native.sample(n_rows)
        capacity, views = self.native.capacity, self._views
        last = batch.index  # the row of the last step so far
        after = (last + batch.next) % capacity
        n_summed = np.ones(n_rows, np.int64)
        longest = int(n_step.max())
        if longest > 1:
            last = last.copy()
            total = batch.reward.astype(np.float64)
            going = np.arange(n_rows)  # those whose return goes on
            for step in range(1, longest):
                at = after[going]
                offset = views["next"][at]
                goes_on = (offset > 0) & (step < n_step[going])
                going, at, offset = going[goes_on], at[goes_on], offset[goes_on]
                if not len(going):
                    break
                total[going] += gamma**step * views["reward"][at].astype(np.float64)
                n_summed[going] += 1
                last[going], after[going] = at, (at + offset) % capacity
            batch.reward = total.astype(np.float32)
            batch.terminated, batch.truncated = views["terminated"][last], views["truncated"][last]
        batch.n_step = n_summed
        batch.next_observation = {
            name: views[name][after] for name in self.columns.fields if is_observation(name)
        }
        return batch
