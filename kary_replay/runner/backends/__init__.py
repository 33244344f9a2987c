"""Where workers run, which only backends know; `backend` says what a backend is.

Public are the backends by the names that `RunnerConfig.backend` has, and the supervisor, which is
the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable

from ..config import RunnerConfig
from .backend import Backend, Handle
from .process import ProcessBackend
from .serial import SerialBackend
from .supervisor import Supervisor

__all__ = ["BACKENDS", "Backend", "Handle", "ProcessBackend", "SerialBackend", "Supervisor"]


def _on_ray(config: RunnerConfig, interrupted: Callable[[], bool]) -> Backend:
    from .ray import RayBackend  # Ray takes a second to import, where it is installed

    return RayBackend(config, interrupted)


BACKENDS: dict[str, Callable[[RunnerConfig, Callable[[], bool]], Backend]] = {
    "process": ProcessBackend,
    "ray": _on_ray,
    "serial": SerialBackend,
}
"""What makes the backend of a run, by the name that its configuration has."""
