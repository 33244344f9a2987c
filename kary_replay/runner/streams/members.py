"""Where the parts of a stream answer that are on other machines."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...shards import ShardServer, SocketTransport
from .stream import Numbers

__all__ = ["PATIENCE_SECONDS", "RETRY_SECONDS", "MemberAnswerer", "Members"]

PATIENCE_SECONDS = 3.0  # with another machine that does not answer, before it counts as lost
RETRY_SECONDS = 5.0  # between two tries to reach one that is said to be there


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

    def write(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """Say where parts answer, by their numbers."""
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({str(number): where for number, where in addresses.items()}))
        os.replace(new, self._path)
        self._version.array[0] += 1

    def read(self) -> dict[int, tuple[str, int]]:
        """Return where they are."""
        if not self.version:
            return {}
        content = json.loads(self._path.read_text())
        return {int(number): (host, port) for number, (host, port) in content.items()}

    def connect(self, address: tuple[str, int]) -> SocketTransport:
        """Return a connection to a part; ConnectionError if it does not answer."""
        return SocketTransport(address, self._token, PATIENCE_SECONDS)


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

    def serve(self, host: str, port: int) -> tuple[str, int]:
        """Answer from now on; return the address."""
        self._server = ShardServer(self.service(), self._token, host, port)
        return self._server.address

    def is_answering(self, address: tuple[str, int]) -> bool:
        """Return whether whoever is to answer at an address does so within the patience."""
        try:
            transport = SocketTransport(address, self._token, PATIENCE_SECONDS)
            try:
                self.greet(transport)
            finally:
                transport.close()
        except OSError:
            return False
        return True
