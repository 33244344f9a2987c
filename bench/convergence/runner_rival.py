"""The parallel runner of this project."""

from __future__ import annotations

import time
from typing import Any

from bench.convergence.protocol import Evaluation, Outcome
from bench.convergence.tasks import Task

SETTINGS: dict[str, dict[str, Any]] = {
    "cartpole_dqn": {},
    "lunarlander_dqn": {},
    "pendulum_ddpg": {},
    "pendulum_td3": {},
    "pendulum_sac": {},
}
COMMON = {"actors": "auto", "learners": 1}


def settings(name: str, units: int) -> dict[str, Any]:
    """Return everything that is set for a task."""
    return {**COMMON, **SETTINGS[name], "hidden_sizes": [units, units]}


def train(name: str, task: Task, seed: int, chosen: dict[str, Any]) -> Outcome:
    """Train for the budget; the runner keeps its own snapshots and evaluates them when training is over.

    They are evaluated with as many episodes as the others' snapshots are confirmed with, so each is a confirmed one.
    """
    from kary_replay.runner import Runner, RunnerConfig

    config = RunnerConfig(
        algorithm=task.algorithm,
        env=task.env_id,
        seed=seed,
        env_steps=task.budget,
        evaluate="after",
        evaluate_every=task.snapshot_every,
        evaluation_episodes=100,
        **chosen,
    )
    called = time.time()
    result = Runner(config).run()
    outcome = Outcome(
        started=called + getattr(result, "startup_seconds", 0.0), trained_seconds=result.wall_seconds, settings=chosen
    )
    for found in result.evaluations:
        mean = round(float(found.mean_return), 2)
        confirmed = mean if mean >= task.threshold else None
        evaluation = Evaluation(found.env_steps, found.updates, round(found.wall_seconds, 4), mean, confirmed)
        outcome.add(evaluation, task.threshold)
        if outcome.solved:
            break
    return outcome
