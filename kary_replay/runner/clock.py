"""How long a run has taken. Each process times that for itself: no clock is shared."""

from __future__ import annotations

import time

__all__ = ["Clock"]


class Clock:
    """A stopwatch that begins where it is told to.

    Parameters
    ----------
    seconds : float
        How long the run had taken before this session.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self.before = seconds
        self._begun: float | None = None

    def start(self, seconds: float) -> None:
        """Begin to count from so many seconds."""
        self.before, self._begun = seconds, time.monotonic()

    @property
    def session_seconds(self) -> float:
        """Seconds since `start`; 0 before."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    @property
    def seconds(self) -> float:
        """Seconds that the run has taken, over all its sessions."""
        return self.before + self.session_seconds
