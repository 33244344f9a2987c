"""Blind Cliffwalk (Schaul et al. 2016, arXiv:1511.05952): one row in 2^(n+1) − 2 has a reward.

There are n states in a row and two actions. The right one, which alternates from state to state,
leads to the next state; the wrong one ends the episode with reward 0. Past the last state waits
reward 1. The replay memory holds what all 2^n action sequences meet. A table of Q-values starts
near 0 and learns from one transition at a time (step size 1/4, discount 1 − 1/n) until its mean
squared error is below 1e-3. The updates until then are counted.

    python -m bench.runs.learning.cliffwalk

It takes a minute or two and writes bench/results/learning/cliffwalk.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np

import kary_replay as kr

RESULTS = Path(__file__).resolve().parents[2] / "results" / "learning" / "cliffwalk.json"
STEP_SIZE, TOLERANCE = 0.25, 1e-3
BLOCK = 4096  # uniform draws that are made at once


class Cliffwalk:
    """The task: its replay memory and its true Q-values."""

    def __init__(self, n_states: int) -> None:
        self.n_states, self.gamma = n_states, 1 - 1 / n_states
        self.right = [state % 2 for state in range(n_states)]

    def memory(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """States and actions of all transitions, [2^(n+1) − 2], the episodes in random order."""
        # In how many of the 2^n sequences does the first wrong action come at step k? Halve the
        # rest at each step.
        lengths = [
            (k + 1, False)
            for k in range(self.n_states)
            for _ in range(2 ** (self.n_states - k - 1))
        ]
        lengths.append((self.n_states, True))
        states, actions = [], []
        for i in rng.permutation(len(lengths)):
            length, solved = lengths[i]
            for state in range(length):
                wrong = state == length - 1 and not solved
                states.append(state)
                actions.append(1 - self.right[state] if wrong else self.right[state])
        return np.array(states), np.array(actions)

    def truth(self) -> np.ndarray:
        """True Q-values, [n_states, 2]."""
        values = np.zeros((self.n_states, 2))
        for state in range(self.n_states):
            values[state, self.right[state]] = self.gamma ** (self.n_states - 1 - state)
        return values


class Learner:
    """A table that follows its own mean squared error, so that each update can be the last."""

    def __init__(self, task: Cliffwalk, rng: np.random.Generator) -> None:
        self.task = task
        self.values = rng.normal(0.0, 0.1, (task.n_states, 2)).tolist()
        self._truth = task.truth().tolist()
        errors = np.array(self.values) - np.array(self._truth)
        self._squared_error = float(np.square(errors).sum())
        self._tolerance = TOLERANCE * 2 * task.n_states

    @property
    def solved(self) -> bool:
        return self._squared_error < self._tolerance

    def td_error(self, state: int, action: int) -> float:
        task, values = self.task, self.values
        if action != task.right[state]:
            target = 0.0
        elif state == task.n_states - 1:
            target = 1.0
        else:
            target = task.gamma * max(values[state + 1])
        return target - values[state][action]

    def update(self, state: int, action: int) -> float:
        """One step of Q-learning; returns the TD error before it."""
        error = self.td_error(state, action)
        old, truth = self.values[state][action], self._truth[state][action]
        new = old + STEP_SIZE * error
        self.values[state][action] = new
        self._squared_error += (new - truth) ** 2 - (old - truth) ** 2
        return error

    def gain(self, state: int, action: int) -> float:
        """By how much an update would lower the squared error: what the oracle goes by."""
        old, truth = self.values[state][action], self._truth[state][action]
        new = old + STEP_SIZE * self.td_error(state, action)
        return (old - truth) ** 2 - (new - truth) ** 2


def uniform(task: Cliffwalk, rng: np.random.Generator, limit: int) -> int:
    """Updates needed with uniform draws."""
    states, actions = (array.tolist() for array in task.memory(rng))
    learner = Learner(task, rng)
    n = 0
    while n < limit:
        for i in rng.integers(0, len(states), BLOCK).tolist():
            if learner.solved:
                return n
            learner.update(states[i], actions[i])
            n += 1
    return limit


def prioritized(
    task: Cliffwalk,
    rng: np.random.Generator,
    limit: int,
    alpha: float = 0.6,
    uniform_share: float | Literal["auto"] = 0.0,
) -> int:
    """Updates needed with our buffer, drawing one row by |TD error| for each update."""
    states, actions = task.memory(rng)
    fields = {"state": kr.Field((), "int64"), "action": kr.Field((), "int64")}
    # A table without noise has no bias to correct: beta is 0, as importance weights below 1 would
    # only shorten steps.
    buffer = kr.PrioritizedReplayBuffer(
        len(states),
        fields,
        alpha=alpha,
        beta=0.0,
        seed=int(rng.integers(2**31)),
        uniform_share=uniform_share,
    )
    buffer.add(state=states, action=actions)
    learner = Learner(task, rng)
    for n in range(limit):
        if learner.solved:
            return n
        batch = buffer.sample(1)
        error = learner.update(int(batch.state[0]), int(batch.action[0]))
        buffer.update_priorities(batch.handle, (error,))
    return limit


def oracle(task: Cliffwalk, rng: np.random.Generator, limit: int) -> int:
    """Updates needed by one who knows which transition helps most: a bound, not a method."""
    pairs = [(state, action) for state in range(task.n_states) for action in range(2)]
    learner = Learner(task, rng)
    for n in range(limit):
        if learner.solved:
            return n
        learner.update(*max(pairs, key=lambda pair: learner.gain(*pair)))
    return limit


METHODS = {
    "uniform": uniform,
    "prioritized": prioritized,
    "where it pays": partial(prioritized, uniform_share="auto"),
    "oracle": oracle,
}


def runs(sizes: Sequence[int], seeds: int, limit: int) -> Iterator[tuple[int, str, list[int]]]:
    """(n, method, updates of each seed)."""
    for n in sizes:
        task = Cliffwalk(n)
        for name, method in METHODS.items():
            yield (
                n,
                name,
                [method(task, np.random.default_rng([n, seed]), limit) for seed in range(seeds)],
            )


def main() -> None:
    """Run all sizes and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(range(2, 17)), help="numbers of states"
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument(
        "--limit", type=int, default=20_000_000, help="updates at most (default: %(default)s)"
    )
    arguments = parser.parse_args()
    results = []
    for n, method, updates in runs(arguments.sizes, arguments.seeds, arguments.limit):
        results.append(
            {"n_states": n, "transitions": 2 ** (n + 1) - 2, "method": method, "updates": updates}
        )
        spread = f"[{min(updates)} … {max(updates)}]"
        print(f"n {n:2d}  {method:<12} median {median(updates):>10.0f}  {spread}", flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(result) for result in results)
    RESULTS.write_text(
        f'{{"step_size": {STEP_SIZE}, "tolerance": {TOLERANCE}, "alpha": 0.6, '
        f'"runs": [\n{lines}\n]}}\n'
    )


if __name__ == "__main__":
    main()
