"""Settings that solve their tasks: one row per algorithm, and per environment what differs from it."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..algorithms import ALGORITHMS

__all__ = ["PRESETS", "with_preset"]

# What every run has unless a row below or the user says otherwise.
COMMON: dict[str, Any] = {
    "total_env_steps": 1_000_000,
    "envs_per_actor": 8,
    "groups": 2,
    "buffer_capacity": 1_000_000,
    "learning_starts": 1_000,
    "samples_per_insert": None,  # one update per environment step
    "alpha": 0.6,
    "beta": 0.4,
    "initial_priority": "max",
    "exploration_spread": 0.0,
}

# (algorithm, environment) -> settings of the run, and hyperparameters under "options"; "*" is any environment.
PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("dqn", "*"): {},
    ("dqn", "CartPole-v1"): {
        "total_env_steps": 50_000, "buffer_capacity": 100_000, "samples_per_insert": 32, "evaluation_interval": 1_000,
        "options": {"hidden": (256, 256), "learning_rate": 2.3e-3 / 4, "batch_size": 64, "target_interval": 128,
                    "exploration_fraction": 0.16, "exploration_final": 0.04},
    },
    ("ddpg", "*"): {},
    ("td3", "*"): {},
    ("sac", "*"): {},
}  # fmt: skip
EVALUATIONS = 50  # of a run, by default


def with_preset(config: Any) -> Any:
    """Return the configuration with every None filled in."""
    settings: dict[str, Any] = {**COMMON}
    options: dict[str, Any] = {}
    for env in ("*", config.env_name):
        row = PRESETS.get((config.algorithm, env), {})
        options.update(row.get("options", {}))
        settings.update({name: value for name, value in row.items() if name != "options"})
    if config.options is None:
        config = dataclasses.replace(config, options=ALGORITHMS[config.algorithm].options_class(**options))
    given = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    settings.update({name: value for name, value in given.items() if value is not None})
    if settings["samples_per_insert"] is None:
        settings["samples_per_insert"] = float(getattr(config.options, "batch_size", 1))
    if settings.get("evaluation_interval") is None:
        settings["evaluation_interval"] = max(1, settings["total_env_steps"] // EVALUATIONS)
    return type(config)(**settings)
