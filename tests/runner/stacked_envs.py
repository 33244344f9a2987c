"""Environments that show stacks of small frames, each of which says where it comes from."""

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation

STACK = 3


class Numbered(gymnasium.Env):
    """The number of the episode and that of the step, from 1, in frames of bytes.

    Episodes have 2 to 11 steps; every third is cut off. The reward is the number of the step.
    """

    observation_space = gymnasium.spaces.Box(0, 255, (2, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.length = (int(n) for n in self.np_random.integers((1, 2), (256, 12)))
        self.t = 1
        return self.frame(), {}

    def step(self, action):
        self.t += 1
        ends = self.t > self.length
        cut = bool(ends and self.episode % 3 == 0)
        return self.frame(), float(self.t), bool(ends and not cut), cut, {}

    def frame(self):
        return np.array([[self.episode, self.t, 0], [0, 0, 7]], np.uint8)


def make(padding="reset", stack=STACK):
    return FrameStackObservation(Numbered(), stack, padding_type=padding)


def check_stacks(batch, n_step, padding):
    """Every observation is that of one episode, and everything else fits it."""
    for row in range(len(batch.reward)):
        first, last = batch.observation[row], batch.next_observation[row]
        episode, t = (int(n) for n in first[-1, 0, :2])
        k = int(last[-1, 0, 1]) - t
        assert 1 <= k <= n_step and int(last[-1, 0, 0]) == episode
        for stack, newest in ((first, t), (last, t + k)):
            for age, frame in enumerate(stack[::-1]):
                shown = max(1, newest - age) if padding == "reset" else newest - age
                expected = [[episode, shown, 0], [0, 0, 7]] if shown > 0 else np.zeros((2, 3))
                np.testing.assert_array_equal(frame, expected)
        expected = sum(0.99**i * (t + 1 + i) for i in range(k))
        assert batch.reward[row] == pytest.approx(expected, rel=1e-5)
        is_whole = np.isclose(batch.discount[row], 0.99**k)
        assert is_whole or (batch.discount[row] == 0 and episode % 3 != 0)
        assert k == n_step or not is_whole or episode % 3 == 0


class Watched(Numbered):
    """The same in a camera's pictures, beside numbers and their halves."""

    observation_space = gymnasium.spaces.Dict(
        {
            "camera": gymnasium.spaces.Box(0, 255, (2, 3), np.uint8),
            "arm": gymnasium.spaces.Box(0, 300, (2,), np.float32),
        }
    )

    def frame(self):
        return {"camera": super().frame(), "arm": np.float32([self.t, self.episode / 2])}


def make_watched(padding="reset", stack=STACK):
    return FrameStackObservation(Watched(), stack, padding_type=padding)


class Forgetful(gymnasium.Wrapper):
    """Changes an older frame of what it shows, now and then."""

    def step(self, action):
        observation, *others = self.env.step(action)
        observation = np.array(observation)
        if observation[-1, 0, 1] == 3:
            observation[0] = 99
        return observation, *others


def make_forgetful():
    return Forgetful(make())


class Dimmed(gymnasium.ObservationWrapper):
    """Changes all frames: what is stacked is not what is shown."""

    def observation(self, observation):
        return np.asarray(observation) // 2
