"""The protocol of every rival in one process: a clock that evaluations stop, and snapshots.

A snapshot is a copy of the policy's parameters and the time; it costs microseconds. At the end of a
chunk of a few snapshots the clock stops and they are evaluated in order with greedy actions, so
that a run may end soon after it has solved its task. Training does not notice: no random number, no
environment and no parameter of its own is touched.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from bench.runs.convergence.tasks import Task

SCREENING_SEEDS = range(1_000_000, 1_000_020)
CONFIRMING_SEEDS = range(2_000_000, 2_000_080)
# network, observations [B] -> actions [B]; continuous ones in [-1, 1]
Act = Callable[[Any, torch.Tensor], torch.Tensor]


def make(env_id: str) -> gym.Env[Any, Any]:
    """Make an environment without gymnasium's checks, which cost time and change nothing."""
    return gym.make(env_id, disable_env_checker=True)


class Judge:
    """Plays greedy episodes on environments of its own, all with one forward pass."""

    def __init__(self, env_id: str) -> None:
        self._env_id = env_id
        self._envs: list[gym.Env[Any, Any]] = []

    def returns(
        self, act: Callable[[torch.Tensor], torch.Tensor], seeds: Sequence[int]
    ) -> np.ndarray:
        """Return of one episode per seed."""
        while len(self._envs) < len(seeds):
            self._envs.append(make(self._env_id))
        space = self._envs[0].action_space
        observations = np.stack(
            [env.reset(seed=seed)[0] for env, seed in zip(self._envs, seeds, strict=False)]
        )
        totals = np.zeros(len(seeds))
        running = np.arange(len(seeds))
        while len(running):
            with torch.no_grad():
                actions = act(torch.as_tensor(observations[running], dtype=torch.float32)).numpy()
            if isinstance(space, gym.spaces.Box):
                actions = space.low + (np.clip(actions, -1.0, 1.0) + 1.0) / 2.0 * (
                    space.high - space.low
                )
            ended = np.zeros(len(running), dtype=bool)
            for row, (number, action) in enumerate(zip(running, actions, strict=True)):
                observation, reward, terminated, truncated, _ = self._envs[number].step(action)
                observations[number] = observation
                totals[number] += float(reward)
                ended[row] = terminated or truncated
            running = running[~ended]
        return totals


@dataclass(frozen=True)
class Evaluation:
    """One snapshot and what it is worth."""

    env_steps: int
    updates: int
    wall_seconds: float  # since the first environment step, evaluations left out
    mean_return: float  # of 20 episodes
    # of these and 80 more, where the 20 reached the threshold
    confirmed_return: float | None = None


def evaluated(
    judge: Judge,
    act: Callable[[torch.Tensor], torch.Tensor],
    when: tuple[int, int, float],
    threshold: float,
) -> Evaluation:
    """Evaluate a policy of these steps, updates and seconds: by all episodes if twenty are good."""
    env_steps, updates, seconds = when
    returns = judge.returns(act, SCREENING_SEEDS)
    confirmed = None
    if returns.mean() >= threshold:
        more = judge.returns(act, CONFIRMING_SEEDS)
        confirmed = round(float(np.concatenate([returns, more]).mean()), 2)
    return Evaluation(
        env_steps, updates, round(seconds, 4), round(float(returns.mean()), 2), confirmed
    )


@dataclass
class Outcome:
    """What a run reports; the conductor adds who it was."""

    started: float = 0.0  # time.time() at the first environment step
    solved: bool = False
    wall_seconds: float | None = None  # of the first confirmed snapshot, as the next two
    env_steps: int | None = None
    updates: int | None = None
    trained_seconds: float = 0.0  # all of it, up to the end of the last chunk
    compile_seconds: float = 0.0  # before the first environment step, a part of the start-up
    curve: list[Evaluation] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)

    def add(self, evaluation: Evaluation, threshold: float) -> None:
        """Append an evaluation; the first one that is confirmed solves the task."""
        self.curve.append(evaluation)
        confirmed = evaluation.confirmed_return
        if not self.solved and confirmed is not None and confirmed >= threshold:
            self.solved = True
            self.wall_seconds, self.env_steps = evaluation.wall_seconds, evaluation.env_steps
            self.updates = evaluation.updates

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        return asdict(self)


class Course:
    """One run under the protocol.

    Parameters
    ----------
    task
        What is to be learned.
    network
        The module that acts; its parameters are what a snapshot copies.
    act
        Greedy actions of such a module.
    settings
        Goes into the outcome as it is.
    parameters
        Copies what is to be the network's parameters, where another one is trained: tensors in
        their order.
    """

    def __init__(
        self,
        task: Task,
        network: torch.nn.Module,
        act: Act,
        settings: dict[str, Any],
        parameters: Callable[[], list[torch.Tensor]] | None = None,
    ) -> None:
        self._task, self._act = task, act
        self._parameters = parameters or (
            lambda: [parameter.detach().clone() for parameter in network.parameters()]
        )
        self._twin = deepcopy(network).eval()
        self._targets = list(self._twin.parameters())
        self._judge = Judge(task.env_id)
        self._kept: list[tuple[int, int, float, list[torch.Tensor]]] = []
        self._next = min(task.snapshot_every, task.budget)
        self._start = self._stopped = 0.0
        self.outcome = Outcome(settings=settings)

    def start(self) -> None:
        """Start the clock: the next thing is the first environment step."""
        self.outcome.started = time.time()
        self._start = perf_counter()

    def seconds(self) -> float:
        """Read the clock."""
        return perf_counter() - self._start - self._stopped

    def step(self, env_steps: int, updates: int) -> bool:
        """Keep a snapshot if due, evaluate if a chunk is full; return whether to train on."""
        if env_steps < self._next:
            return True
        now = self.seconds()
        self._kept.append((env_steps, updates, now, self._parameters()))
        following = (env_steps // self._task.snapshot_every + 1) * self._task.snapshot_every
        self._next = min(following, self._task.budget)
        finished = env_steps >= self._task.budget
        if len(self._kept) < self._task.snapshots_per_chunk and not finished:
            return True
        stopped_at = perf_counter()
        self.outcome.trained_seconds = now
        self._evaluate()
        self._stopped += perf_counter() - stopped_at
        return not (self.outcome.solved or finished)

    def _evaluate(self) -> None:
        """Evaluate what was kept, in order, up to the first one that is confirmed."""
        for env_steps, updates, seconds, parameters in self._kept:
            with torch.no_grad():
                for target, parameter in zip(self._targets, parameters, strict=True):
                    target.copy_(parameter)
            when = env_steps, updates, seconds
            evaluation = evaluated(self._judge, self._greedy, when, self._task.threshold)
            self.outcome.add(evaluation, self._task.threshold)
            if self.outcome.solved:
                break
        self._kept.clear()

    def _greedy(self, observations: torch.Tensor) -> torch.Tensor:
        return self._act(self._twin, observations)
