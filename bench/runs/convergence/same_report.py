"""Draws convergence_same.json: what comes from settings, from the update, and from collecting.

The lines become a part of the page that bench.runs.convergence.report writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.harness import campaign
from bench.harness.paths import RESULTS
from bench.harness.plots import BLUE, GREEN, ORANGE, STYLE
from bench.harness.report import markdown_table, results_links
from bench.runs.convergence.tasks import (
    IN_TURN,
    MACHINES,
    OURS,
    PARALLEL,
    SB3,
    SBX,
    SETTINGS_OF,
    TASKS,
    THEIRS,
)

Record = dict[str, Any]
OUTPUT = RESULTS / "convergence_same.json"
IDENTITY = ("task", "units", "machine", "settings_of", "seed", "budget")
NAMES = {
    SB3: "Stable-Baselines3",
    SBX: "SBX",
    IN_TURN: "kary-replay, in turn",
    PARALLEL: "kary-replay, in parallel",
}
# From Stable-Baselines3 as tuned to ours as it is, one change at a time.
WAY = ((SB3, THEIRS), (IN_TURN, THEIRS), (IN_TURN, OURS), (PARALLEL, OURS))
CHANGES = {"update": ORANGE, "settings": GREEN, "parallel collection": BLUE}
READING = (
    "Everybody trains with the settings that are tuned for Stable-Baselines3, and with those of "
    "our preset. Learning rates, batches, n-step returns, numbers of environments, updates for "
    "each step, exploration, warm-up and the speed of targets are the same. Stable-Baselines3 has "
    "no priorities, no double Q-network, and a Huber loss with a delta of 1 alone; SBX, besides, "
    "does not clip the gradients of DQN and keeps its learning rate. Its updates gather no more "
    "than these settings say; as tuned for it they do. Ours with the settings of Stable-Baselines3 "
    "draws uniformly and has one environment. It runs in one process, where acting and learning "
    "take turns, and in parallel. With our settings a run has no more steps than ours."
)
STEPS = (
    "From Stable-Baselines3 as tuned to ours as it is, one change at a time: first our code in its "
    "place, in one process and with its settings; then our settings; then acting and learning in "
    "parallel. Each factor is a ratio of medians, and their product is the last column, whose "
    "brackets say where nine in ten such ratios lie when the seeds of both sides are drawn anew. "
    "Dots are the time of Stable-Baselines3 and ours. In another order the same changes may have "
    "other factors: the table above has every combination."
)


def seconds_of(records: Sequence[Record], machine: str, settings_of: str) -> list[float]:
    """Return the times until solved of one machine with these settings."""
    return campaign.times(campaign.chosen(records, machine=machine, settings_of=settings_of))


def factor(over: float, under: float) -> str:
    return f"{over / under:.2f}×" if np.isfinite(over + under) else "–"


def table(records: Sequence[Record]) -> list[str]:
    """One line per task and machine: its times with either settings, and what those are worth."""
    rows = []
    for name, task in TASKS.items():
        some = campaign.chosen(records, task=name)
        for machine in MACHINES:
            cells, medians = [], []
            for whose in SETTINGS_OF:
                found = seconds_of(some, machine, whose)
                solved = sum(map(np.isfinite, found))
                cells.append(f"{campaign.spread(found)}, {solved}/{len(found)}" if found else "")
                medians.append(campaign.quartiles(found)[1] if found else np.inf)
            if any(cells):
                rows.append([task.label, NAMES[machine], *cells, factor(*medians)])
    header = [
        "task",
        "",
        "seconds, settings of Stable-Baselines3",
        "seconds, settings of kary-replay",
        "the settings' factor",
    ]
    return markdown_table(header, rows)


def decomposition(records: Sequence[Record]) -> dict[str, list[list[float]]]:
    """Return the times along the way, of the tasks that have been run all along it."""
    found = {
        name: [seconds_of(campaign.chosen(records, task=name), *step) for step in WAY]
        for name in TASKS
    }
    return {name: steps for name, steps in found.items() if all(steps)}


def factors(records: Sequence[Record]) -> list[str]:
    """One line per task: the factors of the changes, and their product."""
    rows = []
    for name, steps in decomposition(records).items():
        medians = [campaign.quartiles(times)[1] for times in steps]
        whole = factor(medians[0], medians[-1])
        if whole != "–":
            low, high = campaign.ratio_interval(steps[0], steps[-1])
            whole = f"**{whole}** [{campaign.number(low)}–{campaign.number(high)}]"
        parts = [factor(*pair) for pair in pairwise(medians)]
        rows.append([TASKS[name].label, f"{campaign.number(medians[0])} s", *parts, whole])
    header = ["task", "Stable-Baselines3 as tuned", *CHANGES, "together"]
    return markdown_table(header, rows)


def _panel(axes: Axes, units: int, records: Sequence[Record]) -> None:
    found = decomposition(records)
    for row, steps in enumerate(found.values()):
        medians = [campaign.quartiles(times)[1] for times in steps]
        for number, ((start, end), colour) in enumerate(
            zip(pairwise(medians), CHANGES.values(), strict=True)
        ):
            y = row + 0.25 * (number - 1)
            if np.isfinite(start + end):
                axes.plot([start, end], [y, y], color=colour, lw=7, solid_capstyle="butt")
                axes.annotate(
                    factor(start, end),
                    (min(start, end), y),
                    (-4, 0),
                    textcoords="offset points",
                    ha="right",
                    va="center_baseline",
                    fontsize=8,
                )
        for y, value in ((row - 0.25, medians[0]), (row + 0.25, medians[-1])):
            if np.isfinite(value):
                axes.plot(value, y, "o", color="#333333", ms=4, zorder=5)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set_yticks(range(len(found)), [TASKS[name].label for name in found])
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.set_title(f"two layers of {units}")
    axes.set_xlabel("median seconds of training until solved, logarithmic")
    axes.grid(axis="x")
    axes.tick_params(axis="y", length=0)


def draw(records: Sequence[Record], widths: Sequence[int], path: Path) -> None:
    """One panel per width: each task's way from Stable-Baselines3's time to ours."""
    n_rows = max(len(decomposition(campaign.chosen(records, units=units))) for units in widths)
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1,
            len(widths),
            figsize=(1.5 + 4.2 * len(widths), 1.2 + 0.75 * n_rows),
            layout="constrained",
            squeeze=False,
            sharey=True,
        )
        for axes, units in zip(panels.flat, widths, strict=True):
            _panel(axes, units, campaign.chosen(records, units=units))
        for name, colour in CHANGES.items():
            panels.flat[0].plot([], [], color=colour, lw=7, label=name)
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(CHANGES))
        figure.savefig(path)
        plt.close(figure)


def section(images: Path, output: Path = OUTPUT) -> list[str]:
    """Return the lines of the page, if it has been measured, and draw the picture."""
    if not output.exists():
        return []
    described, records = campaign.read(output)
    processor = described["processor"]
    widths = sorted({record["units"] for record in records})
    lines = [
        "### The same settings for all",
        "",
        f"Measured {described['date']}, commit {described['commit']}, "
        f"on {processor['cores']} cores of an {processor['model']}; "
        f"every run, with its settings: {results_links([output.name])}.",
        "",
        READING,
        "",
        "Seconds until solved: the median, in brackets the quartiles, and how many runs got there.",
        "",
    ]
    for units in widths:
        some = campaign.chosen(records, units=units)
        lines += [f"With two hidden layers of {units}:", "", *table(some)]
    there = {record["machine"] for record in records}
    absent = ", ".join(NAMES[machine] for machine in MACHINES if machine not in there)
    lines += [f"Not among these results: {absent}.", ""] if absent else []
    whole = [units for units in widths if decomposition(campaign.chosen(records, units=units))]
    if whole:
        draw(records, whole, images / "convergence_factors.png")
        lines += [
            "### Where the factor comes from",
            "",
            STEPS,
            "",
            "![Update, settings and parallel collection](images/convergence_factors.png)",
            "",
        ]
    for units in whole:
        some = campaign.chosen(records, units=units)
        lines += [f"With two hidden layers of {units}:", "", *factors(some)]
    return [*lines, *campaign.failures(records, IDENTITY)]
