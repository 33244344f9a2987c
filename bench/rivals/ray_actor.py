"""cpprb's prioritized buffer in an actor of Ray, which is what people write by hand.

TorchRL's RayReplayBuffer is such an actor around its own buffer.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import numpy as np
import ray

from bench.harness.timing import Contender
from bench.rivals.rows import BETA, VECTOR, Kind, Updates, rows

NAME = "an actor of Ray with cpprb's buffer"


@ray.remote(num_cpus=0)
class Actor:
    """The buffer, elsewhere."""

    def __init__(self, slots: int, kind: Kind) -> None:
        from bench.rivals.cpprb_buffer import CpprbBuffer

        self.buffer = CpprbBuffer(slots, kind=kind).buffer

    def sample(self, batch: int) -> Any:
        return self.buffer.sample(batch, BETA)

    def update(self, index: np.ndarray, errors: np.ndarray) -> None:
        self.buffer.update_priorities(index, errors)

    def add(self, block: dict[str, np.ndarray]) -> None:
        from bench.rivals.cpprb_buffer import named

        self.buffer.add(**named(block))


class RayActorBuffer:
    """One actor, one call at a time."""

    name = NAME

    def __init__(self, slots: int, rows_per_add: int = 1, kind: Kind = VECTOR) -> None:
        self._slots, self._rows, self._kind = slots, rows_per_add, kind
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        self.actor = Actor.remote(slots, kind)
        ray.get(self.actor.sample.remote(1))

    def sample(self, batch: int) -> Contender:
        return Contender(
            NAME,
            lambda: ray.get(self.actor.sample.remote(batch)),
            lambda n: [()] * n,
            has_threads=True,
        )

    def update(self, batch: int) -> Contender:
        updates = Updates(self._slots, batch)
        return Contender(
            NAME,
            lambda index, errors: ray.get(self.actor.update.remote(index, errors)),
            updates.pairs,
            has_threads=True,
        )

    def add(self) -> Contender:
        pool = [rows(self._rows, seed, self._kind) for seed in range(64)]
        return Contender(
            NAME,
            lambda block: ray.get(self.actor.add.remote(block)),
            lambda n: [(pool[i % 64],) for i in range(n)],
            self._rows,
            has_threads=True,
        )
