"""Starts, watches and ends the workers of a run, wherever a backend has them run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...errors import CheckpointError
from ..background import in_background
from ..failures import START_SECONDS, WorkerFailedError, environment_hung
from ..flow import HostedFlow, Role
from ..messages import Finished, Problem, Saved, Started
from .backend import Backend, Handle, Order

__all__ = ["Supervisor", "backoff_seconds"]

GRACE_SECONDS = 0.5  # between the order to stop and the kill
AWAIT_SECONDS = 0.02  # between two looks at workers whose answers are awaited
SAVE_SECONDS = 30.0  # for workers to write their states
SPARE_SAVE_SECONDS = 1.0  # the same after Ctrl-C, for those that the run can do without
LONGEST_BACKOFF_SECONDS = 5.0
UPDATE_SECONDS = 120.0  # for an update, before a worker that trains counts as hung
# Workers may have waited to make their reports while nobody took them in, as while this process or
# their machine was stopped. After so long that is forgiven.
AWAY_SECONDS = 5.0
FINISH_SECONDS = 5.0
TOGETHER_SECONDS = 0.2  # in which learners fail after the first one
ANSWERS: dict[Order, type] = {"save": Saved, "finish": Finished}


@dataclass
class Member:
    """One worker of a run, and its history."""

    role: Role
    index: int
    handle: Handle | None = None
    incarnation: int = 0
    failures: int = 0  # in a row
    progress: tuple[float, float] = (0.0, 0.0)  # work and episodes when it last failed
    restart_at: float | None = None
    beat: float = 0.0  # as the worker had last counted it
    beat_at: float = 0.0  # when that was seen to change
    has_beaten: bool = False  # since the worker was started
    heard_at: float = math.inf  # when its machine was heard, at the last look
    owes: type | None = None  # the answer that it has not given yet
    folder: str = ""  # where its state was to be saved last
    saved: Saved | None = None  # its answer to that

    @property
    def name(self) -> str:
        """The worker's name."""
        return f"{self.role.kind}-{self.index}"

    @property
    def is_starting(self) -> bool:
        """Whether the worker has been started, and is not ready yet."""
        return self.handle is not None and self.owes is Started

    @property
    def is_necessary(self) -> bool:
        """Whether there is no run, and no checkpoint, without the worker."""
        return self.role.on_failure == "end"


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
        self._has_begun = self._ending = self._all_saved = False
        self._reports: list[Any] = []
        self._failure: WorkerFailedError | None = None  # which a checkpoint has put off

    def start(self) -> None:
        """Start all workers, and have them go when each of them is ready.

        Raises
        ------
        WorkerFailedError
            If a worker cannot be started, fails, or hangs.
        """
        try:
            self._backend.open(self._flow)
            for member in self._members:
                self._start(member)
        except CheckpointError as error:
            raise WorkerFailedError(f"the checkpoint is damaged: {error}") from error
        except MemoryError as error:
            raise WorkerFailedError(f"there is no room for the checkpoint: {error}") from error
        except OSError as error:
            raise WorkerFailedError(f"the workers could not be started: {error}") from error

        def is_over() -> bool:
            self._check_starting([member for member in self._members if member.is_starting])
            return self._interrupted()

        self._await(Started, self._members, is_over)
        if any(member.owes is Started for member in self._members):
            return
        self._flow.clock.start(self._flow.clock.before)
        self._has_begun = True
        for member in self._members:
            member.beat_at = time.monotonic()  # some have waited for others
        self._order(self._members, "go", self._flow.clock.seconds)

    def poll(self, seconds: float) -> list[Any]:
        """Have the workers work for so long, or until one reports; start anew who has failed."""
        if self._failure is not None:
            raise self._failure
        self._poll(seconds)
        return self.taken()

    def save(self, folder: Path, *, is_last: bool = False) -> None:
        """Have workers write their states, and write the streams, while they go on.

        Workers are watched meanwhile as in `poll`. One that is started anew when it fails is left
        out if it does not answer within 30 seconds. For the others the last checkpoint waits as
        long as they live and beat. Once the run is interrupted, these have 30 seconds more, and
        nobody else has more than one. A worker that fails when all states are there costs no
        checkpoint: the next `poll` raises that.

        Parameters
        ----------
        folder : Path
            Where to; the folder is there.
        is_last : bool
            Whether the run ends after this checkpoint: no worker is started anew any more.

        Raises
        ------
        OSError
            If something could not be written. It is a TimeoutError if a worker does not answer in
            time without which there is no checkpoint; the run may go on.
        WorkerFailedError
            If a worker fails without which there is no run, or another one too often.
        """
        self._ending |= is_last
        members = [member for member in self._members if self._is_saved(member)]
        for member in self._members:
            if member.is_necessary and member.handle is None:
                raise WorkerFailedError(f"{member.name} has ended")
        self._order(members, "save", str(folder))
        begun, interrupted = time.monotonic(), math.inf

        def is_over() -> bool:
            nonlocal interrupted
            now = time.monotonic()
            if self._interrupted():
                interrupted = min(interrupted, now)
            waits = any(member.is_necessary and member.owes is Saved for member in members)
            is_late = now >= begun + SAVE_SECONDS and not (waits and is_last)
            return is_late or now >= interrupted + (SAVE_SECONDS if waits else SPARE_SAVE_SECONDS)

        self._await(Saved, members, is_over)
        for member in members:
            if member.saved is None and member.is_necessary:
                seconds = time.monotonic() - begun
                raise TimeoutError(f"{member.name} did not save its state within {seconds:.0f} s")
            if member.saved is None and member.role.holds:
                self._warn(f"the checkpoint is without {member.role.holds}")
            if member.saved is not None and member.saved.refusal:
                raise OSError(member.saved.refusal)
        self._all_saved = is_last
        saving = in_background(partial(self._flow.save, folder))
        while not saving.done():
            wait([saving], AWAIT_SECONDS)
            self._receive(0)  # full pipes would hold up the workers
            if self._failure is None:
                try:
                    self._watch_all()
                except WorkerFailedError as error:
                    self._failure = error
        saving.result()

    def finish(self) -> list[Any]:
        """Have the workers finish without which there is no run, before the last checkpoint."""
        self._ending = True
        members = [member for member in self._members if member.is_necessary]
        self._order(members, "finish")
        deadline = time.monotonic() + FINISH_SECONDS
        self._await(Finished, members, lambda: time.monotonic() >= deadline)
        return self.taken()

    def finish_optional(self) -> Iterator[list[Any]]:
        """Have the other workers finish, however long that takes, unless they die or hang.

        Yield again and again what they have reported: who takes it may interrupt the run.
        """
        members = [member for member in self._members if member.role.on_failure == "continue"]
        self._order(members, "finish")
        self._receive(0)
        for member in members:
            if member.restart_at is not None and member.restart_at < math.inf:
                what = member.role.provides
                self._warn(f"{member.name} had failed: the run ends without its last {what}")
        while not self._interrupted() and any(member.owes is Finished for member in members):
            self._poll(AWAIT_SECONDS)
            yield self.taken()
        yield self.taken()

    def taken(self) -> list[Any]:
        """Return what workers have reported, and nobody has taken yet; never wait."""
        reports, self._reports = self._reports, []
        return reports

    def stop(self) -> None:
        """End all workers: ask them first, then kill them."""
        self._ending = True
        alive = [member for member in self._members if member.handle is not None]
        self._order(alive, "stop")
        deadline = time.monotonic() + GRACE_SECONDS
        try:
            while not all(member.handle.has_ended for member in alive if member.handle):
                if time.monotonic() >= deadline:
                    break
                self._receive(AWAIT_SECONDS)  # one that reports into a full pipe cannot stop
        finally:  # also when Ctrl-C ends the wait
            for member in alive:
                self._kill(member)

    def _start(self, member: Member) -> None:
        """Start a worker: with its state, unless the run has begun."""
        role, states = member.role, None if self._has_begun else self._flow.checkpoint.folder
        seat = self._flow.seat(role, member.index, member.incarnation)
        state = None
        if states is not None:
            # Workers that go on together have one state for all.
            name = f"{role.kind}-0" if role.saved == "first" else member.name
            state = states / f"{name}.pt"
            if not member.is_necessary and not state.exists():
                state = None
        member.handle = self._backend.start(role, member.index, seat, state)
        member.beat_at, member.has_beaten = time.monotonic(), False
        member.restart_at, member.owes = None, Started
        member.beat = self._flow.board.row(role.kind, member.index).beat

    def _is_saved(self, member: Member) -> bool:
        saved, handle = member.role.saved, member.handle
        if handle is None or (saved == "first" and member.index > 0):
            return False
        return saved != "at once" or handle.answers_at_once

    def _poll(self, seconds: float) -> None:
        """Take in what comes within so long, and start anew who has failed."""
        self._receive(seconds)
        self._watch_all()

    def _receive(self, seconds: float) -> None:
        """Take in the reports that come within so long, and who has shown to be alive."""
        self._backend.run(seconds)
        now = time.monotonic()
        for member in self._members:
            self._forgive(member, AWAY_SECONDS + seconds)
            beat = self._flow.board.row(member.role.kind, member.index).beat
            if beat != member.beat:
                member.beat, member.beat_at, member.has_beaten = beat, now, True
            for report in member.handle.reports() if member.handle is not None else ():
                if isinstance(report, Saved):
                    if report.folder != member.folder:
                        continue  # the answer comes too late for its checkpoint
                    member.saved = report
                if type(report) is member.owes:
                    member.owes = None
                elif not isinstance(report, (Started, Saved, Finished)):
                    self._reports.append(report)

    def _forgive(self, member: Member, seconds: float) -> None:
        """Count a worker's silence from now on if its machine was not heard for so long."""
        if member.handle is not None:
            heard_at = member.handle.heard_at
            if heard_at - member.heard_at > seconds:
                member.beat_at = max(member.beat_at, heard_at)
            member.heard_at = heard_at

    def _check_starting(self, missing: list[Member]) -> None:
        """Raise if workers that should be ready seem to hang.

        Episodes that are played again may take longer than that, and show it.
        """
        hung = [member.name for member in missing if _silence(member) > START_SECONDS]
        if hung and not self._interrupted():
            names, seconds = ", ".join(hung), f"{START_SECONDS:g} s"
            question = "does making the environment hang?"
            raise WorkerFailedError(f"{names} did not start within {seconds}: {question}")

    def _watch_all(self) -> None:
        for member in self._members:
            self._watch(member)

    def _watch(self, member: Member) -> None:
        """Notice if a worker has died or hangs."""
        if member.restart_at is not None:
            # One that was given up never is, nor is any while the run ends.
            if time.monotonic() >= member.restart_at and not self._ending:
                self._restart(member)
            return
        if member.handle is None:
            return
        death = member.handle.cause_of_death()
        if death is not None:
            self._kill(member)
            self._failed(member, death)
            return
        if member.handle.answers_at_once or not self._has_begun:
            return  # it works and beats in turns of this thread, or may wait for others to start
        config, steps = self._flow.config, member.role.steps_environments
        limit = config.environment_timeout_seconds if steps else UPDATE_SECONDS
        if not member.has_beaten:
            limit = max(config.environment_timeout_seconds, START_SECONDS)
        silent = _silence(member)
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
            if self._has_begun:
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
        if self._ending and (self._all_saved or not member.is_necessary):
            self._warn(failed)
            return
        # What fails in a worker before it has done anything fails in it again.
        is_unfit = not self._has_begun and role.on_failure == "restart" and not cause.was_killed
        if member.is_necessary or is_unfit:
            raise self._together_failed(member, cause)
        if cause.has_diverged:
            raise WorkerFailedError(failed)
        if cause.is_environment and config.on_environment_error == "stop":
            raise WorkerFailedError(failed, spares_learning=True)
        if cause.is_blameless:
            member.restart_at, member.owes = time.monotonic(), Started
            self._warn(f"{member.name} is started anew: {cause.message}")
            return
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
        is_loss = role.holds and self._has_begun
        message = f"{role.holds} are lost: {cause.message}" if is_loss else cause.message
        seconds = backoff_seconds(member.failures)
        member.restart_at, member.owes = time.monotonic() + seconds, Started
        self._warn(f"{member.name} is started anew, in {seconds:.1f} s: {message}")

    def _count_failure(self, member: Member, cause: Problem) -> None:
        """Count failures in a row, without progress in between.

        What breaks in every episode must end the run, at whatever step it does. A process that
        others kill must not, as long as it gets something done in between.
        """
        row = self._flow.board.row(member.role.kind, member.index)
        before, episodes = member.progress
        work = row.env_steps + row.answers
        member.progress = work, row.episodes
        has_episodes = row.episodes > episodes
        work_counts = cause.was_killed or not member.role.steps_environments
        has_progress = has_episodes or (work_counts and work > before)
        member.failures = 1 if has_progress else member.failures + 1

    def _together_failed(self, member: Member, cause: Problem) -> WorkerFailedError:
        """Return the error of a worker that the run cannot do without, and of those like it.

        When one learner fails, the others may fail, too, or wait for it in an average.
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

    def _await(self, answer: type, members: list[Member], is_over: Callable[[], bool]) -> None:
        """Wait until no worker of some owes such an answer, or ``is_over``; watch all workers."""
        self._poll(0)
        over = False
        while not over and any(member.owes is answer for member in members):
            over = is_over()
            # This process may have been stopped: what has come meanwhile counts.
            self._poll(AWAIT_SECONDS)

    def _order(self, members: list[Member], order: Order, argument: Any = None) -> None:
        for member in members:
            if member.handle is None:
                continue
            if order == "save":
                member.folder, member.saved = argument, None
            member.owes = ANSWERS.get(order, member.owes)
            member.handle.order(order, argument)

    def _kill(self, member: Member) -> None:
        """End a worker, and whatever it has started."""
        if member.handle is not None:
            member.handle.kill()
            member.handle = member.owes = None


def _silence(member: Member) -> float:
    """Return how long a worker had not beaten when its machine was heard last."""
    assert member.handle is not None
    return member.handle.heard_at - member.beat_at


def backoff_seconds(failures: int) -> float:
    """Return how long to wait before a new start, after so many failures in a row."""
    return min(0.1 * 2.0 ** min(failures - 1, 10), LONGEST_BACKOFF_SECONDS)
