"""An environment that takes its time."""

import time

import gymnasium


class Slow(gymnasium.Wrapper):
    """Takes so long for every step."""

    def __init__(self, env, seconds):
        super().__init__(env)
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


def slow(seconds=0.0):
    return Slow(gymnasium.make("CartPole-v1"), seconds)
