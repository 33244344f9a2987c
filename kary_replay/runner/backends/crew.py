"""Workers that every machine of a run has of its own, as those that compute for its actors."""

from __future__ import annotations

import time

from ..flow import HostedFlow, Role
from ..messages import Problem, Started
from .process import ProcessBackend, ProcessHandle
from .supervisor import UPDATE_SECONDS, backoff_seconds

__all__ = ["Crew"]


class Crew:
    """The workers of such roles on a machine without the run's supervisor.

    One that dies is started anew. Its machine's actors fail with it when that does not help.

    Parameters
    ----------
    flow : HostedFlow
        The machine's part of the run.
    backend : ProcessBackend
        Where its workers run.
    """

    def __init__(self, flow: HostedFlow, backend: ProcessBackend) -> None:
        self._hands = [
            Hand(flow, backend, role, index)
            for role in flow.roles
            if role.is_everywhere
            for index in range(role.count)
        ]

    @property
    def workers(self) -> list[tuple[str, int]]:
        """Whose rows of the board are written here: roles and indices."""
        return [(hand.role.kind, hand.index) for hand in self._hands]

    def look_after(self) -> Problem | None:
        """Start workers, at first or anew; return why one cannot do its work. Never wait."""
        problems = [hand.look_after() for hand in self._hands]
        return next((problem for problem in problems if problem is not None), None)

    def close(self) -> None:
        """End the workers."""
        for hand in self._hands:
            hand.close()


class Hand:
    """One of the workers, and its history."""

    def __init__(self, flow: HostedFlow, backend: ProcessBackend, role: Role, index: int) -> None:
        self.role, self.index = role, index
        self._flow, self._backend = flow, backend
        self._row = flow.board.row(role.kind, index)
        self._handle: ProcessHandle | None = None
        self._incarnation = self._failures = 0
        self._answers = self._beat = 0.0
        self._start_at = self._beat_at = 0.0

    def look_after(self) -> Problem | None:
        """Start the worker if it is time to, or has died; return what is not to be mended."""
        now = time.monotonic()
        if self._handle is None:
            return self._start(now) if now >= self._start_at else None
        for report in self._handle.reports():
            if isinstance(report, Started):
                self._handle.order("go", self._flow.clock.before)
        if self._row.beat != self._beat:
            self._beat, self._beat_at = self._row.beat, now
        death = self._handle.cause_of_death()
        if death is None and now - self._beat_at > UPDATE_SECONDS:
            death = Problem(f"it hung: nothing has come for {UPDATE_SECONDS:.0f} s")
        return None if death is None else self._failed(death, now)

    def _start(self, now: float) -> Problem | None:
        """Start the worker."""
        seat = self._flow.seat(self.role, self.index, self._incarnation)
        try:
            self._handle = self._backend.start(self.role, self.index, seat, None)
        except OSError as error:  # there may be room for a process later
            return self._failed(Problem(f"it could not be started: {error}"), now)
        self._incarnation += 1
        self._beat, self._beat_at = self._row.beat, now
        return None

    def _failed(self, death: Problem, now: float) -> Problem | None:
        """Plan a new start; return the reason for none if it has failed too often in a row."""
        self.close()
        has_progress, self._answers = self._row.answers > self._answers, self._row.answers
        self._failures = 1 if has_progress else self._failures + 1
        self._start_at = now + backoff_seconds(self._failures)
        if death.has_diverged or self._failures > self._flow.config.max_restarts:
            name = f"{self.role.kind}-{self.index} of its machine"
            return death._replace(message=f"{name} failed: {death.message}")
        return None

    def close(self) -> None:
        """End the worker."""
        if self._handle is not None:
            self._handle.kill()
            self._handle = None
