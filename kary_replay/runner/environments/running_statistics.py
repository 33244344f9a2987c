"""Finds wrappers that keep running statistics.

Every worker would have statistics of its own, and none would be saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..config import ConfigError

__all__ = ["check_no_running_statistics"]

# gymnasium's, for one environment and for vectors of them
WRAPPERS = {"NormalizeObservation", "NormalizeReward"}
STATISTICS = "RunningMeanStd"  # what gymnasium, Stable-Baselines3 and Tianshou call the class
INNER = ("env", "venv")  # the attributes by which wrappers name what they wrap


def check_no_running_statistics(env: Any, name: str) -> None:
    """Raise ConfigError, naming the environment, if a wrapper goes on changing statistics."""
    for wrapper in _stack(env):
        if not getattr(wrapper, "update_running_mean", True):
            continue  # frozen: then they are the same numbers wherever the environment is made
        kind = type(wrapper).__name__
        if WRAPPERS & {cls.__name__ for cls in type(wrapper).__mro__} or any(
            map(_is_statistics, _values(wrapper))
        ):
            raise ConfigError(
                f"{name} must not keep running statistics, and its wrapper {kind} does: "
                "every worker would normalize by its own, and none would be saved. Take it off, "
                "and set normalize_observations or normalize_rewards, whose statistics all workers "
                "share; or scale by fixed numbers, as gymnasium.wrappers.RescaleObservation or "
                "TransformReward do; or load statistics into it and set its update_running_mean "
                "to False where the environment is made"
            )


def _stack(env: Any) -> Iterator[Any]:
    """Yield the wrappers from the outermost one inwards, and the environment."""
    seen: list[Any] = []
    while env is not None and all(env is not other for other in seen):
        seen.append(env)
        yield env
        inner = (vars(env).get(name) for name in INNER if hasattr(env, "__dict__"))
        env = next((one for one in inner if one is not None), None)


def _values(wrapper: Any) -> Iterator[Any]:
    """Yield the attributes of a wrapper, and what dicts among them hold.

    Statistics may be kept by the keys of the observation.
    """
    for value in getattr(wrapper, "__dict__", {}).values():
        yield from value.values() if isinstance(value, dict) else (value,)


def _is_statistics(value: Any) -> bool:
    return any(cls.__name__ == STATISTICS for cls in type(value).__mro__)
