"""A shard on another machine, as those who use it see it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..buffers.checkpoint_files import sync
from ..errors import ClosedError, ShardError, ShardLostError
from ..types import HANDLE_DTYPE
from ..validation import as_positive
from ..version import VERSION
from .layout import Layout
from .messages import Kind, Message, MessageError, pack, unpack
from .service import LARGEST_PIECE
from .transport import Pending, Transport
from .vitals import VITALS_DTYPE, are_possible

__all__ = ["Asked", "Drawn", "RemoteShard"]

MOST_UNDER_WAY = 64  # adds and updates that have not been answered
MOST_RECONNECTS = 16  # without an answer in between, before a shard counts as lost
FEWEST_SECONDS, LONGEST_SECONDS = 0.01, 0.5  # between two tries to reach a shard anew
PATIENCE_WITH_DISKS = 600.0  # seconds, for a shard that saves, or looks at all its rows
ELSEWHERE = (ConnectionError, TimeoutError)  # what a transport raises


class Asked(NamedTuple):
    """Rows that a shard has been asked for."""

    pending: Pending
    line: int  # the connection, counted


class Drawn(NamedTuple):
    """The rows that a shard has drawn."""

    is_broken: bool  # whether the shard has outgrown its bound: there are no rows then
    by_mass: npt.NDArray[np.float64]  # [rows] the row's part of the shard's mass
    by_count: npt.NDArray[np.float64]  # [rows] 1 / the shard's rows
    handle: npt.NDArray[np.void]  # [rows] of HANDLE_DTYPE; index -1 where there was no row
    columns: list[npt.NDArray[Any]]  # of the fields
    total: float  # of the shard's masses at the draw
    n_rows: int  # that had mass


class RemoteShard:
    """A shard that a transport leads to.

    Parameters
    ----------
    transport : Transport
        The way to it.
    patience_seconds : float
        How long to wait for an answer, or to try to reach the shard anew, before it counts as lost.

    Raises
    ------
    ShardError
        If it is of another version.
    ConnectionError
        If it cannot be reached.
    ValueError, TypeError
        If patience_seconds is not finite and above 0.

    Notes
    -----
    Adds and updates are sent and not waited for. Those that have not been answered when a
    connection is cut are sent again, to whoever answers for the same memory. The shard knows the
    number of each row's add, and priorities go by handles, so neither happens twice. Rows with
    frames are known to one service alone: if that dies while they are added, the shard counts as
    lost. What a shard refuses is raised by the next call, before it does anything, or forgotten by
    a `reset`. Any number of threads may use it; a forked child gets a connection of its own.
    """

    reader = None

    def __init__(self, transport: Transport, patience_seconds: float = 5.0) -> None:
        self.patience_seconds = as_positive("patience_seconds", patience_seconds)
        self.transport = transport
        self.vitals = np.zeros(1, VITALS_DTYPE)[0]
        self.is_lost = False
        self._is_closed = False
        self._lock = threading.RLock()
        self._begin()
        self.signature = ""
        self.signature, self._service = self._greet(self.patience_seconds)
        self.layout = Layout.read(self.signature)
        self.names, self._drawn = self.layout.names, self.layout.drawn

    def _begin(self) -> None:
        """Begin as a writer of its own."""
        self._pid = os.getpid()
        self._writer = secrets.randbits(63)
        self._next = 0  # number of the next row added
        self._unanswered: deque[tuple[Sequence[Any], Pending | None]] = deque()
        self._refusals: list[Exception] = []
        self._line = self._n_in_vain = 0

    def _greet(self, timeout_seconds: float) -> tuple[str, str]:
        """Learn the shard's fields, and who answers for it; ShardError if they have changed."""
        message = pack(Kind.HELLO, VERSION.encode(), self.signature.encode())
        answer = self._understood(self.transport.send(message).result(timeout_seconds))
        return answer.text(1), answer.text(2)

    def _understood(self, data: memoryview) -> Message:
        """Return an answer, and remember what the shard says of itself; raise what it raised."""
        message = unpack(data)
        if message.kind is Kind.FAILED:
            name, text = message.text(0), message.text(1)
            raise KNOWN.get(name, ShardError)(text)
        vitals = message.array(0, VITALS_DTYPE, (1,))[0]
        if message.kind is not Kind.DONE or not are_possible(vitals):
            raise MessageError(f"a shard reported impossible figures: {message.kind} {vitals}")
        self.vitals = vitals
        return message

    @property
    def max_priority(self) -> float:
        """The largest priority seen, as far as it is known here."""
        return float(self.vitals["max_priority"])

    # ------------------------------------------------------------------------------- draws

    def ask(self, points: Any, n_alike: int, total: float, n_rows: float, headroom: float) -> Asked:
        """Ask for the rows at some points; ShardLostError if the shard is lost.

        The first ``n_alike`` points are of rows drawn alike; ``total`` and ``n_rows`` are the mass
        and the number of rows that points refer to.
        """
        message = pack(Kind.DRAW, np.array([n_alike, total, n_rows, headroom], np.float64), points)
        with self._lock:
            self._prepare()
            while True:
                try:
                    return Asked(self.transport.send(message), self._line)
                except ELSEWHERE as error:
                    self._go_on(error)

    def drawn(self, asked: Asked) -> Drawn | None:
        """Wait for the rows of `ask`; None if they have to be asked for again.

        ShardLostError if the shard is lost.
        """
        try:
            message = self._understood(asked.pending.result(self.patience_seconds))
            self._n_in_vain = 0
            return self._rows_of(message)
        except MessageError as error:
            self.lose(f"it does not speak as shards do: {error}", error)
        except ELSEWHERE as error:
            with self._lock:
                if self._pid != os.getpid():
                    self._catch_up()
                elif asked.line == self._line:  # else it has been reached anew since
                    self._go_on(error)
        return None

    def _rows_of(self, message: Message) -> Drawn:
        vitals = message.array(0, VITALS_DTYPE, (1,))[0]
        by_mass = message.array(2, np.float64)
        n = len(by_mass)
        return Drawn(
            bool(message.array(1, np.int64, (1,))[0]),
            by_mass,
            message.array(3, np.float64, (n,)),
            message.array(4, HANDLE_DTYPE, (n,)),
            [
                message.array(5 + i, field.dtype, (n, *field.shape))
                for i, field in enumerate(self._drawn)
            ],
            float(vitals["total"]),
            int(vitals["n_rows"]),
        )

    # -------------------------------------------------------------------- adds and updates

    @property
    def n_sent(self) -> int:
        """Rows that this object has sent."""
        return self._next

    def add(self, columns: dict[str, Any], priority: npt.NDArray[np.float64] | None) -> None:
        """Add rows, whose columns, checked, go by the names of the leaves."""
        # copies: they may have to be sent again when their owner has written into them
        values = [np.array(columns[name]) for name in self.names]
        n = len(values[0])
        given = np.empty(0) if priority is None else np.array(priority)
        with self._lock:
            self._prepare()
            head = np.array([self._writer, self._next, n, priority is not None], np.uint64)
            self._next += n
            self._send(pack(Kind.ADD, head, given, *values))

    def update(self, handle: npt.NDArray[np.void], td_error: npt.NDArray[np.float64]) -> int:
        """Set priorities; return how many are on their way. Nobody writes into the arrays later."""
        with self._lock:
            self._prepare()
            self._send(pack(Kind.UPDATE, handle, td_error))
        return len(handle)

    def set(self, name: str, value: float) -> None:
        """Set one of the settings that all shards have in common."""
        with self._lock:
            self._prepare()
            self._send(pack(Kind.SET, name.encode(), np.array([value], np.float64)))

    def reset(self) -> None:
        """Forget all rows, and what was refused of them."""
        with self._lock:
            self._catch_up()
            self._await_answers()
            self._refusals.clear()
            self._send(pack(Kind.RESET))
            self.settle()
            self._writer, self._next = secrets.randbits(63), 0  # a refused row leaves a gap

    def look(self) -> None:
        """Ask the shard how it is, and wait for the answer."""
        with self._lock:
            self._prepare()
            self._send(pack(Kind.LOOK))
            self.settle()

    def glance(self) -> None:
        """Ask the shard how it is, unless it has something to answer, and do not wait."""
        with self._lock:
            self._prepare()
            if not self._unanswered:
                self._send(pack(Kind.LOOK))

    def check_invariants(self) -> None:
        """Raise AssertionError if something in the shard is not as it must be."""
        self.settle()
        self._fetched(pack(Kind.CHECK))

    def save(self, directory: Path) -> None:
        """Let the shard save itself, and copy what it has saved to a directory, down to the disk.

        Raises ShardLostError, or OSError with what went wrong there; TimeoutError, with the shard
        still there, if its disk has taken longer than 10 minutes.
        """
        self.settle()
        message = self._fetched(pack(Kind.SAVE))
        saved = message.text(1).encode()
        try:
            folders = {directory}
            for name, nbytes in json.loads(message.text(2)).items():
                path = directory / name
                if not path.resolve().is_relative_to(directory.resolve()):
                    raise ShardError(f"a shard has saved a file {name!r}")
                path.parent.mkdir(parents=True, exist_ok=True)
                folders.update(above for above in path.parents if directory in above.parents)
                with path.open("wb") as file:
                    at = 0
                    while at < nbytes:
                        where = np.array([at, LARGEST_PIECE], np.int64)
                        request = pack(Kind.READ, saved, name.encode(), where)
                        piece = self._fetched(request).parts[1]
                        if len(piece) == 0:
                            raise ShardError(f"the shard's file {name!r} ends at byte {at}")
                        file.write(piece)
                        at += len(piece)
                    file.flush()
                    os.fsync(file.fileno())
            for folder in folders:
                sync(folder)
        finally:
            with contextlib.suppress(*ELSEWHERE):
                self._fetched(pack(Kind.DROP, saved))

    def _fetched(self, message: Sequence[Any]) -> Message:
        """Send a message that changes no row, as often as it takes; return its answer.

        TimeoutError if that does not come: a disk is slow there, and the shard may be well.
        """
        while True:
            with self._lock:
                self._prepare()
                line = self._line
            try:
                return self._understood(self.transport.send(message).result(PATIENCE_WITH_DISKS))
            except TimeoutError as error:
                self.transport.close()  # the answer must not come later, for something else
                raise TimeoutError(f"a shard was to save or check itself: {error}") from error
            except ELSEWHERE as error:
                with self._lock:
                    if line == self._line:
                        self._go_on(error)

    # ------------------------------------------------------------------------- connections

    def _prepare(self) -> None:
        """See what has been answered; raise what a shard has refused, or that it is lost."""
        self._catch_up()
        self._raise_refusal()

    def _catch_up(self) -> None:
        """See what has been answered; ShardLostError if the shard is lost."""
        if self._pid != os.getpid():  # a forked child: the parent's connection is not for two
            self._begin()
            self.transport.reconnect(self.patience_seconds)
        self._refuse_lost()
        if self._unanswered and self._unanswered[-1][1] is None:
            self._go_on(ConnectionError("a message was interrupted"))
        while self._unanswered:
            pending = self._unanswered[0][1]
            if pending is None or not pending.has_come():
                break
            self._take_oldest()

    def _raise_refusal(self) -> None:
        if self._refusals:
            refusal = self._refusals[0]
            self._refusals.clear()
            raise refusal

    def _send(self, message: Sequence[Any]) -> None:
        """Send a message that has to be done; what is answered is looked at later."""
        self._unanswered.append((message, None))  # until it is sent, which Ctrl-C may prevent
        try:
            self._unanswered[-1] = message, self.transport.send(message)
        except ELSEWHERE as error:
            self._go_on(error)
        while len(self._unanswered) > MOST_UNDER_WAY:
            self._take_oldest()

    def _take_oldest(self) -> None:
        """Wait for the oldest answer, if need be of a shard that is reached anew."""
        pending = self._unanswered[0][1]
        assert pending is not None
        try:
            data = pending.result(self.patience_seconds)
            self._understood(data)
        except MessageError as error:
            self.lose(f"it does not speak as shards do: {error}", error)
        except ELSEWHERE as error:
            self._go_on(error)
            return
        except Exception as error:  # what it refused
            self._refusals.append(error)
        self._n_in_vain = 0
        self._unanswered.popleft()

    def settle(self) -> None:
        """Wait until the shard has done everything that it was sent.

        Raises ShardLostError if it cannot be reached, or has forgotten its rows, and what it
        refused.
        """
        with self._lock:
            self._prepare()
            self._await_answers()
            self._raise_refusal()

    def _await_answers(self) -> None:
        """Wait until everything has been answered."""
        while self._unanswered:
            self._take_oldest()

    def _refuse_lost(self) -> None:
        if self._is_closed:
            raise ClosedError("the connection to the shard is closed")
        if self.is_lost:
            raise ShardLostError("the shard is lost: its rows cannot be drawn any more")

    def lose(self, why: str, cause: BaseException | None = None) -> None:
        """Give up the shard; raise ShardLostError."""
        self.is_lost = True
        self.transport.close()
        raise ShardLostError(f"the shard is lost: {why}") from cause

    def _go_on(self, cause: BaseException) -> None:
        """Reach the shard anew, and send again what it has not answered.

        Raises ShardLostError if it is silent, or cannot be reached, or other rows are there.
        """
        self._refuse_lost()
        if isinstance(cause, TimeoutError):
            self.lose(f"it has not answered in {self.patience_seconds:g} seconds", cause)
        end = time.monotonic() + self.patience_seconds
        identity = tuple(self.vitals["identity"])
        pause = FEWEST_SECONDS
        while True:
            try:
                left = max(end - time.monotonic(), FEWEST_SECONDS)
                self.transport.reconnect(left)
                _, service = self._greet(max(end - time.monotonic(), FEWEST_SECONDS))
                if tuple(self.vitals["identity"]) != identity:
                    self.lose("another shard has taken its place, without its rows")
                if service != self._service and self.layout.stacks and self._next:
                    # it does not know which of the rows have come
                    self.lose("who answered for it has died while rows with frames were added")
                self._service = service
                self._line += 1
                self._n_in_vain += 1
                if self._n_in_vain > MOST_RECONNECTS:
                    self.lose(f"it cuts every connection: {cause}", cause)
                self._unanswered = deque(
                    (message, self.transport.send(message)) for message, _ in self._unanswered
                )
                return
            except ShardLostError:
                raise
            except ELSEWHERE as error:
                if time.monotonic() > end:
                    self.lose(f"it cannot be reached: {error}", error)
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_SECONDS)
            except Exception as error:  # it refuses the greeting, so it is another one
                self.lose(f"another one has taken its place: {error}", error)

    def close(self) -> None:
        """Let go of the connection; every later use raises ClosedError."""
        self._is_closed = True
        self.transport.close()


KNOWN: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (ValueError, TypeError, MemoryError, OSError, AssertionError, ShardError)
}
