"""Stable-Baselines3's uniform ReplayBuffer, which its users have today; it has no priorities."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from bench.harness.timing import Contender
from bench.rivals.rows import VECTOR, Kind, chunks, rows

torch.set_num_threads(1)  # every contender gets one thread; its small copies gain nothing from more

NAME = "SB3 ReplayBuffer (uniform)"


def spaces_of(kind: Kind) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Observation and action space, as an environment with such rows has them."""
    if kind.observation_dtype == "uint8":
        return spaces.Box(0, 255, kind.observation, np.uint8), spaces.Discrete(4)
    return spaces.Box(-np.inf, np.inf, kind.observation, np.float32), spaces.Box(
        -1.0, 1.0, kind.action, np.float32
    )


def fill(buffer: ReplayBuffer, kind: Kind) -> None:
    """Write its arrays, all of them, directly."""
    flat = {
        "observation": buffer.observations.reshape(-1, *kind.observation),
        "action": buffer.actions.reshape(-1, *(kind.action or (1,))),
        "reward": buffer.rewards.reshape(-1),
        "next_observation": buffer.next_observations.reshape(-1, *kind.observation),
        "terminated": buffer.dones.reshape(-1),
    }
    for where, block, _ in chunks(len(flat["reward"]), kind):
        for name, array in flat.items():
            array[where] = block[name].reshape(-1, *array.shape[1:])
    buffer.timeouts[:] = 0
    buffer.pos, buffer.full = 0, True


def add_arguments(n_rows: int, seed: int, kind: Kind) -> tuple[Any, ...]:
    """What `add` is given for a step of so many environments."""
    block = rows(n_rows, seed, kind)
    infos: list[dict[str, Any]] = [{} for _ in range(n_rows)]
    return (
        *(
            block[name]
            for name in ("observation", "next_observation", "action", "reward", "terminated")
        ),
        infos,
    )


class Sb3Buffer:
    """Default settings, as its algorithms build it; n_envs is the number of rows added at once."""

    name = NAME

    def __init__(self, slots: int, rows_per_add: int = 1, kind: Kind = VECTOR) -> None:
        self._rows, self._kind = rows_per_add, kind
        self.buffer = ReplayBuffer(slots, *spaces_of(kind), device="cpu", n_envs=rows_per_add)
        fill(self.buffer, kind)

    def sample(self, batch: int) -> Contender:
        return Contender(NAME, self.buffer.sample, lambda n: [(batch,)] * n)

    def add(self) -> Contender:
        pool = [add_arguments(self._rows, seed, self._kind) for seed in range(64)]
        return Contender(NAME, self.buffer.add, lambda n: [pool[i % 64] for i in range(n)])
