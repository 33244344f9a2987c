"""What answers for a shard to those who use it from afar."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from ..buffers.frame_replay_buffer import FrameReplayBuffer
from ..buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from ..core.sharded_reader import ShardedReader
from ..errors import ShardError
from ..fields import Fields
from ..types import HANDLE_DTYPE
from ..version import VERSION
from .layout import HIDDEN, Layout
from .messages import Kind, Message, pack, unpack
from .numbered_rows import NumberedRows
from .vitals import vitals_of

__all__ = ["COMMON", "ShardService", "set_common"]

COMMON = ("alpha", "priority_epsilon", "max_priority")  # settings that all shards have alike
DRAW = ("n_alike", "total", "n_rows", "headroom")  # numbers at the head of a request for rows
RANKED = "shards must not be prioritized by rank: ranks would have to be those among all shards"
FOLDERS = "kary-replay-shard-"
LARGEST_PIECE = 16 << 20  # bytes of a file in one answer
UNREAD_SECONDS = 600.0  # after which whoever was to read what was saved is taken for gone


class ShardService:
    """Answers messages about the rows of one shard, which are in the memory of this machine.

    Parameters
    ----------
    buffer : PrioritizedReplayBuffer or FrameReplayBuffer
        The former made by `ShardService.new_buffer`. Or attached to such a one, whose former
        service has died: this one goes on with the same rows, and, but for rows with frames, knows
        which adds have come.

    Notes
    -----
    Any number of threads may call `answer` at once.

    The rows of a FrameReplayBuffer come from a `FrameStackWriter` where the shard is. From afar
    those of a checkpoint are added, whose histories name rows by numbers; see `NumberedRows`.
    """

    def __init__(self, buffer: PrioritizedReplayBuffer) -> None:
        refuse_unfit(buffer, "buffer")
        self.layout = Layout.of(buffer)
        if not self.layout.stacks and not set(HIDDEN) <= set(buffer.fields):
            raise ValueError("buffer must be one that ShardService.new_buffer made")
        self.buffer = buffer
        self._leaves, self._names = self.layout.leaves, self.layout.names
        self.signature = self.layout.text()
        self._reader = ShardedReader([buffer._reader], buffer._reader, len(self._names), None)
        self._drawing = threading.Lock()
        self._adding = threading.Lock()
        self._number = secrets.token_hex(8)  # of this service
        self._next = {} if self.layout.stacks else self._known_sequences()
        self._numbered: dict[int, NumberedRows] = {}  # of those who add rows with frames
        self._saved: dict[str, Path] = {}
        self._read_at: dict[str, float] = {}  # when something of it was read last
        self._answers = {
            Kind.HELLO: self._hello,
            Kind.LOOK: self._look,
            Kind.DRAW: self._draw,
            Kind.ADD: self._add,
            Kind.UPDATE: self._update,
            Kind.SET: self._set,
            Kind.RESET: self._reset,
            Kind.CHECK: self._check,
            Kind.SAVE: self._save,
            Kind.READ: self._read,
            Kind.DROP: self._drop,
        }

    @staticmethod
    def new_buffer(capacity: int, fields: Fields, **options: Any) -> PrioritizedReplayBuffer:
        """Return an empty buffer for a shard; parameters as PrioritizedReplayBuffer has them.

        It has a writer's number and an add's beside the fields. Add to it by
        `kary_replay.ShardedReplayBuffer([buffer]).add`, which fills them in.
        """
        if options.get("prioritization", "proportional") != "proportional":
            raise ValueError(RANKED)
        taken = [name for name in fields if name in HIDDEN]
        if taken:
            raise ValueError(f"fields must not be named {', '.join(taken)}")
        return PrioritizedReplayBuffer(capacity, {**fields, **HIDDEN}, **options)

    def _known_sequences(self) -> dict[int, int]:
        """Return the number of the next row of every writer that has rows here."""
        slots = self.buffer._slots.handles()["index"]
        writer, sequence = (np.asarray(self.buffer.field_view(name))[slots] for name in HIDDEN)
        order = np.lexsort((sequence, writer))
        writer, sequence = writer[order], sequence[order]
        is_last = np.append(writer[1:] != writer[:-1], True)[: len(writer)]
        known = zip(writer[is_last].tolist(), sequence[is_last].tolist(), strict=True)
        return {one: number + 1 for one, number in known}

    def answer(self, request: bytes | bytearray | memoryview) -> list[Any]:
        """Do what a message asks for; return the answer as buffers. It raises nothing."""
        try:
            message = unpack(request)
            if message.kind not in self._answers:
                raise ShardError(f"a shard takes no message of kind {message.kind.name}")
            parts = self._answers[message.kind](message)
            return pack(Kind.DONE, vitals_of(self.buffer._slots), *parts)
        except Exception as error:  # whatever it is, whoever asked must not wait for ever
            return pack(Kind.FAILED, type(error).__name__.encode(), str(error).encode())

    def close(self) -> None:
        """Remove what others have saved here and not fetched; the buffer stays."""
        for name in list(self._saved):
            shutil.rmtree(self._saved.pop(name), ignore_errors=True)

    def _hello(self, message: Message) -> list[Any]:
        """Compare versions and fields, and say which they are here, and who it is that answers."""
        version, signature = message.text(0), message.text(1)
        if version != VERSION:
            raise ShardError(
                f"this shard is of kary-replay {VERSION}, and you of {version[:20]}: "
                "install the same version on all machines"
            )
        if signature and signature != self.signature:
            raise ShardError(
                f"this shard has the fields {self.signature}, and you have {signature[:2000]}"
            )
        return [self.signature.encode(), self._number.encode()]

    def _look(self, message: Message) -> list[Any]:
        """Say nothing but what every answer says."""
        return []

    def _draw(self, message: Message) -> list[Any]:
        """Draw the rows at some points; see `RemoteShard.ask`."""
        n_alike, total, n_rows, headroom = message.array(0, np.float64, (len(DRAW),)).tolist()
        points = message.array(1, np.float64)
        if not 0 <= n_alike <= len(points):
            raise ShardError("a request for rows contradicts itself")
        with self._drawing:
            columns, by_mass, by_count, handles, is_broken = self._reader.serve(
                points, int(n_alike), total, n_rows, headroom
            )
        head = np.array([is_broken], np.int64)
        return [head, by_mass, by_count, handles, *(columns[name] for name in self._names)]

    def _add(self, message: Message) -> list[Any]:
        """Add rows, those excepted that this shard has had before."""
        writer, first, n, has_priority = (int(x) for x in message.array(0, np.uint64, (4,)))
        priority = message.array(1, np.float64, (n,)) if has_priority else None
        columns = {
            name: message.array(2 + i, field.dtype, (n, *field.shape))
            for i, (name, field) in enumerate(zip(self._names, self._leaves, strict=True))
        }
        with self._adding:
            # Numbers that a writer leaves out were here, and have been overwritten since.
            skipped = min(max(self._next.get(writer, 0) - first, 0), n)
            if skipped < n:
                rows = {name: column[skipped:] for name, column in columns.items()}
                given = None if priority is None else priority[skipped:]
                if self.layout.stacks:
                    self._add_numbered(writer, first + skipped, rows, given)
                else:
                    rows["_writer"] = np.full(n - skipped, writer, np.uint64)
                    rows["_sequence"] = np.arange(first + skipped, first + n, dtype=np.uint64)
                    self.buffer._writer.add(rows, given)
                self._next[writer] = first + n
        return []

    def _add_numbered(self, writer: int, first: int, rows: dict[str, Any], priority: Any) -> None:
        """Add rows that name each other by their numbers among those of their writer."""
        numbered = self._numbered.setdefault(writer, NumberedRows(self.buffer))
        if first != len(numbered):
            raise ShardError(
                f"row {first} does not follow on {len(numbered)} rows of its writer: those before "
                "are forgotten, so load the checkpoint anew"
            )
        numbered.add(rows, priority)

    def _update(self, message: Message) -> list[Any]:
        """Set the priorities of rows; say of how many."""
        n = self.buffer.update_priorities(
            message.array(0, HANDLE_DTYPE), message.array(1, np.float64)
        )
        return [np.array([n], np.int64)]

    def _set(self, message: Message) -> list[Any]:
        """Set one of the settings that all shards have in common."""
        name, value = message.text(0), float(message.array(1, np.float64, (1,))[0])
        if name not in COMMON:
            raise ShardError(f"a shard has no setting {name[:40]!r}")
        set_common(self.buffer, name, value)
        return []

    def _reset(self, message: Message) -> list[Any]:
        """Forget all rows. Their writers go on counting where they were."""
        with self._adding:
            self.buffer.reset()
            self._numbered.clear()
        return []

    def _check(self, message: Message) -> list[Any]:
        """Look whether everything in the shard is as it must be."""
        self.buffer.check_invariants()
        return []

    # Checkpoints are saved here, and read from afar, piece by piece.

    def _save(self, message: Message) -> list[Any]:
        """Save the shard; say under which number, the files' names and how many bytes they have."""
        _remove_what_the_dead_have_left()
        self._remove_what_nobody_reads()
        folder = Path(tempfile.mkdtemp(prefix=f"{FOLDERS}{os.getpid()}-"))
        self._saved[folder.name], self._read_at[folder.name] = folder, time.monotonic()
        try:
            self.buffer.save(folder)
        except BaseException as error:
            self._remove(folder.name)
            if isinstance(error, OSError):
                raise OSError(
                    f"on {socket.gethostname()}, in {folder.parent} (TMPDIR names another folder, "
                    f"which needs room for the whole shard): {error}"
                ) from error
            raise
        self._read_at[folder.name] = time.monotonic()
        files = {
            str(path.relative_to(folder)): path.stat().st_size
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        return [folder.name.encode(), json.dumps(files).encode()]

    def _read(self, message: Message) -> list[Any]:
        """Give a piece of a file that was saved."""
        folder, name = self._saved.get(message.text(0)), message.text(1)
        at, n = (int(x) for x in message.array(2, np.int64, (2,)))
        if folder is None:
            raise ShardError("a shard was asked for a file of a save that there is not")
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()) or not path.is_file():
            raise ShardError(f"a shard has saved no file {name[:80]!r}")
        self._read_at[folder.name] = time.monotonic()
        with path.open("rb") as file:
            file.seek(max(at, 0))
            return [file.read(min(max(n, 0), LARGEST_PIECE))]

    def _drop(self, message: Message) -> list[Any]:
        """Remove what was saved."""
        self._remove(message.text(0))
        return []

    def _remove_what_nobody_reads(self) -> None:
        """Remove what was saved for those who were gone before they had read it."""
        now = time.monotonic()
        for name, read_at in list(self._read_at.items()):
            if now - read_at > UNREAD_SECONDS:
                self._remove(name)

    def _remove(self, name: str) -> None:
        folder, _ = self._saved.pop(name, None), self._read_at.pop(name, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_what_the_dead_have_left() -> None:
    """Remove the folders of services whose processes were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        pid = path.name.removeprefix(FOLDERS).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists() and Path("/proc/self").exists():
            shutil.rmtree(path, ignore_errors=True)


def refuse_unfit(buffer: Any, name: str) -> None:
    """Raise TypeError or ValueError if a buffer cannot be a shard."""
    if type(buffer) not in (PrioritizedReplayBuffer, FrameReplayBuffer):
        raise TypeError(
            f"{name} must be of the type PrioritizedReplayBuffer or FrameReplayBuffer, not one "
            f"derived from these, got {type(buffer).__name__}"
        )
    if buffer.prioritization == "rank":
        raise ValueError(RANKED)


def set_common(buffer: PrioritizedReplayBuffer, name: str, value: float) -> None:
    """Set what all shards have in common."""
    if name == "max_priority":
        buffer._slots.raise_max_priority(value)
    else:
        setattr(buffer, name, value)
