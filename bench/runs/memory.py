"""Policies that remember: `python -m bench.runs.memory [OPTIONS]`.

Two tasks whose observations leave out what a policy needs (memory_envs.py), by R2D2 and by DQN that
sees its last four observations. R2D2 begins its sequences with the actor's state or with zeros, and
lets 0, 8 or 16 steps bring it up to date: the question of Kapturowski et al. (2019), section 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from bench.harness import campaign
from bench.harness.campaign import Job, Record, chosen, failures, spread
from bench.harness.plots import BLUE, GREEN, ORANGE, STYLE
from bench.harness.report import machine_text, markdown_table, write
from bench.harness.timing import rotated

STACK = 4  # observations that DQN sees
BURN_INS = (0, 8, 16)
STEPS_KEPT = 100_000  # by the replay buffer, if its rows are full, as but for the last of episodes


class Task(NamedTuple):
    """What is to be learned, and for how many environment steps."""

    env: str
    title: str
    threshold: float  # mean return that solves it
    steps: int
    short_steps: int
    steps_before_learning: int


# In the T-maze the steps before learning are an episode of each environment. A network that has
# learned from nothing but walls often turns back, and then no episode gets to the end any more.
TASKS = {
    "positions": Task(
        "bench.runs.memory_envs:positions",
        "CartPole without velocities",
        475.0,
        60_000,
        20_000,
        4_000,
    ),
    "tmaze": Task(
        "bench.runs.memory_envs:tmaze", "T-maze of length 30", 3.9, 100_000, 30_000, 15_000
    ),
}
SETTINGS: dict[str, Any] = {
    "actors": 1,
    "envs_per_actor": 16,
    "samples_per_insert": 64.0,
    "exploration_spread": None,
    "evaluation_interval": 5_000,
}
COMMON: dict[str, Any] = {
    "hidden": [64],
    "learning_rate": 1e-3,
    "learning_rate_final_share": 0.0,
    "gamma": 0.99,
    "n_step": 5,
    "tau": 0.01,
    "target_interval": 1,
    "dueling": True,
    "huber_delta": 10.0,
    "exploration_fraction": 0.3,
    "exploration_final": 0.05,
}
R2D2 = {**COMMON, "batch_size": 32, "lstm_hidden_size": 64, "sequence_length": 48}
# rows are steps, each of which is learned from as often as with R2D2
DQN = {**COMMON, "hidden": [64, 64], "batch_size": 128}
STORED, ZERO, WITHOUT = "stored", "zeros", "DQN, four observations"
IDENTITY = ("task", "variant", "burn_in", "seed")
COLOURS = {STORED: BLUE, ZERO: ORANGE, WITHOUT: GREEN}


def variants() -> list[tuple[str, int | None]]:
    """Return what begins a sequence, and how many steps bring it up to date."""
    return [
        *((state, burn_in) for burn_in in BURN_INS for state in (STORED, ZERO)),
        (WITHOUT, None),
    ]


def jobs(tasks: Sequence[str], seeds: int, short: bool) -> Iterator[Job]:
    """Every variant once, then all of them again with the next seed."""
    every = [variants()[0], variants()[-1]] if short else variants()
    for seed in range(seeds):
        for task in tasks:
            env, _, threshold, steps, short_steps, steps_before_learning = TASKS[task]
            for variant, burn_in in rotated(every, seed):
                if burn_in is None:
                    options, steps_per_row = {**DQN}, 1
                else:
                    options = {**R2D2, "burn_in": burn_in, "stored_state": variant == STORED}
                    steps_per_row = R2D2["sequence_length"] - burn_in - R2D2["n_step"]
                settings = {
                    **SETTINGS,
                    "total_env_steps": short_steps if short else steps,
                    "learning_starts": steps_before_learning // steps_per_row,
                    "buffer_capacity": STEPS_KEPT // steps_per_row,
                    "env_options": {"stack": STACK if burn_in is None else 1},
                    "normalize_observations": task == "positions",  # which are small numbers
                }
                yield {
                    "task": task,
                    "variant": variant,
                    "burn_in": burn_in,
                    "algorithm": "dqn" if burn_in is None else "r2d2",
                    "env": env,
                    "threshold": threshold,
                    "seed": seed,
                    "options": options,
                    "settings": settings,
                }


def named(variant: str, burn_in: int | None) -> str:
    """Say what a variant is."""
    return variant if burn_in is None else f"R2D2, {variant}, burn-in {burn_in}"


def best(record: Record) -> float:
    """Return the best of a run's evaluations."""
    return max((mean for *_, mean in record["curve"]), default=-np.inf)


