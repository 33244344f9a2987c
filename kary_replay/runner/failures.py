"""What ends a run: a worker that failed for good; and how it is told that one hangs."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

from .environments.environments import EnvironmentFaultError

__all__ = [
    "START_SECONDS",
    "DivergedError",
    "WorkerFailedError",
    "environment_hung",
    "failing_ends_the_run",
]

START_SECONDS = 120.0  # for imports and the first reset, before a worker counts as hung


class WorkerFailedError(RuntimeError):
    """A worker has failed for good: the message has its traceback, or explains itself.

    ``spares_learning`` says that learners and the replay buffer are as whole as ever: an actor or
    the evaluator failed.
    """

    def __init__(self, message: str, *, spares_learning: bool = False) -> None:
        super().__init__(message)
        self.spares_learning = spares_learning


class DivergedError(RuntimeError):
    """Networks are no longer finite; the message says what shows it, after how many updates, and what to try."""

    def __init__(self, what: str, updates: int, env_steps: int, options: Any) -> None:
        super().__init__(
            f"training diverged: {what} after {updates:,} updates, at environment step {env_steps:,}. Try a new run "
            f"with a lower learning rate (it was options.learning_rate={options.learning_rate:g}; begin with a quarter of "
            "that), smaller rewards, a slower target network (options.tau), or a smaller alpha"
        )


def environment_hung(env_name: str, silent_seconds: float, limit_seconds: float) -> str:
    """Return what is said of an environment that has been silent for longer than it may."""
    return (
        f"environment {env_name} hung: no step or reset ended for {silent_seconds:.0f} s "
        f"(environment_timeout_seconds={limit_seconds:g})"
    )


@contextlib.contextmanager
def failing_ends_the_run(name: str) -> Iterator[None]:
    """Turn what a worker of this process raises into a WorkerFailedError; some errors are explained already."""
    try:
        yield
    except EnvironmentFaultError as error:
        raise WorkerFailedError(str(error), spares_learning=True) from error
    except DivergedError as error:
        raise WorkerFailedError(f"{name} failed: {error}") from error
    except Exception as error:
        trace = traceback.format_exc()
        raise WorkerFailedError(
            f"{name} failed: {trace}", spares_learning=not name.startswith("learner")
        ) from error
