"""Where workers run. Only backends know."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from .process import ProcessBackend
from .serial import SerialBackend

__all__ = ["Backend", "ProcessBackend", "SerialBackend"]


class Backend(Protocol):
    """Runs the workers of a plan.

    ``start`` makes them, from the states in a folder if there is one. ``poll`` has them work, or
    watches them work, for about so long, and returns their reports. ``save`` writes their states
    and the buffer to a folder, while they go on. ``finish`` lets learners come to an end together;
    ``evaluate`` plays the evaluations that were put off; both return reports. ``stop`` ends all,
    however they are.
    """

    def start(self, states: Path | None) -> None: ...
    def poll(self, seconds: float) -> list[Any]: ...
    def save(self, folder: Path, within_seconds: float) -> None: ...
    def finish(self) -> list[Any]: ...
    def evaluate(self) -> list[Any]: ...
    def stop(self) -> None: ...
