"""What a worker is, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ...algorithms import Algorithm, Share
from ..clock import Clock
from ..config import RunnerConfig
from ..environments.env_factory import EnvFactory
from ..streams.board import Board, Row

__all__ = ["Seat", "Worker"]


class Worker(Protocol):
    """One role of a run at work. It knows the ends of its streams, and not where it is.

    A worker is made of a `Seat`. Its methods are called by one thread.
    """

    def work(self, patience_seconds: float) -> bool:
        """Do one piece of work; return False if there was none within ``patience_seconds``."""

    def finish(self, give_up: Callable[[], bool]) -> None:
        """Bring to an end what was begun; ``give_up`` is asked in between whether to stop early."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that the worker goes on from: tensors, numbers, strings, lists and dicts."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state."""

    def close(self) -> None:
        """Let go of what the worker opened."""


def _nobody(report: Any) -> None:
    """Take no notice of a report."""


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Seat:
    """What one worker of a run is made of; picklable, as long as nobody has set the last two.

    Parameters
    ----------
    config : RunnerConfig
        The settings of the run.
    env_factory : EnvFactory
        Makes environments, and has their spaces.
    kind, index, n_workers : str, int, int
        The worker's role, which of the workers of that role it is, and how many there are.
    random_stream : int
        The number of the role among the random streams of the run.
    device : str
        Where the worker computes.
    board : Board
        The numbers of all workers.
    clock : Clock
        How long the run has taken.
    streams : mapping
        The ends of the streams that the role reads and writes, by the names of the streams.
    incarnation : int
        How often the worker has been started anew.
    part : int
        Which part of the run the worker's machine has, where several machines have one.
    report : function of a message
        Tells the supervisor something.
    interrupted : function
        Whether the run is to end, for work that takes long, where nobody ends the worker instead.
    """

    config: RunnerConfig
    env_factory: EnvFactory
    kind: str
    index: int
    n_workers: int
    random_stream: int
    device: str
    board: Board
    clock: Clock
    streams: Mapping[str, Any]
    incarnation: int = 0
    part: int = 0
    report: Callable[[Any], None] = field(default=_nobody)
    interrupted: Callable[[], bool] = field(default=_never)

    @property
    def name(self) -> str:
        """The worker's name, such as actor-0."""
        return f"{self.kind}-{self.index}"

    @cached_property
    def row(self) -> Row:
        """The worker's own row of the board, which nobody else writes."""
        return self.board.row(self.kind, self.index)

    @property
    def n_envs(self) -> int:
        """How many environments an actor steps."""
        return self.config.n_envs(self.n_workers)

    def beat(self) -> None:
        """Show that the worker is not stuck."""
        self.row.beat += 1

    def rng(self, *history: int) -> np.random.Generator:
        """Return the worker's own random numbers; another history leads to others."""
        seeds = [self.config.seed, self.random_stream, self.index, *history]
        return np.random.default_rng(seeds)

    def algorithm(self, share: Share | None = None) -> Algorithm:
        """Return the algorithm, with the weights that all workers begin with."""
        return self.config.new_algorithm(self.env_factory, self.device, share)
