"""The flow of algorithms that learn from replay."""

from __future__ import annotations

from typing import Any

from ..config import RunnerConfig
from ..environments.env_factory import EnvFactory
from ..flow import Flow
from ..streams import ReplayStream
from .roles import assembled

__all__ = ["off_policy"]


def off_policy(config: RunnerConfig, env_factory: EnvFactory, n_actors: int) -> Flow:
    """Return the flow of an algorithm that learns from replay."""
    algorithm: Any = config.new_algorithm(env_factory)
    spaces = env_factory.observation_space, env_factory.action_space
    batch_size, per_insert = config.rows_per_update, config.samples_per_insert
    n_envs = n_actors * config.envs_per_actor
    moved = config.envs_per_actor // config.groups * per_insert
    # There is room for pauses of the operating system, but for no more than 1 % of the run.
    pauses = 0.01 * config.total_env_steps * per_insert if config.backend != "serial" else 0.0
    error = max(batch_size, 2 * moved, min(32 * batch_size, pauses))
    # A full buffer has fewer rows than its capacity while some are being overwritten.
    most = max(1, config.buffer_capacity - n_envs)
    replay = ReplayStream(
        algorithm.columns(*spaces),
        config.buffer_capacity,
        config.alpha,
        config.beta,
        config.uniform_share,
        config.seed,
        per_insert,
        min(config.learning_starts, most),
        config.samples_per_insert_error or error,
        batch_size,
        config.learners,
    )
    return assembled(config, algorithm, replay, n_actors)
