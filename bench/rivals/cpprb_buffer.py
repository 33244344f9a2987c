"""cpprb's PrioritizedReplayBuffer (C++ and Cython, float32 trees)."""

from __future__ import annotations

from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer

from bench.harness.timing import Contender
from bench.rivals.rows import ALPHA, BETA, VECTOR, Kind, Updates, chunks, rows

NAME = "cpprb PrioritizedReplayBuffer"


def fields(kind: Kind) -> dict[str, dict[str, Any]]:
    observation = {"shape": kind.observation, "dtype": np.dtype(kind.observation_dtype)}
    return {
        "obs": observation,
        "act": {"shape": kind.action or 1, "dtype": np.dtype(kind.action_dtype)},
        "rew": {},
        "next_obs": observation,
        "done": {"dtype": np.bool_},
    }


FIELDS = fields(VECTOR)


def named(block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        "obs": block["observation"],
        "act": block["action"],
        "rew": block["reward"],
        "next_obs": block["next_observation"],
        "done": block["terminated"],
    }


class CpprbBuffer:
    """Its fastest settings: `check_for_update` off, and no `next_of`, which was slower."""

    name = NAME

    def __init__(self, slots: int, rows_per_add: int = 1, kind: Kind = VECTOR) -> None:
        self._slots, self._rows, self._kind = slots, rows_per_add, kind
        self.buffer = PrioritizedReplayBuffer(slots, fields(kind), alpha=ALPHA)
        for _, block, errors in chunks(slots, kind):
            self.buffer.add(priorities=errors, **named(block))

    def sample(self, batch: int) -> Contender:
        return Contender(NAME, self.buffer.sample, lambda n: [(batch, BETA)] * n)

    def update(self, batch: int) -> Contender:
        updates = Updates(self._slots, batch)

        # in the dtype its own sample returns, so that it need not convert
        def inputs(n: int) -> list[tuple[Any, ...]]:
            return [(index.astype(np.uint64), errors) for index, errors in updates.pairs(n)]

        return Contender(NAME, self.buffer.update_priorities, inputs)

    def cycle(self, batch: int) -> Contender:
        buffer, updates = self.buffer, Updates(self._slots, batch)

        def call(errors: np.ndarray) -> None:
            drawn = buffer.sample(batch, BETA)
            buffer.update_priorities(drawn["indexes"], errors)

        return Contender(NAME, call, lambda n: [(errors,) for errors in updates.errors(n)])

    def add(self) -> Contender:
        buffer = self.buffer
        pool = [named(rows(self._rows, seed, self._kind)) for seed in range(64)]

        def call(block: dict[str, np.ndarray]) -> None:
            buffer.add(**block)

        return Contender(NAME, call, lambda n: [(pool[i % 64],) for i in range(n)])
