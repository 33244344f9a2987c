"""Tianshou's SegmentTree and PrioritizedReplayBuffer (numba, float64)."""

from __future__ import annotations

from typing import Any

import numpy as np
from tianshou.data import Batch, PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer, SegmentTree

from bench.harness.timing import Contender
from bench.rivals.rows import ALPHA, BETA, VECTOR, Kind, Updates, chunks, rows

TREE = "Tianshou SegmentTree"
NAME, VECTOR_NAME = "Tianshou PrioritizedReplayBuffer", "Tianshou PrioritizedVectorReplayBuffer"


class TianshouTree:
    """The bare tree, used the way Tianshou's buffer uses it."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.tree = SegmentTree(slots)
        for where, _, errors in chunks(slots):
            self.tree[np.arange(where.start, where.stop)] = np.float64(errors) ** ALPHA

    def sample(self, batch: int) -> Contender:
        tree = self.tree

        def call() -> np.ndarray:  # the two lines of PrioritizedReplayBuffer.sample_indices
            scalar = np.random.rand(batch) * tree.reduce()
            return tree.get_prefix_sum_idx(scalar)

        return Contender(TREE, call, lambda n: [()] * n)

    def update(self, batch: int) -> Contender:
        updates = Updates(self._slots, batch)

        def inputs(n: int) -> list[tuple[Any, ...]]:
            return [(index, np.float64(mass)) for index, mass in updates.pairs(n)]

        return Contender(TREE, self.tree.__setitem__, inputs)


class TianshouBuffer:
    """PrioritizedReplayBuffer, or its vector form where several rows are added at once."""

    def __init__(self, slots: int, rows_per_add: int = 1, kind: Kind = VECTOR) -> None:
        self.name = NAME if rows_per_add == 1 else VECTOR_NAME
        self._slots, self._rows, self._kind = slots, rows_per_add, kind
        if rows_per_add == 1:
            self.buffer = PrioritizedReplayBuffer(slots, alpha=ALPHA, beta=BETA)
        else:
            self.buffer = PrioritizedVectorReplayBuffer(slots, rows_per_add, alpha=ALPHA, beta=BETA)
            self._slots = slots = self.buffer.maxsize
        # creates the storage with the dtypes Tianshou chooses
        self.buffer.add(*self._add_arguments(seed=1))
        self._fill(slots)

    def _fill(self, slots: int) -> None:
        """Write the arrays that the first add made; adding 1e7 rows would take long."""
        buffer, meta = self.buffer, self.buffer._meta
        for where, block, errors in chunks(slots, self._kind):
            meta.obs[where] = block["observation"]
            meta.act[where] = block["action"]
            meta.rew[where] = block["reward"]
            meta.obs_next[where] = block["next_observation"]
            meta.terminated[where] = meta.truncated[where] = meta.done[where] = False
            if self._rows == 1:
                buffer._size = where.stop
            buffer.update_weight(np.arange(where.start, where.stop), errors)
        if self._rows > 1:
            for child in buffer.buffers:
                child._size = child.maxsize
            buffer._lengths[:] = [child.maxsize for child in buffer.buffers]

    def _add_arguments(self, seed: int) -> tuple[Any, ...]:
        block = rows(self._rows, seed, self._kind)
        batch = Batch(
            obs=block["observation"],
            act=block["action"],
            rew=block["reward"],
            obs_next=block["next_observation"],
            terminated=block["terminated"],
            truncated=np.zeros(self._rows, bool),
        )
        return (batch[0],) if self._rows == 1 else (batch, np.arange(self._rows))

    def sample(self, batch: int) -> Contender:
        return Contender(self.name, self.buffer.sample, lambda n: [(batch,)] * n)

    def update(self, batch: int) -> Contender:
        updates = Updates(self._slots, batch)
        return Contender(self.name, self.buffer.update_weight, updates.pairs)

    def cycle(self, batch: int) -> Contender:
        buffer, updates = self.buffer, Updates(self._slots, batch)

        def call(errors: np.ndarray) -> None:
            _, index = buffer.sample(batch)
            buffer.update_weight(index, errors)

        return Contender(self.name, call, lambda n: [(errors,) for errors in updates.errors(n)])

    def add(self) -> Contender:
        pool = [self._add_arguments(seed) for seed in range(64)]
        return Contender(self.name, self.buffer.add, lambda n: [pool[i % 64] for i in range(n)])
