"""Brings reports from a worker's process to the supervisor, which never waits for their rest.

A report may be larger than what a pipe holds. A worker that is stopped while it sends one would
stop whoever receives with `multiprocessing.Connection.recv`.
"""

from __future__ import annotations

import os
import pickle
import struct
from multiprocessing.connection import Connection
from typing import Any

__all__ = ["Inbox", "send_report"]

LENGTH = struct.Struct("!Q")  # of the pickle that follows
CHUNK_BYTES = 1 << 18


def send_report(pipe: Connection, report: Any) -> None:
    """Send a report; wait until the supervisor has taken what the pipe does not hold."""
    content = pickle.dumps(report)
    rest = memoryview(LENGTH.pack(len(content)) + content)
    while rest:
        rest = rest[os.write(pipe.fileno(), rest) :]


class Inbox:
    """The supervisor's end of a pipe. Neither reading nor writing there waits any more.

    Parameters
    ----------
    pipe : Connection
        The pipe; whoever made it closes it.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._bytes = pipe, bytearray()
        self.has_ended = False
        """Whether the worker has closed its end; what it was sending then is lost."""
        os.set_blocking(pipe.fileno(), False)

    def take(self) -> list[Any]:
        """Return the reports that have come whole."""
        try:
            while chunk := os.read(self._pipe.fileno(), CHUNK_BYTES):
                self._bytes += chunk
            self.has_ended = True
        except BlockingIOError:
            pass
        except OSError:
            self.has_ended = True
        reports, start = [], 0
        while len(self._bytes) >= start + LENGTH.size:
            begin = start + LENGTH.size
            end = begin + LENGTH.unpack_from(self._bytes, start)[0]
            if len(self._bytes) < end:
                break
            reports.append(pickle.loads(self._bytes[begin:end]))
            start = end
        del self._bytes[:start]
        return reports
