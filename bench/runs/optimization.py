"""Learners that wait for each other, and such that do not: `python -m bench.runs.optimization`.

Two learners that do every update together, each with half of its rows, against two that each do
updates of their own on shared weights; and one learner beside them. Environment steps, rows of an
update and updates in total are the same for all, but for rollouts that are dropped or left over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.harness import campaign
from bench.harness.campaign import Job, Record
from bench.harness.timing import rotated

# name -> algorithm, its measured class, environment, environment steps of a run, of a short run,
# and settings and options that differ from the preset
TASKS: dict[str, tuple[str, str, str, int, int, dict[str, Any], dict[str, Any]]] = {
    "cartpole_dqn": ("dqn", "MeasuredDQN", "CartPole-v1", 40_000, 6_000, {}, {}),
    "cartpole_impala": (
        "impala",
        "MeasuredIMPALA",
        "CartPole-v1",
        80_000,
        10_000,
        {},
        {"hidden": (64, 64), "learning_rate": 2e-3, "learning_rate_final_share": 0.0},
    ),
}
ALONE, TOGETHER, APART = "one learner", "two, synchronous", "two, asynchronous"
VARIANTS: dict[str, dict[str, Any]] = {
    ALONE: {},
    TOGETHER: {"learners": 2},
    APART: {"learners": 2, "optimization": "asynchronous"},
}
IDENTITY = ("task", "variant", "seed")


def jobs(tasks: Sequence[str], seeds: int, short: bool) -> Iterator[Job]:
    """Every variant once, then all of them again with the next seed."""
    for seed in range(seeds):
        for task in tasks:
            algorithm, measured, env, long_steps, short_steps, settings, options = TASKS[task]
            for variant in rotated(list(VARIANTS), seed):
                yield {
                    "task": task,
                    "algorithm": algorithm,
                    "measured": measured,
                    "env": env,
                    "variant": variant,
                    "seed": seed,
                    "settings": {
                        **settings,
                        **VARIANTS[variant],
                        "actors": 1,
                        "total_env_steps": short_steps if short else long_steps,
                    },
                    "options": {**options, **rows_of(algorithm, variant)},
                }


def rows_of(algorithm: str, variant: str) -> dict[str, Any]:
    """Return the options by which an update has as many rows as with the other variants.

    Asynchronous learners divide the environments of an update among them where they learn from
    rollouts: with twice as many, an update of each of them has as many rows as one of both together
    has otherwise.
    """
    if algorithm == "dqn":
        return {}
    return {"envs_per_update": 16 if variant == APART else 8}


def describe(record: Record) -> str:
    """One line about a run."""
    who = f"{record['task']:<16} {record['variant']:<18} seed {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    return (
        f"{who}  {record['updates']:,} updates, {record['updates_per_second']:,.0f}/s, "
        f"final return {record['final_return']:.0f}"
    )


def main() -> None:
    """Be the command line."""
    campaign.command(
        "optimization",
        __doc__,
        list(TASKS),
        jobs,
        IDENTITY,
        describe,
        worker="bench.runs.optimization_run",
    )


if __name__ == "__main__":
    main()
