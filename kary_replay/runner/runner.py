"""A run from beginning to end: checks, streams, workers, checkpoints, results."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import multiprocessing
import os
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ..version import VERSION
from .allocation.cores import Allocation
from .allocation.measurement import measured_allocation, measured_in_turns, numbers_to_try
from .backends import BACKENDS, Supervisor
from .callback import RunnerCallback
from .config import ConfigError, RunnerConfig
from .environments.env_factory import env_factory, trouble_with_name
from .failures import WorkerFailedError
from .flow import HostedFlow, device_of
from .interrupts import Interrupts
from .messages import Evaluated, Evaluation
from .policies.checkpoint_policy import saved_algorithm
from .records.display import Display
from .records.monitor import RECENT_EPISODES, Monitor
from .records.run_directory import EPISODES, RunDirectory
from .resumption import check_changeable, why_finished
from .streams import Checkpoint

__all__ = ["RunFailedError", "RunResult", "Runner"]

POLL_SECONDS = 0.1


class RunFailedError(RuntimeError):
    """The run has ended because a worker failed for good, or the callback raised.

    The message has the worker's traceback or names the callback, and names the last checkpoint.
    """


@dataclass
class RunResult:
    """What a run came to."""

    best: Evaluation | None
    """The best evaluation, whose policy is kept; None without evaluations."""
    last: Evaluation | None
    """The last evaluation, whose policy is kept as the last one; None without evaluations.

    If the run reached its target, best and last are of the policy that did."""
    recent_return: float
    """Mean return of the last 20 training episodes; NaN without any."""
    env_steps: int
    """Steps over all actors since the run first began; so are updates and wall_seconds."""
    updates: int
    wall_seconds: float
    """Seconds since the workers began, without start-up and what came after training."""
    startup_seconds: float
    """Seconds before the workers began: checks, measurements, processes."""
    directory: Path
    """Where the run is kept: an absolute path."""
    evaluations: list[Evaluation] = field(default_factory=list)
    """All of them, in order."""
    allocation: Allocation | None = None
    """What was measured to choose the number of actors; None where nothing was."""
    interrupted: bool = False
    """Whether Ctrl-C, SIGTERM, SIGHUP or `Runner.stop` ended it early."""
    samples_per_insert: float = float("nan")
    """Rows drawn per transition added."""
    waited: dict[str, float] = field(default_factory=dict)
    """Share of their time that "actors" and "learners" spent waiting for each other, 0 to 1."""

    @property
    def best_return(self) -> float:
        """Mean return of the best evaluation; NaN without evaluations."""
        return self.best.mean_return if self.best else math.nan

    @property
    def last_return(self) -> float:
        """Mean return of the last evaluation; without evaluations, the recent return."""
        return self.last.mean_return if self.last else self.recent_return


class Runner:
    """Trains with actors and learners on all cores of a machine.

    Parameters
    ----------
    config : RunnerConfig
        What to do. `Runner.resume` takes it from an earlier run.
    console : rich.console.Console, optional
        Where the run is shown; by default on standard output.
    callback : RunnerCallback, optional
        Is told of evaluations and checkpoints.

    Raises
    ------
    ConfigError
        A ValueError in one paragraph; nothing has been created then.

    Notes
    -----
    With ``backend="process"`` workers import the program's main file: let it start the run only
    under ``if __name__ == "__main__":``.

    Examples
    --------
    >>> from rich.console import Console
    >>> from kary_replay.runner import Runner, RunnerConfig
    >>> settings = {"actors": 1, "backend": "serial", "total_env_steps": 64, "evaluate": "never"}
    >>> config = RunnerConfig("dqn", "CartPole-v1", **settings)
    >>> Runner(config, console=Console(quiet=True)).run().env_steps
    64
    """

    def __init__(
        self,
        config: RunnerConfig,
        *,
        console: Any = None,
        callback: RunnerCallback | None = None,
    ) -> None:
        _check_main()
        if not isinstance(callback, RunnerCallback | None):
            raise ConfigError(
                f"callback must be an instance of a class derived from RunnerCallback, or None, "
                f"got {callback!r}"
            )
        self._here = _working_directory()  # which environments may change
        RunDirectory.check_free(config, self._here)
        _check_devices(config)
        if config.backend != "serial":  # of which other systems than Linux know nothing
            from .. import fork_server

            try:
                fork_server.start()
            except OSError as error:
                raise ConfigError(str(error)) from error
        self.config = config
        self._env_factory = env_factory(config)
        self._console, self._callback = console, callback
        self._callback_failed: tuple[str, BaseException] | None = None  # which method, and how
        self._stop = threading.Event()
        self._checkpoint = Checkpoint()  # to go on from
        self._changes: dict[str, Any] = {}  # of the settings that the run began with
        self._directory: RunDirectory | None = None
        self._allocation: Allocation | None = None

    @classmethod
    def resume(
        cls,
        directory: str | os.PathLike[str],
        *,
        console: Any = None,
        callback: RunnerCallback | None = None,
        **changes: Any,
    ) -> Runner:
        """Return a runner that goes on from the last checkpoint of an earlier run.

        Parameters
        ----------
        directory : path
            Of the run.
        console : rich.console.Console, optional
            Where the run is shown; by default on standard output.
        callback : RunnerCallback, optional
            Is told of evaluations and checkpoints from now on.
        **changes
            Settings that are to be others from now on: total_env_steps, target_return,
            evaluation_interval, evaluation_max_steps, checkpoint_interval_seconds,
            checkpoint_interval_env_steps, environment_timeout_seconds, on_environment_error,
            max_restarts, ray_address. Schedules follow total_env_steps, so that exploration may
            rise again.

        Raises
        ------
        ConfigError
            If there is no checkpoint, or it is of another version or algorithm, or a setting cannot
            change; nothing has been changed then.
        """
        check_changeable(changes)
        found, config = RunDirectory.existing(Path(directory))
        config = dataclasses.replace(config, **changes)
        if found.written_by != VERSION:
            raise ConfigError(
                f"{found.name} was written by kary-replay {found.written_by}, this is {VERSION}: "
                "a run goes on only with the version that it began with"
            )
        folder, counters = found.checkpoint(config)
        new = dataclasses.replace(config, directory=None)
        runner = cls(new, console=console, callback=callback)
        saved_algorithm(folder, config, runner._env_factory)
        runner._directory, runner._changes = found, changes
        runner._checkpoint = Checkpoint(folder, counters)
        return runner

    def stop(self) -> None:
        """End the run soon, with a checkpoint; from any thread. Before `run`, it begins none."""
        self._stop.set()

    def run(self) -> RunResult:
        """Train until the steps are done or the target is reached.

        A run that is finished says so, and stays as it is.

        Returns
        -------
        RunResult
            With what was reached; also after Ctrl-C, with ``interrupted`` set.

        Raises
        ------
        RunFailedError
            If a learner failed, or an actor too often in a row, or the callback raised.

        Notes
        -----
        When it returns or raises, no worker and no shared memory of the run is left; after a
        second Ctrl-C a thread may still be saving the buffer. The process from which workers are
        forked stays for the next run, and ends with the program.
        """
        begun = time.monotonic()
        config, counters = self.config, self._checkpoint.counters
        with contextlib.ExitStack() as let_go:
            let_go.callback(self._forget_stop)
            if self._directory is not None:
                self._directory.lock()
                let_go.callback(self._directory.unlock)
                # another session may have gone on until the lock was free
                self._checkpoint = Checkpoint(*self._directory.checkpoint(config))
                counters = self._checkpoint.counters
                why = why_finished(self._directory, config, counters)
                if why:
                    return self._finished(self._directory, why)
            backend = BACKENDS[config.backend](config, self._stop.is_set)
            let_go.callback(backend.close)
            n_actors = config.actors
            if n_actors == "auto":
                known = backend.n_actors or counters.get("n_actors")
                n_actors = known or self._suitable_actors()
            flow = HostedFlow(
                config, self._env_factory, int(n_actors), backend.medium, self._checkpoint
            )
            let_go.callback(flow.close)
            directory = self._directory or RunDirectory.new(config, self._here)
            let_go.callback(directory.unlock)
            let_go.callback(self._keep_nothing_if_not_begun, directory, flow)
            monitor = Monitor(flow, directory, self._console, self._allocation)
            directory.change(self._changes)
            supervisor = Supervisor(flow, backend, monitor.warn, self._stop.is_set)
            return self._run(supervisor, flow, monitor, begun)

    def _forget_stop(self) -> None:
        """Let the next call of `run`, if there is one, go on or begin anew."""
        self._stop.clear()
        self._callback_failed = None

    def _keep_nothing_if_not_begun(self, directory: RunDirectory, flow: HostedFlow) -> None:
        """Remove the directory of a run that has not begun, so that it may begin there again."""
        if not self._has_begun(flow):
            directory.discard()

    def _has_begun(self, flow: HostedFlow) -> bool:
        """Whether the run has taken a step, in this session or before."""
        return self._checkpoint.folder is not None or bool(flow.board.env_steps)

    def _run(
        self, supervisor: Supervisor, flow: HostedFlow, monitor: Monitor, begun: float
    ) -> RunResult:
        """Start the workers, train, and end them."""
        directory = monitor.directory
        try:
            with Interrupts(self._stop), monitor:
                if trouble := trouble_with_name(self.config):
                    monitor.warn(trouble)
                supervisor.start()
                startup, trains = time.monotonic() - begun, not self._stop.is_set()
                try:
                    self._train(supervisor, flow, monitor)
                except WorkerFailedError as error:
                    self._take(monitor, supervisor.taken())
                    if error.spares_learning and trains:
                        self._save_what_is_whole(supervisor, flow, monitor)
                    raise
                seconds, waited = flow.clock.seconds, flow.waited()
                monitor.training_ended()
                # Otherwise some workers may not have been there, and the checkpoint before has
                # them all.
                if trains:
                    self._end(supervisor, flow, monitor, seconds)
                ratio = flow.figures.get("samples_per_insert", math.nan)
                if self._callback_failed is not None:
                    method, cause = self._callback_failed
                    what = f"{type(cause).__name__}: {cause}"
                    raise WorkerFailedError(f"the callback's {method} raised {what}") from cause
        except WorkerFailedError as error:
            kept = (
                _what_is_saved(directory)
                if self._has_begun(flow)
                else "Nothing is kept: the run had not begun."
            )
            raise RunFailedError(f"{error}\n{kept}") from error.__cause__
        finally:
            supervisor.stop()
        return RunResult(
            best=monitor.kept.get("best"),
            last=monitor.kept.get("last"),
            recent_return=monitor.recent_return,
            env_steps=flow.board.env_steps,
            updates=flow.board.updates,
            wall_seconds=seconds,
            startup_seconds=startup,
            directory=directory.path,
            evaluations=monitor.evaluations,
            allocation=self._allocation,
            interrupted=self._stop.is_set(),
            samples_per_insert=ratio,
            waited=waited,
        )

    def _finished(self, directory: RunDirectory, why: str) -> RunResult:
        """Say that there is nothing to do; return what the run came to."""
        Display(self._console or Console(), self.config, directory.name).say(
            f"the run in {directory.name} is finished: {why}"
        )
        counters = self._checkpoint.counters
        records = list(directory.records(EPISODES))[-RECENT_EPISODES:]
        recent = float(np.mean([r["episode_return"] for r in records])) if records else math.nan
        best, last = directory.policy("best"), directory.policy("last")
        return RunResult(
            best=best and best.evaluation,
            last=last and last.evaluation,
            recent_return=recent,
            env_steps=counters["env_steps"],
            updates=counters["updates"],
            wall_seconds=counters["seconds"],
            startup_seconds=0.0,
            directory=directory.path,
            evaluations=list(directory.evaluations()),
        )

    def _train(self, supervisor: Supervisor, flow: HostedFlow, monitor: Monitor) -> None:
        """Have the workers work until all is done, the target is reached, or it is interrupted."""
        while not self._stop.is_set():
            self._take(monitor, supervisor.poll(POLL_SECONDS))
            monitor.show()
            if monitor.reached_target:
                return
            if flow.is_complete:
                return
            if monitor.checkpoint_is_due():
                try:
                    self._save(supervisor, flow, monitor, flow.clock.seconds)
                # a full disk or memory, or a slow worker: the next one may succeed
                except (OSError, MemoryError) as error:
                    monitor.warn(f"no checkpoint, the one before stays: {error}")
                    monitor.saved()

    def _end(
        self, supervisor: Supervisor, flow: HostedFlow, monitor: Monitor, seconds: float
    ) -> None:
        """Let the learners end together, save, and evaluate what was put off."""
        if flow.board.env_steps == 0:  # interrupted before it began
            return
        self._take(monitor, supervisor.finish())
        try:
            self._save(supervisor, flow, monitor, seconds, is_last=True)
        except (WorkerFailedError, OSError, MemoryError) as error:
            # who interrupts a run may do so because a worker does not answer
            has_no_worker = isinstance(error, (WorkerFailedError, TimeoutError))
            if not (has_no_worker and self._stop.is_set()):
                raise WorkerFailedError(f"the last checkpoint could not be made: {error}") from None
            monitor.warn(f"there is no checkpoint of the end: {error}")
        self._take(monitor, supervisor.taken())  # of evaluations that have ended meanwhile
        if self._stop.is_set() or monitor.reached_target:
            return
        if not flow.board.updates:
            due = "learning_starts", "samples_per_insert", "total_env_steps"
            said = ", ".join(
                f"{name}={getattr(self.config, name)}"
                for name in due
                if getattr(self.config, name) is not None
            )
            monitor.warn(f"nothing was learned: no update was due with {said}")
            return
        evaluate = self.config.evaluate
        if evaluate != "never":
            which = "policies that were kept" if evaluate == "after" else "last policy"
            monitor.say(f"evaluating the {which}")
            for reports in supervisor.finish_optional():
                self._take(monitor, reports)
                monitor.show()

    def _take(self, monitor: Monitor, reports: list[Any]) -> None:
        """Keep what workers report, and tell the callback."""
        for report in reports:
            monitor.take(report)
            if isinstance(report, Evaluated):
                self._call("on_evaluation", report.evaluation)

    def _call(self, method: str, what: Any) -> None:
        """Tell the callback something; if it raises, the run is to end."""
        if self._callback is None or self._callback_failed is not None:
            return
        try:
            getattr(self._callback, method)(what)
        except (Exception, SystemExit) as error:
            self._callback_failed = f"{type(self._callback).__name__}.{method}", error
            self._stop.set()

    def _save_what_is_whole(
        self, supervisor: Supervisor, flow: HostedFlow, monitor: Monitor
    ) -> None:
        """Make a checkpoint although an actor has failed for good.

        The actor begins anew when the run goes on.
        """
        if flow.board.env_steps == 0:
            return
        try:
            self._save(supervisor, flow, monitor, flow.clock.seconds, is_last=True)
        except (WorkerFailedError, OSError, MemoryError) as error:
            monitor.warn(f"there is no checkpoint of the end: {error}")
        self._take(monitor, supervisor.taken())

    def _save(
        self,
        supervisor: Supervisor,
        flow: HostedFlow,
        monitor: Monitor,
        seconds: float,
        *,
        is_last: bool = False,
    ) -> None:
        """Make a checkpoint while the workers go on; until it is whole, the one before counts.

        Counters and networks are those of its beginning. Rows that come into the buffer until that
        is written are kept, and collected once more when the run goes on.
        """
        directory = monitor.directory
        counters = {
            "algorithm": self.config.algorithm,
            "env": self.config.env_name,
            "seconds": seconds,
            "is_complete": flow.is_complete,
            **flow.counters(),
        }
        folder = directory.begin_checkpoint(flow.board.env_steps)
        try:
            supervisor.save(folder, is_last=is_last)
            folder = directory.commit(folder, counters)
        finally:
            # This removes what could not be made, or has been replaced, although a second Ctrl-C
            # may come at any moment.
            directory.sweep()
        monitor.saved()
        self._call("on_checkpoint", folder)

    def _suitable_actors(self) -> int:
        """Return how many actors suit the learners, as measured here and now."""
        where = self.config, self._env_factory
        measure = partial(measured_allocation, *where)
        if self.config.learns_from == "rollouts":
            numbers = numbers_to_try(*where)
            if len(numbers) == 1:
                return numbers[0]
            measure = partial(measured_in_turns, *where, numbers)
        try:
            self._allocation = measure(self._stop.is_set)
        except WorkerFailedError as error:
            nothing = "Nothing has been created: it was to be measured how many actors suit."
            raise RunFailedError(f"{error}\n{nothing}") from error.__cause__
        return self._allocation.chosen.actors


def _working_directory() -> Path | None:
    """Return it; None if it has been removed, where absolute paths are of use all the same."""
    try:
        return Path.cwd()
    except OSError:
        return None


def _what_is_saved(directory: RunDirectory) -> str:
    """Return what a run that failed leaves, in a line."""
    path, best = directory.name, directory.policy("best")
    policy = (
        f" The best policy so far, of return {best.evaluation.mean_return:.1f}, "
        f"can be played from {path}."
        if best
        else ""
    )
    saved = (
        f"The last checkpoint is in {path}: go on with --resume."
        if directory.has_checkpoint
        else f"No checkpoint yet, so there is nothing to go on from in {path}."
    )
    return saved + policy


def _check_main() -> None:
    """Raise ConfigError in a worker that imports the program's main file, which starts a run."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "a worker imports the program's main file, which begins the run: "
            'it must do so only under if __name__ == "__main__":'
        )


