"""Waiting for what other processes write to memory that all share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["found_within"]

LOOK_SECONDS = 20e-6  # between two looks
Found = TypeVar("Found")


def found_within(
    patience_seconds: float, look: Callable[[], Found | None], pause_seconds: float = LOOK_SECONDS
) -> Found | None:
    """Return what ``look`` finds, as soon as it is not None; None if that takes too long."""
    deadline = time.monotonic() + patience_seconds
    while (found := look()) is None and time.monotonic() < deadline:
        time.sleep(pause_seconds)
    return found
