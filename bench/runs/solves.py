"""Do the presets solve their tasks? `python -m bench.runs.solves [OPTIONS]` trains each.

A run ends when an evaluation of so many greedy episodes, with seeds of their own, reaches the
threshold, or when the preset's steps are used up. HalfCheetah takes longer than all others together
and runs only if it is named: `make solves-nightly`. How long a run takes is in the results, but not
on the page: here others may use the machine. bench/runs/convergence compares seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.ticker import MaxNLocator

from bench.harness import campaign, machine
from bench.harness.paths import DOCS, RESULTS
from bench.harness.plots import BLUE, STYLE
from bench.harness.report import machine_text, markdown_table, write
from kary_replay.runner.presets import preset

OUTPUT = RESULTS / "solves.json"
SHOWN = ("task", "seed", "solved", "mean_return", "env_steps", "wall_seconds")  # after each run
TASKS = {  # algorithm, environment: threshold, episodes of an evaluation
    "dqn_cartpole": ("dqn", "CartPole-v1", 475.0, 100),
    "dqn_lunarlander": ("dqn", "LunarLander-v3", 200.0, 50),
    "ddpg_pendulum": ("ddpg", "Pendulum-v1", -200.0, 100),
    "td3_pendulum": ("td3", "Pendulum-v1", -200.0, 100),
    "sac_pendulum": ("sac", "Pendulum-v1", -200.0, 100),
    "ddpg_inverted": ("ddpg", "InvertedPendulum-v5", 950.0, 50),
    "td3_inverted": ("td3", "InvertedPendulum-v5", 950.0, 50),
    "sac_inverted": ("sac", "InvertedPendulum-v5", 950.0, 50),
    "sac_halfcheetah": ("sac", "HalfCheetah-v5", 4800.0, 10),
}
NIGHTLY = ("sac_halfcheetah",)


def train(task: str, seed: int) -> dict[str, Any]:
    """Train once, and return the record."""
    from kary_replay.runner import Runner, RunnerConfig

    algorithm, env, threshold, episodes = TASKS[task]
    neighbours, stamp = machine.Neighbours(), campaign.stamp()
    with tempfile.TemporaryDirectory() as folder:
        config = RunnerConfig(
            algorithm,
            env,
            seed=seed,
            target_return=threshold,
            evaluation_episodes=episodes,
            directory=f"{folder}/run",
        )
        result = Runner(config).run()
    if result.interrupted:
        raise KeyboardInterrupt
    curve = [
        [found.env_steps, round(found.wall_seconds, 3), round(found.mean_return, 2)]
        for found in result.evaluations
    ]
    return {
        "task": task,
        "seed": seed,
        **stamp,
        "threshold": threshold,
        "episodes": episodes,
        "solved": result.last_return >= threshold,
        "mean_return": round(result.last_return, 2),
        "env_steps": result.env_steps,
        "updates": result.updates,
        "wall_seconds": round(result.wall_seconds, 2),
        "startup_seconds": round(result.startup_seconds, 2),
        "samples_per_insert": round(result.samples_per_insert, 3),
        "asked_samples_per_insert": config.samples_per_insert,
        "alpha": config.alpha,
        "curve": curve,
        "options": asdict(config.options),
        "cores_used_by_others": round(neighbours.cores_used(), 2),
    }


def report(records: list[dict[str, Any]], described: dict[str, Any], docs: Path = DOCS) -> None:
    """Write the table and the pictures."""
    rows = []
    for task, (algorithm, env, threshold, episodes) in TASKS.items():
        runs = [record for record in records if record["task"] == task]
        if runs:
            medians = [
                float(np.median([run[key] for run in runs])) for key in ("env_steps", "updates")
            ]
            off = max(
                abs(run["samples_per_insert"] / run["asked_samples_per_insert"] - 1) for run in runs
            )
            returns, n_solved = (
                [run["mean_return"] for run in runs],
                sum(run["solved"] for run in runs),
            )
            rows.append(
                [
                    algorithm.upper(),
                    env,
                    f"{threshold:g} in {episodes} episodes",
                    f"{n_solved}/{len(runs)}",
                    f"{min(returns):.0f} … {max(returns):.0f}",
                    f"{medians[0]:,.0f}",
                    f"{medians[1]:,.0f}",
                    f"{runs[-1].get('alpha', preset(algorithm, env, None)['alpha']):g}",
                    f"{off:.1%}",
                ]
            )
    header = [
        "",
        "environment",
        "threshold",
        "solved",
        "returns",
        "env steps",
        "updates",
        "alpha",
        "samples per insert off by",
    ]
    lines = [*machine_text(described), *markdown_table(header, rows), ""]
    for task in NIGHTLY:
        runs = [record for record in records if record["task"] == task]
        if runs:
            draw(task, runs, docs / "images" / f"{task}.png")
            lines += [f"![{TASKS[task][1]}](images/{task}.png)", ""]
    write(docs / "presets.md", "Do the presets solve their tasks?", lines)


def draw(task: str, runs: list[dict[str, Any]], path: Path) -> None:
    """Draw the learning curves of some runs."""
    algorithm, env, threshold, _ = TASKS[task]
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", sharey=True)
        for run in runs:
            steps, seconds, returns = np.array(run["curve"]).T
            panels[0].plot(steps, returns, color=BLUE, lw=1.6)
            panels[1].plot(seconds / 60, returns, color=BLUE, lw=1.6)
        for axes, name in zip(panels, ("environment steps", "minutes"), strict=True):
            axes.axhline(threshold, color="#333333", lw=0.9, ls="--")
            axes.set_xlabel(name)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.grid()
        panels[0].set_ylabel("mean return of 10 episodes")
        panels[0].set_title(f"{algorithm.upper()}, {env}")
        figure.savefig(path, dpi=140)
        plt.close(figure)


def measure(tasks: Sequence[str], seeds: int, resume: bool) -> None:
    """Train seed by seed, and keep the records after every run.

    Records of other tasks stay, if they are of this machine.
    """
    described = machine.describe()
    elsewhere = OUTPUT.exists() and campaign.read(OUTPUT)[0]["processor"] != described["processor"]
    old = campaign.earlier(OUTPUT, "anew" if elsewhere and not resume else "resume", described)
    records = [record for record in old if resume or record["task"] not in tasks]
    there = {(record["task"], record["seed"]) for record in records}
    for seed in range(seeds):
        for task in tasks:
            if (task, seed) in there:
                continue
            record = train(task, seed)
            records.append(record)
            described["cores_used_by_others"] = max(run["cores_used_by_others"] for run in records)
            campaign.write(campaign.partial_of(OUTPUT), described, records)
            print({key: record[key] for key in SHOWN}, flush=True)
    campaign.complete(OUTPUT)


def main() -> int:
    """Train what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tasks", nargs="+", choices=TASKS, default=[task for task in TASKS if task not in NIGHTLY]
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--resume", action="store_true", help="keep the records there are, and skip what they have"
    )
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page is")
    arguments = parser.parse_args()
    if not arguments.report:
        measure(arguments.tasks, arguments.seeds, arguments.resume)
    described, records = campaign.read(OUTPUT)
    report(records, described, arguments.docs)
    return 0 if all(record["solved"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