def describe(record: Record) -> str:
    """One line about a run."""
    who = f"{record['task']:<9} {named(record['variant'], record['burn_in']):<28}"
    who += f" seed {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    if not record["solved"]:
        return f"{who}  not solved in {record['env_steps']:,} steps, best {best(record):.1f}"
    return f"{who}  solved after {record['steps_to_threshold']:,} steps"


def reached(runs: Sequence[Record]) -> list[float]:
    """Environment steps; infinity where a run never reached the threshold."""
    return [run["steps_to_threshold"] if run["solved"] else np.inf for run in runs]


def table(records: Sequence[Record]) -> list[str]:
    """One line for each variant."""
    rows = []
    for variant, burn_in in variants():
        runs = chosen(records, variant=variant, burn_in=burn_in)
        if not runs:
            continue
        rows.append(
            [
                named(variant, burn_in),
                f"{sum(run['solved'] for run in runs)}/{len(runs)}",
                spread(reached(runs)),
                spread([best(run) for run in runs]),
                spread([run["curve"][-1][3] if run["curve"] else -np.inf for run in runs]),
            ]
        )
    head = "solved", "env steps until solved", "best evaluation", "last evaluation"
    return markdown_table(["", *head], rows)


def draw(records: Sequence[Record], path: Path) -> None:
    """A panel for each task: the median evaluation of each variant, with its quartiles."""
    tasks = [task for task in TASKS if chosen(records, task=task)]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(
            1, len(tasks), figsize=(4.7 * len(tasks), 3.6), layout="constrained", squeeze=False
        )
        for axes, task in zip(panels[0], tasks, strict=True):
            _panel(axes, task, chosen(records, task=task))
        if len(panels[0][0].lines) > 1:
            panels[0][0].legend(fontsize=7, loc="lower right")  # the others have the same lines
        figure.savefig(path)
        plt.close(figure)


def _panel(axes: Any, task: str, records: Sequence[Record]) -> None:
    _, title, threshold, *_ = TASKS[task]
    lines = dict(zip(BURN_INS, ("-", "--", ":"), strict=True))
    for variant, burn_in in variants():
        runs = [run for run in chosen(records, variant=variant, burn_in=burn_in) if run["curve"]]
        if not runs:
            continue
        # evaluations are not after quite the same steps
        first = max(run["curve"][0][0] for run in runs)
        interval = SETTINGS["evaluation_interval"]
        steps = np.arange(-(-first // interval) * interval, runs[0]["env_steps"] + 1, interval)
        means = [np.interp(steps, *np.array(run["curve"]).T[[0, 3]]) for run in runs]
        low, middle, high = np.quantile(means, (0.25, 0.5, 0.75), axis=0)
        line, colour = lines.get(burn_in, "-"), COLOURS[variant]
        axes.plot(steps, middle, line, color=colour, lw=1.6, label=named(variant, burn_in))
        axes.fill_between(steps, low, high, color=colour, alpha=0.08, lw=0)
    axes.axhline(threshold, color="#333333", lw=0.8)
    axes.set_ylim(0, 1.1 * threshold)  # untrained networks that walk into walls are far below
    axes.set_title(title)
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylabel("mean return of 20 episodes")
    axes.grid()


def report(results: Path, docs: Path) -> None:
    """Write docs/memory.md and its picture."""
    described, records = campaign.read(results)
    draw(records, docs / "images" / "memory.png")
    lines = [
        *machine_text(described),
        f"R2D2 has batches of {R2D2['batch_size']} sequences of {R2D2['sequence_length']} steps, "
        f"and DQN, which sees its last {STACK} observations, {DQN['batch_size']} steps; both learn "
        f"from each step {SETTINGS['samples_per_insert']:g} times. R2D2 has an LSTM where DQN has "
        "a second layer. Their other options are the same, and in the results file. Medians over "
        "seeds, in brackets the quartiles; a run that never got there counts as ∞.",
        "",
        "![Policies that remember](images/memory.png)",
        "",
    ]
    for task, (_, title, threshold, *_) in TASKS.items():
        if some := chosen(records, task=task):
            lines += [f"## {title}, to a mean return of {threshold:g}", "", *table(some)]
    write(docs / "memory.md", "Policies that remember", [*lines, *failures(records, IDENTITY)])


def main() -> None:
    """Be the command line."""
    campaign.command(
        "memory", __doc__, list(TASKS), jobs, IDENTITY, describe, report, any_machine=True
    )


if __name__ == "__main__":
    main()
