"""Resuming a run: which settings may change, and whether there is anything left to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .config import ConfigError, RunnerConfig
from .messages import Evaluation
from .records.run_directory import RunDirectory

__all__ = ["CHANGEABLE", "check_changeable", "why_finished"]

# What decides when a run ends, and when it looks and saves; all else made the networks and the
# replay what they are.
CHANGEABLE = (
    "total_env_steps",
    "target_return",
    "evaluation_interval",
    "evaluation_max_steps",
    "checkpoint_interval_seconds",
    "checkpoint_interval_env_steps",
    "environment_timeout_seconds",
    "on_environment_error",
    "max_restarts",
    "ray_address",
)


def check_changeable(names: Mapping[str, Any] | set[str]) -> None:
    """Raise ConfigError naming a setting that a run has, and that cannot change when it goes on."""
    settings = {field.name for field in dataclasses.fields(RunnerConfig)}
    for name in sorted(settings.intersection(names) - set(CHANGEABLE)):
        raise ConfigError(
            f"{name} cannot change when a run goes on, only {', '.join(CHANGEABLE)} can: "
            "leave it out, or begin a run of its own"
        )
    for name in sorted(set(names) - settings):
        raise ConfigError(
            f"a run has no setting {name}; when it goes on, {', '.join(CHANGEABLE)} can change"
        )


def why_finished(directory: RunDirectory, config: RunnerConfig, counters: Mapping[str, Any]) -> str:
    """Return why the run has nothing left to do, and what to change; "" if it has."""
    best, last = _evaluation(directory, "best"), _evaluation(directory, "last")
    target, total = config.target_return, config.total_env_steps
    if target is not None and best is not None and best.mean_return >= target:
        return (
            f"its target_return={target:g} was reached at environment step {best.env_steps:,}, "
            f"by a policy of return {best.mean_return:.1f}. Give a higher target_return, "
            "or None for no target"
        )
    evaluated = (
        config.evaluate == "never"
        or not counters["updates"]
        or (last and last.updates == counters["updates"])
    )
    if counters.get("is_complete") and counters["env_steps"] >= total and evaluated:
        return f"all of its total_env_steps={total:,} are done. Give more of them"
    return ""


def _evaluation(directory: RunDirectory, name: Any) -> Evaluation | None:
    policy = directory.policy(name)
    return None if policy is None else policy.evaluation
