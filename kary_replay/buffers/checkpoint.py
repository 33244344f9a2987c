"""Buffers on disk: saved while others go on adding, and loaded as they were.

All rows are copied while writers go on, and those that changed meanwhile are copied again. Writers
wait only for the last of these, and what is saved is that moment's. checkpoint_files.py puts it
into a directory; docs/checkpoints.md describes the files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..core import snapshots
from ..core.slots import PROPORTIONAL, RANKED, UNIFORM, Slots
from ..errors import CheckpointError
from ..fields import map_leaves
from ..types import Field
from ..validation import as_count, as_fraction, as_positive
from ..version import VERSION
from .checkpoint_files import (
    CHUNK_NBYTES,
    MANIFEST,
    Bytes,
    NewFile,
    new_data,
    open_data,
    read_data,
    read_manifest,
)

FORMAT = 2  # 1, of 0.1.0 before its release, has priorities in the ranking alone
READABLE = (1, 2)
ROWS, MASSES, PRIORITIES, RANKING = "rows.bin", "mass.bin", "priority.bin", "ranking.bin"
NUMBERS = {MASSES: "mass", PRIORITIES: "priority", RANKING: "ranking"}  # as snapshots name them
FILES = {
    UNIFORM: [ROWS],
    PROPORTIONAL: [ROWS, MASSES, PRIORITIES],
    RANKED: [ROWS, MASSES, PRIORITIES, RANKING],
}
COUNTERS = ["n_touched", "n_started", "position", "n_added", "n_sampled"]
SETTINGS = ["beta", "priority_epsilon", "uniform_share", "adapts_share"]
WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What reading damaged content may raise."""
MAX_ROUNDS = 4  # of copying again what changed, before writers have to wait for the rest


class Layout(NamedTuple):
    """What slots are made for; checked."""

    capacity: int
    fields: dict[str, Any]
    options: dict[str, Any]
    selection: int


# ------------------------------------------------------------------------------------------- saving


