"""All workers in this process, taking turns: slower, and the same bit for bit every time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..config import RunnerConfig
from ..failures import problem_of
from ..flow import HostedFlow, Role
from ..messages import Finished, Problem, Started
from ..records.run_directory import load_state
from ..workers import Seat, Worker
from .backend import Order, save_worker
from .memory import OwnMemory

__all__ = ["SerialBackend"]


class SerialBackend:
    """Workers taking turns in this thread.

    Parameters
    ----------
    config : RunnerConfig
        The settings of the run.
    interrupted : function
        Whether the run is to end; evaluations are given up then.
    """

    starts_anew = False  # what broke would break at the same step again
    n_actors = 1

    def __init__(self, config: RunnerConfig, interrupted: Callable[[], bool]) -> None:
        self.medium, self._interrupted = OwnMemory(), interrupted
        self._handles: list[SerialHandle] = []
        self._threads = torch.get_num_threads()
        torch.set_num_threads(config.learner_threads)

    def open(self, flow: HostedFlow) -> None:
        """Do nothing: workers are made one by one."""

    def start(self, role: Role, index: int, seat: Seat, state: Path | None) -> SerialHandle:
        """Make a worker."""
        self._handles.append(SerialHandle(role, seat, state, self._interrupted))
        return self._handles[-1]

    def run(self, seconds: float) -> None:
        """Give every worker one turn, unless there is no time at all."""
        for handle in self._handles:
            if seconds and not handle.turn():
                break

    def close(self) -> None:
        """Set the number of threads back."""
        torch.set_num_threads(self._threads)


class SerialHandle:
    """A worker of this process."""

    answers_at_once = True

    def __init__(
        self, role: Role, seat: Seat, state: Path | None, interrupted: Callable[[], bool]
    ) -> None:
        self._interrupted, self._name = interrupted, seat.name
        self._reports: list[Any] = []
        self._worker: Worker | None = None
        self._problem: Problem | None = None
        try:
            own = dataclasses.replace(
                seat, report=self._reports.append, interrupted=self._interrupted
            )
            self._worker = role.worker(own)
            if state is not None:
                self._worker.load_state_dict(load_state(state))
            self._reports.append(Started())
        except Exception as error:
            self._fail(error)

    def turn(self) -> bool:
        """Have the worker do one piece of work; return False if it has failed."""
        if self._worker is not None:
            try:
                self._worker.work(0)
            except Exception as error:
                self._fail(error)
        return self._problem is None

    @property
    def heard_at(self) -> float:
        """Now, for it is the same machine."""
        return time.monotonic()

    def order(self, order: Order, argument: Any = None) -> None:
        """Have the worker do what it is told."""
        worker = self._worker
        if worker is None:
            return
        try:
            if order == "save":
                self._reports.append(save_worker(worker, self._name, argument))
            elif order == "finish":
                worker.finish(self._interrupted)
                self._reports.append(Finished())
            elif order == "stop":
                self.kill()
        except Exception as error:
            self._fail(error)

    def reports(self) -> list[Any]:
        """Return what the worker has reported since."""
        reports = self._reports[:]
        self._reports.clear()
        return reports

    def cause_of_death(self) -> Problem | None:
        """Return the error by which the worker has ended."""
        return self._problem

    def kill(self) -> None:
        """Close the worker."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    @property
    def has_ended(self) -> bool:
        """Whether the worker was closed."""
        return self._worker is None

    def _fail(self, error: Exception) -> None:
        self._problem = problem_of(error)._replace(error=error)
        self.kill()
