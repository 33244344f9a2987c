"""Memory for the streams of one machine: of this process alone, or shared with others."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..streams import Part

__all__ = ["OwnMemory", "SharedMemory"]


class OwnNumbers:
    """Numbers of this process."""

    def __init__(self, n: int) -> None:
        self.array: npt.NDArray[np.float64] = np.zeros(n)


class SharedNumbers:
    """Numbers that processes share; picklable to a process that is being started."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self.array: npt.NDArray[np.float64] = np.frombuffer(memory)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedNumbers, (self._memory,)


class OwnMemory:
    """The medium of workers that are all in this process."""

    is_shared = False
    part = None

    def numbers(self, n: int) -> OwnNumbers:
        """Return ``n`` zeros."""
        return OwnNumbers(n)

    def locks(self, n: int) -> Sequence[Any]:
        """Return locks that nobody needs."""
        return [contextlib.nullcontext()] * n

    def folder(self) -> Path:
        """Refuse: workers of one process need no place to meet."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing."""


class SharedMemory:
    """The medium of workers in processes of one machine. The memory has no name.

    Parameters
    ----------
    part : Part, optional
        Which part of a run it has that other machines share.
    """

    is_shared = True

    def __init__(self, part: Part | None = None) -> None:
        self.part = part
        self.path: Path | None = None
        """The folder, once there is one."""

    def numbers(self, n: int) -> SharedNumbers:
        """Return ``n`` zeros."""
        return SharedNumbers(get_context("spawn").RawArray("d", n))

    def locks(self, n: int) -> Sequence[Any]:
        """Return ``n`` locks."""
        return [get_context("spawn").Lock() for _ in range(n)]

    def folder(self) -> Path:
        """Return a folder, which is made at the first call."""
        if self.path is None:
            self.path = Path(tempfile.mkdtemp(prefix="kary-replay-"))
        return self.path

    def close(self) -> None:
        """Remove the folder."""
        if self.path is not None:
            shutil.rmtree(self.path, ignore_errors=True)
