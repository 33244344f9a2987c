"""Draws convergence.json as tables and pictures: `python -m bench.runs.convergence.report`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.harness.campaign import (
    chosen,
    failures,
    interleaved,
    number,
    quartiles,
    ratio_interval,
    read,
    times,
)
from bench.harness.paths import DOCS, RESULTS
from bench.harness.plots import BLUE, GREEN, ORANGE, PURPLE, SKY, STYLE, YELLOW
from bench.harness.report import machine_text, markdown_table, write
from bench.runs.convergence import on_policy, same_report, tried
from bench.runs.convergence.__main__ import IDENTITY, OUTPUT
from bench.runs.convergence.tasks import RIVALS, TASKS, Task, takes_part

NAMES = {
    "sb3": "Stable-Baselines3",
    "sbx": "SBX",
    "tianshou": "Tianshou",
    "rllib": "RLlib",
    "cleanrl": "CleanRL's way",
    "sample_factory": "Sample Factory",
    "runner": "kary-replay",
}
COLOURS = {
    "sb3": PURPLE,
    "sbx": GREEN,
    "tianshou": ORANGE,
    "rllib": SKY,
    "cleanrl": YELLOW,
    "sample_factory": ORANGE,
    "runner": BLUE,
}
LANDING = RESULTS / "convergence_lunarlander_256.json"
OTHERS = tuple(rival for rival in RIVALS if rival != "runner")
LOGARITHMIC = 30  # times as long as the fastest: on a linear axis one would see the slowest alone
FLOORS = {"LunarLander-v3": -400.0}  # where a curve starts so low that the rest would look flat
READING = (
    "Seconds of training until the mean return of 100 greedy episodes reaches the threshold: "
    "median over seeds, with quartiles in brackets. A run that never reached it counts as "
    "infinite. The clock runs from the first environment step and stands still while snapshots of "
    "the policy are evaluated; start-up (imports, building, processes) is in a column of its own, "
    "with SBX's compiling, and then both together. "
    "The last column is the best of the rivals' medians over this one; its brackets say where nine "
    "in ten such ratios lie when the seeds of both sides are drawn anew, with replacement. How it "
    "is measured, and where everybody's settings come from: "
    "[bench/README.md](../bench/README.md#convergence)."
)
Record = dict[str, Any]


def seconds(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "∞"


def _median(records: Sequence[Record], key: str) -> float | None:
    values = [record[key] for record in records if record.get(key) is not None]
    return float(np.median(values)) if values else None


def table(records: Sequence[Record]) -> list[str]:
    """One line per task and rival."""
    rows = []
    for name, task in TASKS.items():
        medians = {
            r: quartiles(times(runs))[1]
            for r in RIVALS
            if (runs := chosen(records, task=name, rival=r))
        }
        best = min(
            (rival for rival in OTHERS if rival in medians),
            key=lambda rival: medians[rival],
            default=None,
        )
        fastest = times(chosen(records, task=name, rival=best))
        for rival, median in medians.items():
            runs = chosen(records, task=name, rival=rival)
            solved = [run for run in runs if run["solved"]]
            low, _, high = quartiles(times(runs))
            bold = "**" if rival == "runner" else ""
            steps, updates = _median(solved, "env_steps"), _median(solved, "updates")
            rows.append(
                [
                    task.label,
                    NAMES[rival],
                    f"{bold}{seconds(median)}{bold} [{seconds(low)}–{seconds(high)}]",
                    f"{len(solved)}/{len(runs)}",
                    f"{steps:,.0f}" if steps is not None else "–",
                    speed(runs),
                    f"{updates:,.0f}" if updates is not None else "–",
                    startup(runs),
                    seconds(quartiles(times(runs, with_startup=True))[1]),
                    faster(fastest, times(runs), with_interval=rival == "runner"),
                ]
            )
    header = [
        "task",
        "",
        "seconds to threshold",
        "solved",
        "env steps",
        "steps/s",
        "updates",
        "start-up, s",
        "both, s",
        "faster than the best rival",
    ]
    return markdown_table(header, rows)


def speed(runs: Sequence[Record]) -> str:
    """Write the median of environment steps in a second, updates included."""
    lasts = [run["curve"][-1] for run in runs if run["curve"]]
    speeds = [last["env_steps"] / last["wall_seconds"] for last in lasts]
    return f"{np.median(speeds):,.0f}" if speeds else "–"


def startup(runs: Sequence[Record]) -> str:
    """Write the seconds of the start-up, and how many of them went into compiling."""
    whole = f"{_median(runs, 'startup_seconds') or float('nan'):.1f}"
    compiling = _median(runs, "compile_seconds")
    return f"{whole} ({compiling:.1f} compiling)" if compiling else whole


def faster(theirs: Sequence[float], mine: Sequence[float], with_interval: bool) -> str:
    """Write the best rival's median over this one."""
    ratio = quartiles(theirs)[1] / quartiles(mine)[1] if theirs else np.inf
    if not np.isfinite(ratio):
        return "–"
    low, high = ratio_interval(theirs, mine)
    return f"{ratio:.2f}×" + f" [{number(low)}–{number(high)}]" * with_interval


