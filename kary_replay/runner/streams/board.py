"""Numbers that workers show each other: who has done how much, who waits, who is alive.

Each row belongs to one worker, which alone writes it; anybody reads. Every number is one aligned
8-byte word, which processors read and write whole; that a reader sees it a moment late harms
nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .stream import Checkpoint, Hosted, Medium, Numbers, Peer

__all__ = ["Board", "BoardStream", "HostedBoard", "Row"]

COLUMNS = (
    "beat",  # grows as long as the worker is not stuck
    "env_steps",
    "episodes",
    "updates",
    "waited_seconds",
    "parameter_version",  # updates of the parameters that an actor or evaluator used last
    "answers",  # passes of a policy worker through its networks
    "has_stepped",  # 1 after the first step of an environment in this session
)
STEPS, TRAINS = "actor", "learner"  # whose environment steps and whose updates are the run's
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

    def wait(self, patience_seconds: float, may: Callable[..., bool], *what: int) -> bool:
        """Return ``may(*what, patience_seconds)``; what it takes goes to ``waited_seconds``."""
        if may(*what, 0.0):
            return True
        started = time.monotonic()
        may_now = patience_seconds > 0 and may(*what, patience_seconds)
        self.waited_seconds += time.monotonic() - started
        return may_now


@dataclass(frozen=True)
class BoardStream:
    """The numbers of all workers of a run.

    Parameters
    ----------
    n_workers : mapping
        How many workers there are of each kind.
    adds_updates : bool
        Whether each learner does updates of its own; otherwise all do each of them together.
    """

    n_workers: Mapping[str, int]
    adds_updates: bool = False

    def host(self, medium: Medium, checkpoint: Checkpoint) -> HostedBoard:
        """Make the rows, and set what an earlier session of the run has counted."""
        numbers = medium.numbers(sum(self.n_workers.values()) * len(COLUMNS))
        board = Board(self, numbers)
        for index, steps in enumerate(checkpoint.counters.get(f"{STEPS}_env_steps", ())):
            # The user may have set another number of actors in config.json.
            board.row(STEPS, index % self.n_workers[STEPS]).env_steps += steps
        updates = board.column(TRAINS, "updates")
        updates[: 1 if self.adds_updates else None] = checkpoint.counters.get("updates", 0)
        return HostedBoard(board)


class Board:
    """The rows of all workers; all workers have the same end."""

    def __init__(self, stream: BoardStream, numbers: Numbers) -> None:
        self._stream, self._numbers = stream, numbers
        self._rows = numbers.array.reshape(-1, len(COLUMNS))
        self._env_steps = self.column(STEPS, "env_steps")

    def row(self, kind: str, index: int) -> Row:
        """Return the row of one worker."""
        return Row(self.numbers_of(kind, index))

    def column(self, kind: str, name: str) -> npt.NDArray[np.float64]:
        """Return one number of all workers of a kind, a view."""
        start = self._start(kind)
        return self._rows[start : start + self._stream.n_workers[kind], INDEX[name]]

    @property
    def env_steps(self) -> int:
        """Steps of all environments."""
        return int(self._env_steps.sum())

    @property
    def updates(self) -> int:
        """Updates of the networks."""
        updates = self.column(TRAINS, "updates")
        return int(updates.sum() if self._stream.adds_updates else updates[0])

    @property
    def workers(self) -> list[tuple[str, int]]:
        """Whose the rows are, in their order."""
        counts = self._stream.n_workers
        return [(kind, index) for kind, count in counts.items() for index in range(count)]

    def numbers_of(self, kind: str, index: int) -> npt.NDArray[np.float64]:
        """Return all numbers of one worker, a view."""
        numbers: npt.NDArray[np.float64] = self._rows[self._start(kind) + index]
        return numbers

    def _start(self, kind: str) -> int:
        counts, kinds = self._stream.n_workers, list(self._stream.n_workers)
        return sum(counts[other] for other in kinds[: kinds.index(kind)])

    def __reduce__(self) -> tuple[Any, ...]:
        return Board, (self._stream, self._numbers)


class HostedBoard(Hosted):
    """A board in the memory of this machine."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def sink(self) -> Board:
        """Return the board."""
        return self._board

    def counters(self) -> dict[str, Any]:
        """Return what the run has counted, and how many workers have stepped its environments."""
        board = self._board
        return {
            "env_steps": board.env_steps,
            "updates": board.updates,
            f"n_{STEPS}s": board._stream.n_workers[STEPS],
            f"{STEPS}_env_steps": board.column(STEPS, "env_steps").tolist(),
        }

    def told(self, peer: Peer) -> Any:
        """Return the rows of all who do not work there."""
        workers = self._board.workers
        return {
            worker: self._board.numbers_of(*worker).tolist()
            for worker in workers
            if worker not in peer.workers
        }

    def heard(self, peer: Peer, told: Any) -> None:
        """Take over the rows of those who work there."""
        for worker, numbers in told.items():
            if worker in peer.workers:
                self._board.numbers_of(*worker)[:] = numbers
