"""The picture of a run: episodes and evaluations, against environment steps and against time."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from ..messages import Evaluation

__all__ = ["Points", "draw"]

MOST_POINTS = 20_000
BLUE, GREY, RED = "#2166ac", "#9a9a9a", "#c0392b"
UNITS = ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))

available = importlib.util.find_spec("matplotlib") is not None


class Points:
    """Points of a curve, however long.

    When there are too many, every other point is dropped, and of later points only every other one
    is kept.
    """

    def __init__(self) -> None:
        self.kept: list[tuple[float, float, float]] = []  # environment steps, seconds, return
        self._stride, self._seen = 1, 0

    def add(self, env_steps: float, seconds: float, episode_return: float) -> None:
        """Keep a point, or not."""
        if self._seen % self._stride == 0:
            self.kept.append((env_steps, seconds, episode_return))
            if len(self.kept) > MOST_POINTS:
                del self.kept[1::2]
                self._stride *= 2
        self._seen += 1


def draw(
    path: Path,
    title: str,
    episodes: Points,
    evaluations: Sequence[Evaluation],
    target: float | None,
) -> None:
    """Write the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    seconds = [point[1] for point in episodes.kept] + [
        evaluation.wall_seconds for evaluation in evaluations
    ]
    unit, unit_name = next(
        (unit for unit in UNITS if max(seconds, default=0.0) >= 2 * unit[0]), UNITS[-1]
    )
    left, right = figure.subplots(1, 2, sharey=True)
    evaluated = [evaluation.mean_return for evaluation in evaluations]
    panels = (
        (left, 0, 1.0, [evaluation.env_steps for evaluation in evaluations], "environment steps"),
        (
            right,
            1,
            unit,
            [evaluation.wall_seconds for evaluation in evaluations],
            f"wall-clock {unit_name}",
        ),
    )
    for axes, column, scale, where, label in panels:
        axes.plot(
            [point[column] / scale for point in episodes.kept],
            [point[2] for point in episodes.kept],
            ".",
            color=GREY,
            ms=4,
            alpha=0.6,
            mew=0,
            label="training episode",
        )
        if evaluations:
            axes.plot(
                [x / scale for x in where],
                evaluated,
                "o-",
                color=BLUE,
                ms=3.5,
                lw=1.6,
                label="evaluation, mean",
            )
        if target is not None:
            axes.axhline(target, color=RED, ls="--", lw=1.2, label=f"target {target:g}")
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
        axes.locator_params("x", nbins=6)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    left.set_ylabel("return")
    figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