def _check_devices(config: RunnerConfig) -> None:
    """Raise ConfigError if this machine lacks a device.

    It is not the configuration that asks, so that a policy trained on a GPU plays without one.
    """
    _check_device("device", config.device, "learners", config.learners)
    if config.inference_device is not None and config.policy_workers is not None:
        workers = "policy_workers", config.policy_workers
        _check_device("inference_device", config.inference_device, *workers)


def _check_device(name: str, device: str, workers: str, n_workers: int) -> None:
    """Raise ConfigError unless there is such a device for each of some workers."""
    if torch.device(device).type != "cuda":
        try:
            torch.zeros(1, device=device).cpu()
        except (RuntimeError, NotImplementedError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"{name} must be there, got {device!r}: {reason}; use {name}='cpu'"
            ) from None
        return
    devices = {torch.device(device_of(device, index)) for index in range(n_workers)}
    if len(devices) < n_workers:
        raise ConfigError(
            f"each of {workers}={n_workers} needs a GPU of its own: "
            f"give {name}='cuda', not {device!r}"
        )
    n_devices = torch.cuda.device_count()
    if max(device.index for device in devices) >= n_devices:
        raise ConfigError(
            f"{name} must be there, got {device!r} with {workers}={n_workers}: "
            f"torch finds {n_devices} CUDA devices; "
            f"use {f'fewer {workers} or ' if n_devices else ''}{name}='cpu'"
        )
