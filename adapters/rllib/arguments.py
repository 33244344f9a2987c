"""Checks of arguments, with errors that say what is meant."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.rllib.core import DEFAULT_MODULE_ID


class ArgumentError(AssertionError, ValueError):
    """An argument is out of range, or does not fit the batch drawn last.

    It is caught by code for RLlib, which asserts, and by code for kary_replay.
    """


def check_count(name: str, value: Any, least: int) -> None:
    """Raise TypeError or ArgumentError if it is not an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ArgumentError(f"{name} must be at least {least}, got {value}")


def check_fraction(name: str, value: Any) -> None:
    """Raise TypeError or ArgumentError if it is not a number from 0 to 1."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0 <= value <= 1:
        raise ArgumentError(f"{name} must be from 0 to 1, got {value!r}")


def check_weight(weight: Any) -> None:
    """Raise TypeError or ArgumentError if it is no priority, nor None."""
    if weight is None:
        return
    if not isinstance(weight, numbers.Real):
        raise TypeError(f"weight must be a number or None, got {weight!r}")
    if not 0 < weight < np.inf:
        raise ArgumentError(f"weight must be finite and above 0, got {weight!r}")


def check_length(length: Any, lookback: Any = 0, burn_in: Any = 0) -> None:
    """Raise if sequences are asked for."""
    for name, value in (
        ("batch_length_T", length),
        ("lookback", lookback),
        ("min_batch_length_T", burn_in),
    ):
        check_count(name, value, 0)
    if length > 1 or lookback or burn_in:
        raise ArgumentError(
            "batch_length_T must be 0 or 1, and lookback and burn-in 0: this buffer draws steps, "
            "not sequences; for a recurrent module use RLlib's EpisodeReplayBuffer, got "
            f"{length}, {lookback} and {burn_in}"
        )


def check_module(module_id: str | None) -> None:
    """Raise ArgumentError for a module that a single agent does not have."""
    if module_id not in (None, DEFAULT_MODULE_ID):
        raise ArgumentError(
            f"module_id must be {DEFAULT_MODULE_ID!r}, the only module of a single agent, got "
            f"{module_id!r}; several modules need RLlib's MultiAgentPrioritizedEpisodeReplayBuffer"
        )


def range_of(n_step: int | Sequence[int] | None) -> tuple[int, int]:
    """Return the least and the largest number of steps in a return."""
    if n_step is None:
        return 1, 1
    ends = tuple(n_step) if isinstance(n_step, (tuple, list, np.ndarray)) else (n_step,) * 2
    if len(ends) != 2:
        raise ArgumentError(f"n_step must be an integer or a pair of them, got {n_step!r}")
    for end in ends:
        check_count("n_step", end, 1)
    if ends[0] > ends[1]:
        raise ArgumentError(f"n_step must not begin above its end, got {n_step!r}")
    return int(ends[0]), int(ends[1])
