"""What ends a run: a worker that failed for good; and how it is told that one hangs."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from .environments import EnvironmentFaultError

__all__ = ["START_SECONDS", "WorkerFailedError", "environment_hung", "failing_ends_the_run"]

START_SECONDS = 120.0  # for imports and the first reset, before a worker counts as hung


class WorkerFailedError(RuntimeError):
    """A worker has failed for good: the message has its traceback."""


def environment_hung(env_name: str, silent_seconds: float, limit_seconds: float) -> str:
    """Return what is said of an environment that has been silent for longer than it may."""
    return (
        f"environment {env_name} hung: no step or reset ended for {silent_seconds:.0f} s "
        f"(environment_timeout_seconds={limit_seconds:g})"
    )


@contextlib.contextmanager
def failing_ends_the_run(name: str) -> Iterator[None]:
    """Turn what a worker of this process raises into a WorkerFailedError; an environment's fault is explained already."""
    try:
        yield
    except EnvironmentFaultError as error:
        raise WorkerFailedError(str(error)) from error
    except Exception as error:
        raise WorkerFailedError(f"{name} failed: {traceback.format_exc()}") from error
