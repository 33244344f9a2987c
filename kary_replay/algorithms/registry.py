"""Algorithms by their names."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import is_dataclass
from typing import TypeVar

from .algorithm import Algorithm, Options
from .off_policy import OffPolicy, OffPolicyOptions
from .on_policy import OnPolicy, OnPolicyOptions

__all__ = ["ALGORITHMS", "find", "register"]

ALGORITHMS: dict[str, type[Algorithm]] = {}
"""What configurations and the command line can name."""

AnyAlgorithm = TypeVar("AnyAlgorithm", bound=type[Algorithm])


def register(algorithm: AnyAlgorithm) -> AnyAlgorithm:
    """Let an algorithm be found by its name; a decorator of its class.

    Parameters
    ----------
    algorithm : subclass of Algorithm
        With a name, a paper, a dataclass of options, and no abstract method left.

    Returns
    -------
    class
        The same.

    Raises
    ------
    TypeError
        If it is not such a class.
    ValueError
        If another algorithm has its name.

    Notes
    -----
    It is known in processes that import the module in which this is called. A class defined anew,
    as when a module is reloaded, takes the place of its former self.
    """
    if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
        raise TypeError(f"algorithm must be a subclass of Algorithm, got {algorithm!r}")
    if not isinstance(getattr(algorithm, "flow", None), str):
        raise TypeError(
            f"{algorithm.__name__} names no flow: derive it from kary_replay.algorithms.OffPolicy "
            "if it learns from replay, and its options from OffPolicyOptions; or from OnPolicy and "
            "OnPolicyOptions if it learns from rollouts; Algorithm is the base of others, too"
        )
    if isinstance(inspect.getattr_static(algorithm, "columns", None), classmethod):
        raise TypeError(
            f"columns of {algorithm.__name__} must be a method, which knows observation_space and "
            "action_space: def columns(self)"
        )
    if inspect.isabstract(algorithm):
        missing = ", ".join(sorted(algorithm.__abstractmethods__))
        raise TypeError(f"{algorithm.__name__} is abstract: it still needs {missing}")
    name = getattr(algorithm, "name", None)
    if (
        not isinstance(name, str)
        or not name
        or not isinstance(getattr(algorithm, "paper", None), str)
    ):
        raise TypeError(
            f"{algorithm.__name__} needs the class attributes name and paper, both strings"
        )
    # one that is not decorated has the fields and the defaults of its base
    options_class = algorithm.options_class
    if not (is_dataclass(options_class) and "__dataclass_params__" in vars(options_class)):
        raise TypeError(
            f"options_class of {algorithm.__name__} must be a dataclass, got {options_class!r}: "
            "write @dataclass(frozen=True) above it"
        )
    bases = ((OffPolicy, OffPolicyOptions), (OnPolicy, OnPolicyOptions), (Algorithm, Options))
    for base, options in bases:
        if issubclass(algorithm, base) and not issubclass(options_class, options):
            raise TypeError(
                f"options_class of {algorithm.__name__} must be derived from "
                f"kary_replay.algorithms.{options.__name__}, got {options_class!r}"
            )
    other = ALGORITHMS.get(name, algorithm)
    if (other.__module__, other.__qualname__) != (algorithm.__module__, algorithm.__qualname__):
        raise ValueError(
            f"the name {name!r} belongs to {other.__module__}.{other.__qualname__}: "
            "choose another one"
        )
    ALGORITHMS[name] = algorithm
    return algorithm


def find(name: str) -> type[Algorithm]:
    """Return the algorithm of a name, or the class that "module:Class" names.

    KeyError if there is no such name; what importing raises, if that fails; TypeError if it is no
    algorithm.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return ALGORITHMS[name]
    algorithm: type[Algorithm] = getattr(importlib.import_module(module), attribute)
    return register(algorithm)
