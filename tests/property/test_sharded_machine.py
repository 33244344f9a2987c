"""Programs of adds, draws, updates and resets, against one tree and a plain model of the rows."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from shards import FIELDS, far, new_shard, rows

import kary_replay as kr

DYADIC = st.integers(1, 1 << 12).map(lambda n: n / 16)  # their sums are exact


class ShardedMachine(RuleBasedStateMachine):
    """A sharded buffer, and what its rings should hold.

    The reference is one buffer with as many slots, of which each gets the mass that the model says.
    It draws with the same random numbers, so its batches are the same rows.
    """

    @initialize(
        capacities=st.lists(st.integers(1, 12), min_size=1, max_size=4),
        are_far=st.lists(st.booleans(), min_size=4, max_size=4),
        seed=st.integers(0, 2**32),
    )
    def begin(self, capacities, are_far, seed):
        self.capacities, self.are_far = capacities, are_far[: len(capacities)]
        shards = [new_shard(n, priority_epsilon=1e-300) for n in capacities]
        self.shards = [
            far(one) if is_far else one for one, is_far in zip(shards, self.are_far, strict=True)
        ]
        self.many = kr.ShardedReplayBuffer(self.shards, seed=seed)
        self.one = kr.PrioritizedReplayBuffer(sum(capacities), FIELDS, alpha=1.0, seed=seed)
        self.one.add(**rows(np.zeros(sum(capacities), np.int64)))
        self.rings = [[] for _ in capacities]  # (slot, number, priority), and how many ever
        self.n_added = [0] * len(capacities)
        self.number, self.turn, self.largest = 0, 0, 1.0
        self.batch = None

    def put(self, s, numbers, priorities):
        ring = {slot: (number, priority) for slot, number, priority in self.rings[s]}
        for number, priority in zip(numbers, priorities, strict=True):
            ring[self.n_added[s] % self.capacities[s]] = (number, priority)
            self.n_added[s] += 1
        self.rings[s] = [(slot, *row) for slot, row in ring.items()]

    @rule(n=st.integers(1, 15), given_priority=st.none() | DYADIC)
    def add(self, n, given_priority):
        numbers = np.arange(self.number, self.number + n)
        self.number += n
        if given_priority is not None:
            self.largest = max(self.largest, given_priority)
        self.many.add(**rows(numbers), priority=given_priority)
        self.put(self.turn, numbers.tolist(), [given_priority or self.largest] * n)
        self.turn = (self.turn + 1) % len(self.capacities)

    @rule(batch_size=st.integers(1, 40), stratified=st.booleans())
    def sample(self, batch_size, stratified):
        if not any(self.rings):
            return
        self.many.settle()
        first, masses, numbers = 0, np.zeros(sum(self.capacities)), {}
        for s, ring in enumerate(self.rings):
            for slot, number, priority in ring:
                masses[first + slot], numbers[first + slot] = priority, number
            first += self.capacities[s]
        self.one.tree.set(np.arange(len(masses)), masses)
        expected = self.one.sample(batch_size, stratified=stratified)
        self.batch = self.many.sample(batch_size, stratified=stratified)
        assert self.batch.number.tolist() == [numbers[slot] for slot in expected.index.tolist()]
        np.testing.assert_allclose(
            self.batch.importance_weight, expected.importance_weight, rtol=1e-6
        )
        assert self.many.distance == 0

    @precondition(lambda self: getattr(self, "batch", None) is not None)
    @rule(data=st.data())
    def update(self, data):
        n = len(self.batch.number)
        errors = np.array(data.draw(st.lists(DYADIC, min_size=n, max_size=n)))
        self.many.update_priorities(self.batch.handle, errors)
        wanted = dict(zip(self.batch.number.tolist(), errors.tolist(), strict=True))
        alive = {number for ring in self.rings for _, number, _ in ring}
        for number, error in wanted.items():
            if number in alive:
                self.largest = max(self.largest, error)
        self.rings = [
            [(slot, number, wanted.get(number, priority)) for slot, number, priority in ring]
            for ring in self.rings
        ]
        # the last of the same row wins; the largest counts all that were applied
        for number, error in zip(self.batch.number.tolist(), errors.tolist(), strict=True):
            if number in alive:
                self.largest = max(self.largest, error)
        self.many.settle()

    @rule()
    def forget_all(self):
        self.many.reset()
        self.rings = [[] for _ in self.capacities]
        self.batch = None
        self.largest = self.many.max_priority
        self.n_added = [0] * len(self.capacities)

    @invariant()
    def agrees(self):
        if not hasattr(self, "many"):
            return
        self.many.settle()
        assert len(self.many) == sum(map(len, self.rings))
        assert self.many.total_mass == sum(row[2] for ring in self.rings for row in ring)


TestSharded = ShardedMachine.TestCase
