"""Errors that are caught by code for Tianshou, which asserts, and by code for kary_replay.

Each of these errors is an AssertionError, and also the error that kary_replay would raise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kary_replay.errors import IndexRangeError


class ArgumentError(AssertionError, ValueError):
    """An argument is out of range."""


class LeafIndexError(AssertionError, IndexRangeError):
    """A priority was given for an index at which the tree has no leaf."""


def as_real(name: str, value: Any) -> float:
    """Return `value` as a float; TypeError if it is not a real number."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{name} must be a real number, got {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a real number, got {value!r}") from None
    except OverflowError:
        raise ArgumentError(f"{name} must be a number that float64 can hold, got {value}") from None


def as_alpha(value: Any) -> float:
    """Return `value`, the exponent of the priorities, as a finite float above 0."""
    number = as_real("alpha", value)
    if not 0 < number < np.inf:
        raise ArgumentError(
            f"alpha must be finite and above 0, got {value!r}; "
            "for uniform replay use tianshou's ReplayBuffer"
        )
    return number


def as_beta(value: Any) -> float:
    """Return `value`, the exponent of the importance weights, as a finite float of at least 0."""
    number = as_real("beta", value)
    if not 0 <= number < np.inf:
        raise ArgumentError(
            f"beta must be finite and at least 0, got {value!r}; "
            "0 makes all weights 1, 1 corrects fully"
        )
    return number


def check_format(what: str, found: int, known: int) -> None:
    """Raise ValueError if `what` was saved in a later format than this version knows."""
    if found > known:
        raise ValueError(
            f"this {what} was saved in format {found} by a later version of kary-replay, "
            f"and this version reads formats up to {known}: load it with that version, "
            "or a later one"
        )


def refused_priority(
    index: Any, td_error: np.ndarray, priority: np.ndarray, reason: str
) -> ValueError:
    """Return the error of `update_weight` for priorities that the tree refused."""
    wrong = np.flatnonzero(~np.isfinite(priority))
    if not wrong.size:
        return ValueError(f"update_weight: {reason}")
    at = int(wrong[0])
    value, rows = np.asarray(td_error).flat[at], np.asarray(index).reshape(-1)
    row = f" (row {rows[at]})" if at < len(rows) else ""  # the lengths may differ, too
    return ValueError(
        f"update_weight: new_weight is {value} at position {at} of {priority.size}"
        f"{row}: the network, the rewards or the observations are no longer finite. "
        "The priorities were left as they are; a lower learning rate or scaled rewards may help"
    )
