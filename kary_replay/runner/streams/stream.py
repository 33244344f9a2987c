"""What a stream between workers is, wherever its memory lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Checkpoint", "Hosted", "Medium", "Numbers", "Stream"]


class Numbers(Protocol):
    """Numbers that all processes see which take part; picklable to them."""

    @property
    def array(self) -> npt.NDArray[np.float64]:
        """The numbers; they may be written to."""


class Medium(Protocol):
    """What a backend offers to streams: memory that its workers reach."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes than this one take part."""

    def numbers(self, n: int) -> Numbers:
        """Return ``n`` zeros. Every number is one aligned word, which is read and written whole."""

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

    By default a checkpoint keeps nothing of it, and it has no figures.
    """

    @abstractmethod
    def sink(self) -> Any:
        """Return the end that is written to; picklable to the workers of the medium."""

    @abstractmethod
    def source(self) -> Any:
        """Return the end that is read from; picklable to the workers of the medium."""

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
