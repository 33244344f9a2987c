"""Environments whose steps cost what they are told to, for the benchmark of inference.

A step may wait, as one that asks a simulator elsewhere, or compute, as one that simulates here.
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

N_FRAMES = 64  # different observations, drawn once


class Images(gymnasium.Env):
    """Shows stacks of four frames of noise, 84 × 84 bytes each, in episodes of 1000 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(6)

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._frames = rng.integers(0, 256, (N_FRAMES, 4, 84, 84), np.uint8)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._frames[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._frames[self._step % N_FRAMES], 1.0, False, self._step == 1000, {}


class Costly(gymnasium.Wrapper):
    """Waits and computes for so long before each step."""

    def __init__(self, env: gymnasium.Env, waiting: float, computing: float) -> None:
        super().__init__(env)
        self._waiting, self._computing = waiting, computing

    def step(self, action: Any) -> Any:
        if self._waiting:
            time.sleep(self._waiting)
        if self._computing:
            # of the processor's time: what others take of a core is not spared
            end = time.thread_time() + self._computing
            while time.thread_time() < end:
                pass
        return self.env.step(action)


def costly(env: gymnasium.Env, waiting: float, computing: float) -> gymnasium.Env:
    """Return the environment itself if its steps are to cost nothing more."""
    return Costly(env, waiting, computing) if waiting or computing else env


def images(waiting: float = 0.0, computing: float = 0.0) -> gymnasium.Env:
    """Make an environment of images; seconds of each step."""
    return costly(Images(), waiting, computing)


def cartpole(waiting: float = 0.0, computing: float = 0.0) -> gymnasium.Env:
    """Make CartPole-v1; seconds of each step beside its own."""
    return costly(gymnasium.make("CartPole-v1", disable_env_checker=True), waiting, computing)
