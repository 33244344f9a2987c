"""Samples per insert are held, whichever side is slower, and the other side waits."""

import time

import pytest
from runs import config, hosted

from kary_replay.runner import Runner

SIDES = {
    "actors": {
        "env": "slow_envs:slow",
        "env_options": {"seconds": 0.002},
        "total_env_steps": 3_000,
    },
    "learners": {"env": "CartPole-v1", "options": {"hidden": (256, 256)}, "total_env_steps": 8_000},
}


@pytest.mark.parametrize("slower", SIDES)
def test_samples_per_insert_are_held_within_two_per_cent(slower, tmp_path):
    settings = {**SIDES[slower]}
    env = settings.pop("env")
    both = {"backend": "process", "envs_per_actor": 8, "actors": 2, "samples_per_insert": 64.0}
    result = Runner(config("dqn", env, tmp_path / "run", **both, **settings)).run()
    assert result.samples_per_insert == pytest.approx(64, rel=0.02)
    assert set(result.waited) == {"actors", "learners"}


def test_the_side_that_is_held_back_is_the_one_that_waited(monkeypatch, tmp_path):
    """By a clock of the test's own: how long both sides of a run wait is up to the machine."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    flow = hosted(config("dqn", "CartPole-v1", tmp_path / "run", actors=2), 2)
    flow.clock.start(0.0)
    actor, learner = flow.board.row("actor", 0), flow.board.row("learner", 0)

    def may_after(seconds):
        def may(_n, patience_seconds):
            clock[0] += min(seconds, patience_seconds)
            return patience_seconds >= seconds

        return may

    assert actor.wait(5.0, may_after(0.0), 8)
    assert flow.waited() == {"actors": 0.0, "learners": 0.0}
    assert learner.wait(5.0, may_after(3.0), 32)
    assert not actor.wait(0.0, may_after(3.0), 8), "who has no patience does not wait"
    assert not actor.wait(1.0, may_after(3.0), 8), "and in vain is waited, too"
    clock[0] = 110.0
    # of two actors one, 1 s of 10
    assert flow.waited() == {"actors": pytest.approx(0.05), "learners": pytest.approx(0.3)}
    flow.close()
