"""How many actors: measured, as PAL's design-space exploration does (arXiv:2110.01101, section V)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Allocation", "Option", "allocate", "n_cores", "throughput"]

ENOUGH = 0.99  # of the most: one more actor for the last hundredth is not worth its core


@dataclass(frozen=True)
class Option:
    """What one split of the cores would give, in steps of environments per second."""

    actors: int
    collected: float
    learned: float

    @property
    def env_steps_per_second(self) -> float:
        """The slower side."""
        return min(self.collected, self.learned)


@dataclass(frozen=True)
class Allocation:
    """The measured throughputs, the splits they allow, and the one chosen."""

    steps_per_actor: float
    updates_per_second: float
    options: tuple[Option, ...]
    chosen: Option
    reason: str


def n_cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def allocate(
    steps_per_actor: float,
    updates_per_second: float,
    steps_per_update: float,
    cores: int,
    learners: int,
    learner_threads: int = 1,
) -> Allocation:
    """Choose the number of actors.

    Parameters
    ----------
    steps_per_actor : float
        Environment steps that one actor takes per second.
    updates_per_second : float
        Updates, each by all learners together.
    steps_per_update : float
        Environment steps due for one update: batch_size / samples_per_insert.
    cores, learners, learner_threads : int
        Cores at hand; learners, and the threads of each, for which there is to be a core.

    Returns
    -------
    Allocation
        With the fewest actors that collect within 1% of the most that any split gives.
    """
    learned = updates_per_second * steps_per_update
    most = max(1, cores - learners * learner_threads)
    options = tuple(Option(n, n * steps_per_actor, learned) for n in range(1, most + 1))
    best = max(option.env_steps_per_second for option in options)
    chosen = next(option for option in options if option.env_steps_per_second >= ENOUGH * best)
    if chosen.collected >= ENOUGH * learned:
        busy = "1 actor keeps" if chosen.actors == 1 else f"{chosen.actors} actors keep"
        reason = f"{busy} {'the learner' if learners == 1 else f'{learners} learners'} busy: more would only wait"
    else:
        reason = (
            f"actors are slower than learners, so they get all the other cores ({most} of {cores})"
        )
    return Allocation(steps_per_actor, updates_per_second, options, chosen, reason)


def throughput(work: Callable[[float], bool], count: Callable[[], float], seconds: float) -> float:
    """Return by how much ``count()`` grows per second while a worker works alone, after three pieces of work to warm up."""
    for _ in range(3):
        work(0)
    begun, before = time.perf_counter(), count()
    while time.perf_counter() - begun < seconds and work(0):
        pass
    return (count() - before) / max(1e-9, time.perf_counter() - begun)
