"""How messages get to a shard and its answers back: the protocol, and the one within a process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from .service import ShardService

__all__ = ["LocalTransport", "Pending", "Transport"]


class Pending(Protocol):
    """An answer that is under way."""

    def has_come(self) -> bool:
        """Whether `result` returns, or raises, at once."""

    def result(self, timeout_seconds: float) -> memoryview:
        """Wait for the answer.

        Raises TimeoutError if nothing has come for so long, and ConnectionError, an OSError, if it
        will not come.
        """


class Transport(Protocol):
    """Brings messages to one shard, in order, and its answers back."""

    def send(self, message: Sequence[Any]) -> Pending:
        """Send a message, given as buffers.

        Raises ConnectionError if the shard cannot be reached, and TimeoutError if it takes nothing.
        """

    def reconnect(self, timeout_seconds: float) -> None:
        """Reach the shard anew, or who has taken its place; OSError if nobody can be by then."""

    def close(self) -> None:
        """Let go of the connection."""


class LocalTransport:
    """A shard in this process that is spoken to as if it were far away."""

    def __init__(self, service: ShardService) -> None:
        self._service = service

    def send(self, message: Sequence[Any]) -> _There:
        """Let the shard answer at once."""
        return _There(b"".join(map(bytes, self._service.answer(b"".join(map(bytes, message))))))

    def reconnect(self, timeout_seconds: float) -> None:
        """Do nothing: the shard is here."""

    def close(self) -> None:
        """Do nothing."""


class _There:
    """An answer that has come."""

    def __init__(self, answer: bytes) -> None:
        self._answer = memoryview(answer)

    def has_come(self) -> bool:
        """Say that it has."""
        return True

    def result(self, timeout_seconds: float) -> memoryview:
        """Return it."""
        return self._answer
