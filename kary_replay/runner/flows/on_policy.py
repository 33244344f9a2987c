"""The flow of algorithms that learn from rollouts."""

from __future__ import annotations

from typing import Any

from ..config import RunnerConfig
from ..environments.env_factory import EnvFactory
from ..flow import Flow
from ..streams import RolloutStream
from .roles import assembled

__all__ = ["on_policy"]


def on_policy(config: RunnerConfig, env_factory: EnvFactory, n_actors: int) -> Flow:
    """Return the flow of an algorithm that learns from rollouts."""
    n_groups = n_actors * config.groups
    algorithm: Any = config.new_algorithm(env_factory)
    options: Any = config.options
    rollouts = RolloutStream(
        algorithm.columns(env_factory.observation_space, env_factory.action_space),
        options.rollout_length,
        config.n_envs(n_actors) // config.groups,
        n_groups,
        n_groups,
        config.max_staleness,
        config.learners,
    )
    return assembled(config, algorithm, rollouts, n_actors)
