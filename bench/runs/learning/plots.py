"""The pictures of a campaign."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.harness.plots import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, STYLE
from bench.runs.learning import scores
from bench.runs.learning.curves import BY_GRADIENT, FIRST, HALF, NOW, PLAIN, UNIFORM
from bench.runs.learning.results import Document
from bench.runs.learning.scores import MEASURES, Comparison, Estimate
from bench.runs.learning.tasks import TASKS

CLIFFWALK = {UNIFORM: GREY, FIRST: BLUE, NOW: GREEN, "oracle": ORANGE}
KNOWN = {UNIFORM: GREY, FIRST: BLUE, NOW: GREEN, HALF: SKY, BY_GRADIENT: PURPLE, PLAIN: ORANGE}
OTHERS = (RED,)  # for buffers that come later
LEVELS = np.linspace(-0.5, 1.25, 71)  # of the scaled score


def colours(buffers: Sequence[str]) -> dict[str, str]:
    """Return a colour for each buffer; n-step returns have the colour of the same without them."""
    kinds = dict.fromkeys(buffer.split(", n =")[0] for buffer in buffers)
    new = [kind for kind in kinds if kind not in KNOWN]
    named = KNOWN | {kind: OTHERS[i % len(OTHERS)] for i, kind in enumerate(new)}
    return {buffer: named[buffer.split(", n =")[0]] for buffer in buffers}


def title_of(name: str, before_variant: str) -> str:
    """Return what a task is called in pictures."""
    task = TASKS[name]
    # of the other tasks the page has a table
    variant = "" if task.is_aggregated else before_variant + task.variant
    return f"{task.algorithm}, {task.env}{variant}"


def draw_cliffwalk(document: Document, path: Path) -> None:
    """Median updates against transitions, log-log, with the range over seeds."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(6.2, 4.2), layout="constrained")
        for method, colour in CLIFFWALK.items():
            runs = [run for run in document["runs"] if run["method"] == method]
            xs = [run["transitions"] for run in runs]
            low, high = ([pick(run["updates"]) for run in runs] for pick in (min, max))
            axes.fill_between(xs, low, high, color=colour, alpha=0.2, lw=0)
            middle = [median(run["updates"]) for run in runs]
            axes.plot(xs, middle, "o-", color=colour, ms=4, lw=1.8, label=method)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("transitions in the replay memory (2 to 16 states)")
        axes.set_ylabel("updates until solved")
        axes.set_title("Blind Cliffwalk: median of 10 seeds, smallest to largest shaded")
        axes.grid()
        axes.legend()
        _save(figure, path)


def draw_curves(documents: Mapping[str, Document], buffers: Sequence[str], path: Path) -> None:
    """A panel for each task: the mean over seeds and its 95 % interval."""
    n_columns = 3 if len(documents) > 4 else 2
    n_rows = -(-len(documents) // n_columns)
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            n_rows,
            n_columns,
            figsize=(3.5 * n_columns + 0.5, 2.5 * n_rows + 0.5),
            layout="constrained",
            squeeze=False,
        )
        for axes in grid.flat[len(documents) :]:
            axes.axis("off")
        for axes, (name, document) in zip(grid.flat, documents.items(), strict=False):
            _curves_of(axes, name, document, buffers)
        for axes in grid[:, 0]:
            axes.set_ylabel("return of the greedy policy")
        _legend_below(figure, buffers)
        _save(figure, path)


def _curves_of(axes: Axes, name: str, document: Document, buffers: Sequence[str]) -> None:
    low, high = TASKS[name].scale
    bottom = high
    for buffer, colour in colours(buffers).items():
        runs = [run for run in document["runs"] if run["buffer"] == buffer]
        if not runs:
            continue
        # a run that ends early ends the mean
        steps = min((run["steps"] for run in runs), key=len)
        returns = np.array([run["returns"][: len(steps)] for run in runs])
        found = [scores.mean_of(column) for column in returns.T]
        value, least, most = (np.array(each) for each in zip(*found, strict=True))
        thousands = np.array(steps) / 1000
        axes.plot(thousands, value, color=colour, lw=1.8, ls=_line_of(buffer))
        axes.fill_between(thousands, least, most, color=colour, alpha=0.2, lw=0)
        bottom = min(bottom, value.min(), least.min())
    axes.axhline(high, color="#333333", lw=0.8, ls=":")
    # a run that diverges must not hide the others
    axes.set_ylim(bottom=max(bottom - 0.05 * (high - low), 2 * low - high))
    counts = [sum(run["buffer"] == buffer for run in document["runs"]) for buffer in buffers]
    present = sorted({count for count in counts if count})
    seeds = f"{present[0]} to {present[-1]}" if len(present) > 1 else f"{present[0]}"
    axes.set_title(title_of(name, "\n"), fontsize=9)
    axes.set_xlabel(f"thousand steps; {seeds} seeds")
    axes.grid()


