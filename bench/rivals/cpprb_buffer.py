"""cpprb's PrioritizedReplayBuffer (C++ and Cython, float32 trees)."""

from __future__ import annotations

from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer

from bench.rivals.rows import ACTION, ALPHA, BETA, OBSERVATION, Updates, chunks, rows
from bench.timing import Contender

NAME = "cpprb PrioritizedReplayBuffer"
FIELDS: dict[str, dict[str, Any]] = {
    "obs": {"shape": OBSERVATION},
    "act": {"shape": ACTION},
    "rew": {},
    "next_obs": {"shape": OBSERVATION},
    "done": {"dtype": np.bool_},
}


def named(block: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        "obs": block["observation"],
        "act": block["action"],
        "rew": block["reward"],
        "next_obs": block["next_observation"],
        "done": block["terminated"],
    }


class CpprbBuffer:
    """Its default, fastest settings: `check_for_update` off, and no `next_of` (which was slower when tried)."""

    name = NAME

    def __init__(self, slots: int, rows_per_add: int = 1) -> None:
        self._slots, self._rows = slots, rows_per_add
        self.buffer = PrioritizedReplayBuffer(slots, FIELDS, alpha=ALPHA)
        for _, block, errors in chunks(slots):
            self.buffer.add(priorities=errors, **named(block))

    def sample(self, batch: int) -> Contender:
        return Contender(NAME, self.buffer.sample, lambda n: [(batch, BETA)] * n)

    def update(self, batch: int) -> Contender:
        updates = Updates(self._slots, batch)

        def inputs(n: int) -> list[tuple[Any, ...]]:  # in the dtype its own sample returns, so that it need not convert
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
        pool = [named(rows(self._rows, seed)) for seed in range(64)]

        def call(block: dict[str, np.ndarray]) -> None:
            buffer.add(**block)

        return Contender(NAME, call, lambda n: [(pool[i % 64],) for i in range(n)])
