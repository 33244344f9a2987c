"""All workers in this process, one piece of work after another: slower, and the same bit for bit every time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..environments import EnvironmentFaultError
from ..plan import Plan, WorkerFailedError
from ..run_directory import load_state, save_state
from ..workers import Actor, Evaluator, Learner, Worker

__all__ = ["SerialBackend"]


class SerialBackend:
    """Workers taking turns in this thread.

    Parameters
    ----------
    plan : Plan
        The run.
    interrupted : function
        Whether the run is to end; evaluations that were put off are given up then.
    """

    def __init__(self, plan: Plan, interrupted: Callable[[], bool]) -> None:
        self._plan, self._interrupted = plan, interrupted
        self._workers: dict[str, Worker] = {}
        self._reports: list[Any] = []

    def start(self, states: Path | None) -> None:
        """Make the workers; the learner first, whose parameters actors begin with."""
        plan, report = self._plan, self._reports.append
        with _faults_end_the_run():
            self._workers["learner-0"] = Learner(plan, 0, report)
            for index in range(plan.n_actors):
                self._workers[f"actor-{index}"] = Actor(plan, index, report)
            if plan.config.evaluate != "never":
                self._workers["evaluator-0"] = Evaluator(plan, 0, report)
            for name, worker in self._workers.items():
                if states is not None and (name == "learner-0" or (states / f"{name}.pt").exists()):
                    worker.load_state_dict(load_state(states / f"{name}.pt"))

    def poll(self, seconds: float) -> list[Any]:
        """Give every worker one turn."""
        with _faults_end_the_run():
            for worker in self._workers.values():
                worker.work(0)
        return self._taken()

    def save(self, folder: Path, within_seconds: float) -> None:
        """Write the states of all workers, and the buffer."""
        for name, worker in self._workers.items():
            save_state(folder / f"{name}.pt", worker.state_dict())
        self._plan.replay.buffer.save(folder / "replay")

    def finish(self) -> list[Any]:
        """Do nothing: no piece of work is ever half done here."""
        return self._taken()

    def evaluate(self) -> list[Any]:
        """Play the evaluations that were put off."""
        evaluator = self._workers.get("evaluator-0")
        if isinstance(evaluator, Evaluator):
            with _faults_end_the_run():
                evaluator.finish(self._interrupted)
        return self._taken()

    def stop(self) -> None:
        """Close the workers."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _taken(self) -> list[Any]:
        reports = self._reports[:]
        self._reports.clear()
        return reports


@contextlib.contextmanager
def _faults_end_the_run() -> Iterator[None]:
    """Start nothing anew: an environment would break at the same step again."""
    try:
        yield
    except EnvironmentFaultError as error:
        raise WorkerFailedError(str(error)) from error
