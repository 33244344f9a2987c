"""Measures how many actors suit the learners of a run, by short runs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Any, cast

from ..backends import BACKENDS, Supervisor
from ..config import ConfigError, RunnerConfig
from ..environments.env_factory import EnvFactory
from ..flow import HostedFlow
from ..streams import Checkpoint
from .cores import Allocation, allocate, allocate_in_turns, n_cores, numbers_of_actors

__all__ = ["measured_allocation", "numbers_to_try"]

MEASURE_SECONDS = 0.3
LEAST_UPDATES = 3  # before the measurement, and the least that it lasts
TURN_SECONDS = 0.02  # between two looks at how far the workers are


def measured_allocation(
    config: RunnerConfig, env_factory: EnvFactory, interrupted: Callable[[], bool]
) -> Allocation:
    """Measure what actors and learners do in a second, and choose how many actors there are to be.

    Streams and workers are made for the measurement alone.

    Raises
    ------
    WorkerFailedError
        If the environment hangs, or fails as often as would end the run; if the learner fails.
    """
    measure = _apart if config.learns_from == "replay" else _in_turns
    return measure(config, env_factory, interrupted)


def _apart(
    config: RunnerConfig, env_factory: EnvFactory, interrupted: Callable[[], bool]
) -> Allocation:
    """Measure an actor and a learner, which do not wait for each other, and choose.

    The learner has its share of a batch, and its threads; what learners lose by averaging gradients
    is left out. Each of the two has a core of its own where there are two.
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
    steps, updates = _measured(alone, env_factory, 1, interrupted)
    steps_per_row = config.new_algorithm(env_factory).steps_per_row
    per_update = config.rows_per_update / config.samples_per_insert * steps_per_row
    cores = n_cores() - (config.policy_workers or 0)
    return allocate(steps, updates, per_update, cores, config.learners, config.learner_threads)


def _in_turns(
    config: RunnerConfig, env_factory: EnvFactory, interrupted: Callable[[], bool]
) -> Allocation:
    """Measure several numbers of actors that fill rollouts, as long as more gain, and choose.

    Updates go through a rollout once and in one batch: what learners do is the same for any number
    of actors, and with a large network it takes minutes.
    """
    options = cast("Any", config.options)
    once = {"n_epochs": 1, "batch_size": config.rows_per_update}
    known = {field.name for field in dataclasses.fields(options)}
    short = dataclasses.replace(
        config,
        options=dataclasses.replace(options, **{k: v for k, v in once.items() if k in known}),
        total_env_steps=2**53,
        evaluate="never",
        target_return=None,
    )
    numbers = numbers_to_try(config)
    measured: dict[int, tuple[float, float]] = {}
    most = 0.0
    for n in numbers:
        try:
            measured[n] = _measured(short, env_factory, n, interrupted)
        except ConfigError:  # too few groups for what an update, or a learner of its own, takes
            if n == numbers[-1] and not measured:
                raise
            continue
        steps, _ = measured[n]
        if steps < most or interrupted():
            break
        most = steps
    return allocate_in_turns(measured)


def numbers_to_try(config: RunnerConfig) -> list[int]:
    """Return how many actors may fill the rollouts of a run: if it is one number, that it is."""
    options = cast("Any", config.options)
    cores = max(1, n_cores() - (config.policy_workers or 0))
    return numbers_of_actors(options.n_envs, config.groups, cores)


def _measured(
    config: RunnerConfig, env_factory: EnvFactory, n_actors: int, interrupted: Callable[[], bool]
) -> tuple[float, float]:
    """Return environment steps and updates per second of a run with so many actors."""
    with contextlib.ExitStack() as let_go:
        backend = BACKENDS[config.backend](config, interrupted)
        let_go.callback(backend.close)
        flow = HostedFlow(config, env_factory, n_actors, backend.medium, Checkpoint())
        let_go.callback(flow.close)
        supervisor = Supervisor(flow, backend, _ignore, interrupted, forgives_hangs=False)
        let_go.callback(supervisor.stop)
        supervisor.start()
        return _rates(flow, supervisor, interrupted)


def _rates(
    flow: HostedFlow, supervisor: Supervisor, interrupted: Callable[[], bool]
) -> tuple[float, float]:
    """Return environment steps and updates per second, once all workers are warm."""
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
