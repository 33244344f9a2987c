"""The part of a run that is on one node of a cluster: its memory, and its workers in processes.

The driver of the run, which has the supervisor, and a site tell each other what happens in letters,
one call after the other. What is large goes other ways: rows to those who ask for them, by the
process that answers for the site's shard; parameters once per publication.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection as connections
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from ...version import VERSION
from ..background import in_background
from ..flow import HostedFlow
from ..messages import Problem, Saved
from ..streams import Checkpoint, Part, Peer
from ..streams.stream import Answerer
from .backend import Order
from .crew import Crew
from .memory import SharedMemory
from .process import ProcessBackend, ProcessHandle
from .worker_process import leave_no_orphan

__all__ = ["Answer", "Ended", "Give", "Key", "Kill", "Letter", "SavedState", "Site", "Start"]

START_SECONDS = 60.0  # for a process that answers to do so
PROBE_SECONDS = 2.0  # between two looks at whether it still does
AGAIN_SECONDS = 0.5  # between two starts of it
DRIVER = 0  # the number of the part where the learners are

Key = tuple[str, int, int]
"""A worker: its role, index and incarnation."""


class Start(NamedTuple):
    """Start a worker, with what it goes on from, if there is something."""

    key: Key
    state: bytes | None


class Give(NamedTuple):
    """Give a worker an order."""

    key: Key
    order: Order
    argument: Any


class Kill(NamedTuple):
    """End a worker."""

    key: Key


class SavedState(NamedTuple):
    """What a worker goes on from, for a folder of the driver's, or why it could not be saved."""

    folder: str
    content: bytes
    refusal: str


class Ended(NamedTuple):
    """The process of a worker has ended."""


class Letter(NamedTuple):
    """What a site is to know, by the names of streams, and to do.

    Of two letters with one number, the second is the first again.
    """

    number: int
    told: Mapping[str, Any]
    commands: list[Start | Give | Kill]


class Answer(NamedTuple):
    """What a site tells, by the names of streams, and what its workers have reported."""

    told: Mapping[str, Any]
    events: list[tuple[Key, Any]]


class Site:
    """A part of a run, for which its driver calls.

    Parameters
    ----------
    version : str
        Of the driver's kary-replay.
    run : bytes
        A pickle of its settings, and of what makes its environments.
    n_actors : int
        Of the whole run.
    part : Part
        Which part of it this is.
    counters : mapping
        What a checkpoint of this moment would keep of the run's streams.
    host : str
        This machine's address in the network of the cluster.
    paths : sequence of str
        Where the driver finds modules. What is there on this machine, too, is looked into last.

    Raises
    ------
    RuntimeError
        If the version here is another one.
    ConfigError, OSError
        If there is no room for the part.
    """

    def __init__(
        self,
        version: str,
        run: bytes,
        n_actors: int,
        part: Part,
        counters: Mapping[str, Any],
        host: str,
        paths: Sequence[str],
    ) -> None:
        from ... import fork_server

        if version != VERSION:
            raise RuntimeError(
                f"kary-replay is of version {VERSION} there, and {version} where the run began: "
                "install the same on all nodes"
            )
        sys.path += [path for path in paths if path not in sys.path and Path(path).exists()]
        config, env_factory = pickle.loads(run)  # from modules that may be found only now
        fork_server.forget_program()
        fork_server.start()
        medium = SharedMemory(part)
        self._scratch = medium.folder()
        self._backend = ProcessBackend(config, lambda: False, medium, is_child=True)
        self._flow = HostedFlow(config, env_factory, n_actors, medium, Checkpoint(None, counters))
        self._backend.open(self._flow)
        self._crew = Crew(self._flow, self._backend)
        self._roles = {role.kind: role for role in self._flow.roles}
        self._handles: dict[Key, ProcessHandle] = {}
        self._silent: set[Key] = set()  # whose death was told
        self._saving: dict[str, str] = {}  # where the driver wants what is saved somewhere here
        self._number, self._answer = 0, Answer({}, [])  # the last ones
        self._servers = {
            name: Server(name, answerer, host, self._scratch)
            for name, stream in self._flow.streams.items()
            if (answerer := stream.answerer()) is not None
        }

    def addresses(self) -> dict[str, tuple[str, int]]:
        """Answer for streams from now on; return where, by their names."""
        for server in self._servers.values():
            server.start()
        return {name: server.address() for name, server in self._servers.items()}

    def exchange(self, letter: Letter, *broadcasts: tuple[str, Any]) -> Answer:
        """Take what the driver tells, and what it has broadcast; return what happened here."""
        if letter.number <= self._number:
            return self._answer
        streams = self._flow.streams
        for name, told in letter.told.items():
            streams[name].heard(self._driver(), told)
        for name, content in broadcasts:
            streams[name].receive(content)
        events: list[tuple[Key, Any]] = []
        for command in letter.commands:
            try:
                self._do(command)
            except OSError as error:
                events.append((command.key, Problem(f"it could not be started: {error}")))
        if (problem := self._crew.look_after()) is not None:
            for handle in self._handles.values():
                handle.end(problem)
        for key, handle in self._handles.items():
            events += [(key, self._as_event(key, report)) for report in handle.reports()]
            death = handle.cause_of_death()
            if death is not None and key not in self._silent:
                self._silent.add(key)
                events.append((key, death))
            if handle.has_ended:
                events.append((key, Ended()))
        for server in self._servers.values():
            server.look_after()
        # The board is asked first: by what an actor has done, it must not be ahead of the others.
        peer, names = self._driver(), sorted(streams, key=lambda name: name != "board")
        told = {name: streams[name].told(peer) for name in names}
        self._number = letter.number
        self._answer = Answer({name: one for name, one in told.items() if one is not None}, events)
        return self._answer

    def _driver(self) -> Peer:
        """Return what the driver is to this site: all others, who follow those who work here."""
        here = *((kind, index) for kind, index, _ in self._handles), *self._crew.workers
        return Peer(DRIVER, frozenset(self._flow.board.workers).difference(here), here)

    def _do(self, command: Start | Give | Kill) -> None:
        """Do what the driver says."""
        key = command.key
        kind, index, incarnation = key
        if isinstance(command, Start):
            role, state = self._roles[kind], None
            if command.state is not None:
                state = self._scratch / f"{kind}-{index}.state"
                state.write_bytes(command.state)
            seat = self._flow.seat(role, index, incarnation)
            self._handles[key] = self._backend.start(role, index, seat, state)
        elif isinstance(command, Kill):
            handle = self._handles.pop(key, None)
            if handle is not None:
                handle.kill()
        elif key in self._handles:
            argument = command.argument
            if command.order == "save":
                folder = self._scratch / Path(argument).name
                folder.mkdir(exist_ok=True)
                self._saving[str(folder)] = argument
                argument = str(folder)
                self._forget_saved()
            self._handles[key].order(command.order, argument)

    def _forget_saved(self) -> None:
        """Remove the folders of checkpoints before the last two.

        Whoever answers so late is not waited for any more, and is told where it was asked to save.
        """
        for folder in list(self._saving)[-4:-2]:
            with contextlib.suppress(OSError):  # some file is still there
                Path(folder).rmdir()

    def _as_event(self, key: Key, report: Any) -> Any:
        """Return a report as the driver gets it: with the state that was saved, where it was."""
        if not isinstance(report, Saved):
            return report
        kind, index, _ = key
        folder = self._saving[report.folder]
        path = Path(report.folder) / f"{kind}-{index}.pt"
        try:
            content = b"" if report.refusal else path.read_bytes()
            path.unlink(missing_ok=True)
        except OSError as error:
            return SavedState(folder, b"", str(error))
        return SavedState(folder, content, report.refusal)

    def close(self) -> None:
        """End all processes, and let go of the memory."""
        for handle in self._handles.values():
            handle.kill()
        self._crew.close()
        for server in self._servers.values():
            server.close()
        self._flow.close()
        self._backend.close()


