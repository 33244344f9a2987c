"""Takes the workers' reports, keeps the records, and shows how the run goes."""

from __future__ import annotations

import contextlib
import importlib
import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np
from rich.console import Console

from ..allocation.cores import Allocation
from ..flow import HostedFlow
from ..messages import EpisodeEnded, Evaluated, Evaluation, Trained
from . import learning_curve
from .display import Display, title
from .progress import Figures, Progress
from .run_directory import EPISODES, EVALUATIONS, PolicyName, RunDirectory
from .scalars import Scalars

__all__ = ["Monitor"]

RECENT_EPISODES = 20
LOOK_SECONDS = 0.5  # between two looks at how it goes
SCALARS_SECONDS = 5.0


def _import() -> None:
    """Import what takes seconds while the workers start; later it would hold them up."""
    for module in (
        "torch.utils.tensorboard",
        "matplotlib.figure",
        "matplotlib.backends.backend_agg",
    ):
        with contextlib.suppress(Exception):  # who uses it says what is wrong with it
            importlib.import_module(module)


class Monitor:
    """The records of a run.

    Parameters
    ----------
    flow : HostedFlow
        The run. Where it goes on from a checkpoint, records of what came after that are dropped.
    directory : RunDirectory
        Where records go: lines of JSON, TensorBoard's scalars, and in the end the learning curve.
    console : rich.console.Console or None
        Where the run is shown; by default on standard output.
    allocation : Allocation or None
        Is shown in the beginning.
    """

    def __init__(
        self,
        flow: HostedFlow,
        directory: RunDirectory,
        console: Any,
        allocation: Allocation | None,
    ) -> None:
        self.flow, self.config, self.directory = flow, flow.config, directory
        counters = flow.checkpoint.counters
        self._progress = Progress(flow)
        console = Console() if console is None else console
        self._display = Display(console, flow.config, directory.name)
        self._scalars = Scalars(directory.path, int(counters.get("env_steps", 0)))
        self._allocation = allocation
        self.recent: deque[float] = deque(maxlen=RECENT_EPISODES)
        self.evaluations: list[Evaluation] = []
        self.kept: dict[PolicyName, Evaluation] = {}
        """The evaluations of the policies that are kept."""
        self._episodes = learning_curve.Points()
        self.reached_target = self._has_complained = self._has_told_of_cuts = False
        self._saved, self._saved_steps = time.monotonic(), flow.board.env_steps
        self._next_look = self._next_scalars = 0.0
        self._at_end: Figures | None = None  # when training ended
        if counters:
            self._go_on_from(int(counters["env_steps"]))

    def take(self, report: Any) -> None:
        """Keep a report."""
        if isinstance(report, EpisodeEnded):
            seconds = self.flow.clock.seconds
            self.recent.append(report.episode_return)
            self._episodes.add(report.env_steps, seconds, report.episode_return)
            self._keep(EPISODES, {**report._asdict(), "wall_seconds": round(seconds, 3)})
        elif isinstance(report, Trained):
            named = {f"training/{name}": value for name, value in report.figures.items()}
            self._write(named, report.env_steps)
        elif isinstance(report, Evaluated):
            evaluation = report.evaluation
            self.evaluations.append(evaluation)
            self._keep_policy("last", report)
            self._keep_if_best(report)
            self._keep(EVALUATIONS, evaluation._asdict())
            self._write({"return/evaluation": evaluation.mean_return}, evaluation.env_steps)
            self._compare(evaluation)
            if evaluation.n_cut and not self._has_told_of_cuts:
                self._has_told_of_cuts = True
                self.warn(
                    f"{evaluation.n_cut} of {len(evaluation.returns)} evaluation episodes were cut "
                    f"off after evaluation_max_steps={self.config.evaluation_max_steps:,} steps; "
                    "their returns are those until then"
                )

    @property
    def recent_return(self) -> float:
        """The mean return of the last training episodes; NaN without any."""
        return float(np.mean(self.recent)) if self.recent else math.nan

    def checkpoint_is_due(self) -> bool:
        """Return whether it is time for a checkpoint."""
        config = self.config
        seconds, steps = config.checkpoint_interval_seconds, config.checkpoint_interval_env_steps
        if seconds and time.monotonic() - self._saved >= seconds:
            return True
        return bool(steps) and self.flow.board.env_steps // steps > self._saved_steps // steps

    def saved(self) -> None:
        """Note that a checkpoint was made."""
        self._saved, self._saved_steps = time.monotonic(), self.flow.board.env_steps

    def show(self) -> None:
        """Show how it goes, now and then; costs next to nothing in between."""
        if time.monotonic() >= self._next_look:
            self._look()

    def training_ended(self) -> None:
        """Look at the speed: what comes after, such as the last checkpoint, has none."""
        self._at_end = self._progress.look()

    def say(self, message: str) -> None:
        """Tell the user something."""
        self._display.say(message)

    def warn(self, message: str) -> None:
        """Tell the user that something went wrong."""
        self._display.say(f"warning: {message}", "yellow")

    def __enter__(self) -> Monitor:
        if self._allocation is not None:
            self._display.allocation(self._allocation)
        self._display.start()
        threading.Thread(target=_import, name="imports", daemon=True).start()
        for name, there in (
            ("tensorboard", Scalars.available),
            ("matplotlib", learning_curve.available),
        ):
            if not there:
                self.warn(
                    f"{name} is missing, and with it part of the records: "
                    'pip install "kary-replay[runner]"'
                )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._look(last=True)
        self._display.stop()
        with self._forgiving(Exception):
            self._scalars.close()
        with self._forgiving():
            self.directory.close()
        if learning_curve.available and (self._episodes.kept or self.evaluations):
            config, path = self.config, self.directory.path / "learning_curve.png"
            with self._forgiving(Exception):
                learning_curve.draw(
                    path, title(config), self._episodes, self.evaluations, config.target_return
                )

    def _keep(self, name: str, record: Mapping[str, Any]) -> None:
        with self._forgiving():
            self.directory.append(name, record)

    def _keep_policy(self, name: PolicyName, evaluated: Evaluated) -> None:
        with self._forgiving():
            self.directory.keep_policy(name, evaluated)
            self.kept[name] = evaluated.evaluation

    def _keep_if_best(self, evaluated: Evaluated) -> None:
        best = self.kept.get("best")
        if best is None or evaluated.evaluation.mean_return > best.mean_return:
            self._keep_policy("best", evaluated)

    def _write(self, values: Mapping[str, float], env_steps: int) -> None:
        with self._forgiving(Exception):
            self._scalars.write(values, env_steps)

    @contextlib.contextmanager
    def _forgiving(self, kind: type[Exception] = OSError) -> Iterator[None]:
        """Let a run go on, or end, without its records if the disk is full; say so once.

        Or whatever else is wrong with a package by which they are made, which may not fit others.
        """
        try:
            yield
        except kind as error:
            if not self._has_complained:
                self._has_complained = True
                what = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
                self.warn(f"records are incomplete: {what}{error}")

    def _compare(self, evaluation: Evaluation) -> None:
        target = self.config.target_return
        self.reached_target |= target is not None and evaluation.mean_return >= target

    def _look(self, last: bool = False) -> None:
        now = time.monotonic()
        self._next_look = now + LOOK_SECONDS
        if self._at_end is None:
            figures = self._progress.look()
        else:
            board = self.flow.board  # with what was under way then
            figures = self._at_end._replace(env_steps=board.env_steps, updates=board.updates)
        self._display.show(figures, self.recent_return, self.evaluations, last)
        with self._forgiving():
            self.directory.flush()
        if figures.env_steps and (last or now >= self._next_scalars):
            self._next_scalars = now + SCALARS_SECONDS
            values = {
                "return/episodes": self.recent_return,
                "speed/env_steps_per_second": figures.env_steps_per_second,
                "speed/updates_per_second": figures.updates_per_second,
                **self._figures_of_streams(),
                "workers/updates_behind": figures.behind,
                "workers/actors_waited": figures.actors_waited,
                "workers/learners_waited": figures.learners_waited,
            }
            self._write(values, figures.env_steps)

    def _figures_of_streams(self) -> dict[str, float]:
        """Return the numbers of all streams, such as replay/size."""
        kinds = {"experience": self.config.learns_from}
        return {
            f"{kinds.get(name, name)}/{figure}": value
            for name, stream in self.flow.streams.items()
            for figure, value in stream.figures().items()
        }

    def _go_on_from(self, env_steps: int) -> None:
        """Take up the records of a run as they were at a checkpoint."""
        for records in (EPISODES, EVALUATIONS):
            self.directory.keep_records(records, env_steps)
        names: tuple[PolicyName, ...] = ("best", "last")
        for name in names:
            policy = self.directory.policy(name)
            if policy is not None:
                self.kept[name] = policy.evaluation
                last = policy
        if "last" in self.kept:  # a crash may have come between the two
            self._keep_if_best(last)
        for evaluation in self.directory.evaluations():
            self.evaluations.append(evaluation)
            self._compare(evaluation)
        if self.evaluations and self.config.evaluate != "never":
            self.flow.board.row("evaluator", 0).parameter_version = self.evaluations[-1].updates
        for record in self.directory.records(EPISODES):
            self.recent.append(record["episode_return"])
            self._episodes.add(
                record["env_steps"], record["wall_seconds"], record["episode_return"]
            )
