"""Measures how many actors suit the learners of a run: a short run of one actor and one learner."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any, cast

from ..backends import BACKENDS, Supervisor
from ..config import RunnerConfig
from ..environments.env_factory import EnvFactory
from ..flow import HostedFlow
from ..streams import Checkpoint
from .cores import Allocation, allocate, n_cores

__all__ = ["measured_allocation"]

MEASURE_SECONDS = 0.3
LEAST_UPDATES = 3  # before the measurement, and the least that it lasts
TURN_SECONDS = 0.02  # between two looks at how far the workers are


def measured_allocation(
    config: RunnerConfig, env_factory: EnvFactory, interrupted: Callable[[], bool]
) -> Allocation:
    """Measure an actor and a learner, which do not wait for each other, and choose.

    The learner has its share of a batch, and its threads; what learners lose by averaging gradients
    is left out. Each of the two has a core of its own where there are two. Streams and workers are
    made for the measurement alone.

    Raises
    ------
    WorkerFailedError
        If the environment hangs, or fails as often as would end the run; if the learner fails.
    """
    n_rows, options = config.rows_per_update // config.learners, cast("Any", config.options)
    alone = dataclasses.replace(
        config,
        options=dataclasses.replace(options, batch_size=n_rows),
        actors=1,
        learners=1,
        policy_workers=config.policy_workers and min(config.policy_workers, config.groups),
        learning_starts=1,  # rows enough to draw from: more might take minutes to collect
        samples_per_insert_error=1e15,
        total_env_steps=2**53,
        evaluate="never",
        target_return=None,
    )
    with contextlib.ExitStack() as let_go:
        backend = BACKENDS[config.backend](alone, interrupted)
        let_go.callback(backend.close)
        flow = HostedFlow(alone, env_factory, 1, backend.medium, Checkpoint())
        let_go.callback(flow.close)
        supervisor = Supervisor(flow, backend, _ignore, interrupted, forgives_hangs=False)
        let_go.callback(supervisor.stop)
        supervisor.start()
        steps, updates = _rates(flow, supervisor, interrupted)
    steps_per_row = config.new_algorithm(env_factory).steps_per_row
    per_update = config.rows_per_update / config.samples_per_insert * steps_per_row
    cores = n_cores() - (config.policy_workers or 0)
    return allocate(steps, updates, per_update, cores, config.learners, config.learner_threads)


def _rates(
    flow: HostedFlow, supervisor: Supervisor, interrupted: Callable[[], bool]
) -> tuple[float, float]:
    """Return environment steps and updates per second, once both workers are warm."""
    board = flow.board
    while board.updates < LEAST_UPDATES and not interrupted():
        supervisor.poll(TURN_SECONDS)
    begun, steps, updates = time.perf_counter(), board.env_steps, board.updates
    seconds = 0.0
    while not interrupted():
        seconds = time.perf_counter() - begun
        is_enough = board.updates >= updates + LEAST_UPDATES and board.env_steps > steps
        if is_enough and seconds >= MEASURE_SECONDS:
            break
        supervisor.poll(TURN_SECONDS)
    seconds = max(1e-9, time.perf_counter() - begun)
    return (board.env_steps - steps) / seconds, (board.updates - updates) / seconds


def _ignore(message: Any) -> None:
    """Take no notice of what is started anew."""
