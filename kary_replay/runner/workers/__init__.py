"""The workers of a run. Each does one piece of work when told to, and waits no longer than told; where, backends decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from .actor import Actor
from .evaluator import Evaluator
from .learner import Learner

__all__ = ["WORKERS", "Actor", "Evaluator", "Learner", "Worker"]


class Worker(Protocol):
    """What a backend knows of a worker."""

    def work(self, patience_seconds: float) -> bool:
        """Do the next piece of work; return False if there was none within so long."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that the worker goes on from: tensors, numbers, strings, and lists and dicts of them."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state."""

    def close(self) -> None:
        """Let go of what the worker opened."""


WORKERS: dict[str, Callable[..., Any]] = {
    "actor": Actor,
    "learner": Learner,
    "evaluator": Evaluator,
}
