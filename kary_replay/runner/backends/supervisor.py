"""Starts, watches and ends the workers of a run, wherever a backend has them run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..failures import START_SECONDS, WorkerFailedError, environment_hung
from ..flow import HostedFlow, Role
from ..messages import Finished, Problem, Saved, Started
from ..records.background import in_background
from .backend import Backend, Handle, Order

__all__ = ["Supervisor"]

# between the order to stop and the kill, and for states that are being written after Ctrl-C
GRACE_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 5.0
UPDATE_SECONDS = 120.0  # for an update, before a worker that trains counts as hung
# Workers may have waited to make their reports while nobody took them in, as while this process was
# stopped. After so long that is forgiven.
AWAY_SECONDS = 5.0
FINISH_SECONDS = 5.0
TOGETHER_SECONDS = 0.2  # in which learners fail after the first one
ANSWERS = Started, Saved, Finished


@dataclass
class Member:
    """One worker of a run, and its history."""

    role: Role
    index: int
    handle: Handle | None = None
    started: float = 0.0
    incarnation: int = 0
    failures: int = 0  # in a row
    progress: tuple[float, float] = (0.0, 0.0)  # steps and episodes when it last failed
    restart_at: float | None = None
    beat: float = 0.0  # as the worker had last counted it
    beat_at: float = 0.0  # when that was seen to change
    has_beaten: bool = False  # since the worker was started
    folder: str = ""  # where its state was to be saved last
    answers: list[Any] = field(default_factory=list)  # since the last order

    @property
    def name(self) -> str:
        """The worker's name."""
        return f"{self.role.kind}-{self.index}"

    @property
    def is_alive(self) -> bool:
        """Whether the worker has not ended, as far as is known."""
        return self.handle is not None and self.handle.cause_of_death() is None

    def has_answered(self, kind: type) -> bool:
        """Return whether the worker has given this kind of answer."""
        return any(isinstance(answer, kind) for answer in self.answers)


