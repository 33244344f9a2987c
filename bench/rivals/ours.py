"""kary-replay, behind the same few methods as its rivals."""

from __future__ import annotations

from typing import Any

import numpy as np

import kary_replay as kr
from bench.harness.timing import Contender
from bench.rivals.rows import ALPHA, BETA, VECTOR, Kind, Updates, chunks, rows

DEFAULT_ARITY = kr.sum_tree.DEFAULT_ARITY
TREE = "kary-replay SumTree"
NAME = "kary-replay PrioritizedReplayBuffer"


def fields(kind: Kind) -> dict[str, kr.Field]:
    observation = kr.Field(kind.observation, kind.observation_dtype)
    return {
        "observation": observation,
        "action": kr.Field(kind.action, kind.action_dtype),
        "reward": kr.Field((), "float32"),
        "next_observation": observation,
        "terminated": kr.Field((), "bool"),
    }


FIELDS = fields(VECTOR)


class OurTree:
    """The bare tree, filled with the masses its rivals get."""

    def __init__(self, slots: int, name: str = TREE, **options: Any) -> None:
        self._slots, self._name = slots, name
        self.tree = kr.SumTree(slots, **options)
        for where, _, errors in chunks(slots):
            self.tree.set(np.arange(where.start, where.stop), np.float64(errors) ** ALPHA)

    def sample(self, batch: int) -> Contender:
        return Contender(self._name, self.tree.sample, lambda n: [(batch,)] * n)

    def update(self, batch: int) -> Contender:
        updates = Updates(self._slots, batch)

        def inputs(n: int) -> list[tuple[Any, ...]]:
            return [(index, np.float64(mass)) for index, mass in updates.pairs(n)]

        return Contender(self._name, self.tree.set, inputs)


class OurBuffer:
    """PrioritizedReplayBuffer with its defaults."""

    name = NAME

    def __init__(self, slots: int, rows_per_add: int = 1, kind: Kind = VECTOR) -> None:
        self._slots, self._rows, self._kind = slots, rows_per_add, kind
        self.buffer = kr.PrioritizedReplayBuffer(
            slots, fields(kind), alpha=ALPHA, beta=BETA, seed=0
        )
        for _, block, errors in chunks(slots, kind):
            self.buffer.add(priority=errors, **block)

    def sample(self, batch: int) -> Contender:
        return Contender(NAME, self.buffer.sample, lambda n: [(batch,)] * n)

    def update(self, batch: int) -> Contender:
        """Update uniformly drawn slots, as the rivals do; every handle has the first generation."""
        drawn = self.buffer.sample(64).handle
        assert len(np.unique(drawn["generation"])) == 1
        generation, updates = drawn["generation"][0], Updates(self._slots, batch)

        def inputs(n: int) -> list[tuple[Any, ...]]:
            handle = np.empty((n, batch), kr.HANDLE_DTYPE)
            handle["index"], handle["generation"] = updates.indices(n), generation
            return list(zip(handle, updates.errors(n), strict=True))

        # every timed update really happens
        assert self.buffer.update_priorities(*inputs(1)[0]) == batch
        return Contender(NAME, self.buffer.update_priorities, inputs)

    def cycle(self, batch: int) -> Contender:
        buffer, updates = self.buffer, Updates(self._slots, batch)

        def call(errors: np.ndarray) -> None:
            buffer.update_priorities(buffer.sample(batch).handle, errors)

        return Contender(NAME, call, lambda n: [(errors,) for errors in updates.errors(n)])

    def add(self) -> Contender:
        buffer = self.buffer
        blocks = [rows(self._rows, seed, self._kind) for seed in range(64)]
        if self._rows == 1:  # one transition, without a leading axis, as in an environment loop
            blocks = [{name: array[0] for name, array in block.items()} for block in blocks]

        def call(block: dict[str, np.ndarray]) -> None:
            buffer.add(**block)

        return Contender(NAME, call, lambda n: [(blocks[i % 64],) for i in range(n)])
