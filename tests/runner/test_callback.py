"""What a run tells its program, and what becomes of it when the program fails."""

import os
import signal
from types import SimpleNamespace

import pytest
from runs import config, stopped

from kary_replay.runner import ConfigError, Evaluation, RunFailedError, Runner, RunnerCallback
from kary_replay.runner.backends import Supervisor
from kary_replay.runner.messages import Evaluated
from kary_replay.runner.records.run_directory import RunDirectory

EVALUATED = {"evaluate": "during", "evaluation_interval": 200, "evaluation_episodes": 2}


class Listener(RunnerCallback):
    """Writes down what it hears; one of its methods may raise."""

    def __init__(self, fails=None):
        self.fails, self.evaluations, self.checkpoints = fails, [], []

    def on_evaluation(self, evaluation):
        self.evaluations.append(evaluation)
        if self.fails == "on_evaluation":
            raise ValueError("not good enough")

    def on_checkpoint(self, folder):
        assert (folder / "learner-0.pt").exists()
        self.checkpoints.append(folder)
        if self.fails == "on_checkpoint":
            raise OSError("no room elsewhere")


class Exits(RunnerCallback):
    """Ends the program, as it thinks."""

    def on_evaluation(self, evaluation):
        raise SystemExit(0)


def settings_of(path, **settings):
    settings = {"total_env_steps": 1_000, "checkpoint_interval_env_steps": 400, **settings}
    return config("dqn", "CartPole-v1", path, **settings)


@pytest.mark.parametrize("evaluate", ["during", "after"])
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_it_hears_of_every_evaluation_and_checkpoint(backend, evaluate, tmp_path):
    listener, settings = Listener(), {**EVALUATED, "evaluate": evaluate, "backend": backend}
    result = Runner(settings_of(tmp_path / "run", **settings), callback=listener).run()
    assert listener.evaluations == result.evaluations != []
    assert all(isinstance(found, Evaluation) for found in listener.evaluations)
    folder, _ = RunDirectory.existing(tmp_path / "run")[0].checkpoint(settings_of(tmp_path))
    assert listener.checkpoints[-1] == folder
    if backend == "serial":
        assert len(listener.checkpoints) == 3


def test_an_evaluation_that_ends_while_the_last_checkpoint_is_written_is_heard(
    tmp_path, monkeypatch
):
    """Also if the run was interrupted, so that nothing else is waited for."""
    late = Evaluation(450, 40, 1.0, 1e6, (1e6,))
    listener = Listener()
    settings = {**EVALUATED, "evaluation_interval": 2**40, "total_env_steps": 2**40}
    runner = Runner(settings_of(tmp_path / "run", **settings), callback=listener)
    save = Supervisor.save

    def save_and_hear(supervisor, folder, *, is_last=False):
        save(supervisor, folder, is_last=is_last)
        if is_last:
            vector, _ = supervisor._flow.streams["parameters"].source().newest()
            supervisor._reports.append(Evaluated(late, vector))

    monkeypatch.setattr(Supervisor, "save", save_and_hear)
    result = stopped(runner, lambda: (tmp_path / "run" / "checkpoint.json").exists())
    assert result.interrupted
    assert result.evaluations == [late] and listener.evaluations == [late]
    assert (tmp_path / "run" / "best_policy.pt").exists()


@pytest.mark.parametrize("method", ["on_evaluation", "on_checkpoint"])
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_an_error_in_it_ends_the_run_with_a_checkpoint(backend, method, tmp_path):
    path, listener = tmp_path / "run", Listener(method)
    settings = settings_of(path, **EVALUATED, backend=backend, total_env_steps=100_000)
    wanted = {
        "on_evaluation": "Listener.on_evaluation raised ValueError: not good enough",
        "on_checkpoint": "Listener.on_checkpoint raised OSError: no room elsewhere",
    }[method]
    with pytest.raises(RunFailedError, match=f"the callback's {wanted}\n") as caught:
        Runner(settings, callback=listener).run()
    assert isinstance(caught.value.__cause__, (ValueError, OSError))
    assert f"The last checkpoint is in {path}: go on with --resume." in str(caught.value)
    heard = listener.evaluations if method == "on_evaluation" else listener.checkpoints
    assert len(heard) == 1  # none of it is called any more
    _, counters = RunDirectory.existing(path)[0].checkpoint(settings)
    steps = counters["env_steps"]
    again = Listener()
    result = Runner.resume(path, callback=again, total_env_steps=steps + 600).run()
    assert result.env_steps >= steps + 600 and again.evaluations and again.checkpoints


def test_an_error_in_the_last_call_is_raised_too(tmp_path):
    listener, settings = Listener("on_evaluation"), {**EVALUATED, "evaluate": "after"}
    with pytest.raises(RunFailedError, match="not good enough"):
        Runner(settings_of(tmp_path / "run", **settings), callback=listener).run()
    assert (tmp_path / "run" / "best_policy.pt").exists()
    assert (tmp_path / "run" / "checkpoint.json").exists()


@pytest.mark.parametrize("bad", [print, Listener, "listener"])
def test_what_is_no_callback_is_refused(bad, tmp_path):
    with pytest.raises(ConfigError, match="callback must be an instance of a class derived from"):
        Runner(settings_of(tmp_path / "run"), callback=bad)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_callback_that_exits_costs_no_checkpoint(backend, tmp_path):
    settings = settings_of(tmp_path / "run", backend=backend, **EVALUATED)
    with pytest.raises(RunFailedError, match=r"Exits\.on_evaluation raised SystemExit: 0\n.*is in"):
        Runner(settings, callback=Exits()).run()
    assert (tmp_path / "run" / "checkpoint.json").exists()


class StopsAndIsTold(RunnerCallback):
    """Stops the run; then somebody sends a signal, the first one."""

    def on_evaluation(self, evaluation):
        self.runner.stop()
        os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_after_a_stop_is_not_the_second(number, tmp_path):
    callback = StopsAndIsTold()
    callback.number = number
    callback.runner = Runner(settings_of(tmp_path / "run", **EVALUATED), callback=callback)
    assert callback.runner.run().interrupted
    assert (tmp_path / "run" / "checkpoint.json").exists()


def test_a_hangup_that_is_ignored_stays_so(tmp_path):
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        callback = StopsAndIsTold()
        callback.number, callback.runner = signal.SIGHUP, SimpleNamespace(stop=lambda: None)
        result = Runner(settings_of(tmp_path / "run", **EVALUATED), callback=callback).run()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)
    assert not result.interrupted and result.env_steps == 1_000


def test_what_was_reported_before_a_run_failed_is_kept(tmp_path, monkeypatch):
    """Also an evaluation that ends while its last checkpoint is written."""
    late = Evaluation(450, 40, 1.0, 1e6, (1e6,))
    listener = Listener()
    settings = {**EVALUATED, "evaluation_interval": 2**40, "on_environment_error": "stop"}
    options = {"fault": "raises", "at": 300}
    runner = Runner(
        config("dqn", "faulty_envs:make", tmp_path / "run", env_options=options, **settings),
        callback=listener,
    )
    save = Supervisor.save

    def save_and_hear(supervisor, folder, *, is_last=False):
        save(supervisor, folder, is_last=is_last)
        vector, _ = supervisor._flow.streams["parameters"].source().newest()
        supervisor._reports.append(Evaluated(late, vector))

    monkeypatch.setattr(Supervisor, "save", save_and_hear)
    with pytest.raises(RunFailedError, match="the bottle is empty"):
        runner.run()
    assert listener.evaluations == [late]
    assert list(RunDirectory.existing(tmp_path / "run")[0].evaluations()) == [late]
