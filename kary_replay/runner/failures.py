"""What ends a run: a worker that failed for good."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

from .environments import EnvironmentFaultError

__all__ = ["WorkerFailedError", "failing_ends_the_run"]


class WorkerFailedError(RuntimeError):
    """A worker has failed for good: the message has its traceback."""


@contextlib.contextmanager
def failing_ends_the_run(name: str) -> Iterator[None]:
    """Turn what a worker of this process raises into a WorkerFailedError; an environment's fault is explained already."""
    try:
        yield
    except EnvironmentFaultError as error:
        raise WorkerFailedError(str(error)) from error
    except Exception as error:
        raise WorkerFailedError(f"{name} failed: {traceback.format_exc()}") from error
