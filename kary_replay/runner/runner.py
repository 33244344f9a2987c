"""A run from beginning to end: checks, streams, workers, checkpoints, results."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ..prioritized_replay_buffer import PrioritizedReplayBuffer
from .allocation import Allocation, allocate, n_cores, throughput
from .backends import Backend, ProcessBackend, SerialBackend
from .board import Board
from .config import ConfigError, RunnerConfig
from .environments import maker
from .inference import published
from .monitor import Monitor
from .plan import Evaluation, Plan, WorkerFailedError
from .run_directory import RunDirectory
from .streams import ParameterStream, ReplayStream
from .streams.replay import fields_for
from .workers import Actor, Learner

__all__ = ["RunFailedError", "RunResult", "Runner"]

MEASURE_SECONDS = 1.0  # of each side, for the allocation
POLL_SECONDS = 0.1
SAVE_SECONDS, LAST_SAVE_SECONDS = 30.0, 1.0  # for workers to write their states; the second after Ctrl-C


class RunFailedError(RuntimeError):
    """The run has ended because a worker failed for good; the message has its traceback and names the last checkpoint."""


@dataclass
class RunResult:
    """What a run came to."""

    mean_return: float
    """Of the last evaluation; without one, of the last 20 training episodes; NaN without any."""
    env_steps: int
    updates: int
    wall_seconds: float
    """Since the first step of an environment, without start-up and what came after training."""
    startup_seconds: float
    """Before it: checks, measurements, processes."""
    directory: Path
    evaluations: list[Evaluation] = field(default_factory=list)
    allocation: Allocation | None = None
    interrupted: bool = False
    """Whether Ctrl-C, SIGTERM or `Runner.stop` ended it early."""
    samples_per_insert: float = float("nan")
    """Rows drawn per transition added, as it was."""
    waited: dict[str, float] = field(default_factory=dict)
    """Share of their time that "actors" and "learners" spent waiting for each other, 0 to 1."""


class Runner:
    """Trains with actors and learners on all cores of a machine.

    Parameters
    ----------
    config : RunnerConfig
        What to do. `Runner.resume` takes it from an earlier run.

    Raises
    ------
    ConfigError
        A ValueError in one paragraph; nothing has been created then.

    Examples
    --------
    >>> from kary_replay.runner import Runner, RunnerConfig
    >>> config = RunnerConfig("dqn", "CartPole-v1", actors=1, backend="serial", total_env_steps=64, evaluate="never")
    >>> Runner(config).run().env_steps  # doctest: +SKIP
    64
    """

    def __init__(self, config: RunnerConfig, *, console: Any = None) -> None:
        RunDirectory.check_free(config)
        self.config = config
        self._make, self._observation_space, self._action_space = _spaces(self.config)
        self._console = console
        self._stop = threading.Event()
        self._folder: Path | None = None  # of the checkpoint to go on from
        self._counters: dict[str, Any] = {}
        self._directory: RunDirectory | None = None
        self._allocation: Allocation | None = None

    @classmethod
    def resume(cls, directory: str | os.PathLike[str], *, console: Any = None) -> Runner:
        """Return a runner that goes on from the last checkpoint of an earlier run.

        ConfigError if there is none, or it is of another version; nothing has been changed then.
        """
        found, config = RunDirectory.existing(Path(directory))
        folder, counters = found.checkpoint()
        runner = cls(dataclasses.replace(config, directory=None), console=console)
        runner._directory, runner._folder, runner._counters = found, folder, counters
        return runner

    def stop(self) -> None:
        """End the run soon, with a checkpoint; from any thread."""
        self._stop.set()

    def run(self) -> RunResult:
        """Train until the steps are done or the target is reached.

        Returns
        -------
        RunResult
            With what was reached; also after Ctrl-C, with ``interrupted`` set.

        Raises
        ------
        RunFailedError
            If a learner failed, or an actor too often in a row.

        Notes
        -----
        When it returns or raises, no process and no shared memory of the run is left.
        """
        begun = time.monotonic()
        config = self.config
        n_actors = config.actors if config.actors != "auto" else self._counters.get("n_actors") or self._measured_actors()
        directory = self._directory or RunDirectory.new(config)
        plan = self._plan(int(n_actors), shared=config.backend == "process")
        monitor = Monitor(plan, directory, self._counters, self._console, self._allocation)
        backend: Backend = (
            SerialBackend(plan) if config.backend == "serial" else ProcessBackend(plan, monitor.warn, self._stop.is_set)
        )
        threads = torch.get_num_threads()
        torch.set_num_threads(config.learner_threads if config.backend == "serial" else 1)
        try:
            with _Interrupts(self._stop), monitor:
                backend.start(self._folder)
                startup = time.monotonic() - begun
                self._train(backend, plan, monitor)
                seconds = plan.board.seconds + self._counters.get("seconds", 0.0)
                self._end(backend, plan, monitor, seconds)
        except WorkerFailedError as error:
            saved = directory.path / "checkpoint.json"
            where = (
                f"The last checkpoint is in {directory.path}: go on with --resume" if saved.exists() else "No checkpoint yet"
            )
            raise RunFailedError(f"{error}\n{where}.") from None
        finally:
            backend.stop()
            torch.set_num_threads(threads)
            ratio = plan.replay.limiter.ratio
            plan.replay.close()
            plan.parameters.close()
        return RunResult(
            monitor.mean_return, plan.board.env_steps, plan.board.updates, seconds, startup, directory.path,
            monitor.evaluations, self._allocation, self._stop.is_set(), ratio, plan.board.waited(),
        )  # fmt: skip

    def _train(self, backend: Backend, plan: Plan, monitor: Monitor) -> None:
        config = plan.config
        batch_size = config.options.batch_size // config.learners
        while not self._stop.is_set():
            for report in backend.poll(POLL_SECONDS):
                monitor.take(report)
            monitor.show()
            if monitor.reached_target:
                return
            done = plan.board.env_steps >= config.total_env_steps
            if done and plan.replay.limiter.allowed_samples() < batch_size:
                return
            if monitor.checkpoint_is_due():
                self._save(backend, plan, monitor, SAVE_SECONDS, plan.board.seconds + self._counters.get("seconds", 0.0))

    def _end(self, backend: Backend, plan: Plan, monitor: Monitor, seconds: float) -> None:
        if plan.board.seconds == 0:  # interrupted before it began
            return
        if plan.board.updates:
            for report in backend.finish():
                monitor.take(report)
        try:
            self._save(backend, plan, monitor, LAST_SAVE_SECONDS if self._stop.is_set() else SAVE_SECONDS, seconds)
        except WorkerFailedError as error:
            if not self._stop.is_set():
                raise
            monitor.warn(f"there was no time for a checkpoint: {error}")
        if plan.config.evaluate == "after" and not self._stop.is_set():
            monitor.say("evaluating the policies that were kept")
            for report in backend.evaluate():
                monitor.take(report)

    def _save(self, backend: Backend, plan: Plan, monitor: Monitor, within_seconds: float, seconds: float) -> None:
        directory, board = monitor.directory, plan.board
        folder = directory.begin_checkpoint(board.env_steps)
        backend.save(folder, within_seconds)
        plan.replay.buffer.save(folder / "replay")
        counters = {
            "env_steps": board.env_steps, "updates": board.updates, "seconds": seconds, "n_actors": plan.n_actors,
            "origin": list(plan.replay.limiter.origin), "episodes": int(board.column("actor", "episodes").sum()),
            "actor_env_steps": board.column("actor", "env_steps").tolist(),
        }  # fmt: skip
        directory.commit(folder, counters)
        monitor.saved()

    def _plan(self, n_actors: int, shared: bool) -> Plan:
        """Return the run's plan, its streams new or as they were saved."""
        config = self.config
        if self._folder is None:
            fields = fields_for(self._observation_space, self._action_space)
            buffer = PrioritizedReplayBuffer(
                config.buffer_capacity,
                fields,
                alpha=config.alpha,
                beta=config.beta,
                seed=config.seed,
                shared=shared,
            )
        else:
            buffer = PrioritizedReplayBuffer.load(self._folder / "replay", shared=shared)
        moved = config.envs_per_actor // config.groups * config.samples_per_insert
        slack = 1 if config.backend == "serial" else 32
        error = config.samples_per_insert_error or max(slack * config.options.batch_size, 2 * moved)
        origin = self._counters.get("origin")
        replay = ReplayStream(buffer, config.samples_per_insert, config.learning_starts, error, origin and tuple(origin))
        context = torch.multiprocessing.get_context("spawn") if shared else None
        board = Board(n_actors, config.learners, context)
        plan = Plan(config, self._make, self._observation_space, self._action_space, replay, None, board, n_actors)  # type: ignore[arg-type]
        algorithm = plan.algorithm()
        n_parameters = sum(tensor.numel() for tensor in published(algorithm, plan.publishes_all))
        plan.parameters = ParameterStream(n_parameters, shared)
        for index, steps in enumerate(self._counters.get("actor_env_steps", ())):
            board.row("actor", index).env_steps = steps
        for index in range(config.learners):
            board.row("learner", index).updates = self._counters.get("updates", 0)
        return plan

    def _measured_actors(self) -> int:
        """Return how many actors suit the learners, as measured here and now."""
        config = self.config
        if config.backend == "serial":
            return 1
        runner = Runner(dataclasses.replace(config, actors=1, learners=1, backend="serial", samples_per_insert_error=1e15))
        runner._make, runner._observation_space, runner._action_space = self._make, self._observation_space, self._action_space
        plan = runner._plan(1, shared=False)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            learner = Learner(plan, 0, lambda _: None)
            actor = Actor(plan, 0, lambda _: None)
            steps = throughput(actor, lambda: plan.board.env_steps, MEASURE_SECONDS)
            while len(plan.replay.buffer) < plan.replay.limiter.min_size:
                actor.work(0)
            updates = throughput(learner, lambda: plan.board.updates, MEASURE_SECONDS)
            actor.close()
        finally:
            torch.set_num_threads(threads)
            plan.replay.close()
            plan.parameters.close()
        per_update = config.options.batch_size / config.samples_per_insert
        self._allocation = allocate(steps, updates, per_update, n_cores(), config.learners)
        return self._allocation.chosen.actors


class _Interrupts:
    """Turns Ctrl-C and SIGTERM into an event; the second one ends the process as usual."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._before = stop, {}  # type: tuple[threading.Event, dict[int, Any]]

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._take)

    def _take(self, number: int, frame: Any) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        self._stop.set()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _spaces(config: RunnerConfig) -> tuple[Any, Any, Any]:
    """Return what makes the environment, and its spaces."""
    from ..algorithms import UnsuitableSpaceError

    try:
        return maker(config)
    except UnsuitableSpaceError as error:
        raise ConfigError(str(error)) from None