def save(
    slots: Slots,
    directory: str | os.PathLike[str],
    kind: str,
    fields: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Save slots to a directory; see ReplayBuffer.save."""
    with new_data(Path(os.fsdecode(directory))) as (folder, content):
        content.update(
            format=FORMAT,
            version=VERSION,
            kind=kind,
            byte_order=sys.byteorder,
            fields=map_leaves(fields, lambda field: [list(field.shape), field.dtype.name]),
            options=options,
            capacity=slots.capacity,
            row_nbytes=slots.row_nbytes,
            offsets=snapshots.offsets(slots),
            **_write(slots, folder),
        )


def _write(slots: Slots, folder: Path) -> dict[str, Any]:
    """Write what the slots hold at one moment; return what the manifest is to say of it."""
    with contextlib.ExitStack() as close:
        files: dict[str, NewFile] = {}
        files[ROWS] = rows = close.enter_context(_RowsFile(folder / ROWS, slots))
        rows.copy_all()
        state = snapshots.snapshot(slots, rows.known())
        settings = {name: getattr(slots, name) for name in SETTINGS}
        rows.patch(state["changed"], state["rows"])
        for name, key in NUMBERS.items():
            if state[key] is not None:
                files[name] = numbers = close.enter_context(NewFile(folder / name, CHUNK_NBYTES))
                numbers.write_all(state[key].view(np.uint8))
        for file in files.values():
            file.sync()
        return {
            **{name: state[name] for name in COUNTERS},
            "alpha": state["alpha"],
            **settings,
            "max_priority": state["max_priority"],
            "noise": state["noise"],
            "random": list(state["random"]),
            "files": {name: file.summary() for name, file in files.items()},
        }


class _RowsFile(NewFile):
    """The rows of slots, written from the first to the last, and again where they changed.

    A row that is copied without protection may be torn; its generation then differs from the one
    that the slot has later.
    """

    def __init__(self, path: Path, slots: Slots) -> None:
        self._row_nbytes = slots.row_nbytes
        self._per_chunk = max(1, CHUNK_NBYTES // self._row_nbytes)
        super().__init__(path, self._per_chunk * self._row_nbytes)
        self._slots = slots
        n_scratch = min(self._per_chunk, slots.capacity)
        self._scratch = np.empty(n_scratch * self._row_nbytes, np.uint8)
        self._generations = np.zeros(slots.capacity, np.uint64)

    def known(self) -> npt.NDArray[np.uint64]:
        """Return the generations of the rows in the file."""
        return self._generations[: self._n_rows()]

    def copy_all(self) -> None:
        """Copy all rows, and again those that others wrote meanwhile.

        It stops when these are few, or when their number hardly falls any more.
        """
        slots = self._slots
        n_rows = n_before = snapshots.n_touched(slots)
        for first in range(0, n_rows, self._per_chunk):
            self._replace(np.arange(first, min(first + self._per_chunk, n_rows)), None)
        for _ in range(MAX_ROUNDS):
            changed = snapshots.changed(slots, self.known())
            if len(changed) * self._row_nbytes <= CHUNK_NBYTES or len(changed) > n_before // 2:
                break
            self._replace(changed, None)
            n_before = len(changed)

    def patch(self, slots: npt.NDArray[np.int64], rows: Bytes) -> None:
        """Put rows that were copied elsewhere into these slots, ascending."""
        self._replace(slots, rows.reshape(len(slots), self._row_nbytes))

    def _n_rows(self) -> int:
        return self.nbytes // self._row_nbytes

    def _replace(self, slots: npt.NDArray[np.int64], rows: Bytes | None) -> None:
        """Write these slots' rows, ascending: the given ones, or what is there now.

        The latter are copied without protection.
        """
        for part in _parts(slots, np.diff(slots // self._per_chunk) != 0):
            number = int(slots[part.start]) // self._per_chunk
            first = number * self._per_chunk
            within = slots[part] - first
            n_there = min(max(self._n_rows() - first, 0), self._per_chunk)
            n = max(n_there, int(within[-1]) + 1)
            chunk = self._scratch[: n * self._row_nbytes]
            table = chunk.reshape(n, self._row_nbytes)
            if n_there and len(within) < n:
                self.read(number, chunk[: n_there * self._row_nbytes])
            if rows is not None:
                table[within] = rows[part]
            else:
                for run in _parts(within, np.diff(within) != 1):
                    start, stop = int(within[run.start]), int(within[run.stop - 1]) + 1
                    snapshots.copy_rows(self._slots, first + start, table[start:stop].reshape(-1))
            self.write(number, chunk)
            self._generations[first : first + n] = chunk.view(np.uint64).reshape(n, -1)[:, 0]


def _parts(values: npt.NDArray[Any], ends: npt.NDArray[np.bool_]) -> Iterator[slice]:
    """Yield the parts of an array that end where ``ends`` [len - 1] is true, if it is not empty."""
    cuts = [0, *(np.flatnonzero(ends) + 1).tolist(), len(values)] if len(values) else []
    for i in range(len(cuts) - 1):
        yield slice(cuts[i], cuts[i + 1])


# ------------------------------------------------------------------------------------------ loading


class Checkpoint:
    """A saved buffer of some kind, checked but for the content of its files.

    The files are open, so that a save may replace them meanwhile. ``checked_layout`` turns the
    capacity, fields and options of the manifest into a layout, or raises.
    """

    def __init__(
        self, folder: Path, kind: str, checked_layout: Callable[[Any, Any, Any], Layout]
    ) -> None:
        self._folder = folder
        self.content = read_manifest(folder)
        while True:
            try:
                with contextlib.ExitStack() as close:
                    self._check(kind, checked_layout, close)
                    self._close = close.pop_all()
                return
            except FileNotFoundError as error:
                before, self.content = self.content, read_manifest(folder)
                if self.content == before:  # else a save has just replaced the files
                    raise CheckpointError(
                        f"'{error.filename}' is missing, which '{folder / MANIFEST}' names"
                    ) from None

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()

    def restore(self, slots: Slots) -> None:
        """Read everything, verified, into new slots of the same capacity and fields."""
        content = self.content
        with named(self._folder / MANIFEST):
            if snapshots.offsets(slots) != content["offsets"]:
                raise CheckpointError(
                    f"'{self._folder}' was saved by kary-replay {content['version']}, which lays "
                    "rows out differently: load it with that version"
                )
            numbers: dict[str, Any] = dict.fromkeys(NUMBERS.values())
            for name in [name for name in NUMBERS if name in self._files]:
                array = np.empty(content["files"][name]["nbytes"] // 8)
                self._read(name, array.view(np.uint8))
                numbers[NUMBERS[name]] = array
            if self.layout.selection != UNIFORM:
                slots.beta = as_fraction("beta", content["beta"])
                slots.priority_epsilon = as_positive(
                    "priority_epsilon", content["priority_epsilon"]
                )
                # older checkpoints have none
                share = as_fraction("uniform_share", content.get("uniform_share", 0.0))
                slots.set_share(share, bool(content.get("adapts_share", False)))
            read_rows = functools.partial(self._read, ROWS)
            snapshots.restore(slots, {**content, **numbers}, read_rows)

    def _check(
        self,
        kind: str,
        checked_layout: Callable[[Any, Any, Any], Layout],
        close: contextlib.ExitStack,
    ) -> None:
        """Check what the manifest says of the layout, and open the files."""
        content, path = self.content, self._folder / MANIFEST
        with named(path):
            found_format, version = as_count("format", content["format"]), content["version"]
            if found_format not in READABLE:
                raise CheckpointError(
                    f"'{path}' was saved by kary-replay {version} in format {content['format']}; "
                    f"version {VERSION} reads formats {' and '.join(map(str, READABLE))}: "
                    "load it with the version that saved it"
                )
            found = content["byte_order"]
            if found != sys.byteorder:
                raise CheckpointError(
                    f"'{path}' was saved on a {found}-endian machine, "
                    f"this one is {sys.byteorder}-endian"
                )
            found = content["kind"]
            if found != kind:
                raise CheckpointError(
                    f"'{self._folder}' holds a {found}: "
                    f"load it with {found}.load, not with {kind}.load"
                )
            fields = map_leaves(content["fields"], lambda leaf: Field(tuple(leaf[0]), *leaf[1:]))
            self.layout = checked_layout(content["capacity"], fields, content["options"])
            names = FILES[self.layout.selection]
            if found_format == 1:
                names = [name for name in names if name != PRIORITIES]
            self._files = open_data(self._folder, content, names, close)

    def _read(self, name: str, into: Bytes) -> None:
        read_data(self._files[name], self.content["files"][name], into)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Raise CheckpointError naming the manifest ``path`` where what it says cannot be."""
    try:
        yield
    except CheckpointError:
        raise
    except WRONG as error:
        raise CheckpointError(
            f"'{path}' contradicts itself: {type(error).__name__}: {error}"
        ) from error
