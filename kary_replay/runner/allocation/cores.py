"""How the cores are split, by measurements, as PAL explores designs (arXiv:2110.01101, V)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "Allocation",
    "Split",
    "actors_for",
    "allocate",
    "allocate_in_turns",
    "worth_a_try",
]

ENOUGH = 0.99  # of the most: one more actor for the last hundredth is not worth its core
ENOUGH_IN_TURNS = 0.95  # likewise, where it costs the hand-over to one more process, too


@dataclass(frozen=True)
class Split:
    """What one split of the cores would give, in steps of environments per second.

    Learners that work in turns with actors are in what these collect, and ``learned`` is infinite.
    """

    actors: int
    collected: float
    learned: float

    @property
    def env_steps_per_second(self) -> float:
        """What both sides together come to: as much as the slower one."""
        return min(self.collected, self.learned)


@dataclass(frozen=True)
class Allocation:
    """The measured throughputs, the splits they allow, and the one chosen."""

    steps_per_actor: float
    updates_per_second: float
    splits: tuple[Split, ...]
    chosen: Split
    reason: str


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
    splits = tuple(Split(n, n * steps_per_actor, learned) for n in range(1, most + 1))
    best = max(split.env_steps_per_second for split in splits)
    chosen = next(split for split in splits if split.env_steps_per_second >= ENOUGH * best)
    if chosen.collected >= ENOUGH * learned:
        busy = "1 actor keeps" if chosen.actors == 1 else f"{chosen.actors} actors keep"
        whom = "the learner" if learners == 1 else f"{learners} learners"
        reason = f"{busy} {whom} busy: more would only wait"
    else:
        reason = (
            f"actors are slower than learners, so they get all the other cores ({most} of {cores})"
        )
    return Allocation(steps_per_actor, updates_per_second, splits, chosen, reason)


def actors_for(n_envs: int, groups: int, cores: int) -> int:
    """Return the most actors that have a core and as many groups of environments each."""
    return next(n for n in range(cores, 0, -1) if n_envs % (n * groups) == 0)


def worth_a_try(numbers: Sequence[int]) -> list[int]:
    """Return those of ascending numbers that are at least twice the one before, and the last."""
    found = list(numbers[:1])
    for n in numbers[1:-1]:
        if n >= 2 * found[-1]:
            found.append(n)
    return [*found, *numbers[1:][-1:]]


def allocate_in_turns(measured: Mapping[int, tuple[float, float]]) -> Allocation:
    """Choose the number of actors where learners wait for rollouts, and actors for updates.

    Parameters
    ----------
    measured : mapping of int to pairs of float
        By the number of actors: environment steps and updates per second, all together.

    Returns
    -------
    Allocation
        With the fewest actors that come within 5% of the most.
    """
    splits = tuple(Split(n, steps, math.inf) for n, (steps, _) in measured.items())
    best = max(split.collected for split in splits)
    chosen = next(split for split in splits if split.collected >= ENOUGH_IN_TURNS * best)
    actors = "1 actor" if chosen.actors == 1 else f"{chosen.actors} actors"
    reason = f"of those tried, {actors} and the learners come furthest in turns"
    steps, updates = measured[chosen.actors]
    return Allocation(steps / chosen.actors, updates, splits, chosen, reason)
