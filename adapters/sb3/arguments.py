"""Checks of arguments, with errors that say what is meant."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np


def check_count(name: str, value: Any) -> None:
    """Raise TypeError or ValueError if it is not an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


def check_number(name: str, value: Any, most: float = np.inf) -> None:
    """Raise TypeError or ValueError if it is not a finite number from 0 to ``most``."""
    wanted = f"from 0 to {most}" if most < np.inf else "of at least 0"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number {wanted}, got {value!r}")
    if not 0 <= value <= most or value == np.inf:
        raise ValueError(f"{name} must be a number {wanted}, got {value!r}")