def settings(records: Sequence[Record]) -> list[str]:
    """Write what everybody was given, task by task."""
    rows = []
    for name, task in TASKS.items():
        for rival in RIVALS:
            for run in chosen(records, task=name, rival=rival):
                words = ", ".join(
                    f"{key} {value}"
                    for key, value in run.get("settings", {}).items()
                    if key not in HIDDEN
                )
                rows.append([task.label, NAMES[rival], words])
    return markdown_table(
        ["task", "", "settings"], list(map(list, dict.fromkeys(map(tuple, rows))))
    )


HIDDEN = ("units",)  # said in the heading


def band(runs: Sequence[Record], grid: np.ndarray) -> np.ndarray:
    """Quartiles over seeds of the mean return at each moment [3, T]; curves that end stay there.

    Where a seed has not been evaluated yet, there is nothing to draw.
    """
    rows = []
    for run in runs:
        if run["curve"]:
            xs = [evaluation["wall_seconds"] for evaluation in run["curve"]]
            ys = [evaluation["mean_return"] for evaluation in run["curve"]]
            rows.append(np.interp(grid, xs, ys, left=np.nan))
    if not rows:
        return np.full((3, len(grid)), np.nan)
    return np.quantile(np.array(rows), [0.25, 0.5, 0.75], axis=0)


def _ends(records: Sequence[Record]) -> tuple[float, float]:
    """When the fastest rival was done with a task, and the slowest: medians."""
    ends = []
    for rival in RIVALS:
        if runs := chosen(records, rival=rival):
            last = [
                run["wall_seconds"] if run["solved"] else run.get("trained_seconds", 0.0)
                for run in runs
            ]
            ends.append(float(np.median(last)))
    return min(ends), max(ends)


def _panel(axes: Axes, task: Task, records: Sequence[Record]) -> None:
    first, last = _ends(records)
    logarithmic = last > LOGARITHMIC * first > 0
    left, right = 0.25 * first if logarithmic else 0.0, 1.25 * last
    grid = np.geomspace(left, right, 400) if logarithmic else np.linspace(left, right, 400)
    for rival in RIVALS:
        runs = chosen(records, rival=rival)
        if not runs:
            continue
        low, middle, high = band(runs, grid)
        axes.fill_between(grid, low, high, color=COLOURS[rival], alpha=0.2, lw=0)
        axes.plot(grid, middle, color=COLOURS[rival], lw=1.8, label=NAMES[rival])
        median = quartiles(times(runs))[1]
        if np.isfinite(median):
            axes.plot(
                median, task.threshold, "o", color=COLOURS[rival], mec="white", ms=7, zorder=5
            )
    axes.axhline(task.threshold, color="#333333", lw=0.9, ls="--")
    if logarithmic:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(left, right)
    if task.env_id in FLOORS:
        axes.set_ylim(bottom=max(axes.get_ylim()[0], FLOORS[task.env_id]))
    axes.set_title(task.label)
    axes.set_xlabel("seconds of training" + ", logarithmic" * logarithmic)
    axes.set_ylabel("mean return")
    axes.grid()


