"""The parallel runner of this project, with its presets and what is set here."""

from __future__ import annotations

import math
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.runs.convergence.protocol import CONFIRMING_SEEDS, SCREENING_SEEDS, Evaluation, Outcome
from bench.runs.convergence.tasks import Task
from kary_replay.runner import Runner, RunnerCallback, RunnerConfig

# The presets (kary_replay/runner/presets.py), with other networks. The runner evaluates after
# training and so goes on when a task is solved: it is given fewer steps than the others. Its
# CartPole takes many more steps in less time, so a snapshot every 2,000 of them is as often as the
# others' 500; that a task counts as solved only at the next snapshot is to its disadvantage.
SETTINGS: dict[str, dict[str, Any]] = {
    "cartpole_dqn": {"total_env_steps": 100_000, "evaluation_interval": 2_000},
    # the preset's steps, over which its learning rate falls
    "lunarlander_dqn": {"total_env_steps": 600_000, "evaluation_interval": 10_000},
    "pendulum_ddpg": {"total_env_steps": 8_000},
    "pendulum_td3": {"total_env_steps": 8_000},
    "pendulum_sac": {"total_env_steps": 8_000},
    "cartpole_ppo": {"total_env_steps": 100_000},
    # The others' learning rate does not fall, and their noise begins as 1 of the torque itself,
    # which is half of ours. A rollout takes as long as an update, and is taken meanwhile. Every
    # update is judged, soon after it was made, as with the others.
    "pendulum_ppo": {
        "total_env_steps": 150_000,
        "max_staleness": 1,
        "evaluation_interval": 512,
        "options": {"learning_rate_final_share": 1.0, "log_std": math.log(0.5)},
    },
    # The preset's learning rate falls to 0 over these steps. The next rollout is taken during an
    # update here, too.
    "cartpole_a2c": {"total_env_steps": 500_000, "max_staleness": 1},
}
# What differs with layers of 256 units, whose updates take longer: fewer of them for each step.
# With the preset's gamma, policies hover, since what landing brings is too far away. Seconds until
# solved with seeds 2 and 3: 44 and 57. With n-step returns of 5, or 20 samples per insert and a
# learning rate that falls to 0, some seeds do not land. With layers of 64 fewer updates do not do:
# a policy (seed 10) came to 30 with the settings below; with 32 samples per insert, 300,000 steps
# and tau 0.004 to 169, and to -4 if gamma was 0.995, too.
WIDE: dict[str, dict[str, Any]] = {
    "lunarlander_dqn": {
        "total_env_steps": 240_000,
        "samples_per_insert": 28.0,
        "options": {
            "learning_rate_final_share": 0.2,
            "gamma": 0.995,
            "tau": 0.005,
            "huber_delta": 10.0,
            "exploration_fraction": 0.1,
        },
    },
}
# of the presets
SHOWN = (
    "envs_per_actor",
    "buffer_capacity",
    "learning_starts",
    "samples_per_insert",
    "alpha",
    "beta",
)
COMMON = {"actors": "auto", "learners": 1, "learner_threads": 1}


def settings(name: str, units: int) -> dict[str, Any]:
    """Return everything that is set for a task; `options` are those of the algorithm."""
    usual, wide = SETTINGS[name], WIDE.get(name, {}) if units == 256 else {}
    options = {"hidden": [units, units], **usual.get("options", {}), **wide.get("options", {})}
    return {**COMMON, **usual, **wide, "options": options}


def configured(task: Task, chosen: dict[str, Any]) -> RunnerConfig:
    """Return the preset of a task with what is set here, of a run that may not be over its budget.

    Evaluations are made after the run.
    """
    config = RunnerConfig(algorithm=task.algorithm, env=task.env_id)
    changed = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in chosen["options"].items()
    }
    return replace(
        config,
        **{
            "evaluation_interval": task.snapshot_every,
            **chosen,
            "options": replace(config.options, **changed),
            "total_env_steps": min(chosen["total_env_steps"], task.budget),
        },
        evaluate="after",
        evaluation_episodes=len(SCREENING_SEEDS) + len(CONFIRMING_SEEDS),
        checkpoint_interval_seconds=0.0,
    )


class UntilSolved(RunnerCallback):
    """Judges evaluations as they come, and ends them with the first policy that is good enough."""

    runner: Runner

    def __init__(self, threshold: float) -> None:
        self.threshold, self.outcome = threshold, Outcome()

    def on_evaluation(self, evaluation: Any) -> None:
        if not self.outcome.solved:  # some more may be on their way
            self.outcome.add(judged(evaluation, self.threshold), self.threshold)
        if self.outcome.solved:
            self.runner.stop()


def train(name: str, task: Task, seed: int, chosen: dict[str, Any]) -> Outcome:
    """Train for all steps; the runner keeps snapshots and evaluates them in order afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        config = replace(configured(task, chosen), seed=seed, directory=str(Path(folder) / "run"))
        called = time.time()
        judge = UntilSolved(task.threshold)
        judge.runner = Runner(config, callback=judge)
        result = judge.runner.run()
    used = {
        **chosen,
        "total_env_steps": config.total_env_steps,
        "options": asdict(config.options),
        **{name: found for name in SHOWN if (found := getattr(config, name)) is not None},
    }
    began = called + result.startup_seconds
    return replace(judge.outcome, started=began, trained_seconds=result.wall_seconds, settings=used)


def judged(found: Any, threshold: float) -> Evaluation:
    """Judge a snapshot as the others' are: by twenty episodes, then by all if these were good."""
    screened = found.returns[: len(SCREENING_SEEDS)]
    mean = sum(screened) / len(screened)
    confirmed = round(sum(found.returns) / len(found.returns), 2) if mean >= threshold else None
    return Evaluation(
        found.env_steps, found.updates, round(found.wall_seconds, 4), round(mean, 2), confirmed
    )
