"""Seconds of training until a task is solved: `python -m bench.runs.convergence [OPTIONS]`.

For every task and width, seed by seed, each rival trains once in a process of its own, in an order
that rotates with the seed: whatever the machine does in the meantime, it does it to all of them.
Nothing else should run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.harness import campaign
from bench.harness.paths import RESULTS
from bench.harness.table import quantity
from bench.harness.timing import rotated
from bench.rivals import remote
from bench.runs.convergence.tasks import OFF_POLICY_TASKS, RIVALS, TASKS, UNITS, takes_part

OUTPUT = RESULTS / "convergence.json"
WORKER = "bench.runs.convergence.worker"
IDENTITY = ("task", "units", "rival", "seed", "budget")


def jobs(
    tasks: Sequence[str],
    rivals: Sequence[str],
    units: Sequence[int],
    seeds: int,
    budget: int | None,
) -> Iterator[dict[str, Any]]:
    """Every run, interleaved."""
    for task in tasks:
        for width in units:
            for seed in range(seeds):
                for rival in rotated(rivals, seed):
                    if takes_part(rival, task):
                        yield {
                            "task": task,
                            "units": width,
                            "rival": rival,
                            "seed": seed,
                            "budget": budget,
                        }


def describe(record: dict[str, Any]) -> str:
    """One line about a run."""
    what = f"{record['task']:<16} {record['units']:>3} units"
    who = f"{what}  {record['rival']:<9} seed {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    if not record["solved"]:
        best = max(
            (evaluation["mean_return"] for evaluation in record["curve"]), default=float("nan")
        )
        seconds = quantity(record["trained_seconds"], "s")
        return f"{who}  not solved in {seconds}, best mean return {best:.1f}"
    seconds = quantity(record["wall_seconds"], "s")
    return f"{who}  {seconds:>8}, {record['env_steps']:>7,} steps, {record['updates']:>6,} updates"


def execute(job: dict[str, Any]) -> dict[str, Any]:
    """Train in a new process, in the rival's own environment if it has one."""
    if remote.is_apart(job["rival"]):
        return campaign.run(job, WORKER, remote.python(job["rival"]))
    return campaign.run(job, WORKER)


def add_options(parser: argparse.ArgumentParser, output: Path) -> None:
    """Add which runs are asked for, and where they are written."""
    parser.add_argument(
        "--units", nargs="+", type=int, default=list(UNITS), help="width of both hidden layers"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--budget",
        type=int,
        help="environment steps after which a run gives up (default: the task's)",
    )
    parser.add_argument("--output", type=Path, default=output)


def is_there(rival: str) -> bool:
    """Return whether a rival can run, and say so if it cannot."""
    if not remote.is_apart(rival) or remote.installed(rival):
        return True
    print(f"{rival} is {remote.LEFT_OUT}, {remote.NOT_INSTALLED}")
    return False


def main() -> None:
    """Run what is asked for and not there yet; write after every run."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.runs.convergence", description=__doc__.splitlines()[0]
    )
    default = list(OFF_POLICY_TASKS)  # on_policy.py has the others
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=default)
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, default=list(RIVALS))
    add_options(parser, OUTPUT)
    campaign.add_going_on(parser)
    arguments = parser.parse_args()
    rivals = [rival for rival in arguments.rivals if is_there(rival)]
    planned = jobs(arguments.tasks, rivals, arguments.units, arguments.seeds, arguments.budget)
    campaign.conduct(arguments.output, planned, IDENTITY, execute, describe, arguments.before)


if __name__ == "__main__":
    main()
