"""What a stream between workers is, wherever its memory lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Answerer", "Checkpoint", "Hosted", "Medium", "Numbers", "Part", "Peer", "Stream"]


class Numbers(Protocol):
    """Numbers that all processes see which take part; picklable to them."""

    @property
    def array(self) -> npt.NDArray[np.float64]:
        """The numbers; they may be written to."""


class Part(NamedTuple):
    """Which part of a run is in the memory of a machine, where several machines have one."""

    number: int
    """0: the one where the learners are."""
    share: float
    """Of the memory that the run asks for, 0 to 1."""
    token: bytes
    """By which machines of the run know each other."""


class Peer(NamedTuple):
    """Another machine that has a part of the run, and who works there: (role, index)."""

    number: int
    """Of its part."""
    workers: frozenset[tuple[str, int]]
    followed: tuple[tuple[str, int], ...] = ()
    """Workers of which it is to know all that they have counted."""


class Answerer(Protocol):
    """Answers other machines for a stream, in a process of its own; picklable to that."""

    def serve(self, host: str, port: int) -> tuple[str, int]:
        """Answer from now on, in threads; return the address. Port 0 is any free one."""

    def is_answering(self, address: tuple[str, int]) -> bool:
        """Return whether another process does so at an address; wait a few seconds at most."""


class Medium(Protocol):
    """What a backend offers to streams: memory that its workers reach."""

    @property
    def part(self) -> Part | None:
        """Which part of the run the memory has; None where it has all of it."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes than this one take part."""

    def numbers(self, n: int) -> Numbers:
        """Return ``n`` zeros. Every number is one aligned word, which is read and written whole."""

    def locks(self, n: int) -> Sequence[Any]:
        """Return ``n`` locks, context managers, which workers take that are in processes."""

    def folder(self) -> Path:
        """Return a folder for the workers to meet in; it is removed when the medium is closed."""

    def close(self) -> None:
        """Let go of the folder."""


class Checkpoint(NamedTuple):
    """What an earlier session of a run has left; without a folder the run is new."""

    folder: Path | None = None
    counters: Mapping[str, Any] = {}


class Stream(Protocol):
    """A named edge between the workers of a run: a description, picklable, that knows no place."""

    def host(self, medium: Medium, checkpoint: Checkpoint) -> Hosted:
        """Give the stream its place, with what a checkpoint has of it."""


class Hosted(ABC):
    """A stream that has a place. Workers get its ends, and nothing of what lies between them.

    By default a checkpoint keeps nothing of it, and it has no figures. Where several machines have
    a part of the run, each hosts every stream, and the backend lets them tell each other what
    happens; by default that is nothing.
    """

    @abstractmethod
    def sink(self) -> Any:
        """Return the end that is written to; picklable to the workers of the medium."""

    def source(self) -> Any:
        """Return the end that is read from; by default it is the same one."""
        return self.sink()

    def save(self, folder: Path) -> None:  # noqa: B027
        """Write what the stream holds into the folder of a checkpoint; workers may go on."""

    def counters(self) -> dict[str, Any]:
        """Return what checkpoint.json keeps of the stream."""
        return {}

    def figures(self) -> dict[str, float]:
        """Return numbers to show, by name."""
        return {}

    def is_used_up(self) -> bool:
        """Return whether a run may end: nothing is left that a worker could still take."""
        return True

    def close(self) -> None:  # noqa: B027
        """Let go of the memory."""

    # -------------------------------------------------- where several machines have parts of it

    def meet(self, streams: Mapping[str, Hosted]) -> None:  # noqa: B027
        """Note the streams of this machine by name; all have their places now."""

    def begin(self) -> None:  # noqa: B027
        """Do what takes all parts, which have joined; the workers have not been started yet."""

    def told(self, peer: Peer) -> Any:
        """Return what a peer is to know now, small and picklable; None if that is nothing."""
        return None

    def heard(self, peer: Peer, told: Any) -> None:  # noqa: B027
        """Take over what a peer has told."""

    def broadcast(self, since: int) -> tuple[int, Any] | None:
        """Return a number, and what all peers are to have; None unless it is newer than that.

        It may be large.
        """
        return None

    def receive(self, content: Any) -> None:  # noqa: B027
        """Take over what was broadcast."""

    def answerer(self) -> Answerer | None:
        """Return what answers other machines for this part; None if nobody asks."""
        return None

    def placed(self, worker: tuple[str, int], number: int) -> None:  # noqa: B027
        """Note that a worker, (role, index), is going to be started in a part; it has ended."""

    def joined(self, number: int, address: tuple[str, int] | None) -> None:  # noqa: B027
        """Note that another part is there, and where it answers."""

    def left(self, number: int) -> None:  # noqa: B027
        """Note that a part is gone for good."""
