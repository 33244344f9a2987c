"""Prioritized replay in plain Python on SB3's storage (python_sum_tree.py), for one environment."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.harness.timing import Contender
from bench.rivals.python_sum_tree import PythonPrioritizedReplayBuffer
from bench.rivals.rows import ALPHA, BETA, VECTOR, Kind, Updates, td_errors
from bench.rivals.sb3_buffer import add_arguments, fill, spaces_of

NAME = "plain-Python sum tree"


class PythonBuffer:
    """The plain-Python buffer with the same rows, which one environment adds one by one."""

    name = NAME

    def __init__(self, slots: int, rows_per_add: int = 1, kind: Kind = VECTOR) -> None:
        if rows_per_add != 1:
            raise ValueError("it is made for one environment")
        self._slots, self._kind = slots, kind
        self.buffer = PythonPrioritizedReplayBuffer(
            slots, *spaces_of(kind), "cpu", alpha=ALPHA, beta=BETA
        )
        fill(self.buffer, kind)
        masses = np.float64(td_errors(slots)) ** ALPHA
        self.buffer.tree.fill(masses.tolist())
        self.buffer.max_mass = float(masses.max())

    def sample(self, batch: int) -> Contender:
        return Contender(NAME, self.buffer.sample, lambda n: [(batch,)] * n)

    def update(self, batch: int) -> Contender:
        return Contender(NAME, self.buffer.update_priorities, Updates(self._slots, batch).pairs)

    def cycle(self, batch: int) -> Contender:
        buffer, updates = self.buffer, Updates(self._slots, batch)

        def call(errors: np.ndarray) -> None:
            buffer.update_priorities(buffer.sample(batch).indices, errors)

        return Contender(NAME, call, lambda n: [(errors,) for errors in updates.errors(n)])

    def add(self) -> Contender:
        pool: list[tuple[Any, ...]] = [add_arguments(1, seed, self._kind) for seed in range(64)]
        return Contender(NAME, self.buffer.add, lambda n: [pool[i % 64] for i in range(n)])
