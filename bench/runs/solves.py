"""Do the presets solve their tasks, and end well? `python -m bench.runs.solves [OPTIONS]`.

    python -m bench.runs.solves --seeds 10 --minutes 60
    python -m bench.runs.solves --seeds 10 --minutes 60 --resume    # as often as it takes

A run takes all of the preset's steps. It solves its task if an evaluation of so many greedy
episodes, with seeds of their own, reaches the threshold; it ends well if the mean of the last five
evaluations does. Policies are evaluated after the run: an evaluator that works meanwhile leaves out
those that it does not get to on a busy machine, and the last five may then begin early.
HalfCheetah takes longer than all others together and runs only if it is named:
`make solves-nightly`. How long a run takes is in the results, but not on the page: here others may
use the machine. bench/runs/convergence compares seconds.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
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
from bench.harness.report import machine_text, markdown_table, processor_name, write
from kary_replay.runner.presets import preset

OUTPUT = RESULTS / "solves.json"
SHOWN = ("task", "seed", "solved", "env_steps", "ends_well", "last_five")  # after each run
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
    "ppo_cartpole": ("ppo", "CartPole-v1", 475.0, 100),
    "a2c_cartpole": ("a2c", "CartPole-v1", 475.0, 100),
    "ppo_acrobot": ("ppo", "Acrobot-v1", -100.0, 100),
    "ppo_pendulum": ("ppo", "Pendulum-v1", -200.0, 100),
    "ppo_lunarlander": ("ppo", "LunarLander-v3", 200.0, 50),
    "ppo_lunarlander_continuous": ("ppo", "LunarLanderContinuous-v3", 200.0, 50),
    "ppo_halfcheetah": ("ppo", "HalfCheetah-v5", 5819.0, 10),  # RL Baselines3 Zoo's
}
NIGHTLY = ("sac_halfcheetah", "ppo_halfcheetah")


def train(task: str, seed: int) -> dict[str, Any]:
    """Train once, and return the record."""
    from kary_replay.runner import Runner, RunnerConfig

    algorithm, env, threshold, episodes = TASKS[task]
    stamp = campaign.stamp()
    with tempfile.TemporaryDirectory() as folder:
        config = RunnerConfig(
            algorithm,
            env,
            seed=seed,
            evaluate="after",
            evaluation_episodes=episodes,
            directory=f"{folder}/run",
        )
        result = Runner(config).run()
    if result.interrupted:
        raise KeyboardInterrupt
    found = result.evaluations
    there = next((one for one in found if one.mean_return >= threshold), found[-1])
    last_five = float(np.mean([one.mean_return for one in found[-5:]]))
    curve = [
        [one.env_steps, round(one.wall_seconds, 3), round(one.mean_return, 2)] for one in found
    ]
    asked = config.samples_per_insert  # None: it learns from rollouts
    return {
        "task": task,
        "seed": seed,
        **stamp,
        "threshold": threshold,
        "episodes": episodes,
        "solved": there.mean_return >= threshold,
        "mean_return": round(there.mean_return, 2),
        "env_steps": there.env_steps,
        "updates": there.updates,
        "wall_seconds": round(there.wall_seconds, 2),
        "ends_well": last_five >= threshold,
        "last_five": round(last_five, 2),
        "startup_seconds": round(result.startup_seconds, 2),
        "samples_per_insert": None if asked is None else round(result.samples_per_insert, 3),
        "asked_samples_per_insert": asked,
        "alpha": config.alpha,
        "curve": curve,
        "options": asdict(config.options),
    }


def report(records: list[dict[str, Any]], described: dict[str, Any], docs: Path = DOCS) -> None:
    """Write the table and the pictures.

    Runs of former versions ended when they had solved their task: these have no last five.
    """
    are_whole = any("ends_well" in record for record in records)
    rows = []
    for task, (algorithm, env, threshold, episodes) in TASKS.items():
        runs = [record for record in records if record["task"] == task]
        if runs:
            medians = [
                float(np.median([run[key] for run in runs])) for key in ("env_steps", "updates")
            ]
            of_replay = ["–", "–"]
            if runs[-1]["asked_samples_per_insert"] is not None:
                off = max(
                    abs(run["samples_per_insert"] / run["asked_samples_per_insert"] - 1)
                    for run in runs
                )
                alpha = runs[-1].get("alpha", preset(algorithm, env, {}, None)["alpha"])
                of_replay = [f"{alpha:g}", f"{off:.1%}"]
            returns, n_solved = (
                [run["mean_return"] for run in runs],
                sum(run["solved"] for run in runs),
            )
            whole = [run for run in runs if "ends_well" in run]
            ends = ["–", "–"]
            if whole:
                n_well, worst = (
                    sum(run["ends_well"] for run in whole),
                    min(run["last_five"] for run in whole),
                )
                ends = [f"{n_well}/{len(whole)}", f"{worst:.0f}"]
            rows.append(
                [
                    algorithm.upper(),
                    env,
                    f"{threshold:g} in {episodes} episodes",
                    f"{n_solved}/{len(runs)}",
                    *(ends if are_whole else ()),
                    f"{min(returns):.0f} … {max(returns):.0f}",
                    f"{medians[0]:,.0f}",
                    f"{medians[1]:,.0f}",
                    *of_replay,
                ]
            )
    header = [
        "",
        "environment",
        "threshold",
        "solved",
        *(("end well", "the worst end") if are_whole else ()),
        "returns",
        "env steps",
        "updates",
        "alpha",
        "samples per insert off by",
    ]
    processors = [
        processor_name(record.get("processor", described["processor"])) for record in records
    ]
    where = [f"{processors.count(name)} on {name}" for name in dict.fromkeys(processors)]
    lines = [
        *machine_text(described)[:-1],
        f"- **Runs:** {', '.join(where)}",
        "",
        *markdown_table(header, rows),
        "",
    ]
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
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.grid()
        panels[0].set_ylabel("mean return of 10 episodes")
        panels[0].set_title(f"{algorithm.upper()}, {env}")
        figure.savefig(path, dpi=140)
        plt.close(figure)


def measure(tasks: Sequence[str], seeds: int, resume: bool, minutes: float) -> bool:
    """Train seed by seed, and keep the records after every run; begin none after so long.

    Records of other tasks stay, those of other machines too: no seconds are compared here. Return
    whether all runs are made.
    """
    begun = time.monotonic()
    described = machine.describe()
    old = campaign.earlier(OUTPUT, "resume", described, any_machine=True)
    records = [
        record
        for record in old
        if record["task"] not in tasks or (resume and "ends_well" in record)
    ]
    there = {(record["task"], record["seed"]) for record in records}
    jobs = [(task, seed) for seed in range(seeds) for task in tasks if (task, seed) not in there]
    for number, job in enumerate(jobs):
        if time.monotonic() - begun > 60 * minutes:
            print(f"{len(jobs) - number} runs are still to be made: go on with --resume")
            return False
        record = {**train(*job), "processor": described["processor"]}
        records.append(record)
        campaign.write(campaign.partial_of(OUTPUT), described, records)
        print({key: record[key] for key in SHOWN}, flush=True)
    campaign.complete(OUTPUT)
    return True


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
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no run after so long"
    )
    parser.add_argument("--report", action="store_true", help="only write the page")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where the page is")
    arguments = parser.parse_args()
    going_on = arguments.tasks, arguments.seeds, arguments.resume, arguments.minutes
    if not (arguments.report or measure(*going_on)):
        return 0
    described, records = campaign.read(OUTPUT)
    report(records, described, arguments.docs)
    return 0 if all(run["solved"] and run.get("ends_well", True) for run in records) else 1


if __name__ == "__main__":
    sys.exit(main())
