"""Every worker in a process of its own, and the supervisor that starts, watches and ends them."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection as connections
from pathlib import Path
from typing import Any

from ..failures import START_SECONDS, WorkerFailedError, environment_hung
from ..plan import Plan, Problem, Ready
from ..records.background import in_background
from .guard import Guard
from .worker_process import main

__all__ = ["ProcessBackend"]

# between the order to stop and the kill, and for states that are being written after Ctrl-C
GRACE_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 5.0
UPDATE_SECONDS = 120.0  # for an update, before a learner counts as hung
# without taking in reports, as while stopped: workers may have waited to make them, which is
# forgiven then
AWAY_SECONDS = 5.0
FINISH_SECONDS = 5.0
TOGETHER_SECONDS = 0.2  # in which learners fail after the first one


@dataclass
class _Member:
    """One worker's process, and its history."""

    kind: str
    index: int
    process: Any = None
    pipe: Any = None
    started: float = 0.0
    incarnation: int = 0
    failures: int = 0  # in a row
    progress: tuple[float, float] = (0.0, 0.0)  # steps and episodes when it last failed
    problem: Problem | None = None
    restart_at: float | None = None
    ready: set[str] = field(default_factory=set)  # what it has said it is ready with
    refusal: str = ""  # why it could not save

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.index}"


