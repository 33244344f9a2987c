"""The process backend: a run that is stopped goes on with everything it had."""

import errno
import json
import os
import signal
import subprocess
import threading
from multiprocessing import connection
from types import SimpleNamespace

import numpy as np
import pytest
from runs import HANG_SECONDS, config, run, size_of, stopped

from kary_replay import PrioritizedReplayBuffer
from kary_replay.runner import ConfigError, RunFailedError, Runner
from kary_replay.runner.backends import ProcessBackend, memory, process
from kary_replay.runner.backends.guard import Guard
from kary_replay.runner.backends.process import ProcessHandle
from kary_replay.runner.backends.report_pipe import LENGTH, send_report
from kary_replay.runner.flow import Role
from kary_replay.runner.messages import Finished
from kary_replay.runner.streams.board import BoardStream


def checkpoint(directory):
    """The counters and the buffer of the last checkpoint."""
    counters = json.loads((directory / "checkpoint.json").read_text())
    return counters, PrioritizedReplayBuffer.load(directory / counters["folder"] / "replay")


@pytest.mark.parametrize("learners", [1, 2])
def test_a_run_that_was_stopped_goes_on(learners, tmp_path):
    directory = tmp_path / "run"
    runner = Runner(
        config(
            "dqn",
            "CartPole-v1",
            directory,
            backend="process",
            actors=1,
            learners=learners,
            total_env_steps=20_000,
            samples_per_insert=8.0,
        )
    )

    first = stopped(runner, lambda: size_of(directory / "episodes.jsonl") > 1000)
    assert first.interrupted and 0 < first.env_steps < 20_000
    counters, buffer = checkpoint(directory)
    # Actors go on while the buffer is saved. A group counts its steps before it adds them.
    assert counters["env_steps"] - 4 <= buffer.n_added <= first.env_steps
    missed = counters["env_steps"] - buffer.n_added
    second = Runner.resume(directory).run()
    assert not second.interrupted and second.env_steps >= 20_000 and second.updates > first.updates
    assert second.wall_seconds > first.wall_seconds
    counters, buffer = checkpoint(directory)
    assert counters["updates"] == second.updates
    assert buffer.n_added == pytest.approx(second.env_steps - missed, abs=32)
    # the allowance, against so short a run
    assert second.samples_per_insert == pytest.approx(8, rel=0.3)


def test_the_last_policy_is_published_and_evaluated(tmp_path):
    settings = {
        "backend": "process",
        "evaluate": "after",
        "evaluation_episodes": 2,
        "publish_interval": 100_000,
    }
    result = run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=600, **settings)
    assert result.evaluations[-1].updates == result.updates > 0


def test_workers_that_cannot_be_started_end_the_run(tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ProcessBackend, "start", full)
    with pytest.raises(
        RunFailedError, match=r"could not be started: .*No space left.*\nNothing is kept"
    ):
        Runner(config("dqn", "CartPole-v1", tmp_path / "run", backend="process", learners=2)).run()
    assert not (tmp_path / "run").exists()


def test_without_a_place_for_learners_to_meet_nothing_is_created(tmp_path, monkeypatch):
    def full(prefix):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(memory, "tempfile", SimpleNamespace(mkdtemp=full))
    with pytest.raises(ConfigError, match="No space left"):
        Runner(config("dqn", "CartPole-v1", tmp_path / "run", backend="process", learners=2)).run()
    assert not list(tmp_path.iterdir())


def test_a_start_that_is_interrupted_leaves_the_checkpoint_as_it_is(tmp_path):
    run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=400)
    before = (tmp_path / "run" / "checkpoint.json").read_text()
    runner = Runner.resume(tmp_path / "run", total_env_steps=600)
    runner.stop()
    assert runner.run().interrupted
    assert (tmp_path / "run" / "checkpoint.json").read_text() == before


def test_the_guard_kills_the_groups_it_was_told_of_last(tmp_path):
    one, other = (subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(2))
    (tmp_path / "a folder").mkdir()
    guard = Guard(tmp_path / "a folder")
    guard.watch([one.pid, other.pid])
    guard.watch([other.pid])
    guard._shell.stdin.close()  # as the kernel does when the supervisor is killed
    assert other.wait(HANG_SECONDS) == -9
    assert guard._shell.wait(HANG_SECONDS) == 0 and one.poll() is None
    assert not list(tmp_path.iterdir())
    guard.close()
    one.kill()
    one.wait()


class Process:
    """Stands in for a worker's process."""

    exitcode = pid = None


@pytest.fixture
def handle():
    """The handle of an actor, and the end of the pipe that the actor has."""
    pipe, theirs = connection.Pipe()
    role = Role("actor", None, 0, steps_environments=True)
    yield ProcessHandle(role, Process(), pipe, "env"), theirs
    theirs.close()
    pipe.close()


def test_a_worker_that_is_stopped_in_a_report_does_not_hold_up_the_supervisor(handle):
    """It is noticed as dead when it is killed there; whole reports before it count."""
    handle, theirs = handle
    send_report(theirs, Finished())
    os.write(theirs.fileno(), LENGTH.pack(1_000) + b"half of a report")
    assert handle.reports() == [Finished()]
    assert handle.reports() == [] and handle.cause_of_death() is None
    theirs.close()
    assert handle.reports() == [] and handle.cause_of_death() is None
    handle.process.exitcode = -signal.SIGKILL
    assert handle.cause_of_death().was_killed


def test_an_exit_code_that_does_not_come_is_not_waited_for_for_ever(handle, monkeypatch):
    handle, theirs = handle
    now = [100.0]
    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=lambda: now[0]))
    theirs.close()
    assert handle.reports() == [] and handle.cause_of_death() is None
    now[0] += process.LAST_WORD_SECONDS + 1
    assert handle.cause_of_death().message == "it has closed its pipe"


def test_a_report_may_be_larger_than_the_pipe(handle):
    handle, theirs = handle
    sent = np.arange(1_000_000)
    sender = threading.Thread(target=send_report, args=(theirs, sent))
    sender.start()
    received = []
    while not received:
        received = handle.reports()
    sender.join()
    np.testing.assert_array_equal(received[0], sent)


def test_an_order_to_a_worker_that_is_stopped_does_not_hold_up_the_supervisor(handle):
    handle, _ = handle
    for _ in range(10_000):
        handle.order("save", "a" * 100)


def test_streams_that_cannot_be_made_leave_nothing(tmp_path, monkeypatch):
    media = []

    def fail(self, medium, checkpoint):
        media.append(medium)
        raise OSError("no place for the board")

    monkeypatch.setattr(BoardStream, "host", fail)
    settings = {"backend": "process", "actors": 1, "learners": 2, "options": {"batch_size": 24}}
    with pytest.raises(ConfigError, match=r"^the run cannot be set up: no place for the board$"):
        Runner(config("dqn", "CartPole-v1", tmp_path / "run", **settings)).run()
    assert not (tmp_path / "run").exists()
    assert media[0].path is not None and not media[0].path.exists()
