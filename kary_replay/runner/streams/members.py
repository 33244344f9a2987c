"""Where the parts of a stream answer that are on other machines, and connections to them."""

from __future__ import annotations

import json
import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ...errors import ShardError
from ...shards import ShardServer, SocketTransport
from ..background import in_background
from .stream import Numbers

__all__ = ["LOST_SECONDS", "PATIENCE_SECONDS", "Connections", "MemberAnswerer", "Members"]

PATIENCE_SECONDS = 3.0  # with another machine that does not answer, before one goes on without it
LOST_SECONDS = 30.0  # the same, before it has no part in the run any more
LONGEST_WAIT_SECONDS = 60.0  # between two tries to reach it
LOG = logging.getLogger("kary_replay")
Address = tuple[str, int]


class Members:
    """Where the other parts of a stream answer; picklable to the workers of this machine.

    Parameters
    ----------
    version : Numbers [1]
        How often that has changed.
    path : Path
        The file that has it, in a folder of this user alone.
    token : bytes
        By which the parts know whom to answer.
    """

    def __init__(self, version: Numbers, path: Path, token: bytes) -> None:
        self._version, self._path, self._token = version, path, token

    @property
    def version(self) -> float:
        """A number that is another one after every change."""
        return float(self._version.array[0])

    def write(self, addresses: Mapping[int, Address]) -> None:
        """Say where parts answer, by their numbers."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({str(number): where for number, where in addresses.items()}))
        os.replace(new, self._path)
        self._version.array[0] += 1

    def read(self) -> dict[int, Address]:
        """Return where they are."""
        if not self.version:
            return {}
        content = json.loads(self._path.read_text())
        return {int(number): (host, port) for number, (host, port) in content.items()}

    def connect(self, address: Address) -> SocketTransport:
        """Return a connection to a part; ConnectionError if it does not answer."""
        return SocketTransport(address, self._token, PATIENCE_SECONDS)


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """Let go of it."""


Connection = TypeVar("Connection", bound=Closable)


class Connections(Generic[Connection]):
    """Connections to the other parts, as these come and go; nobody waits for one.

    Parameters
    ----------
    members : Members
        Where the parts answer.
    reach : function of an address
        Returns a connection; OSError or ShardError if there is none. A thread calls it.
    retry_seconds : float
        Between two tries to reach a part; longer for one that is lost again and again.
    what : str
        What is reached, as messages name it.
    """

    def __init__(
        self,
        members: Members,
        reach: Callable[[Address], Connection],
        retry_seconds: float,
        what: str,
    ) -> None:
        self._members, self._reach = members, reach
        self._retry_seconds, self._what = retry_seconds, what
        self._version = -1.0  # of what is known of the members
        self._there: dict[int, Address] = {}
        self._reached: set[int] = set()
        self._coming: dict[int, Future[Connection]] = {}
        self._not_before: dict[int, float] = {}  # when parts may be reached again
        self._waits: dict[int, float] = {}  # of parts that were lost: how long, the last time
        self._is_known: set[int] = set()  # that they are not reached

    @property
    def n_missing(self) -> int:
        """How many parts are there that are not reached."""
        return len(self._there) - len(self._reached)

    def changes(self) -> tuple[dict[int, Connection], list[int]]:
        """Return new connections, by the numbers of the parts, and which parts have gone.

        The caller closes what was a connection to one of these.
        """
        version = self._members.version
        if version == self._version and not self.n_missing and not self._coming:
            return {}, []
        if version != self._version:
            self._version, self._there = version, self._members.read()
        gone = sorted(self._reached - set(self._there))
        self._reached.difference_update(gone)
        now = time.monotonic()
        for number, address in self._there.items():
            is_wanted = number not in self._reached and number not in self._coming
            if is_wanted and now >= self._not_before.get(number, 0.0):
                self._coming[number] = in_background(partial(self._reach, address))
        come: dict[int, Connection] = {}
        for number, future in list(self._coming.items()):
            if future.done():
                del self._coming[number]
                self._take_in(come, number, future)
        self._reached.update(come)
        return come, gone

    def lost(self, number: int) -> None:
        """Try again later to reach a part; the caller has closed the connection that failed.

        Whoever waited for it in vain may do so every time, where a machine is too slow for its
        part; twice as long as the last time, until it has been there for long.
        """
        self._reached.discard(number)
        now = time.monotonic()
        if now - self._not_before.get(number, 0.0) > LONGEST_WAIT_SECONDS:
            self._waits.pop(number, None)
        wait = self._waits.get(number, self._retry_seconds / 2) * 2
        self._waits[number] = min(wait, LONGEST_WAIT_SECONDS)
        self._not_before[number] = now + self._waits[number]

    def _take_in(
        self, come: dict[int, Connection], number: int, future: Future[Connection]
    ) -> None:
        """Use a connection that was made, unless the part has gone; try again if none was."""
        try:
            connection = future.result()
        except (OSError, ShardError) as error:
            self._not_before[number] = time.monotonic() + self._retry_seconds
            level = logging.DEBUG if number in self._is_known else logging.WARNING
            LOG.log(level, "the learner does not reach %s %d: %s", self._what, number, error)
            self._is_known.add(number)
            return
        self._is_known.discard(number)
        if number in self._there:
            come[number] = connection
        else:
            connection.close()


class MemberAnswerer(ABC):
    """Answers the other parts for what a stream has on this machine.

    Parameters
    ----------
    token : bytes
        By which the parts know whom to answer.
    """

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._server: ShardServer | None = None

    @abstractmethod
    def service(self) -> Any:
        """Return what answers messages, in the process that does."""

    @abstractmethod
    def greet(self, transport: SocketTransport) -> None:
        """Wait for an answer; OSError if none comes within the patience."""

    def serve(self, host: str, port: int) -> Address:
        """Answer from now on; return the address."""
        self._server = ShardServer(self.service(), self._token, host, port)
        return self._server.address

    def is_answering(self, address: Address) -> bool:
        """Return whether whoever is to answer at an address does so within the patience."""
        try:
            transport = SocketTransport(address, self._token, PATIENCE_SECONDS)
            try:
                self.greet(transport)
            finally:
                transport.close()
        except Exception:  # what it answers may be wrong in any way
            return False
        return True
