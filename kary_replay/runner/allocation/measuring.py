"""How many actors suit the learners of a run, as measured here and now: one of each kind works alone for a while."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from typing import Any

import torch

from ..config import RunnerConfig
from ..environments.env_factory import Maker
from ..environments.environments import EnvironmentFaultError
from ..failures import START_SECONDS, WorkerFailedError, environment_hung, failing_ends_the_run
from ..plan import Plan
from ..records.background import in_background
from ..workers import Actor, Learner
from .allocation import Allocation, allocate, n_cores, throughput

__all__ = ["measured_allocation"]

MEASURE_SECONDS = 1.0  # of each side
LOOK_SECONDS = 0.1


def measured_allocation(config: RunnerConfig, made: tuple[Maker, Any, Any]) -> Allocation:
    """Measure an actor and a learner, and choose the number of actors.

    The learner has its share of a batch, and its threads; what learners lose by averaging gradients
    is left out.

    Raises
    ------
    WorkerFailedError
        If the environment hangs, or fails as often as would end the run; if the learner fails.
    """
    alone = dataclasses.replace(
        config,
        options=dataclasses.replace(
            config.options, batch_size=config.options.batch_size // config.learners
        ),
        actors=1,
        learners=1,
        learning_starts=1,  # rows enough to draw from: more might take minutes to collect
        backend="serial",
        samples_per_insert_error=1e15,
        total_env_steps=2**53,
    )
    plan = Plan.new(alone, made, 1, None, {})
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(config.learner_threads)
        with failing_ends_the_run("learner-0"):
            learner = Learner(plan, 0, _ignore)
        with contextlib.closing(learner):
            torch.set_num_threads(1)
            steps = _watched(plan, partial(_steps_per_second, plan))
            torch.set_num_threads(config.learner_threads)
            with failing_ends_the_run("learner-0"):
                updates = throughput(learner.work, lambda: plan.board.updates, MEASURE_SECONDS)
    finally:
        torch.set_num_threads(threads)
        plan.close()
    # what this process keeps of the GPU's memory, learners lack
    if torch.device(config.device).type == "cuda":
        del learner
        gc.collect()
        torch.cuda.empty_cache()
    per_update = config.options.batch_size / config.samples_per_insert
    return allocate(steps, updates, per_update, n_cores(), config.learners, config.learner_threads)


def _steps_per_second(plan: Plan) -> float:
    """Return the environment steps per second of one actor, which is started anew as in a run."""
    config, row = plan.config, plan.board.row("actor", 0)
    actor, failures, episodes, incarnation = Actor(plan, 0, _ignore), 0, 0.0, 0

    def work(patience_seconds: float) -> bool:
        nonlocal actor, failures, episodes, incarnation
        try:
            return actor.work(patience_seconds)
        except EnvironmentFaultError:
            failures = 1 if row.episodes > episodes else failures + 1
            episodes, incarnation = row.episodes, incarnation + 1
            if config.on_environment_error == "stop" or failures > config.max_restarts:
                raise
            row.first_step = 0.0  # making them may take long again
            actor.close()
            actor = Actor(plan, 0, _ignore, incarnation)
            return True

    try:
        steps = throughput(work, lambda: plan.board.env_steps, MEASURE_SECONDS)
        while len(plan.replay.buffer) < plan.replay.limiter.min_size:
            work(0)
    finally:
        actor.close()
    return steps


def _watched(plan: Plan, work: Callable[[], float]) -> float:
    """Return what the actor's work comes to; WorkerFailedError if its environment fails, or hangs, and is left to itself."""
    limit, row = plan.config.environment_timeout_seconds, plan.board.row("actor", 0)
    begun, found = time.monotonic(), in_background(work)
    while not found.done():
        wait([found], LOOK_SECONDS)
        silent = time.monotonic() - max(begun, row.beat)
        if silent > (limit if row.first_step else max(limit, START_SECONDS)):
            raise WorkerFailedError(environment_hung(plan.config.env_name, silent, limit))
    with failing_ends_the_run("actor-0"):
        return found.result()


def _ignore(report: Any) -> None:
    """Take no notice of episodes."""
