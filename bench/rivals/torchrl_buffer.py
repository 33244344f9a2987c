"""TorchRL's prioritized replay buffer (C++ trees, float32), in an environment of its own.

Its C++ extension works with the torch release it was built against and with no other. Where it does
not load, the import below fails, and what it says is recorded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl import _torchrl  # noqa: F401  (without it the sampler would fail later, and say less)
from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

from bench.harness.timing import Contender
from bench.rivals.rows import ALPHA, BETA, VECTOR, Kind, Updates, chunks, rows

torch.set_num_threads(1)

NAME = "TorchRL TensorDictPrioritizedReplayBuffer"


def transitions(block: dict[str, np.ndarray]) -> TensorDict:
    """A block of rows as its collectors would bring them."""
    tensors = {name: torch.from_numpy(array) for name, array in block.items()}
    following = {"observation": tensors.pop("next_observation")}
    following |= {name: tensors.pop(name).unsqueeze(1) for name in ("reward", "terminated")}
    return TensorDict({**tensors, "next": following}, batch_size=[len(block["reward"])])


class TorchrlBuffer:
    """Defaults, storage in memory."""

    name = NAME

    def __init__(self, slots: int, rows_per_add: int = 1, kind: Kind = VECTOR) -> None:
        self._slots, self._rows, self._kind = slots, rows_per_add, kind
        storage = LazyTensorStorage(slots)
        self.buffer = TensorDictPrioritizedReplayBuffer(
            alpha=ALPHA, beta=BETA, storage=storage, batch_size=1
        )
        for where, block, errors in chunks(slots, kind):
            self.buffer.extend(transitions(block))
            self.buffer.update_priority(
                torch.arange(where.start, where.stop), torch.from_numpy(errors)
            )

    def sample(self, batch: int) -> Contender:
        return Contender(NAME, self.buffer.sample, lambda n: [(batch,)] * n)

    def update(self, batch: int) -> Contender:
        updates = Updates(self._slots, batch)

        def inputs(n: int) -> list[tuple[Any, ...]]:
            return [
                (torch.from_numpy(index), torch.from_numpy(errors))
                for index, errors in updates.pairs(n)
            ]

        return Contender(NAME, self.buffer.update_priority, inputs)

    def cycle(self, batch: int) -> Contender:
        buffer, updates = self.buffer, Updates(self._slots, batch)

        def call(errors: torch.Tensor) -> None:
            buffer.update_priority(buffer.sample(batch)["index"], errors)

        return Contender(
            NAME, call, lambda n: [(torch.from_numpy(errors),) for errors in updates.errors(n)]
        )

    def add(self) -> Contender:
        pool = [transitions(rows(self._rows, seed, self._kind)) for seed in range(64)]
        return Contender(NAME, self.buffer.extend, lambda n: [(pool[i % 64],) for i in range(n)])
