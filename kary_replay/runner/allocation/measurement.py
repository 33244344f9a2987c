"""Measures how many actors suit the learners of a run, by short runs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from ...cores import n_cores
from ..backends import BACKENDS, Supervisor
from ..config import ConfigError, RunnerConfig
from ..environments.env_factory import EnvFactory
from ..flow import HostedFlow, flow_of
from ..streams import Checkpoint
from .cores import Allocation, actors_for, allocate, allocate_in_turns, worth_a_try

__all__ = ["measured_allocation", "measured_in_turns", "numbers_to_try"]

MEASURE_SECONDS = 0.3
LEAST_UPDATES = 3  # before the measurement, and the least that it lasts
ENOUGH_UPDATES = 300  # of a run, so that a measurement takes a small part of its time
WORTH_TRIES = 10  # which a run takes at least where more than one number of actors is tried
TURN_SECONDS = 0.02  # between two looks at how far the workers are


def measured_allocation(
    config: RunnerConfig, env_factory: EnvFactory, interrupted: Callable[[], bool]
) -> Allocation:
    """Measure an actor and a learner, which do not wait for each other, and choose.

    The learner has its threads and its share of a batch, or a whole one if none waits for others;
    what learners lose by averaging is left out. Each of the two has a core of its own where there
    are two. Streams and workers are made for the measurement alone.

    Raises
    ------
    WorkerFailedError
        If the environment hangs, or fails as often as would end the run; if the learner fails.
    """
    together, options = config.learners_per_update, cast("Any", config.options)
    alone = dataclasses.replace(
        config,
        options=dataclasses.replace(options, batch_size=config.rows_per_update // together),
        actors=1,
        learners=1,
        optimization="synchronous",
        policy_workers=config.policy_workers and min(config.policy_workers, config.groups),
        learning_starts=1,  # rows enough to draw from: more might take minutes to collect
        samples_per_insert_error=1e15,
        total_env_steps=2**53,
        evaluate="never",
        target_return=None,
    )
    steps, updates = _measured(alone, env_factory, 1, interrupted)
    updates *= config.learners // together
    steps_per_row = config.new_algorithm(env_factory).steps_per_row
    per_update = config.rows_per_update / config.samples_per_insert * steps_per_row
    cores = n_cores() - (config.policy_workers or 0)
    return allocate(steps, updates, per_update, cores, config.learners, config.learner_threads)


def measured_in_turns(
    config: RunnerConfig,
    env_factory: EnvFactory,
    numbers: Sequence[int],
    interrupted: Callable[[], bool],
) -> Allocation:
    """Measure some numbers of actors that fill rollouts, as long as more gain, and choose.

    A run that takes less than some tries has the first of them alone.
    Updates go through a rollout once: the learners' part is the same for any number of actors.
    Otherwise as `measured_allocation`.
    """
    options = cast("Any", config.options)
    if hasattr(options, "n_epochs"):
        options = dataclasses.replace(options, n_epochs=1)
    short = dataclasses.replace(
        config, options=options, total_env_steps=2**53, evaluate="never", target_return=None
    )
    measured: dict[int, tuple[float, float]] = {}
    most = 0.0
    for n in numbers:
        begun = time.perf_counter()
        steps, updates = _measured(short, env_factory, n, interrupted)
        measured[n] = steps, updates
        run_takes = config.total_env_steps / max(steps, 1e-9)
        is_over_soon = run_takes < WORTH_TRIES * (time.perf_counter() - begun)
        if steps < most or is_over_soon or interrupted():
            break
        most = steps
    return allocate_in_turns(measured)


def numbers_to_try(config: RunnerConfig, env_factory: EnvFactory) -> list[int]:
    """Return the numbers of actors for rollouts among which a measurement is to choose.

    Only the most that have a core each, and a flow, if it would not pay: where actors do not wait
    for learners, and in runs of few updates. Learners that are not waited for keep their cores.
    """
    options = cast("Any", config.options)
    n_envs, groups = int(options.n_envs), config.groups
    in_turns = config.max_staleness == 0
    others = config.policy_workers or 0
    if not in_turns:
        others += config.learners * config.learner_threads
    cores = max(1, n_cores() - others)
    whole = [n for n in range(1, n_envs // groups + 1) if n_envs % (n * groups) == 0]
    with_cores = [n for n in whole if n <= cores and _has_flow(config, env_factory, n)]
    if not with_cores:  # if there is none at all, the run says what is wrong
        more = (n for n in whole if n > cores and _has_flow(config, env_factory, n))
        return [next(more, actors_for(n_envs, groups, cores))]
    if not in_turns or config.total_env_steps < ENOUGH_UPDATES * config.rows_per_update:
        return with_cores[-1:]
    return worth_a_try(with_cores)


def _has_flow(config: RunnerConfig, env_factory: EnvFactory, n_actors: int) -> bool:
    """Return whether so many actors have groups enough for updates, learners, policy workers."""
    try:
        flow_of(config, env_factory, n_actors)
    except ConfigError:
        return False
    return True


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
