"""What shards and those who use them say to each other: bytes of a fixed layout, never pickles.

A message is a head and some arrays. Which arrays a kind of message has, of which dtype, both sides
know: only numbers of bytes travel with them. Nothing that a stranger sends is ever run.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ShardError

__all__ = ["LONGEST", "Kind", "Message", "MessageError", "length_of", "pack", "unpack"]

HEAD = struct.Struct("<4sHHQQ")  # magic, protocol, kind, arrays, bytes after the head
LENGTH = struct.Struct("<Q")
MAGIC, PROTOCOL = b"KRsh", 1
LONGEST = 1 << 34  # bytes of a message
MOST = 4096  # arrays of a message


class MessageError(ShardError):
    """What has come is no message, or not the one that it says it is."""


class Kind(IntEnum):
    """What a message asks for, or answers."""

    HELLO = 1
    DRAW = 2
    ADD = 3
    UPDATE = 4
    SET = 5
    LOOK = 6
    RESET = 7
    CHECK = 8
    SAVE = 9
    READ = 10
    DROP = 11
    TAKE = 12
    PUBLISH = 13
    DONE = 64
    FAILED = 65


class Message(NamedTuple):
    """A message that has come, and its arrays, as bytes."""

    kind: Kind
    parts: list[memoryview]

    def array(self, number: int, dtype: npt.DTypeLike, shape: Sequence[int] = (-1,)) -> Any:
        """Return one of the arrays; MessageError if its bytes are not of that dtype and shape."""
        found = np.dtype(dtype)
        try:
            return np.frombuffer(self.parts[number], found).reshape(shape)
        except (IndexError, ValueError) as error:
            raise MessageError(
                f"part {number} of a {self.kind.name} message is not {found}{list(shape)}: {error}"
            ) from None

    def text(self, number: int) -> str:
        """Return one of the parts, which is text."""
        if number >= len(self.parts):
            raise MessageError(f"a {self.kind.name} message has no part {number}")
        return bytes(self.parts[number]).decode("utf-8", "replace")


def pack(kind: Kind, *arrays: Any) -> list[Any]:
    """Return a message as buffers, to be sent one after the other; large ones are not copied."""
    buffers = [
        memoryview(array) if isinstance(array, (bytes, bytearray)) else _bytes_of(array)
        for array in arrays
    ]
    lengths = [len(buffer) for buffer in buffers]
    n = sum(map(_whole_words, lengths)) + LENGTH.size * len(lengths)
    head = HEAD.pack(MAGIC, PROTOCOL, kind, len(buffers), n)
    message: list[Any] = [head + b"".join(map(LENGTH.pack, lengths))]
    for buffer, length in zip(buffers, lengths, strict=True):
        message.append(buffer)
        if _whole_words(length) != length:
            message.append(bytes(_whole_words(length) - length))
    return message


def _whole_words(nbytes: int) -> int:
    """Return the bytes that a part takes, so that the next one is aligned."""
    return -(-nbytes // 8) * 8


def _bytes_of(array: Any) -> memoryview:
    """Return the bytes of an array in the order of C."""
    data: memoryview = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return data


def length_of(head: bytes | memoryview) -> int:
    """Return how many bytes follow the head of a message; MessageError if it is none."""
    magic, protocol, kind, n_parts, n = HEAD.unpack(head)
    if magic != MAGIC:
        raise MessageError("what came is no message of a shard: is this the address of one?")
    if protocol != PROTOCOL:
        raise MessageError(
            f"the other side speaks protocol {protocol}, this side {PROTOCOL}: "
            "install the same version of kary-replay on all machines"
        )
    if kind not in Kind.__members__.values() or n_parts > MOST or n > LONGEST:
        raise MessageError(f"a message says that it is of kind {kind} and has {n} bytes")
    return int(n)


def unpack(data: bytes | bytearray | memoryview) -> Message:
    """Return the message that some bytes are; MessageError if they are none."""
    whole = memoryview(data).toreadonly()
    if len(whole) < HEAD.size:
        raise MessageError(f"a message of {len(whole)} bytes has been cut off")
    n = length_of(whole[: HEAD.size])
    _, _, kind, n_parts, _ = HEAD.unpack(whole[: HEAD.size])
    if len(whole) != HEAD.size + n or n < n_parts * LENGTH.size:
        raise MessageError(f"a message of {HEAD.size + n} bytes has {len(whole)}")
    at = HEAD.size + n_parts * LENGTH.size
    parts = []
    for (length,) in LENGTH.iter_unpack(whole[HEAD.size : at]):
        parts.append(whole[at : at + length])
        at += _whole_words(length)
    if at != len(whole):
        raise MessageError("the parts of a message do not fill it")
    return Message(Kind(kind), parts)
