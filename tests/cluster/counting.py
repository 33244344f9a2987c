"""An environment whose steps can be told apart, and an algorithm that writes down which came."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np

from kary_replay.algorithms import A2C, A2COptions

UNIT = 2**20  # numbers below it are exact in float32 after division by it
LENGTH = 7  # of an episode


class Counting(gymnasium.Env):
    """Shows who it is, and how many observations it has shown."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self._who = 1 + secrets.randbelow(UNIT - 1), 1 + secrets.randbelow(UNIT - 1)
        self._shown = self._steps = 0

    def _observation(self):
        self._shown += 1
        return np.array([*self._who, self._shown], np.float32) / UNIT

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action):
        self._steps += 1
        return self._observation(), 1.0, self._steps == LENGTH, False, {}


@dataclass(frozen=True)
class RecordedOptions(A2COptions):
    """Those of A2C, and a file for what is learned from."""

    learning_rate: float = 1e-6
    hidden: tuple[int, ...] = (4,)
    record: str = ""


class Recorded(A2C):
    """A2C that appends the observations of every update to a file."""

    name = "recorded"
    options_class = RecordedOptions
    options: RecordedOptions

    def update(self, batch):
        observation = batch["observation"].numpy()
        if (observation[..., 0] > 0).all():  # else it warms up
            with open(self.options.record, "ab") as file:
                file.write(observation.astype(np.float32).tobytes())
        return super().update(batch)


def learned(path: Path) -> np.ndarray:
    """Return all observations [n, 3] that a run has learned from, as numbers that are counts."""
    return np.rint(np.fromfile(path, np.float32).reshape(-1, 3) * UNIT).astype(np.int64)