def draw_improvement(
    compared: Mapping[str, Mapping[str, Mapping[str, Comparison]]],
    over_all: Mapping[str, Mapping[str, Estimate]],
    path: Path,
) -> None:
    """Intervals of the probability that a run is better than a uniform one: tasks, then all.

    `compared` is by buffer, measure and task; `over_all` by buffer and measure.
    """
    first = next(iter(MEASURES))
    groups = {
        title_of(name, ",\n"): [
            (
                buffer,
                {measure: found[measure][name].improvement for measure in MEASURES},
                found[first][name].verdict != scores.TOO_FEW,
            )
            for buffer, found in compared.items()
            if name in found[first]
        ]
        for name in TASKS
    }
    groups["all tasks"] = [(buffer, found, True) for buffer, found in over_all.items()]
    groups = {title: group for title, group in groups.items() if group}
    buffers, height = colours(list(compared)), sum(len(group) + 1 for group in groups.values())
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1,
            len(MEASURES),
            figsize=(9.5, 0.19 * height + 1.3),
            layout="constrained",
            sharey=True,
        )
        ticks, y = [], 0
        for title, group in groups.items():
            ticks.append(y + (len(group) - 1) / 2)
            for buffer, by_measure, is_certain in group:
                for axes, measure in zip(panels, MEASURES, strict=True):
                    value, low, high = by_measure[measure]
                    colour = buffers[buffer]
                    axes.plot([low, high], [y, y], color=colour, lw=2.5, alpha=0.5)
                    face = colour if is_certain else "white"
                    axes.plot(value, y, "o", color=colour, ms=5, markerfacecolor=face)
                y += 1
            if title != list(groups)[-1]:
                for axes in panels:
                    axes.axhline(y, color="#E5E5E5", lw=0.8)
            y += 1
        for axes, measure in zip(panels, MEASURES, strict=True):
            axes.axvline(0.5, color="#333333", lw=1)
            axes.set_xlim(-0.03, 1.03)
            axes.set_title(f"Mean return over {measure}")
            axes.set_xlabel("probability of a better run than with uniform replay")
            axes.tick_params(axis="y", length=0)
        panels[0].set_yticks(ticks, list(groups))
        panels[0].set_ylim(y - 1, -1)
        _legend_below(figure, list(buffers))
        _save(figure, path)


def draw_profiles(documents: Mapping[str, Document], buffers: Sequence[str], path: Path) -> None:
    """The share of runs above each scaled score, for buffers that have runs of every task."""
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1, len(MEASURES), figsize=(9.5, 3.4), layout="constrained", sharey=True
        )
        for axes, measure in zip(panels, MEASURES, strict=True):
            for buffer, colour in colours(buffers).items():
                found = scores.profile(documents, buffer, measure, LEVELS)
                value, low, high = (np.array(each) for each in zip(*found, strict=True))
                axes.plot(LEVELS, value, color=colour, lw=1.8, ls=_line_of(buffer))
                axes.fill_between(LEVELS, low, high, color=colour, alpha=0.2, lw=0)
            axes.set_title(f"Mean return over {measure}")
            axes.set_xlabel("score: 0 is a random policy, 1 a good one")
            axes.set_xlim(LEVELS[0], LEVELS[-1])
            axes.set_ylim(0, 1.02)
            axes.grid()
        panels[0].set_ylabel("share of runs with a higher score")
        _legend_below(figure, buffers)
        _save(figure, path)


def draw_least_noise(documents: Mapping[str, Document], path: Path) -> None:
    """By task, the least noise that a run had by the share of its steps: mean and range of seeds.

    A buffer that decides where priorities pay has uniform draws above the line at one half.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
        colours = plt.get_cmap("tab10").colors
        ends = []
        for (name, document), colour in zip(documents.items(), colours, strict=False):
            noise = scores.at_evaluations(document, NOW, "least_noise")
            done = np.array(document["runs"][0]["steps"]) / document["steps"]
            is_known = ~np.isnan(noise).all(axis=0)
            done, noise = done[is_known], noise[:, is_known]
            middle = np.nanmean(noise, axis=0)
            axes.fill_between(
                done, np.nanmin(noise, axis=0), np.nanmax(noise, axis=0), color=colour, alpha=0.12
            )
            axes.plot(done, middle, color=colour, lw=1.8)
            ends.append([middle[-1], name, colour])
        ends.sort()
        for below, above in itertools.pairwise(ends):  # names must not overlap
            above[0] = max(above[0], below[0] + 0.05)
        for y, name, colour in ends:
            axes.annotate(name, (1.01, y), color=colour, va="center", annotation_clip=False)
        axes.axhline(0.5, color="#333333", lw=1, ls=":")
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.set_xlabel("share of the run")
        axes.set_ylabel("least noise, uniform batches having 1")
        axes.set_title("How much less noisy batches could be: uniform above the dotted line")
        axes.grid()
        _save(figure, path)


def _line_of(buffer: str) -> str:
    return "--" if ", n =" in buffer else "-"


def _legend_below(figure: Figure, buffers: Sequence[str]) -> None:
    lines: list[Any] = [
        plt.Line2D([], [], color=colour, lw=2.5, ls=_line_of(buffer), label=buffer)
        for buffer, colour in colours(buffers).items()
    ]
    figure.legend(handles=lines, loc="outside lower center", ncols=min(4, len(lines)))


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path)
    plt.close(figure)
