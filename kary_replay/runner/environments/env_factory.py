"""Makes environments, named by an id or an importable function, or given by a function.

Where that cannot work, the error says what is wrong.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pickle
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from gymnasium.envs.registration import EnvSpec

from ...algorithms import UnsuitableSpaceError
from ...algorithms.normalization import Normalization
from ..config import ConfigError, RunnerConfig, suggestion
from . import pools
from .atari import hint, is_game, make_game
from .minatar import is_board_game, make_board_game, register_board_games
from .running_statistics import check_no_running_statistics
from .stacking import Stacking, stacking_of

__all__ = ["EnvFactory", "env_factory", "trouble_with_name"]


# What the ids of a package begin with, its name for pip, and the module that registers them.
PACKAGES = {
    "ALE": ('"kary-replay[atari]"', "ale_py"),
    "EnvPool": ("envpool", "envpool"),
    "MinAtar": ('"kary-replay[minatar]"', "minatar"),
    "MiniGrid": ("minigrid", "minigrid"),
    "BabyAI": ("minigrid", "minigrid"),
    "MiniWorld": ("miniworld", "miniworld"),
}


class EnvFactory:
    """Makes the environment of a configuration; picklable.

    ``observation_space`` and ``action_space`` are those of the environment, and ``stacking`` is how
    it stacks frames, if it does, once `env_factory` has made it. ``evaluation`` makes the
    environment of evaluations.
    """

    def __init__(self, config: RunnerConfig) -> None:
        self.observation_space: Any = None
        self.action_space: Any = None
        self.stacking: Stacking | None = None
        self.options, self.name = dict(config.env_options), config.env_name
        self.eval_options = dict(config.eval_env_options)
        self.env: Any = config.env
        if isinstance(self.env, str):
            # some cannot be pickled, but are registered wherever their module is imported
            with contextlib.suppress(Exception):
                # others, in no other process
                self.env = pickle.loads(pickle.dumps(gymnasium.registry[self.env]))

    def __call__(self, **options: Any) -> Any:
        """Return a new environment."""
        options = {**self.options, **options}
        found = imported(self.env) if isinstance(self.env, str) and ":" in self.env else self.env
        if isinstance(found, (str, EnvSpec)) and is_game(found, options):
            return make_game(found, **options)
        if is_board_game(found):
            return make_board_game(found, **options)
        if isinstance(found, (str, EnvSpec)):
            return gymnasium.make(found, disable_env_checker=True, **options)
        return found(**options)

    @property
    def evaluation(self) -> Callable[..., Any]:
        """What makes an environment of evaluations, which `play` shows, too."""
        options = self.eval_options
        both = {**self.options, **options}
        if is_game(self.env, both) or pools.is_pool_game(self.env, both):
            options = {"clip_rewards": False, **options}
        return functools.partial(self, **options)

    @property
    def function(self) -> Any:
        """What makes the environment in the end, as far as that is known; a string names it."""
        function = self.env.entry_point if isinstance(self.env, EnvSpec) else self.env
        while isinstance(function, functools.partial):
            function = function.func
        return function


def imported(path: str) -> Callable[..., Any] | str:
    """Return the function that "module:function" names, or the id that "module:id" registers."""
    module, _, name = path.partition(":")
    value: Any = importlib.import_module(module)
    if is_board_game(path):
        register_board_games()
    if name in gymnasium.registry:
        return name
    for part in name.split("."):
        value = getattr(value, part)
    if not callable(value):
        raise TypeError(f"{path} is not a function but {value!r}")
    return value  # type: ignore[no-any-return]


def env_factory(config: RunnerConfig) -> EnvFactory:
    """Return what makes the environment, once it has made one.

    Raises
    ------
    ConfigError
        If the environment cannot be made, or sent to other processes, or the algorithm cannot
        handle its spaces.
    """
    env = config.env
    if isinstance(env, str) and env.partition("/")[0] in PACKAGES:
        _register(env)
    if isinstance(env, str) and ":" not in env and env not in gymnasium.registry:
        known = _package_hint(env) or suggestion(env, gymnasium.registry)
        raise ConfigError(
            f"env must be the id of a gymnasium environment, or module:function, got {env!r}{known}"
        )
    if isinstance(env, str) and ":" in env:
        try:
            imported(env)
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"env={env!r} cannot be imported: {type(error).__name__}: {error}. Write "
                "module:function or module:id, with a module that Python finds from here"
            ) from None
    factory = EnvFactory(config)
    if config.backend != "serial":
        _check_picklable(env, factory, config.backend)
    name = f"env={config.env_name!r}"
    observation_space, action_space, factory.stacking = _spaces(factory, name)
    try:
        config.algorithm_class.check_spaces(observation_space, action_space)
    except UnsuitableSpaceError as error:
        raise ConfigError(f"{error}{hint(env, config.env_options)}") from None
    if config.eval_env_options:
        name += f" with eval_env_options={dict(config.eval_env_options)!r}"
        *found, _ = _spaces(factory.evaluation, name)
        if found != [observation_space, action_space]:
            raise ConfigError(
                f"{name} must have the spaces that it has in training, "
                f"{observation_space} and {action_space}, but has {found[0]} and {found[1]}"
            )
    if config.normalize_observations:
        _check_has_numbers(observation_space)
    factory.observation_space, factory.action_space = observation_space, action_space
    return factory


def _register(env: str) -> None:
    """Import the package that registers an id, if it is installed."""
    module = PACKAGES[env.partition("/")[0]][1]
    try:
        importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            return
        raise ConfigError(
            f"env={env!r} needs {module}, which is installed, but could not be imported: "
            f"{type(error).__name__}: {error}"
        ) from error
    if is_board_game(env):
        register_board_games()
    if env.startswith(pools.FAMILY):
        known = pools.register_pool(env)
        if env not in gymnasium.registry:
            raise ConfigError(f"env must be a task of EnvPool, got {env!r}{suggestion(env, known)}")


def _spaces(make: Callable[[], Any], name: str) -> tuple[Any, Any, Stacking | None]:
    """Return the spaces of an environment, and how it stacks frames.

    ConfigError if it cannot be made, or used.
    """
    try:
        made = make()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{name} could not be made: {type(error).__name__}: {error}") from error
    found = getattr(made, "observation_space", None), getattr(made, "action_space", None)
    if not all(isinstance(space, gymnasium.Space) for space in found):
        raise ConfigError(
            f"{name} made no environment, which has an observation_space and an action_space, "
            f"but {made!r}"
        )
    with contextlib.suppress(Exception, SystemExit):  # it has said what was to be known
        made.close()
    check_no_running_statistics(made, name)
    if isinstance(made, gymnasium.vector.VectorEnv) or hasattr(made, "step_async"):
        raise ConfigError(
            f"{name} made several environments at once, a {type(made).__name__}: make one of them; "
            "actors and envs_per_actor say how many there are"
        )
    return *found, stacking_of(made)


def _package_hint(env: str) -> str:
    """Return which package registers ids that begin like this one, if none of them are known."""
    namespace, slash, _ = env.rpartition("/")
    family = namespace if slash else env.partition("-")[0]
    known = {
        other.rpartition("/")[0] if slash else other.partition("-")[0]
        for other in gymnasium.registry
    }
    if family in known or not (slash or family in PACKAGES):
        return ""
    if family not in PACKAGES:
        return (
            f": no package that registers {family}/ has been imported. Install it, and write its "
            f"module before: module:{env}"
        )
    package, module = PACKAGES[family]
    if slash:  # it has been tried to import it
        return f": {module} registers it. pip install {package}"
    return f": {package} registers it. pip install {package}, and write {module}:{env}"


def trouble_with_name(config: RunnerConfig) -> str:
    """Return why the name that config.json has for the environment is of no use later, or ""."""
    if isinstance(config.env, str):
        return ""
    name = config.env_name
    try:
        is_found = imported(name) == config.env
    except Exception:
        is_found = False
    if not is_found:
        return (
            f"{name} does not lead to env={config.env!r}, so this run cannot be resumed, played "
            "or exported later: give a function at the top level of a module"
        )
    if name.startswith("__main__:"):
        return (
            f"only this program finds {name}: kary-replay play, export and train --resume do not. "
            "Give a function of a module of its own for that"
        )
    return ""


def _check_has_numbers(space: Any) -> None:
    """Raise ConfigError if there is nothing in an observation that could be normalized."""
    if not Normalization(space, True, False, torch.device("cpu")).n_numbers:
        raise ConfigError(
            "normalize_observations=True needs observations with a Box of numbers, got "
            f"{space}: images are divided by 255 anyway, and what is counted or one-hot has its "
            "scale; leave it out"
        )


def _check_picklable(env: Any, factory: EnvFactory, backend: str) -> None:
    try:
        pickle.dumps(factory)
    except Exception as error:
        raise ConfigError(
            f"env={env!r} cannot be sent to other processes ({error}). Put the function that makes "
            'the environment at the top level of a module, and pass it, or "module:function"; or '
            'use backend="serial"'
        ) from None
    is_of_main = getattr(factory.function, "__module__", None) == "__main__"
    if is_of_main and backend == "ray":
        raise ConfigError(
            f"env={env!r} is defined in the program that is run, which other nodes do not import. "
            'Put it into a module that all nodes find, and pass "module:function"'
        )
    if is_of_main and not _main_is_a_file():
        raise ConfigError(
            f"env={env!r} is defined in an interactive session, where other processes cannot "
            'import it. Put it into a module, and pass "module:function"; or use backend="serial"'
        )


def _main_is_a_file() -> bool:
    main = sys.modules["__main__"]
    return getattr(main, "__spec__", None) is not None or hasattr(main, "__file__")