def draw(records: Sequence[Record], units: int, path: Path) -> None:
    """One panel per task; the last place holds the legend."""
    names = [name for name in TASKS if chosen(records, task=name)]
    n_panels = len(names) + 1
    n_rows = -(-n_panels // 3)
    n_columns = -(-n_panels // n_rows)
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            n_rows,
            n_columns,
            figsize=(3.7 * n_columns, 2.9 * n_rows),
            layout="constrained",
            squeeze=False,
        )
        for axes, name in zip(panels.flat, names, strict=False):
            _panel(axes, TASKS[name], chosen(records, task=name))
        for axes in panels.flat[len(names) :]:
            axes.axis("off")
        legend = panels.flat[len(names)]
        for rival in RIVALS:
            if runs := chosen(records, rival=rival):
                seeds = sorted({len(some) for name in names if (some := chosen(runs, task=name))})
                count = (
                    f"{seeds[0]} to {seeds[-1]} seeds"
                    if len(seeds) > 1
                    else f"{seeds[0]} seed{'s' * (seeds[0] > 1)}"
                )
                legend.plot([], [], color=COLOURS[rival], lw=1.8, label=f"{NAMES[rival]} ({count})")
        legend.plot([], [], color="#333333", lw=0.9, ls="--", label="threshold")
        legend.plot(
            [], [], "o", color="#333333", mec="white", ms=7, label="median time to the threshold"
        )
        legend.legend(
            loc="center",
            title=f"two layers of {units}\nmedian over seeds, quartiles shaded",
            alignment="left",
            fontsize=9,
        )
        figure.savefig(path)
        plt.close(figure)


def order(records: Sequence[Record]) -> list[str]:
    """Name the tasks whose runs were not made in turn; records are in the order of their runs."""
    tasks = [
        name
        for name in TASKS
        if not interleaved([record["rival"] for record in chosen(records, task=name)])
    ]
    names = ", ".join(TASKS[name].label for name in tasks)
    return (
        [f"Not all runs of these were made in turn, some were repeated later: {names}.", ""]
        if tasks
        else []
    )


def page(
    described: dict[str, Any], records: Sequence[Record], images: Path, stem: str = "convergence"
) -> list[str]:
    """Write what a campaign came to, and draw its pictures, whose names begin with ``stem``."""
    lines = ["## Convergence", "", *machine_text(described), READING, ""]
    for units in sorted({record["units"] for record in records}):
        some = chosen(records, units=units)
        name = f"{stem}_{units}"
        draw(some, units, images / f"{name}.png")
        lines += [
            f"### Two hidden layers of {units}",
            "",
            f"![Convergence, {units} units](images/{name}.png)",
            "",
            *table(some),
            *order(some),
        ]
    there, tasks = ({record[key] for record in records} for key in ("rival", "task"))
    wanted = [rival for rival in RIVALS if any(takes_part(rival, task) for task in tasks)]
    absent = ", ".join(NAMES[rival] for rival in wanted if rival not in there)
    lines += [f"Not among these results: {absent}.", ""] if absent else []
    others = []
    if stem == "convergence":
        others = [*landing(images), *same_report.section(images), *tried.section()]
    ends = ["### Settings", "", *settings(records)]
    return [*lines, *failures(records, IDENTITY), *others, *ends]


def landing(images: Path) -> list[str]:
    """Write how LunarLander with layers of 256 went beside SBX, on a machine of another kind."""
    if not LANDING.exists():
        return []
    described, records = read(LANDING)
    draw(records, 256, images / f"{LANDING.stem}.png")
    return [
        "### LunarLander with layers of 256, beside SBX",
        "",
        *machine_text(described),
        f"![LunarLander with layers of 256](images/{LANDING.stem}.png)",
        "",
        *table(records),
        *order(records),
        *settings(records),
        *failures(records, IDENTITY),
    ]


def main() -> None:
    """Read the arguments, write the page and the pictures."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.runs.convergence.report", description=__doc__.splitlines()[0]
    )
    parser.add_argument("results", nargs="?", type=Path, default=OUTPUT)
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page and its images are")
    arguments = parser.parse_args()
    images = arguments.docs / "images"
    images.mkdir(parents=True, exist_ok=True)
    lines = page(*read(arguments.results), images)
    write(arguments.docs / "runner_benchmarks.md", "Benchmarks of the runner", lines)
    if on_policy.OUTPUT.exists():
        lines = page(*read(on_policy.OUTPUT), images, "convergence_ppo")
        write(arguments.docs / "rollout_benchmarks.md", "Benchmarks of rollouts", lines)


if __name__ == "__main__":
    main()
