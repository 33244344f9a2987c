"""What a backend is: the mechanism by which workers run somewhere. The supervisor does the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol

from ..flow import HostedFlow, Role
from ..messages import Problem, Saved
from ..records.run_directory import save_state
from ..streams import Medium
from ..workers import Seat, Worker

__all__ = ["Backend", "Handle", "Order", "save_worker"]

Order = Literal["go", "save", "finish", "stop"]
"""What a worker is told: go with the run's seconds, and save with a folder, as the argument.

A worker reports `Started` before it waits for go, `Saved` after save, and `Finished` after finish;
stop has it close, and is not answered.
"""


class Handle(Protocol):
    """One worker, where it runs."""

    @property
    def answers_at_once(self) -> bool:
        """Whether an order has been carried out when `order` returns."""

    @property
    def heard_at(self) -> float:
        """When the worker's machine was heard last, by this machine's monotonic clock."""

    def order(self, order: Order, argument: Any = None) -> None:
        """Tell the worker what to do; a worker that is dead does nothing."""

    def reports(self) -> list[Any]:
        """Return what the worker has reported since this was asked last; never wait."""

    def cause_of_death(self) -> Problem | None:
        """Return why the worker has ended; None while it lives."""

    def kill(self) -> None:
        """End the worker and all that it has started; return when they have ended."""

    @property
    def has_ended(self) -> bool:
        """Whether a worker that was told to stop has done so, with all of its own clean-up."""


class Backend(Protocol):
    """Where workers run. Streams are hosted in its medium, workers are started one by one."""

    @property
    def medium(self) -> Medium:
        """Where streams are that the workers reach; whoever hosts streams there closes it."""

    @property
    def starts_anew(self) -> bool:
        """Whether a worker that failed may do better when it is started anew."""

    @property
    def n_actors(self) -> int | None:
        """How many actors suit, if that needs no measurement."""

    def open(self, flow: HostedFlow) -> None:
        """Make room for the workers of a flow, before any is started.

        Raises OSError if there is none, and ValueError if what is to be loaded there is damaged.
        """

    def start(self, role: Role, index: int, seat: Seat, state: Path | None) -> Handle:
        """Start a worker, and return while it may still be being made; OSError if that fails.

        It takes up the state in the file ``state``, if there is one.
        """

    def run(self, seconds: float) -> None:
        """Let the workers work for so long, or until one of them reports something."""

    def close(self) -> None:
        """Let go of what the backend opened; the workers have ended."""


def save_worker(worker: Worker, name: str, folder: str) -> Saved:
    """Write a worker's state into a folder; return the answer to the order."""
    state = worker.state_dict()
    try:
        save_state(Path(folder) / f"{name}.pt", state)
    except OSError as error:
        return Saved(folder, str(error))
    return Saved(folder)
