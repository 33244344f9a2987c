"""Takes the workers' reports, keeps the records, and shows how the run goes."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import numpy as np

from .allocation import Allocation
from .plan import Ended, Evaluation, Plan
from .run_directory import RunDirectory

__all__ = ["Monitor"]

RECENT_EPISODES = 20


class Monitor:
    """The records of a run."""

    def __init__(
        self, plan: Plan, directory: RunDirectory, counters: Mapping[str, Any], console: Any, allocation: Allocation | None
    ) -> None:
        self.plan, self.directory = plan, directory
        self._seconds_before = float(counters.get("seconds", 0.0))
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.evaluations: list[Evaluation] = []
        self.reached_target = False
        self._saved, self._saved_steps = time.monotonic(), plan.board.env_steps

    def take(self, report: Any) -> None:
        """Keep a report."""
        if isinstance(report, Ended):
            self.recent.append(report.episode_return)
            self.directory.append("episodes.jsonl", report._asdict())
        elif isinstance(report, Evaluation):
            report = report._replace(wall_seconds=report.wall_seconds + self._seconds_before)
            self.evaluations.append(report)
            self.directory.append("evaluations.jsonl", report._asdict())
            target = self.plan.config.target_return
            self.reached_target |= target is not None and report.mean_return >= target

    @property
    def mean_return(self) -> float:
        """Of the last evaluation, or of recent episodes."""
        if self.evaluations:
            return self.evaluations[-1].mean_return
        return float(np.mean(self.recent)) if self.recent else math.nan

    def checkpoint_is_due(self) -> bool:
        """Return whether it is time for a checkpoint."""
        config = self.plan.config
        seconds, steps = config.checkpoint_interval_seconds, config.checkpoint_interval_env_steps
        if seconds and time.monotonic() - self._saved >= seconds:
            return True
        return bool(steps) and self.plan.board.env_steps // steps > self._saved_steps // steps

    def saved(self) -> None:
        """Note that a checkpoint was made."""
        self._saved, self._saved_steps = time.monotonic(), self.plan.board.env_steps

    def show(self) -> None:
        """Show how it goes, now and then."""

    def say(self, message: str) -> None:
        """Tell the user something."""
        print(message)

    def warn(self, message: str) -> None:
        """Tell the user that something went wrong."""
        print("warning:", message)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass
