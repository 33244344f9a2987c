"""Environments whose observations do not say all: what a policy must remember."""

import gymnasium
import numpy as np

LENGTH = 5


class Recall(gymnasium.Env):
    """Shows a sign at the first step, and asks for it at the last one: half is guessed right."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.sign = 0, int(self.np_random.integers(2))
        return np.array([2 * self.sign - 1, 0], np.float32), {}

    def step(self, action):
        self.t += 1
        is_over = self.t == LENGTH
        observation = np.array([0, self.t == LENGTH - 1], np.float32)
        return observation, float(is_over and action == self.sign), is_over, False, {}


class Positions(gymnasium.ObservationWrapper):
    """CartPole without velocities."""

    def __init__(self, env):
        super().__init__(env)
        space = env.observation_space
        self.observation_space = gymnasium.spaces.Box(space.low[::2], space.high[::2])

    def observation(self, observation):
        return observation[::2]


def cartpole_without_velocities(**options):
    return Positions(gymnasium.make("CartPole-v1", **options))