class ProcessBackend:
    """Workers as processes of this machine, spawned.

    Parameters
    ----------
    plan : Plan
        The run, its streams shared.
    warn : function of str
        Is told what happened to workers that are started anew.
    interrupted : function
        Whether the run is to end; a start is given up then.
    """

    def __init__(
        self, plan: Plan, warn: Callable[[str], None], interrupted: Callable[[], bool]
    ) -> None:
        self._plan, self._warn, self._interrupted = plan, warn, interrupted
        self._context = multiprocessing.get_context("spawn")
        self._members = [
            _Member(kind, index) for kind, n in plan.n_workers.items() for index in range(n)
        ]
        self._meeting: str | None = None  # where learners find each other
        self._guard: Guard | None = None
        self._ending = False
        self._received = self._back = time.monotonic()
        self._reports: list[Any] = []

    def start(self, states: Path | None) -> None:
        """Start all processes, and wait until each is ready to work."""
        try:
            if self._plan.config.learners > 1:
                self._meeting = tempfile.mkdtemp(prefix="kary-replay-")
            self._guard = Guard(self._meeting)
            for member in self._members:
                self._spawn(member, states)
            missing = self._members
            while missing and not self._interrupted():
                missing = self._await("", missing, START_SECONDS, self._interrupted)
                self._check_starting(missing)
            if not missing:
                self._order(self._members, "go", "")
        except OSError as error:
            raise WorkerFailedError(f"the workers could not be started: {error}") from error
        finally:
            if self._meeting is not None:
                shutil.rmtree(self._meeting, ignore_errors=True)

    def poll(self, seconds: float) -> list[Any]:
        """Gather reports for so long, or until there is one; start anew who died or hangs."""
        self._receive(seconds)
        for member in self._members:
            self._watch(member)
        return self._taken()

    def save(self, folder: Path, within_seconds: float) -> None:
        """Have workers write their states, and write the buffer; an actor that does not answer in time is left out."""
        kinds = ("actor", "evaluator") if self._plan.config.evaluate == "after" else ("actor",)
        members = [
            member for member in self._members if member.kind in kinds or member.name == "learner-0"
        ]
        self._order(members, "save", str(folder))
        is_last = self._interrupted()
        missing = self._await(
            str(folder), members, within_seconds, lambda: not is_last and self._interrupted()
        )
        # Ctrl-C does not wait for an actor that hangs
        if missing and not is_last and self._interrupted():
            missing = self._await(str(folder), missing, GRACE_SECONDS)
            if any(member.kind == "learner" for member in missing):
                raise InterruptedError("the run was to end")
        if any(member.kind == "learner" for member in missing):
            raise WorkerFailedError(
                f"the learner did not save its state within {within_seconds:g} s"
            )
        if any(member.kind == "evaluator" for member in missing):
            self._warn("the checkpoint is without the policies that wait for their evaluation")
        failed = [member.refusal for member in members if member.refusal]
        if failed:
            raise OSError(failed[0])
        saving = in_background(partial(self._plan.replay.buffer.save, folder / "replay"))
        while not saving.done():  # full pipes would hold up the workers
            self._receive(0.02)
        saving.result()

    def finish(self) -> list[Any]:
        """Have learners end together after one more update."""
        self._ending = True
        first = [member for member in self._members if member.name == "learner-0"]
        self._order(first, "finish", "")
        self._await("finish", first, FINISH_SECONDS)
        return self._taken()

    def evaluate(self) -> list[Any]:
        """Have the evaluator play what was put off, however long it takes, unless it dies or hangs."""
        evaluators = [
            member
            for member in self._members
            if member.kind == "evaluator" and member.pipe is not None
        ]
        self._order(evaluators, "finish", "")
        while any(
            "finish" not in member.ready and member.pipe is not None for member in evaluators
        ):
            if self._interrupted():
                break
            self._receive(0.1)
            for member in evaluators:
                self._watch(member)
        return self._taken()

    def stop(self) -> None:
        """End all processes: ask first, then kill."""
        self._ending = True
        # not those that have been killed already: the number of their group may by now belong to
        # others
        alive = [
            member
            for member in self._members
            if member.process is not None and member.restart_at is None
        ]
        self._order(alive, "stop", "")
        deadline = time.monotonic() + GRACE_SECONDS
        for member in alive:
            member.process.join(max(0.0, deadline - time.monotonic()))
            self._kill(member)
        if self._guard is not None:
            self._guard.close()

    def _check_starting(self, missing: list[_Member]) -> None:
        """Raise if workers that should be ready seem to hang: episodes that are played again may take longer."""
        row, now = self._plan.board.row, time.monotonic()
        hung = [
            member.name
            for member in missing
            if now - row(member.kind, member.index).beat > START_SECONDS
        ]
        if hung and not self._interrupted():
            names = ", ".join(hung)
            raise WorkerFailedError(
                f"{names} did not start within {START_SECONDS:g} s: does making the environment hang?"
            )

    def _spawn(self, member: _Member, states: Path | None = None) -> None:
        pipe, theirs = self._context.Pipe()
        rendezvous = None if self._meeting is None else os.path.join(self._meeting, "learners")
        arguments = (
            self._plan,
            member.kind,
            member.index,
            member.incarnation,
            theirs,
            states,
            rendezvous,
        )
        process = self._context.Process(
            target=main, args=arguments, name=f"kary-replay {member.name}", daemon=False
        )
        n_threads = self._plan.config.learner_threads if member.kind == "learner" else 1
        with _for_children(n_threads):
            process.start()
        theirs.close()
        member.process, member.pipe, member.started, member.restart_at = (
            process,
            pipe,
            time.monotonic(),
            None,
        )
        assert self._guard is not None
        self._guard.watch(
            other.process.pid
            for other in self._members
            if other.process is not None and other.pipe is not None
        )
        member.problem = None
        member.ready.clear()

    def _receive(self, seconds: float) -> None:
        """Take in the reports that come within so long."""
        pipes: dict[Any, _Member] = {
            member.pipe: member for member in self._members if member.pipe is not None
        }
        readable: list[Any] = connections.wait(list(pipes), seconds)
        now = time.monotonic()
        if now - self._received > AWAY_SECONDS + seconds:
            self._back = now
        self._received = now
        for pipe in readable:
            member = pipes[pipe]
            try:
                while pipe.poll(0):
                    report = pipe.recv()
                    if isinstance(report, Ready):
                        member.ready.add(report.path)
                        member.refusal = report.refusal
                    elif isinstance(report, Problem):
                        member.problem = report
                    else:
                        self._reports.append(report)
            except (EOFError, OSError):
                member.pipe.close()
                member.pipe = None
                member.process.join(GRACE_SECONDS)

    def _watch(self, member: _Member) -> None:
        """Notice if a worker died or hangs."""
        if member.restart_at is not None:
            if time.monotonic() >= member.restart_at:  # never, if it was given up
                member.incarnation += 1
                try:
                    self._spawn(member)
                    self._order([member], "go", "")
                except OSError as error:  # there may be room for a process later
                    self._failed(member, f"it could not be started: {error}")
            return
        if member.process.exitcode is not None or member.pipe is None:
            self._kill(member)
            self._failed(member, self._cause(member), self._exited_by_itself(member))
            return
        config = self._plan.config
        trains, limit = member.kind == "learner", config.environment_timeout_seconds
        beat = self._plan.board.row(member.kind, member.index).beat
        silent = time.monotonic() - max(beat, member.started, self._back)
        if silent <= (
            max(limit, START_SECONDS)
            if beat < member.started
            else UPDATE_SECONDS
            if trains
            else limit
        ):
            return
        self._kill(member)
        if trains:
            others = ", it or another learner, for which it waits" if config.learners > 1 else ""
            self._failed(member, f"it hung{others}: no update ended for {silent:.0f} s")
        else:
            self._failed(member, environment_hung(config.env_name, silent, limit), True)

    def _cause(self, member: _Member) -> str:
        if member.problem is not None:
            return member.problem.message
        code = member.process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}" + (
                " (out of memory?)" if -code == signal.SIGKILL else ""
            )
        if self._exited_by_itself(member):
            return f"environment {self._plan.config.env_name} ended the process that it ran in, with exit code {code}"
        return f"exited with code {code}"

    @staticmethod
    def _exited_by_itself(member: _Member) -> bool:
        """Return whether something in the process ended it without a word: only environments have code of others there."""
        code = member.process.exitcode
        return (
            member.kind != "learner" and member.problem is None and code is not None and code >= 0
        )

    def _failed(self, member: _Member, cause: str, is_environment: bool = False) -> None:
        """Plan a new start, or raise if there is to be none."""
        config = self._plan.config
        if self._ending:
            self._warn(f"{member.name} failed: {cause}")
            return
        is_environment |= member.problem is not None and member.problem.is_environment
        if member.kind == "learner":
            raise self._learner_failed(member, cause)
        if member.problem is not None and member.problem.has_diverged:
            raise WorkerFailedError(f"{member.name} failed: {cause}")
        if is_environment and config.on_environment_error == "stop":
            raise WorkerFailedError(f"{member.name} failed: {cause}", spares_learning=True)
        row = self._plan.board.row(member.kind, member.index)
        # An environment that breaks in every episode must end the run, at whatever step it does; a
        # process that others kill must not, as long as it gets something done in between.
        progress, by_episodes = (
            (row.env_steps, row.episodes),
            is_environment or member.kind == "evaluator",
        )
        member.failures = (
            1 if progress[by_episodes] > member.progress[by_episodes] else member.failures + 1
        )
        member.progress = progress
        if member.failures > config.max_restarts:
            often = f"{member.name} failed {member.failures} times in a row, the last time: {cause}"
            if member.kind != "evaluator":
                raise WorkerFailedError(often, spares_learning=True)
            # what has been learned is worth more than knowing how much that is
            member.restart_at = math.inf
            self._warn(f"{often}\nThe run goes on without evaluations.")
            return
        if member.kind == "evaluator" and config.evaluate == "after":
            cause = f"the policies that waited for their evaluation are lost: {cause}"
        wait = min(0.1 * 2 ** min(member.failures - 1, 10), LONGEST_BACKOFF_SECONDS)
        member.restart_at = time.monotonic() + wait
        self._warn(f"{member.name} is started anew, in {wait:.1f} s: {cause}")

    def _learner_failed(self, member: _Member, cause: str) -> WorkerFailedError:
        """Return the error of a learner, and of those that fail with it: when one does, so does the others' next average."""
        causes = [f"{member.name} failed: {cause}"]
        others = [
            other for other in self._members if other.kind == "learner" and other is not member
        ]
        if others:
            time.sleep(TOGETHER_SECONDS)
            self._receive(0)
        for other in others:
            if other.problem is not None or other.process.exitcode is not None:
                causes.append(f"{other.name} failed: {self._cause(other)}")
        return WorkerFailedError("\n".join(causes))

    def _await(
        self,
        what: str,
        members: list[_Member],
        seconds: float,
        give_up: Callable[[], bool] = lambda: False,
    ) -> list[_Member]:
        """Wait until members have said that they are ready with something; return those that have not."""
        deadline = time.monotonic() + seconds
        waiting, missing, late = list(members), list[_Member](), False
        while waiting and not late and not give_up():
            # this process may have been stopped: what has come meanwhile counts
            late = time.monotonic() >= deadline
            self._receive(0.02)
            for member in list(waiting):
                if what in member.ready:
                    waiting.remove(member)
                elif member.pipe is None or member.process.exitcode is not None:
                    if member.kind == "learner" or what == "":
                        self._kill(member)
                        raise self._learner_failed(member, self._cause(member))
                    waiting.remove(member)
                    missing.append(member)
        return waiting + missing

    def _taken(self) -> list[Any]:
        reports, self._reports = self._reports, []
        return reports

    def _order(self, members: list[_Member], order: str, argument: str) -> None:
        for member in members:
            member.ready.discard(argument or order)
            member.refusal = ""
            if member.pipe is not None:
                with contextlib.suppress(OSError):
                    member.pipe.send((order, argument))

    def _kill(self, member: _Member) -> None:
        """End a process, whatever it has started, and its pipe."""
        if member.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(member.process.pid, signal.SIGKILL)
        member.process.kill()
        member.process.join()
        if member.pipe is not None:
            if member.problem is None:
                with contextlib.suppress(EOFError, OSError):
                    while member.pipe.poll(0):
                        report = member.pipe.recv()
                        member.problem = report if isinstance(report, Problem) else member.problem
            member.pipe.close()
            member.pipe = None


@contextlib.contextmanager
def _for_children(n_threads: int) -> Iterator[None]:
    """Let children inherit that Ctrl-C is not for them, and how many threads libraries may start."""
    names = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(n_threads) for name in names})
    old = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
