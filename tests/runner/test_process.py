"""The process backend: a run that is stopped goes on with everything it had."""

import json
import threading
import time

import pytest
from runs import config

from kary_replay import PrioritizedReplayBuffer
from kary_replay.runner import Runner


def checkpoint(directory):
    """The counters and the buffer of the last checkpoint."""
    counters = json.loads((directory / "checkpoint.json").read_text())
    return counters, PrioritizedReplayBuffer.load(directory / counters["folder"] / "replay")


@pytest.mark.parametrize("learners", [1, 2])
def test_a_run_that_was_stopped_goes_on(learners, tmp_path):
    directory = tmp_path / "run"
    runner = Runner(
        config(
            "dqn", "CartPole-v1", directory, backend="process", actors=1, learners=learners, total_env_steps=2_500,
            samples_per_insert=8.0,
        )
    )  # fmt: skip

    def stop():
        episodes, deadline = directory / "episodes.jsonl", time.monotonic() + 60
        while not (episodes.exists() and episodes.stat().st_size > 1000) and time.monotonic() < deadline:
            time.sleep(0.02)
        runner.stop()

    thread = threading.Thread(target=stop)
    thread.start()
    first = runner.run()
    thread.join()
    assert first.interrupted and 0 < first.env_steps < 2_500
    counters, buffer = checkpoint(directory)
    assert first.env_steps / 2 < buffer.n_added < counters["env_steps"] + 1_000  # actors go on while the buffer is saved
    missed = counters["env_steps"] - buffer.n_added
    second = Runner.resume(directory).run()
    assert not second.interrupted and second.env_steps >= 2_500 and second.updates > first.updates
    assert second.wall_seconds > first.wall_seconds
    counters, buffer = checkpoint(directory)
    assert counters["updates"] == second.updates
    assert buffer.n_added == pytest.approx(second.env_steps - missed, abs=32)
    assert second.samples_per_insert == pytest.approx(8, rel=0.3)  # the allowance, against so short a run