class Supervisor:
    """Has the workers of a flow run to their end.

    Parameters
    ----------
    flow : HostedFlow
        The run.
    backend : Backend
        Where its workers run.
    warn : function of str
        Is told what happened to workers that are started anew.
    interrupted : function
        Whether the run is to end; a start is given up then.
    forgives_hangs : bool
        Whether a worker is started anew whose environment hangs. Otherwise that ends the run.

    Notes
    -----
    All methods are for one thread.
    """

    def __init__(
        self,
        flow: HostedFlow,
        backend: Backend,
        warn: Callable[[str], None],
        interrupted: Callable[[], bool],
        *,
        forgives_hangs: bool = True,
    ) -> None:
        self._flow, self._backend, self._forgives_hangs = flow, backend, forgives_hangs
        self._warn, self._interrupted = warn, interrupted
        self._members = [Member(role, index) for role in flow.roles for index in range(role.count)]
        self._ending = False
        self._received = self._back = time.monotonic()
        self._reports: list[Any] = []

    def start(self) -> None:
        """Start all workers, and have them go when each of them is ready.

        Raises
        ------
        WorkerFailedError
            If a worker cannot be started, fails, or hangs.
        """
        try:
            for member in self._members:
                self._start(member, self._flow.checkpoint.folder)
        except OSError as error:
            raise WorkerFailedError(f"the workers could not be started: {error}") from error
        missing = self._members
        while missing and not self._interrupted():
            missing = self._await(Started, missing, START_SECONDS, self._interrupted)
            self._check_starting(missing)
        if not missing:
            self._flow.clock.start(self._flow.clock.before)
            self._order(self._members, "go", self._flow.clock.seconds)

    def poll(self, seconds: float) -> list[Any]:
        """Have the workers work for so long, or until one reports; start anew who has failed."""
        self._receive(seconds)
        for member in self._members:
            self._watch(member)
        return self._taken()

    def save(self, folder: Path, within_seconds: float) -> None:
        """Have workers write their states, and write the streams, while they go on.

        A worker that is started anew when it fails is left out if it does not answer in time.

        Raises
        ------
        WorkerFailedError
            If a worker does not answer in time without which there is no checkpoint.
        OSError
            If something could not be written.
        """
        members = [member for member in self._members if self._is_saved(member)]
        self._order(members, "save", str(folder))
        is_last = self._interrupted()
        missing = self._await(
            Saved, members, within_seconds, lambda: not is_last and self._interrupted()
        )
        if missing and not is_last and self._interrupted():
            # Ctrl-C does not wait for a worker that hangs.
            missing = self._await(Saved, missing, GRACE_SECONDS)
            if any(member.role.on_failure == "end" for member in missing):
                raise InterruptedError("the run was to end")
        for member in missing:
            if member.role.on_failure == "end":
                seconds, kind = f"{within_seconds:g} s", member.role.kind
                raise WorkerFailedError(f"the {kind} did not save its state within {seconds}")
            if member.role.holds:
                self._warn(f"the checkpoint is without {member.role.holds}")
        for member in members:
            for answer in member.answers:
                if isinstance(answer, Saved) and answer.refusal:
                    raise OSError(answer.refusal)
        saving = in_background(partial(self._flow.save, folder))
        while not saving.done():
            wait([saving], 0.02)
            self._receive(0)  # full pipes would hold up the workers
        saving.result()

    def finish(self) -> list[Any]:
        """Have the workers finish without which there is no run, before the last checkpoint."""
        self._ending = True
        members = [member for member in self._members if member.role.on_failure == "end"]
        self._order(members, "finish")
        self._await(Finished, members, FINISH_SECONDS)
        return self._taken()

    def finish_optional(self) -> list[Any]:
        """Have the other workers finish, however long that takes, unless they die or hang."""
        members = [
            member
            for member in self._members
            if member.role.on_failure == "continue" and member.is_alive
        ]
        self._order(members, "finish")
        self._receive(0)
        while any(not member.has_answered(Finished) and member.is_alive for member in members):
            if self._interrupted():
                break
            self._receive(0.1)
            for member in members:
                self._watch(member)
        for member in members:
            if not self._interrupted():
                self._watch(member)
        return self._taken()

    def stop(self) -> None:
        """End all workers: ask them first, then kill them."""
        self._ending = True
        alive = [member for member in self._members if member.handle is not None]
        self._order(alive, "stop")
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            for member in alive:
                assert member.handle is not None
                member.handle.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also when Ctrl-C ends the wait
            for member in alive:
                self._kill(member)

    def _start(self, member: Member, states: Path | None = None) -> None:
        role = member.role
        seat = self._flow.seat(role, member.index, member.incarnation)
        state = None
        if states is not None:
            # Workers that go on together have one state for all.
            name = f"{role.kind}-0" if role.saved == "first" else member.name
            state = states / f"{name}.pt"
            if role.on_failure != "end" and not state.exists():
                state = None
        member.handle = self._backend.start(role, member.index, seat, state)
        member.started = member.beat_at = time.monotonic()
        member.restart_at, member.has_beaten = None, False
        member.beat = self._flow.board.row(role.kind, member.index).beat
        member.answers.clear()

    def _is_saved(self, member: Member) -> bool:
        saved, handle = member.role.saved, member.handle
        if handle is None or (saved == "first" and member.index > 0):
            return False
        return saved != "at once" or handle.answers_at_once

    def _receive(self, seconds: float) -> None:
        """Take in the reports that come within so long, and who has shown to be alive."""
        self._backend.wait(seconds)
        now = time.monotonic()
        if now - self._received > AWAY_SECONDS + seconds:
            self._back = now
        self._received = now
        for member in self._members:
            beat = self._flow.board.row(member.role.kind, member.index).beat
            if beat != member.beat:
                member.beat, member.beat_at, member.has_beaten = beat, now, True
            for report in member.handle.reports() if member.handle is not None else ():
                if isinstance(report, Saved) and report.folder != member.folder:
                    continue  # the answer comes too late for the checkpoint that it belongs to
                is_answer = isinstance(report, ANSWERS)
                (member.answers if is_answer else self._reports).append(report)

    def _check_starting(self, missing: list[Member]) -> None:
        """Raise if workers that should be ready seem to hang.

        Episodes that are played again may take longer than that, and show it.
        """
        now = time.monotonic()
        hung = [member.name for member in missing if now - member.beat_at > START_SECONDS]
        if hung and not self._interrupted():
            names, seconds = ", ".join(hung), f"{START_SECONDS:g} s"
            question = "does making the environment hang?"
            raise WorkerFailedError(f"{names} did not start within {seconds}: {question}")

    def _watch(self, member: Member) -> None:
        """Notice if a worker has died or hangs."""
        if member.restart_at is not None:
            if time.monotonic() >= member.restart_at:  # never, if it was given up
                self._restart(member)
            return
        if member.handle is None:
            return
        death = member.handle.cause_of_death()
        if death is not None:
            self._kill(member)
            self._failed(member, death)
            return
        config, steps = self._flow.config, member.role.steps_environments
        limit = config.environment_timeout_seconds if steps else UPDATE_SECONDS
        if not member.has_beaten:
            limit = max(config.environment_timeout_seconds, START_SECONDS)
        silent = time.monotonic() - max(member.beat_at, self._back)
        if silent <= limit:
            return
        self._kill(member)
        if steps:
            limit = config.environment_timeout_seconds
            hung = Problem(environment_hung(config.env_name, silent, limit), is_environment=True)
            if not self._forgives_hangs:
                raise WorkerFailedError(f"{member.name} failed: {hung.message}")
            self._failed(member, hung)
        else:
            others = f", it or another {member.role.kind}, for which it waits"
            who = others if member.role.count > 1 else ""
            self._failed(member, Problem(f"it hung{who}: no update ended for {silent:.0f} s"))

    def _restart(self, member: Member) -> None:
        member.incarnation += 1
        try:
            self._start(member)
            self._order([member], "go", self._flow.clock.seconds)
        except OSError as error:  # there may be room for a process later
            self._failed(member, Problem(f"it could not be started: {error}"))

    def _failed(self, member: Member, cause: Problem) -> None:
        """Plan a new start of a worker, or raise if there is to be none."""
        config, role = self._flow.config, member.role
        failed = f"{member.name} failed: {cause.message}"
        if not self._backend.starts_anew:
            spares = role.on_failure != "end" and not cause.has_diverged
            raise WorkerFailedError(failed, spares_learning=spares) from cause.error
        if self._ending:
            self._warn(failed)
            return
        if role.on_failure == "end":
            raise self._together_failed(member, cause)
        if cause.has_diverged:
            raise WorkerFailedError(failed)
        if cause.is_environment and config.on_environment_error == "stop":
            raise WorkerFailedError(failed, spares_learning=True)
        self._count_failure(member, cause)
        if member.failures > config.max_restarts:
            times = f"{member.failures} times in a row, the last time: {cause.message}"
            often = f"{member.name} failed {times}"
            if role.on_failure != "continue":
                raise WorkerFailedError(often, spares_learning=True)
            # What has been learned is worth more than what this role adds to it.
            member.restart_at = math.inf
            self._warn(f"{often}\nThe run goes on without {role.provides}.")
            return
        message = f"{role.holds} are lost: {cause.message}" if role.holds else cause.message
        seconds = min(0.1 * 2 ** min(member.failures - 1, 10), LONGEST_BACKOFF_SECONDS)
        member.restart_at = time.monotonic() + seconds
        self._warn(f"{member.name} is started anew, in {seconds:.1f} s: {message}")

    def _count_failure(self, member: Member, cause: Problem) -> None:
        """Count failures in a row, without progress in between.

        An environment that breaks in every episode must end the run, at whatever step it does. A
        process that others kill must not, as long as it gets something done in between.
        """
        row = self._flow.board.row(member.role.kind, member.index)
        steps, episodes = member.progress
        member.progress = row.env_steps, row.episodes
        has_episodes = row.episodes > episodes
        has_progress = has_episodes or (not cause.is_environment and row.env_steps > steps)
        member.failures = 1 if has_progress else member.failures + 1

    def _together_failed(self, member: Member, cause: Problem) -> WorkerFailedError:
        """Return the error of a worker that the run cannot do without, and of those like it.

        When one learner fails, the next average of the others fails, too.
        """
        causes = [f"{member.name} failed: {cause.message}"]
        others = [
            other for other in self._members if other.role is member.role and other is not member
        ]
        if others:
            time.sleep(TOGETHER_SECONDS)
            self._receive(0)
        for other in others:
            death = other.handle.cause_of_death() if other.handle is not None else None
            if death is not None:
                causes.append(f"{other.name} failed: {death.message}")
        return WorkerFailedError("\n".join(causes))

    def _await(
        self,
        answer: type,
        members: list[Member],
        seconds: float,
        give_up: Callable[[], bool] = lambda: False,
    ) -> list[Member]:
        """Wait for an answer of each of some workers; return those that have given none."""
        deadline = time.monotonic() + seconds
        waiting, missing, late = list(members), list[Member](), False
        self._receive(0)
        while not give_up():
            for member in list(waiting):
                if member.has_answered(answer):
                    waiting.remove(member)
                elif not member.is_alive:
                    if answer is Started and self._started_again(member):
                        continue
                    if member.role.on_failure == "end" or answer is Started:
                        self._raise_death(member)
                    waiting.remove(member)
                    missing.append(member)
            if late or not waiting:
                break
            # This process may have been stopped: what has come meanwhile counts.
            late = time.monotonic() >= deadline
            self._receive(0.02)
        return waiting + missing

    def _started_again(self, member: Member) -> bool:
        """Start a worker again that others have killed before it was ready, if its role allows."""
        cause = member.handle.cause_of_death() if member.handle is not None else None
        too_often = member.failures >= self._flow.config.max_restarts
        if cause is None or not cause.was_killed or too_often or member.role.on_failure == "end":
            return False
        self._kill(member)
        member.failures += 1
        member.incarnation += 1
        try:
            self._start(member, self._flow.checkpoint.folder)
        except OSError as error:
            raise WorkerFailedError(f"{member.name} could not be started: {error}") from error
        self._warn(f"{member.name} is started anew: {cause.message}")
        return True

    def _raise_death(self, member: Member) -> None:
        """Raise that the run cannot begin, or go on, without a worker that has died."""
        handle = member.handle
        cause = handle.cause_of_death() if handle is not None else None
        cause = cause or Problem("it has ended")
        self._kill(member)
        error = self._together_failed(member, cause)
        error.spares_learning = member.role.on_failure != "end" and not cause.has_diverged
        raise error from cause.error

    def _order(self, members: list[Member], order: Order, argument: Any = None) -> None:
        for member in members:
            member.answers.clear()
            if order == "save":
                member.folder = argument
            if member.handle is not None:
                member.handle.order(order, argument)

    def _kill(self, member: Member) -> None:
        """End a worker, and whatever it has started."""
        if member.handle is not None:
            member.handle.kill()
            member.handle = None

    def _taken(self) -> list[Any]:
        reports, self._reports = self._reports, []
        return reports
