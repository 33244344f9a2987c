"""Shows a run to a person: a panel that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..allocation.cores import Allocation
from ..config import RunnerConfig
from ..messages import Evaluation
from .progress import Figures

__all__ = ["Display", "number", "title"]

LINE_SECONDS = 10.0  # between two lines where there is no terminal
SPLITS = 8  # shown of the allocation
NARROWEST = 64  # columns of a terminal; the panel has room for its words, and a billion steps


class Display:
    """Shows how a run goes; when nobody reads any more, it falls silent.

    Parameters
    ----------
    console : rich.console.Console
        Where to.
    config : RunnerConfig
        Of the run.
    path : Path
        Of the run's directory.
    """

    def __init__(self, console: Console, config: RunnerConfig, path: Path) -> None:
        self._console, self._config, self._path = console, config, path
        self._live: Live | None = None
        self._next_line = time.monotonic() + LINE_SECONDS

    def start(self) -> None:
        """Begin to show."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            live = self._live = Live(
                Text(f"{title(self._config)}: starting"), console=self._console, auto_refresh=False
            )
            self._try(lambda: live.start(refresh=True))
        else:
            self.say(f"{title(self._config)}, in {self._path}")

    def stop(self) -> None:
        """End it; the panel stays as it is."""
        if self._live is not None:
            self._try(self._live.stop)
            self._live = None

    def show(
        self, figures: Figures, recent: float, evaluations: Sequence[Evaluation], last: bool = False
    ) -> None:
        """Show how it goes; ``recent`` is the mean return of episodes that ended lately."""
        if self._live is not None:
            live, news = self._live, (figures, recent, evaluations)
            is_wide = self._console.width >= NARROWEST
            picture = self.panel(*news) if is_wide else Text(self.line(*news))
            self._try(lambda: live.update(picture, refresh=True))
        elif last or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            self.say(self.line(figures, recent, evaluations))

    def say(self, message: str, style: str = "") -> None:
        """Tell something."""
        self._try(lambda: self._console.print(Text(message, style), soft_wrap=True))

    def allocation(self, allocation: Allocation) -> None:
        """Show what was measured, and what came of it."""
        self._try(lambda: self._console.print(allocation_table(allocation)))

    def panel(self, figures: Figures, recent: float, evaluations: Sequence[Evaluation]) -> Panel:
        """Return the whole picture, for a terminal."""
        config = self._config
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", min_width=18)
        rows.add_column(justify="right", min_width=12)
        rows.add_column(style="dim")
        rows.add_row(
            "environment steps",
            f"{figures.env_steps:,}",
            f"{number(figures.env_steps_per_second)}/s",
        )
        rows.add_row("updates", f"{figures.updates:,}", f"{number(figures.updates_per_second)}/s")
        rows.add_row("return", f"{number(recent)}", "of recent episodes")
        if config.evaluate != "never":
            rows.add_row("evaluation", *_evaluated(evaluations, config.target_return))
        if config.backend != "serial":
            most = f"updates behind, the most {number(figures.most_behind)}"
            rows.add_row("actors' parameters", number(figures.behind), most)
        for row in self._experience(figures):
            rows.add_row(*row)
        if config.backend != "serial":
            actors, learners = share(figures.actors_waited), share(figures.learners_waited)
            waits = f"{actors} of actors, {learners} of learners"
            rows.add_row("time waited", "", waits)
        clock = f"{duration(figures.seconds)} gone, {duration(figures.seconds_left)} to go"
        done = figures.env_steps / config.total_env_steps
        bar = Table.grid(padding=(0, 2), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(justify="right")
        bar.add_row(
            ProgressBar(total=1.0, completed=min(1.0, done)), f"{min(1.0, done):.0%}   {clock}"
        )
        return Panel(
            Group(rows, "", bar),
            title=Text(title(config)),  # which is no markup, and paths are none either
            title_align="left",
            subtitle=Text(str(self._path)),
            subtitle_align="right",
            border_style="blue",
            padding=(1, 2),
            width=min(88, self._console.width),
        )

    def _experience(self, figures: Figures) -> list[tuple[str, str, str]]:
        """Return the rows about what is between actors and learners."""
        config = self._config
        if config.learns_from == "rollouts":
            dropped = f"{figures.dropped_steps:,} steps dropped"
            rollouts = f"{config.rows_per_update:,}", "steps for an update"
            rows = [
                ("rollouts", *rollouts),
                ("staleness", number(figures.staleness), f"updates; {dropped}"),
            ]
            if config.backend == "ray":
                rows.append(
                    ("machines", f"{figures.machines}", "whose actors the learner hears of")
                )
            return rows
        fill = figures.buffer_size / config.buffer_capacity
        rows = [
            (
                "buffer",
                f"{fill:.0%}",
                f"{figures.buffer_size:,} of {config.buffer_capacity:,} rows",
            )
        ]
        if config.backend == "ray":
            off = f"law within {figures.distance:.2%} of one buffer's"
            rows.append(("shards", f"{figures.shards}", off))
        wanted = f"wanted {config.samples_per_insert:g}"
        return [*rows, ("samples per insert", number(figures.samples_per_insert), wanted)]

    def line(self, figures: Figures, recent: float, evaluations: Sequence[Evaluation]) -> str:
        """Return the same in one line."""
        config = self._config
        parts = [
            f"{duration(figures.seconds)}",
            f"{figures.env_steps:,} env steps ({number(figures.env_steps_per_second)}/s)",
            f"{figures.updates:,} updates ({number(figures.updates_per_second)}/s)",
            f"return {number(recent)}",
        ]
        if evaluations:
            parts.append(f"evaluation {number(evaluations[-1].mean_return)}")
        if config.backend != "serial":
            parts.append(f"{number(figures.behind)} updates behind")
        if config.learns_from == "replay":
            parts.append(f"buffer {figures.buffer_size / config.buffer_capacity:.0%}")
            parts.append(f"{number(figures.samples_per_insert)} samples per insert")
        else:
            parts.append(f"staleness {number(figures.staleness)}")
        if config.backend == "ray" and config.learns_from == "replay":
            parts.append(f"{figures.shards} shards")
        elif config.backend == "ray":
            parts.append(f"{figures.machines} machines")
        if config.backend != "serial":
            parts.append(
                f"waited: actors {share(figures.actors_waited)}, "
                f"learners {share(figures.learners_waited)}"
            )
        if not math.isnan(figures.seconds_left) and figures.seconds_left > 0:
            parts.append(f"{duration(figures.seconds_left)} to go")
        return ", ".join(parts)

    def _try(self, show: Callable[[], Any]) -> None:
        """Show something, unless nobody reads: a run must not end because of that."""
        try:
            show()
        # rich turns a pipe that closed into SystemExit, and trips over its own hooks where that was
        # at the beginning.
        except (OSError, ValueError, IndexError, SystemExit):
            self._console.quiet = True


def title(config: RunnerConfig) -> str:
    """Return what the run is, in a few words."""
    return f"{config.algorithm} on {config.env_name}, seed {config.seed}"


def allocation_table(allocation: Allocation) -> Table:
    """Return a table of the splits of cores that were weighed, around the one chosen."""
    table = Table(
        title="measured: environment steps per second",
        title_justify="left",
        caption=allocation.reason,
        caption_justify="left",
    )
    in_turns = math.isinf(allocation.chosen.learned)
    sides = () if in_turns else ("actors collect", "learners keep up with")
    for name in ("actors", *sides, "so together"):
        table.add_column(name, justify="right")
    at = allocation.splits.index(allocation.chosen)
    first = max(0, min(at - SPLITS // 2, len(allocation.splits) - SPLITS))
    for split in allocation.splits[first : first + SPLITS]:
        chosen = split is allocation.chosen
        mark = "→ " if chosen else ""
        apart = () if in_turns else (split.collected, split.learned)
        table.add_row(
            f"{mark}{split.actors}",
            *map(number, (*apart, split.env_steps_per_second)),
            style="bold" if chosen else "dim",
        )
    return table


def _evaluated(evaluations: Sequence[Evaluation], target: float | None) -> tuple[str, str]:
    """Return the return of the last evaluation, and what goes with it."""
    wanted = [] if target is None else [f"wanted {target:g}"]
    if not evaluations:
        return "–", ", ".join(wanted)
    best = max(evaluation.mean_return for evaluation in evaluations)
    return number(evaluations[-1].mean_return), ", ".join(
        [f"at step {evaluations[-1].env_steps:,}", f"best {number(best)}", *wanted]
    )


def number(value: float) -> str:
    """Return a number with as many digits as one wants to see."""
    if math.isnan(value):
        return "–"
    return (
        f"{value:,.0f}"
        if abs(value) >= 1000
        else f"{value:.1f}"
        if abs(value) >= 1 or value == 0
        else f"{value:.2g}"
    )


def share(value: float) -> str:
    """Return a share in per cent."""
    return "–" if math.isnan(value) else f"{value:.0%}"


def duration(seconds: float) -> str:
    """Return hours, minutes and seconds."""
    if math.isnan(seconds):
        return "–"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
