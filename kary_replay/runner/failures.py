"""What ends a run: a worker that has failed for good."""

from __future__ import annotations

import traceback
from typing import Any

from .environments.vector import EnvironmentFaultError
from .messages import Problem

__all__ = [
    "START_SECONDS",
    "DivergedError",
    "WorkerFailedError",
    "environment_hung",
    "problem_of",
]

# for imports and the first reset, before a worker counts as hung
START_SECONDS = 120.0


class WorkerFailedError(RuntimeError):
    """A worker has failed for good: the message has its traceback, or explains itself.

    ``spares_learning`` says that learners and streams are as whole as ever, because a worker of
    another role failed.
    """

    def __init__(self, message: str, *, spares_learning: bool = False) -> None:
        super().__init__(message)
        self.spares_learning = spares_learning


class DivergedError(RuntimeError):
    """Networks are no longer finite; the message says after how many updates, and what to try."""

    def __init__(self, what: str, updates: int, env_steps: int, options: Any) -> None:
        super().__init__(
            f"training diverged: {what} after {updates:,} updates, "
            f"at environment step {env_steps:,}. Try a new run with a lower learning rate "
            f"(it was options.learning_rate={options.learning_rate:g}; begin with a quarter of "
            f"that), smaller rewards{_other_remedies(options)}"
        )


def _other_remedies(options: Any) -> str:
    """Return what else may help against divergence."""
    if hasattr(options, "tau"):
        return ", a slower target network (options.tau), or a smaller alpha"
    return f", or a smaller options.max_gradient_norm than {options.max_gradient_norm:g}"


def environment_hung(env_name: str, silent_seconds: float, limit_seconds: float) -> str:
    """Return the message about an environment that has been silent for longer than it may."""
    return (
        f"environment {env_name} hung: no step or reset ended for {silent_seconds:.0f} s "
        f"(environment_timeout_seconds={limit_seconds:g})"
    )


def problem_of(error: BaseException) -> Problem:
    """Return what a worker reports that raised an error; some errors explain themselves."""
    is_environment = isinstance(error, EnvironmentFaultError)
    has_diverged = isinstance(error, DivergedError)
    explains_itself = is_environment or has_diverged
    text = str(error) if explains_itself else "".join(traceback.format_exception(error))
    return Problem(text, is_environment, has_diverged)
