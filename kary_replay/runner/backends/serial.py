"""All workers in this process, one piece of work after another: slower, and the same bit for bit every time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..failures import WorkerFailedError, failing_ends_the_run
from ..plan import Plan
from ..records.run_directory import load_state, save_state
from ..workers import WORKERS, Evaluator, Learner, Worker

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
        for kind, n in self._plan.n_workers.items():
            for index in range(n):
                with failing_ends_the_run(f"{kind}-{index}"):
                    self._workers[f"{kind}-{index}"] = WORKERS[kind](
                        self._plan, index, self._reports.append
                    )
        for name, worker in self._workers.items():
            if states is not None and (name == "learner-0" or (states / f"{name}.pt").exists()):
                with failing_ends_the_run(name):
                    worker.load_state_dict(load_state(states / f"{name}.pt"))

    def poll(self, seconds: float) -> list[Any]:
        """Give every worker one turn."""
        for name, worker in list(self._workers.items()):
            try:
                with failing_ends_the_run(name):
                    worker.work(0)
            except (
                WorkerFailedError
            ):  # starting nothing anew: what broke would break at the same step again
                self._workers.pop(name).close()
                raise
        return self._taken()

    def save(self, folder: Path, within_seconds: float) -> None:
        """Write the states of all workers that have not failed, and the buffer."""
        for name, worker in self._workers.items():
            with failing_ends_the_run(name):
                state = worker.state_dict()
            save_state(folder / f"{name}.pt", state)
        self._plan.replay.buffer.save(folder / "replay")

    def finish(self) -> list[Any]:
        """Do nothing: no piece of work is ever half done here."""
        return self._taken()

    def evaluate(self) -> list[Any]:
        """Play the evaluations that were put off, and of the last policy."""
        learner, evaluator = self._workers["learner-0"], self._workers.get("evaluator-0")
        if isinstance(learner, Learner) and isinstance(evaluator, Evaluator):
            with failing_ends_the_run("evaluator-0"):
                if int(learner.row.updates) % self._plan.config.publish_interval:
                    learner.publish()
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
