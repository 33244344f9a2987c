"""The flow of algorithms that learn from rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...types import Field
from ..config import ConfigError, RunnerConfig
from ..environments.env_factory import EnvFactory
from ..flow import Flow
from ..streams import RolloutStream
from .roles import assembled

__all__ = ["on_policy"]


def on_policy(config: RunnerConfig, env_factory: EnvFactory, n_actors: int) -> Flow:
    """Return the flow of an algorithm that learns from rollouts.

    Raises ConfigError if an update would learn from a part of a group's environments.
    """
    n_groups, n_envs = n_actors * config.groups, config.n_envs(n_actors) // config.groups
    algorithm: Any = config.new_algorithm(env_factory)
    options: Any = config.options
    together = options.envs_per_update or options.n_envs
    if together % n_envs:
        raise ConfigError(
            f"envs_per_update={together} must be a multiple of {n_envs}, the environments of a "
            f"group, of which there are actors · groups = {n_groups}: choose another number of "
            "them"
        )
    parts = config.learners // config.learners_per_update
    if n_groups % parts or together // n_envs % parts:
        raise ConfigError(
            f"learners={parts} must divide the groups of environments, of which there are actors · "
            f"groups = {n_groups}, and an update learns from {together // n_envs}: choose another "
            "number of them"
        )
    rollouts = RolloutStream(
        algorithm.columns(),
        options.rollout_length,
        n_envs,
        n_groups,
        together // n_envs // parts,
        config.max_staleness,
        config.learners // parts,
        parts,
        {"state": Field(algorithm.state_size, np.float32)} if algorithm.state_size else {},
    )
    return assembled(config, algorithm, rollouts, n_actors)
