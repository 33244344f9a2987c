"""Who says what the networks say: `python -m bench.runs.inference [OPTIONS]`.

Actors that choose their actions themselves, against actors that ask a policy worker; the latter
with all environments in one group, and with two groups that take turns, so that one is stepped
while the other waits for its answer. Environment steps per second, how long an answer takes, and
how many rows are answered together.

But for the tasks that learn, the learner reads the rollouts and learns nothing: what is measured is
acting, by as many cores as an actor and a policy worker can use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.harness import campaign
from bench.harness.campaign import Job, Record

LOCAL, ONE, TWO = VARIANTS = "local 1", "worker 1", "worker 2"  # who infers, and groups of an actor
NAMES = {
    LOCAL: "the actor itself",
    ONE: "policy worker, one group",
    TWO: "policy worker, two groups",
}
ENVS = (1, 2, 4, 8, 16)
SHORT_ENVS = (4,)
SECONDS = 1.0  # that are measured of each run
LONG_SECONDS = 4.0  # of one whose learner takes a second for an update
COST = 1e-3  # seconds of a costly step


@dataclass(frozen=True)
class Task:
    """What is compared: networks, environments, and who else is at work."""

    label: str
    env: str
    hidden: tuple[int, ...] = (256, 256)
    envs: tuple[int, ...] = (16,)
    actors: int = 1
    learns: bool = False
    waiting: float = 0.0  # seconds of each step
    computing: float = 0.0
    seconds: float = SECONDS
    on_gpu: bool = False  # the policy worker, and a learner that learns


CARTPOLE, IMAGES = (f"bench.runs.synthetic_envs:{name}" for name in ("cartpole", "images"))
PERCEPTRON, LARGER = "perceptron 64, 64", "perceptron 256, 256"
CONVOLUTIONS = "convolutions"  # on images of 4 × 84 × 84 bytes
GRID = {
    "perceptron_64": Task(PERCEPTRON, CARTPOLE, (64, 64), envs=ENVS),
    "perceptron_256": Task(LARGER, CARTPOLE, envs=ENVS),
    "images": Task(CONVOLUTIONS, IMAGES, envs=ENVS),
}
"""Those that have every number of environments."""
CASES = {
    "perceptron_256_waiting": Task(f"{LARGER}; steps wait 1 ms", CARTPOLE, waiting=COST),
    "images_waiting": Task(f"{CONVOLUTIONS}; steps wait 1 ms", IMAGES, waiting=COST, envs=(4, 16)),
    "images_computing": Task(
        f"{CONVOLUTIONS}; steps compute 1 ms", IMAGES, computing=COST, envs=(4, 16)
    ),
    "perceptron_64_two": Task(f"{PERCEPTRON}; two actors", CARTPOLE, (64, 64), actors=2),
    "perceptron_256_two": Task(f"{LARGER}; two actors", CARTPOLE, actors=2),
    "images_two": Task(f"{CONVOLUTIONS}; two actors", IMAGES, actors=2),
    "images_waiting_two": Task(
        f"{CONVOLUTIONS}; two actors, steps wait 1 ms", IMAGES, actors=2, waiting=COST
    ),
    "perceptron_64_learning": Task(f"{PERCEPTRON}; learning", CARTPOLE, (64, 64), learns=True),
    "images_learning": Task(f"{CONVOLUTIONS}; learning", IMAGES, learns=True, seconds=LONG_SECONDS),
    "perceptron_256_gpu": Task(f"{LARGER}; the worker on a GPU", CARTPOLE, on_gpu=True),
    "images_gpu": Task(
        f"{CONVOLUTIONS}; the worker on a GPU", IMAGES, envs=(4, 16, 64), on_gpu=True
    ),
    "images_learning_gpu": Task(
        f"{CONVOLUTIONS}; learning, both on a GPU", IMAGES, learns=True, on_gpu=True
    ),
}
"""Those on a GPU are run where there is one."""
TASKS = {**GRID, **CASES}
IDENTITY = ("task", "n_envs", "seed")


def jobs(tasks: Sequence[str], seeds: int, short: bool) -> Iterator[Job]:
    """Every task with every number of environments once, then all of them again."""
    for seed in range(seeds):
        for name in tasks:
            task = TASKS[name]
            if task.on_gpu and not torch.cuda.is_available():
                continue
            for n_envs in SHORT_ENVS if short and name in GRID else task.envs:
                yield {
                    "task": name,
                    "algorithm": "Learning" if task.learns else "Acting",
                    "env": task.env,
                    "env_options": {"waiting": task.waiting, "computing": task.computing},
                    "hidden": task.hidden,
                    "n_envs": n_envs,
                    "actors": task.actors,
                    "seconds": task.seconds,
                    "on_gpu": task.on_gpu,
                    "variants": VARIANTS if n_envs > 1 else (LOCAL, ONE),
                    "seed": seed,
                }


def describe(record: Record) -> str:
    """One line about the runs of a job."""
    who = f"{record['task']:<22} {record['n_envs']:>2} environments, repetition {record['seed']}"
    if "error" in record:
        return f"{who}  failed: {record['error']}"
    rates = (f"{name} {found['env_steps_per_second']:,.0f}" for name, found in rates_of(record))
    return f"{who}  env steps/s: {', '.join(rates)}"


def rates_of(record: Record) -> list[tuple[str, dict[str, Any]]]:
    """Return what each variant came to, in the order in which they are named."""
    return [(name, record["found"][name]) for name in VARIANTS if name in record["found"]]


def main() -> None:
    """Be the command line."""
    campaign.command(
        "inference",
        __doc__,
        list(TASKS),
        jobs,
        IDENTITY,
        describe,
        worker="bench.runs.inference_run",
        seeds=3,
    )


if __name__ == "__main__":
    main()
