"""Environments that show stacks of small frames, each of which says where it comes from."""

import gymnasium
import numpy as np
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
