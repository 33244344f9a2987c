"""Stable-Baselines3's uniform ReplayBuffer: what its users have today. It has no priorities to update."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from bench.rivals.rows import ACTION, OBSERVATION, chunks, rows
from bench.timing import Contender

torch.set_num_threads(1)  # every contender gets one thread; its small copies gain nothing from more

NAME = "SB3 ReplayBuffer (uniform)"
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
ACTIONS = spaces.Box(-1.0, 1.0, (ACTION,), np.float32)


class Sb3Buffer:
    """Default settings, as its algorithms build it; n_envs is the number of rows added at once."""

    name = NAME

    def __init__(self, slots: int, rows_per_add: int = 1) -> None:
        self._rows = rows_per_add
        self.buffer = buffer = ReplayBuffer(slots, OBSERVATIONS, ACTIONS, device="cpu", n_envs=rows_per_add)
        flat = {
            "observation": buffer.observations.reshape(-1, OBSERVATION),
            "action": buffer.actions.reshape(-1, ACTION),
            "reward": buffer.rewards.reshape(-1),
            "next_observation": buffer.next_observations.reshape(-1, OBSERVATION),
            "terminated": buffer.dones.reshape(-1),
        }
        for where, block, _ in chunks(len(flat["reward"])):
            for name, array in flat.items():
                array[where] = block[name]
        buffer.timeouts[:] = 0
        buffer.pos, buffer.full = 0, True

    def sample(self, batch: int) -> Contender:
        return Contender(NAME, self.buffer.sample, lambda n: [(batch,)] * n)

    def add(self) -> Contender:
        def arguments(seed: int) -> tuple[Any, ...]:
            block = rows(self._rows, seed)
            infos: list[dict[str, Any]] = [{} for _ in range(self._rows)]
            names = ("observation", "next_observation", "action", "reward", "terminated")
            return (*(block[name] for name in names), infos)

        pool = [arguments(seed) for seed in range(64)]
        return Contender(NAME, self.buffer.add, lambda n: [pool[i % 64] for i in range(n)])
