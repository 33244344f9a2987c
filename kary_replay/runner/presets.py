"""Settings that solve their tasks: one row per algorithm, and per environment what differs from it."""

from __future__ import annotations

from typing import Any

from ..algorithms import Options, find

__all__ = ["PRESETS", "preset"]

# What every run has unless a row below or the user says otherwise. samples_per_insert: the batch size, one update per step.
COMMON: dict[str, Any] = {
    "total_env_steps": 1_000_000,
    "envs_per_actor": 8,
    "groups": 2,
    "buffer_capacity": 1_000_000,
    "learning_starts": 1_000,
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
        "options": {"hidden": (256, 256), "learning_rate": 1e-3, "batch_size": 64, "n_step": 3, "tau": 0.01,
                    "target_interval": 1, "exploration_fraction": 0.16, "exploration_final": 0.04},
    },
    ("ddpg", "*"): {},
    ("td3", "*"): {},
    ("sac", "*"): {},
}  # fmt: skip


def preset(algorithm: str, env: str, options: Options | None) -> dict[str, Any]:
    """Return the settings for an algorithm and an environment, where it has these options."""
    settings: dict[str, Any] = {**COMMON}
    tuned: dict[str, Any] = {}
    for name in ("*", env):
        row = PRESETS.get((algorithm, name), {})
        tuned.update(row.get("options", {}))
        settings.update({key: value for key, value in row.items() if key != "options"})
    settings["options"] = options if options is not None else find(algorithm).options_class(**tuned)
    settings.setdefault("samples_per_insert", float(settings["options"].batch_size))
    return settings
