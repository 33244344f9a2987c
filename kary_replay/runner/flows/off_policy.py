"""The flow of algorithms that learn from replay."""

from __future__ import annotations

from typing import Any

from ...algorithms.off_policy import OffPolicy
from ..config import ConfigError, RunnerConfig
from ..environments.env_factory import EnvFactory
from ..environments.stacking import Stacking
from ..flow import Flow
from ..streams import ReplayStream
from .roles import assembled

__all__ = ["off_policy"]


def off_policy(config: RunnerConfig, env_factory: EnvFactory, n_actors: int) -> Flow:
    """Return the flow of an algorithm that learns from replay."""
    algorithm: Any = config.new_algorithm(env_factory)
    batch_size, per_insert = config.rows_per_update, config.samples_per_insert
    n_envs = n_actors * config.envs_per_actor
    moved = config.envs_per_actor // config.groups * per_insert
    # There is room for pauses of the operating system, but for no more than 1 % of the run.
    n_rows = config.total_env_steps / algorithm.steps_per_row
    pauses = 0.01 * n_rows * per_insert if config.backend != "serial" else 0.0
    error = max(batch_size, 2 * moved, min(32 * batch_size, pauses))
    # A full buffer has fewer rows than its capacity while some are being overwritten.
    most = max(1, config.buffer_capacity - n_envs)
    stacking, n_step = None, getattr(config.options, "n_step", 1)
    if getattr(algorithm.writer, "__func__", None) is OffPolicy.writer:  # which takes frames
        stacking = _stacking(config, env_factory, n_envs, n_step)
    # The first frames of an episode belong to no transition yet; on Ray, transitions are counted.
    n_bare = n_envs * n_step if stacking and config.backend != "ray" else 0
    replay = ReplayStream(
        algorithm.columns(),
        config.buffer_capacity,
        config.alpha,
        config.beta,
        config.uniform_share,
        config.seed,
        per_insert,
        min(config.learning_starts + n_bare, most),
        config.samples_per_insert_error or error,
        batch_size,
        config.learners,
        stacking,
        n_step,
    )
    return assembled(config, algorithm, replay, n_actors)


def _stacking(
    config: RunnerConfig, env_factory: EnvFactory, n_envs: int, n_step: int
) -> Stacking | None:
    """Return how observations are made of frames, if these are to be stored once.

    Raises
    ------
    ConfigError
        If the buffer has no room for the frames of a transition of each environment.
    """
    stacking = env_factory.stacking
    # Actors compute TD errors from whole observations.
    if stacking is None or config.publishes_all:
        return None
    least = 2 * n_envs * (stacking.stack + n_step)  # half of the rows have all their frames
    if least > config.buffer_capacity:
        raise ConfigError(
            f"buffer_capacity must be at least {least} for {n_envs} environments with stacks of "
            f"{stacking.stack} frames and n_step={n_step}, got {config.buffer_capacity}: frames "
            "would be overwritten before they are used"
        )
    return stacking
