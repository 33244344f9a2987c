"""Making environments: by id, by an importable function, by a function; and what is wrong where that cannot work."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import gymnasium

from .config import ConfigError, RunnerConfig, suggestion

__all__ = ["Maker", "maker"]


class Maker:
    """Makes the environment of a configuration; picklable."""

    def __init__(self, config: RunnerConfig) -> None:
        self.env, self.options, self.name = config.env, dict(config.env_options), config.env_name

    def __call__(self, **options: Any) -> Any:
        """Return a new environment."""
        options = {**self.options, **options}
        found = imported(self.env) if isinstance(self.env, str) and ":" in self.env else self.env
        return gymnasium.make(found, disable_env_checker=True, **options) if isinstance(found, str) else found(**options)


def imported(path: str) -> Callable[..., Any] | str:
    """Return the function that "module:function" names, or the id of "module:id", which that module registers."""
    module, _, name = path.partition(":")
    value: Any = importlib.import_module(module)
    if name in gymnasium.registry:
        return name
    for part in name.split("."):
        value = getattr(value, part)
    if not callable(value):
        raise TypeError(f"{path} is not a function but {value!r}")
    return value  # type: ignore[no-any-return]


def maker(config: RunnerConfig) -> tuple[Maker, Any, Any]:
    """Return what makes the environment, and its spaces; ConfigError if that cannot work."""
    env = config.env
    if isinstance(env, str) and ":" not in env and env not in gymnasium.registry:
        raise ConfigError(f"env must be the id of a gymnasium environment, or module:function, got {env!r}"
                          f"{suggestion(env, gymnasium.registry)}")  # fmt: skip
    if isinstance(env, str) and ":" in env:
        try:
            imported(env)
        except Exception as error:
            raise ConfigError(
                f"env={env!r} cannot be imported: {type(error).__name__}: {error}. Write module:function or module:id, with "
                f"a module that Python finds from here"
            ) from None
    elif not isinstance(env, str):
        _check_picklable(config, env)
    make = Maker(config)
    try:
        made = make()
    except Exception as error:
        raise ConfigError(f"env={config.env_name!r} could not be made: {type(error).__name__}: {error}") from error
    observation_space, action_space = made.observation_space, made.action_space
    made.close()
    config.algorithm_class.check_spaces(observation_space, action_space)
    return make, observation_space, action_space


def _check_picklable(config: RunnerConfig, env: Any) -> None:
    if config.backend == "serial":
        return
    try:
        pickle.dumps(env)
    except Exception as error:
        raise ConfigError(
            f"env={env!r} cannot be sent to other processes ({error}). Put the function that makes the environment at the top "
            f'level of a module, and pass it, or "module:function"; or use backend="serial"'
        ) from None
    if getattr(env, "__module__", None) == "__main__" and not _main_is_a_file():
        raise ConfigError(
            f"env={env!r} is defined in an interactive session, where other processes cannot import it. Put it into a module, "
            f'and pass "module:function"; or use backend="serial"'
        )


def _main_is_a_file() -> bool:
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or hasattr(main, "__file__")
