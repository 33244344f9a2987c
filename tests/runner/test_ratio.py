"""Samples per insert are held, whichever side is slower."""

import time

import gymnasium
import pytest
from runs import config

from kary_replay.runner import Runner


class Slow(gymnasium.Wrapper):
    def __init__(self, env, seconds):
        super().__init__(env)
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return self.env.step(action)


def slow(seconds=0.001):
    return Slow(gymnasium.make("CartPole-v1"), seconds)


SIDES = {
    "actors": {"env": "test_ratio:slow", "env_options": {"seconds": 0.002}, "total_env_steps": 3_000},
    "learners": {"env": "CartPole-v1", "options": {"hidden": (256, 256)}, "total_env_steps": 8_000},
}


@pytest.mark.parametrize("slower", SIDES)
def test_samples_per_insert_are_held_within_two_per_cent(slower, tmp_path):
    settings = {**SIDES[slower]}
    env = settings.pop("env")
    both = {"backend": "process", "envs_per_actor": 8, "actors": 2, "samples_per_insert": 64.0}
    result = Runner(config("dqn", env, tmp_path / "run", **both, **settings)).run()
    assert result.samples_per_insert == pytest.approx(64, rel=0.02)
    waited = dict(result.waited)
    assert waited.pop(slower) < 0.3 < min(waited.values())
