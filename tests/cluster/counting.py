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

    def __init__(self, is_seeded=False):
        self._who = 1 + secrets.randbelow(UNIT - 1), 1 + secrets.randbelow(UNIT - 1)
        self._is_seeded = is_seeded  # so that it is the same in another run
        self._shown = self._steps = 0

    def _observation(self):
        self._shown += 1
        return np.array([*self._who, self._shown], np.float32) / UNIT

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self._is_seeded and not self._shown:
            self._who = tuple(self.np_random.integers(1, UNIT, 2))
        self._steps = 0
        return self._observation(), {}

    def step(self, action):
        self._steps += 1
        return self._observation(), 1.0, self._steps == LENGTH, False, {}


@dataclass(frozen=True)
class RecordedOptions(A2COptions):
    """Those of A2C, and a file for what is learned from."""

    learning_rate: float = 1e-30  # the policy stays as it is
    hidden: tuple[int, ...] = (4,)
    record: str = ""


class Recorded(A2C):
    """A2C that appends the observations and actions of every update to a file."""

    name = "recorded"
    options_class = RecordedOptions
    options: RecordedOptions

    def update(self, batch):
        observation = batch["observation"].numpy()
        if (observation[..., 0] > 0).all():  # else it warms up
            rows = np.concatenate([observation * UNIT, batch["action"].numpy()[..., None]], -1)
            with open(self.options.record, "ab") as file:
                file.write(np.rint(rows).astype(np.int64).tobytes())
        return super().update(batch)


def learned(path: Path) -> np.ndarray:
    """Return what a run has learned from, [n, 4]: who, how many were shown, the action."""
    return np.fromfile(path, np.int64).reshape(-1, 4)
