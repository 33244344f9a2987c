"""Numbers that workers show each other: who has done how much, who waits, who is alive.

Each row belongs to one worker, which alone writes it; anybody reads. Every number is one aligned
8-byte word, which processors read and write whole; that a reader sees it a moment late harms
nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Board", "Row"]

COLUMNS = (
    "beat",
    "env_steps",
    "episodes",
    "updates",
    "waited_seconds",
    "parameter_version",
    "first_step",
    "announced",
)
INDEX = {name: number for number, name in enumerate(COLUMNS)}


class Row:
    """One worker's numbers, as attributes."""

    __slots__ = ("_numbers",)
    _numbers: npt.NDArray[np.float64]

    def __init__(self, numbers: npt.NDArray[np.float64]) -> None:
        object.__setattr__(self, "_numbers", numbers)

    def __getattr__(self, name: str) -> float:
        if name not in INDEX:
            raise AttributeError(name)
        return float(self._numbers[INDEX[name]])

    def __setattr__(self, name: str, value: float) -> None:
        self._numbers[INDEX[name]] = value

    def wait(self, may: Callable[[int, float], bool], n: int, patience_seconds: float) -> bool:
        """Return ``may(n, patience_seconds)``; unless it may at once, the time that takes is added to ``waited_seconds``."""
        if may(n, 0.0):
            return True
        started = time.monotonic()
        may_now = patience_seconds > 0 and may(n, patience_seconds)
        self.waited_seconds += time.monotonic() - started
        return may_now

    def alive(self) -> None:
        """Say that the worker is not stuck, in seconds of the machine's monotonic clock."""
        self._numbers[0] = time.monotonic()


class Board:
    """The rows of all workers of a run.

    Parameters
    ----------
    n_actors, n_learners : int
        Workers of each kind; there is one evaluator.
    context : multiprocessing context, optional
        For processes; without one the board is this process's own.
    """

    def __init__(self, n_actors: int, n_learners: int, context: SpawnContext | None = None) -> None:
        self._counts = {"actor": n_actors, "learner": n_learners, "evaluator": 1}
        n_numbers = sum(self._counts.values()) * len(COLUMNS)
        self._memory: Any = context.RawArray("d", n_numbers) if context is not None else None
        self._open(np.zeros(n_numbers) if self._memory is None else np.frombuffer(self._memory))

    def _open(self, numbers: npt.NDArray[np.float64]) -> None:
        self._numbers = numbers.reshape(-1, len(COLUMNS))
        self._env_steps = self.column("actor", "env_steps")

    def row(self, kind: str, index: int) -> Row:
        """Return the row of one worker."""
        return Row(self._numbers[self._start(kind) + index])

    def column(self, kind: str, name: str) -> npt.NDArray[np.float64]:
        """Return one number of all workers of a kind, a view."""
        start = self._start(kind)
        return self._numbers[start : start + self._counts[kind], INDEX[name]]

    @property
    def env_steps(self) -> int:
        """Steps of all environments."""
        return int(self._env_steps.sum())

    @property
    def updates(self) -> int:
        """Updates of the networks; all learners do each of them together."""
        return int(self.column("learner", "updates")[0])

    @property
    def seconds(self) -> float:
        """Seconds since the first step of an environment; 0 before."""
        begun = self.column("actor", "first_step")
        return time.monotonic() - float(begun[begun > 0].min()) if (begun > 0).any() else 0.0

    def waited(self) -> dict[str, float]:
        """Return the share of their time that "actors" and "learners" spent waiting for each other so far."""
        seconds = self.seconds
        return {
            f"{kind}s": float(self.column(kind, "waited_seconds").mean()) / seconds
            if seconds
            else 0.0
            for kind in ("actor", "learner")
        }

    def _start(self, kind: str) -> int:
        kinds = list(self._counts)
        return sum(self._counts[other] for other in kinds[: kinds.index(kind)])

    def __getstate__(self) -> dict[str, Any]:
        return {"counts": self._counts, "memory": self._memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._counts, self._memory = state["counts"], state["memory"]
        self._open(np.frombuffer(self._memory))
