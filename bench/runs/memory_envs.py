"""Environments whose observations leave out what a policy needs, for the benchmark of memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

# In the T-maze, for each place of the corridor. At random, one episode in three gets to the end of
# 30 places; with 10 steps one in forty, and where none does, nothing is there to be remembered.
STEPS_TO_ACT = 30


class TMaze(gymnasium.Env):
    """A sign at the start says where to turn at the end of a corridor.

    Actions are up, right, down, left. Walking costs nothing, and walking into a wall 0.1; turning
    as the sign said brings 4, and the other way costs 0.1. Who cannot remember gets 1.95 on
    average. Bakker (2002), Reinforcement learning with long short-term memory, section 4, whose
    observations these are.
    """

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, length: int) -> None:
        self.length = length
        self._place, self._t, self._is_up = 0, 0, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._t = 0, 0
        self._is_up = bool(self.np_random.integers(2))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._t += 1
        is_cut = self._t >= STEPS_TO_ACT * self.length
        if self._place == self.length and action in (0, 2):
            return self._seen(), 4.0 if (action == 0) == self._is_up else -0.1, True, False, {}
        before = self._place
        self._place = min(max(before + {1: 1, 3: -1}.get(int(action), 0), 0), self.length)
        return self._seen(), 0.0 if self._place != before else -0.1, False, is_cut, {}

    def _seen(self) -> Any:
        if self._place == 0:
            return np.array((0, 1, 1) if self._is_up else (1, 1, 0), np.float32)
        return np.array((0, 1, 0) if self._place == self.length else (1, 0, 1), np.float32)


class Positions(gymnasium.ObservationWrapper):
    """CartPole without velocities."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[::2], space.high[::2])

    def observation(self, observation: Any) -> Any:
        return observation[::2]


def stacked(env: gymnasium.Env, stack: int) -> gymnasium.Env:
    """Return an environment that shows its last observations, or the environment for 1."""
    return gymnasium.wrappers.FrameStackObservation(env, stack) if stack > 1 else env


def tmaze(length: int = 30, stack: int = 1) -> gymnasium.Env:
    """Make a T-maze."""
    return stacked(TMaze(length), stack)


def positions(stack: int = 1) -> gymnasium.Env:
    """Make CartPole-v1 without velocities."""
    return stacked(Positions(gymnasium.make("CartPole-v1", disable_env_checker=True)), stack)
