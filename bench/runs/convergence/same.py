"""The same settings for all: `python -m bench.runs.convergence.same [OPTIONS]`.

Everybody trains with the settings that are tuned for Stable-Baselines3, and with those of our
preset, as far as everybody has them (translation.py). Ours does so twice: in one process, where
acting and learning take turns, and in parallel. So a reader sees what comes from the settings, what
from the code that runs them, and what from collecting in parallel.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from bench.harness import campaign
from bench.harness.timing import rotated
from bench.runs.convergence import __main__ as convergence
from bench.runs.convergence import runner_rival, translation
from bench.runs.convergence.same_report import IDENTITY, OUTPUT
from bench.runs.convergence.tasks import (
    IN_TURN,
    MACHINES,
    OURS,
    PARALLEL,
    SB3,
    SBX,
    SETTINGS_OF,
    THEIRS,
)

RIVAL = {SB3: "sb3", SBX: "sbx", IN_TURN: "runner", PARALLEL: "runner"}


def settings(machine: str, settings_of: str, task: str, units: int) -> dict[str, Any]:
    """Return what is set beside, or instead of, what the rival has by itself."""
    if machine in (SB3, SBX) and settings_of == OURS:
        return translation.preset_for(machine, task, units)
    if machine in (SB3, SBX):
        return {} if machine == SB3 else translation.sb3_for_sbx(task)
    turns = {"backend": "serial", "actors": 1} if machine == IN_TURN else {}
    return {**turns, **(translation.sb3_for_runner(task, units) if settings_of == THEIRS else {})}


def limit(task: str, settings_of: str, budget: int | None) -> int | None:
    """Return after how many environment steps a run gives up; None: the task's budget.

    With our settings nobody has more steps than the runner, at whose end learning rates are 0.
    """
    if settings_of == THEIRS:
        return budget
    ours: int = runner_rival.SETTINGS[task]["total_env_steps"]
    return min(ours, budget) if budget else ours


def jobs(
    tasks: Sequence[str],
    machines: Sequence[str],
    units: Sequence[int],
    seeds: int,
    budget: int | None,
) -> Iterator[dict[str, Any]]:
    """Every run, seed by seed, in rotating order."""
    cells = [(machine, whose) for whose in SETTINGS_OF for machine in machines]
    for task in tasks:
        for width in units:
            for seed in range(seeds):
                for machine, whose in rotated(cells, seed):
                    what = {"task": task, "units": width, "rival": RIVAL[machine]}
                    who = {"machine": machine, "settings_of": whose}
                    chosen, most = settings(machine, whose, task, width), limit(task, whose, budget)
                    if "total_env_steps" in chosen and most:
                        chosen["total_env_steps"] = min(chosen["total_env_steps"], most)
                    yield {**what, **who, "settings": chosen, "seed": seed, "budget": most}


def describe(record: dict[str, Any]) -> str:
    """One line about a run."""
    who = f"{record['machine']}, settings of {record['settings_of']}"
    return convergence.describe({**record, "rival": f"{who:<33}"})


def main() -> None:
    """Run what is asked for and not there yet; write after every run."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.runs.convergence.same", description=__doc__.splitlines()[0]
    )
    tasks = list(translation.STEPS)  # of the others all have the same settings in any case
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=tasks)
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES))
    convergence.add_options(parser, OUTPUT)
    campaign.add_going_on(parser)
    arguments = parser.parse_args()
    machines = [machine for machine in arguments.machines if convergence.is_there(RIVAL[machine])]
    planned = jobs(arguments.tasks, machines, arguments.units, arguments.seeds, arguments.budget)
    campaign.conduct(
        arguments.output, planned, IDENTITY, convergence.execute, describe, arguments.before
    )


if __name__ == "__main__":
    main()
