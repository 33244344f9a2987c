"""What the runner's parts are worth: `python -m bench.runs.runner_ablation [OPTIONS]`.

The preset, and variants that differ from it in one setting: environment steps and updates per
second, and what it takes to reach the threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from bench.harness import campaign
from bench.harness.campaign import Job, Record, chosen, quartiles, spread
from bench.harness.plots import BLUE, ORANGE, STYLE
from bench.harness.report import markdown_table
from bench.harness.timing import rotated
from bench.runs.large_batch import reached

# name -> algorithm, environment, threshold, environment steps of a run, of a short run, between two
# evaluations
TASKS: dict[str, tuple[str, str, float, int, int, int]] = {
    "cartpole_dqn": ("dqn", "CartPole-v1", 475.0, 100_000, 20_000, 2_000),
    "pendulum_sac": ("sac", "Pendulum-v1", -200.0, 8_000, 2_500, 500),
}
PRESET = "preset"
TIGHT = "rate limiter: as tight as it can be"
VARIANTS: dict[str, dict[str, Any]] = {
    PRESET: {},
    "one group of environments, not two": {"groups": 1},
    "prefetch: a batch drawn ahead by a thread": {"prefetch": 1},
    TIGHT: {},  # depends on the task: see `tightest`
    "rate limiter: loose, 100,000 rows": {"samples_per_insert_error": 100_000.0},
    "publish every 10 updates": {"publish_interval": 10},
    "publish every 100 updates": {"publish_interval": 100},
    "new rows get the actor's own TD error": {"initial_priority": "td_error"},
    "alpha 0: uniform replay": {"alpha": 0.0},
    "exploration spread 7, as Ape-X": {"exploration_spread": 7.0},
}
SHORT_VARIANTS = (PRESET, "one group of environments, not two", "publish every 100 updates")
IDENTITY = ("task", "variant", "seed")
RATES = {"env_steps_per_second": "env steps/s", "updates_per_second": "updates/s"}
REACHED = {
    "steps_to_threshold": "env steps to the threshold",
    "seconds_to_threshold": "seconds to the threshold",
}


def tightest(task: str) -> float:
    """Return the smallest `samples_per_insert_error` that the runner takes for these settings."""
    from kary_replay.runner import RunnerConfig

    config = RunnerConfig(*TASKS[task][:2])
    due = config.envs_per_actor // config.groups * config.samples_per_insert
    return float(max(config.options.batch_size, due))


def jobs(tasks: Sequence[str], seeds: int, short: bool) -> Iterator[Job]:
    """Every variant once, then all of them again with the next seed."""
    names = SHORT_VARIANTS if short else tuple(VARIANTS)
    for seed in range(seeds):
        for task in tasks:
            algorithm, env, threshold, long_steps, short_steps, interval = TASKS[task]
            common = {
                "total_env_steps": short_steps if short else long_steps,
                "evaluation_interval": interval,
                "actors": 1,
            }
            for name in rotated(names, seed):
                changed = (
                    {"samples_per_insert_error": tightest(task)}
                    if name == TIGHT
                    else VARIANTS[name]
                )
                yield {
                    "task": task,
                    "algorithm": algorithm,
                    "env": env,
                    "threshold": threshold,
                    "variant": name,
                    "seed": seed,
                    "settings": {**common, **changed},
                }


def describe(record: Record) -> str:
    """One line about a run."""
    who = f"{record['env']:<12} {record['variant']:<42} seed {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    took = f"solved in {record['seconds_to_threshold']:.2f} s" if record["solved"] else "not solved"
    return f"{who}  {record['env_steps_per_second']:,.0f} env steps/s, {took}"


def table(records: Sequence[Record]) -> list[str]:
    """One line per variant."""
    rows = []
    for name in VARIANTS:
        runs = chosen(records, variant=name)
        good = [run for run in runs if "error" not in run]
        if good:
            solved = sum(run["solved"] for run in runs)
            rates = (spread([run[key] for run in good]) for key in RATES)
            rows.append(
                [
                    name,
                    *rates,
                    f"{solved}/{len(runs)}",
                    *(spread(reached(runs, key)) for key in REACHED),
                ]
            )
    return markdown_table(["", *RATES.values(), "solved", *REACHED.values()], rows)


def draw(records: Sequence[Record], path: Path) -> None:
    """One row per task: each variant's rate and time to the threshold, over the preset's."""
    tasks = [task for task in TASKS if chosen(records, task=task)]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            len(tasks), 2, figsize=(9.5, 3.4 * len(tasks)), layout="constrained", squeeze=False
        )
        for row, task in zip(panels, tasks, strict=True):
            some, title = chosen(records, task=task), f"{TASKS[task][0].upper()}, {TASKS[task][1]}"
            good = [run for run in some if "error" not in run]
            _bars(row[0], good, "updates_per_second", f"{title}: updates/s", BLUE)
            _bars(
                row[1], some, "seconds_to_threshold", f"{title}: seconds to the threshold", ORANGE
            )
            row[1].set_yticklabels([])
        figure.savefig(path)
        plt.close(figure)


def _values(runs: Sequence[Record], key: str) -> list[float]:
    return reached(runs, key) if key in REACHED else [run[key] for run in runs]


def _bars(axes: Any, records: Sequence[Record], key: str, title: str, colour: str) -> None:
    """Median and quartiles of each variant over the preset's median, or ∞ where that is ∞."""
    names = [name for name in VARIANTS if chosen(records, variant=name)]
    found = {name: quartiles(_values(chosen(records, variant=name), key)) for name in names}
    base = found[PRESET][1] if PRESET in found else np.inf
    for y, (low, middle, high) in enumerate(found.values()):
        if np.isfinite(middle) and np.isfinite(base):
            ends = [[(middle - low) / base], [(min(high, 4 * middle) - middle) / base]]
            axes.barh(y, middle / base, 0.7, color=colour, alpha=0.8)
            axes.errorbar(middle / base, y, xerr=ends, color="#333333", lw=0.9)
        else:
            axes.text(
                0.02, y, "∞" if np.isfinite(base) else "no preset to compare with", va="center"
            )
    axes.axvline(1, color="#333333", lw=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(max(len(names), 1) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_title(title)
    axes.set_xlabel("preset = 1")
    axes.grid(axis="x")


def report(results: Path, docs: Path) -> None:
    """Write docs/runner_ablation.md and its picture."""
    campaign.threshold_page(
        "runner_ablation",
        "What the runner's parts are worth",
        TASKS,
        IDENTITY,
        draw,
        table,
        results,
        docs,
    )


def main() -> None:
    """Be the command line."""
    campaign.command("runner_ablation", __doc__, list(TASKS), jobs, IDENTITY, describe, report)


if __name__ == "__main__":
    main()
