"""Programs of adds, draws and updates beside a model that keeps lists."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from rllib_episodes import check_row, episode

from kary_replay.adapters.rllib import PrioritizedEpisodeReplayBuffer

CAPACITY = 40


class Programs(RuleBasedStateMachine):
    """Episodes come in chunks, several at a time, go on, end, and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = PrioritizedEpisodeReplayBuffer(
            CAPACITY, seed=0, alpha=1.0, priority_epsilon=1e-9
        )
        # (episode, time), by age; the time is None where the episode began anew elsewhere
        self.rows: list[tuple[int, int | None]] = []
        self.last: dict[int, int] = {}  # the newest time of each
        self.ended: dict[int, tuple[bool, bool]] = {}
        self.priority: dict[tuple[int, int], float] = {}
        self.largest = 1.0
        self.n_begun = 0

    def _alive(self):
        return self.rows[-CAPACITY:]

    def _steps(self):
        return [(n, t) for n, t in self._alive() if t is not None and t < self.last[n]]

    @rule(
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
        new=st.booleans(),
        end=st.sampled_from([None, (True, False), (False, True)]),
    )
    def add(self, lengths, new, end):
        chunks = []
        alive = {n for n, t in self._alive() if t == self.last[n]}
        going = [n for n in self.last if n not in self.ended and n in alive]
        for length in lengths:
            if new or not going:
                number, first = self.n_begun, 0
                self.n_begun += 1
            else:
                number = going.pop(0)
                first = self.last[number]
            chunks.append((number, first, first + length))
        total = sum(last - first + 1 for _, first, last in chunks)
        if total > CAPACITY:
            return
        terminated, truncated = end or (False, False)
        self.buffer.add(
            [episode(*chunk, terminated=terminated, truncated=truncated) for chunk in chunks]
        )
        oldest = len(self.rows) + total - CAPACITY
        for number, first, last in chunks:
            newest = self.rows.index((number, first)) if first else -1
            if first and newest < oldest:  # these chunks push it out
                self.rows[newest] = number, None
            goes_on = first > 0 and newest >= oldest
            self.rows += [(number, t) for t in range(first + goes_on, last + 1)]
            self.last[number] = last
            for t in range(first, last):
                self.priority[number, t] = self.largest
            if end:
                self.ended[number] = end

    @precondition(lambda self: self._steps())
    @rule(n=st.integers(1, 12), n_step=st.integers(1, 5), data=st.data())
    def draw(self, n, n_step, data):
        rows = self.buffer.sample(n, n_step=n_step, gamma=0.9)
        there = set(self._steps())
        for row in rows:
            assert tuple(map(int, row.get_observations(0))) in there
            check_row(row, self.last, self.ended, 0.9, n_step)
        if data.draw(st.booleans()):
            errors = data.draw(st.lists(st.floats(0, 50), min_size=n, max_size=n))
            self.buffer.update_priorities(np.array(errors))
            for row, error in zip(rows, errors, strict=True):
                where = tuple(map(int, row.get_observations(0)))
                self.priority[where] = error + 1e-9
                self.largest = max(self.largest, error + 1e-9)

    @rule()
    def save_and_load(self):
        state = self.buffer.get_state()
        self.buffer = PrioritizedEpisodeReplayBuffer(CAPACITY, alpha=1.0, priority_epsilon=1e-9)
        self.buffer.set_state(state)

    @invariant()
    def it_is_as_the_model_says(self):
        steps = self._steps()
        assert len(self.buffer) == len(steps)
        if not self.rows:
            return
        newest = [n for n, t in self._alive() if t is None or t == self.last[n]]
        assert self.buffer.get_num_episodes() == len(newest)
        native = self.buffer._steps.native
        native.check_invariants()
        slots = np.arange(len(native))
        seen = map(tuple, native.field_view("observation")[slots].astype(int).tolist())
        found = {w: m for w, m in zip(seen, native.tree.get(slots), strict=True) if m}
        assert set(found) == set(steps)
        for where in steps:
            np.testing.assert_allclose(found[where], self.priority[where], rtol=1e-6)


TestPrograms = Programs.TestCase
