"""Large batches: `python -m bench.runs.large_batch [OPTIONS]`.

Batches of 32 to 4096 rows, the rest of the preset unchanged: samples per insert too, so that a
batch twice as large means half as many updates from the same experience. The learning rate grows
with the square root of the batch size, from the preset's. The question is that of Stooke & Abbeel
2018 (arXiv:1803.02811): how far can the batch grow before more experience is needed?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from bench.harness import campaign
from bench.harness.campaign import Job, Record, chosen, quartiles, spread
from bench.harness.plots import BLUE, GREEN, ORANGE, STYLE
from bench.harness.report import markdown_table
from bench.harness.timing import rotated

BATCHES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
SHORT_BATCHES = (64, 1024)
# name -> algorithm, environment, threshold, preset's learning rate and batch, environment steps: of
# a run, of a short run, between two evaluations
TASKS: dict[str, tuple[str, str, float, float, int, int, int, int]] = {
    "cartpole_dqn": ("dqn", "CartPole-v1", 475.0, 1e-3, 64, 300_000, 40_000, 4_000),
    "pendulum_sac": ("sac", "Pendulum-v1", -200.0, 2e-3, 64, 30_000, 4_000, 500),
    "breakout_dqn": ("dqn", "MinAtar/Breakout-v1", 5.0, 2.5e-4, 32, 300_000, 20_000, 10_000),
}
IDENTITY = ("task", "batch_size", "seed")
KEYS = {  # what is measured up to the threshold -> how the table calls it
    "steps_to_threshold": "env steps",
    "updates_to_threshold": "updates",
    "seconds_to_threshold": "seconds",
}
COLOURS = (BLUE, ORANGE, GREEN)


def jobs(tasks: Sequence[str], seeds: int, short: bool) -> Iterator[Job]:
    """Every batch size once, then all of them again with the next seed."""
    batches = SHORT_BATCHES if short else BATCHES
    for seed in range(seeds):
        for task in tasks:
            algorithm, env, threshold, rate, usual, long_steps, short_steps, interval = TASKS[task]
            for batch_size in rotated(batches, seed):
                options = {
                    "batch_size": batch_size,
                    "learning_rate": rate * float(np.sqrt(batch_size / usual)),
                }
                settings = {
                    "total_env_steps": short_steps if short else long_steps,
                    "evaluation_interval": interval,
                }
                yield {
                    "task": task,
                    "algorithm": algorithm,
                    "env": env,
                    "threshold": threshold,
                    "batch_size": batch_size,
                    "seed": seed,
                    "options": options,
                    "settings": {**settings, "actors": 1},
                }


def describe(record: Record) -> str:
    """One line about a run."""
    who = f"{record['env']:<12} batch {record['batch_size']:>4}, seed {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    if not record["solved"]:
        return f"{who}  not solved in {record['env_steps']:,} steps"
    return (
        f"{who}  {record['steps_to_threshold']:,} steps, {record['updates_to_threshold']:,} updates"
    )


def reached(runs: Sequence[Record], key: str) -> list[float]:
    """What it took; infinity where a run never reached the threshold."""
    return [run[key] if run["solved"] else np.inf for run in runs]


def table(records: Sequence[Record]) -> list[str]:
    """One line per batch size."""
    rows = []
    for batch_size in sorted({run["batch_size"] for run in records}):
        runs = chosen(records, batch_size=batch_size)
        solved = sum(run["solved"] for run in runs)
        rate = f"{runs[0]['options']['learning_rate']:.2g}"
        rows.append(
            [
                str(batch_size),
                rate,
                f"{solved}/{len(runs)}",
                *(spread(reached(runs, key)) for key in KEYS),
            ]
        )
    return markdown_table(
        [
            "batch",
            "learning rate",
            "solved",
            *(f"{name} to the threshold" for name in KEYS.values()),
        ],
        rows,
    )


def draw(records: Sequence[Record], path: Path) -> None:
    """One panel per task: what it took at each batch size, as multiples of the preset's."""
    tasks = [task for task in TASKS if chosen(records, task=task)]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1, len(tasks), figsize=(4.7 * len(tasks), 3.6), layout="constrained", squeeze=False
        )
        for axes, task in zip(panels[0], tasks, strict=True):
            _panel(axes, task, chosen(records, task=task))
        figure.savefig(path)
        plt.close(figure)


def _panel(axes: Any, task: str, records: Sequence[Record]) -> None:
    algorithm, env, _, _, usual, *_ = TASKS[task]
    batches = sorted({run["batch_size"] for run in records})
    for colour, (key, name) in zip(COLOURS, KEYS.items(), strict=True):
        preset = chosen(records, batch_size=usual)
        base = quartiles(reached(preset, key))[1] if preset else np.inf
        if not np.isfinite(base):
            continue
        of_all = (
            np.array(
                [quartiles(reached(chosen(records, batch_size=size), key)) for size in batches]
            )
            / base
        )
        of_all[~np.isfinite(of_all)] = np.nan
        axes.fill_between(batches, of_all[:, 0], of_all[:, 2], color=colour, alpha=0.2, lw=0)
        axes.plot(batches, of_all[:, 1], "o-", color=colour, lw=1.8, label=name)
    axes.axhline(1, color="#333333", lw=0.8)
    for size in batches:
        if not np.isfinite(
            quartiles(reached(chosen(records, batch_size=size), "steps_to_threshold"))[1]
        ):
            axes.text(size, 0.97, "∞", ha="center", va="top", transform=axes.get_xaxis_transform())
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(batches, [str(size) for size in batches])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.set_title(f"{algorithm.upper()}, {env}")
    axes.set_xlabel("batch size")
    axes.set_ylabel(f"to the threshold (batch {usual} = 1)")
    axes.grid()
    if axes.lines[:-1]:
        axes.legend()


def report(results: Path, docs: Path) -> None:
    """Write docs/large_batch.md and its picture."""
    campaign.threshold_page(
        "large_batch", "Large batches", TASKS, IDENTITY, draw, table, results, docs
    )


def main() -> None:
    """Be the command line."""
    campaign.command("large_batch", __doc__, list(TASKS), jobs, IDENTITY, describe, report)


if __name__ == "__main__":
    main()