class Server:
    """The process that answers other machines for a stream.

    When it dies, or answers nobody, another one takes its place, at the same address. The stream's
    memory is this process's, too, so nothing of it is lost.

    Parameters
    ----------
    name : str
        Of the stream.
    answerer : Answerer
        What answers.
    host : str
        Where to listen.
    scratch : Path
        A folder for its files.
    """

    def __init__(self, name: str, answerer: Answerer, host: str, scratch: Path) -> None:
        self._name, self._answerer, self._scratch = name, answerer, scratch
        self._address = host, 0
        self._process: Any = None
        self._pipe: Any = None  # until it has said where it answers
        self._started = self._probe_at = 0.0
        self._probe: Future[bool] | None = None

    def start(self) -> None:
        """Start the process, and do not wait until it answers."""
        from ...fork_server import WorkerProcess  # which other systems than Linux do not have

        self._close_pipe()
        self._pipe, theirs = connections.Pipe()
        self._process = WorkerProcess(
            1,
            target=answer,
            args=(self._name, self._answerer, self._address, theirs, self._scratch),
            name=f"kary-replay {self._name}",
        )
        self._process.start()
        self._started = time.monotonic()
        theirs.close()

    def address(self) -> tuple[str, int]:
        """Wait until it answers; return where, or raise OSError."""
        if not self._pipe.poll(START_SECONDS):
            raise OSError(f"nobody answers for {self._name} in {START_SECONDS:g} s")
        try:
            self._address = self._pipe.recv()
        except EOFError:
            self._process.join()
            host, port = self._address
            raise OSError(
                f"the process that is to answer for {self._name} at {host}:{port} has ended "
                f"with code {self._process.exitcode}"
            ) from None
        self._close_pipe()
        return self._address

    def look_after(self) -> None:
        """Start the process anew if it has died, and kill it if it does not answer; never wait."""
        now = time.monotonic()
        if self._process.exitcode is not None:
            if now - self._started >= AGAIN_SECONDS:  # else its port may be taken
                with contextlib.suppress(OSError):
                    self.start()
            return
        if self._pipe is not None:
            if self._pipe.poll():
                with contextlib.suppress(OSError):
                    self.address()
            elif now - self._started > START_SECONDS:
                self._process.kill()
            return
        if self._probe is not None:
            if self._probe.done():
                if not self._probe.result():
                    self._process.kill()
                self._probe, self._probe_at = None, now + PROBE_SECONDS
        elif now >= self._probe_at:
            probe = self._answerer.is_answering
            self._probe = in_background(lambda: probe(self._address))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def answer(
    name: str, answerer: Answerer, address: tuple[str, int], pipe: Any, scratch: Path
) -> None:
    """Answer for a stream in this process, until it is killed."""
    leave_no_orphan(f"answers {name}")
    tempfile.tempdir = str(scratch)  # which is removed whatever happens
    with contextlib.suppress(BrokenPipeError):
        pipe.send(answerer.serve(*address))
        pipe.close()
    while True:
        signal.pause()
