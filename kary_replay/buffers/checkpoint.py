"""Buffers on disk: saved while others go on adding, and as they were when they come back.

All rows are copied while writers go on, then again those that changed meanwhile; only for the last
of them writers wait, and what is saved is that moment's. checkpoint_files.py puts it into a
directory, docs/checkpoints.md describes the files.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..core.storage import Storage
from ..errors import CheckpointError
from ..types import Field
from ..validation import as_count, as_exponent, as_priority_epsilon
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

FORMAT = 2  # 1, of 0.1.0 before its release, has no priorities, but in the ranking
READABLE = (1, 2)
ROWS, MASSES, PRIORITIES, RANKING = "rows.bin", "mass.bin", "priority.bin", "ranking.bin"
COUNTERS = ["n_touched", "n_started", "position", "n_added", "n_sampled"]
WRONG = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What is raised where something saved is not what it should be, by whoever reads it first."""
MAX_ROUNDS = 4  # of copying again what changed, before writers have to wait for the rest

Layout = tuple[int, dict[str, Any], dict[str, Any]]  # capacity, fields, options
Self = TypeVar("Self", bound="Saved")


class Saved:
    """What a buffer has in order to be saved and loaded."""

    _storage: Storage
    _fields: dict[str, Any]
    _options: dict[str, Any]
    _prioritized: bool

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Save everything, for `load`: rows, priorities, generations, counters, settings, the random stream.

        Parameters
        ----------
        directory : path
            Made if it is missing; otherwise empty, or what an earlier save left, which is replaced.

        Raises
        ------
        CheckpointError, NotADirectoryError
            If the directory holds other things, or is a file. Nothing is written then.
        BlockingIOError
            If another thread or process is saving to the directory.
        OSError
            If it cannot be written, or the disk is full. The checkpoint before stays, the new files
            are removed.

        Notes
        -----
        One moment is saved, whatever others do meanwhile; of a shared buffer, any process can save
        it. Writers wait while what they added during the save is copied, samplers do not. The disk
        needs room for both checkpoints. Until the new one is complete and on the disk, the one
        before stays in force, through crashes and power cuts.
        """
        # first, so that a closed buffer makes no directory
        layout = {
            "capacity": self._storage.capacity,
            "row_nbytes": self._storage.row_nbytes,
            "offsets": self._storage.offsets,
        }
        with new_data(Path(os.fsdecode(directory))) as (folder, content):
            content.update(
                format=FORMAT,
                version=VERSION,
                kind=_kind(type(self)),
                byte_order=sys.byteorder,
                fields=_as_json(self._fields),
                options=self._options,
                **layout,
                **_write(self._storage, folder),
            )

    @classmethod
    def load(
        cls: type[Self],
        directory: str | os.PathLike[str],
        shared: bool = False,
        storage_directory: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Return a buffer as it was saved: it goes on drawing what the saved one went on drawing.

        Parameters
        ----------
        directory : path
            What `save` was given.
        shared, storage_directory
            As for the constructor; they need not be what they were.

        Returns
        -------
        ReplayBuffer
            A new one, for which handles from before the save hold.

        Raises
        ------
        CheckpointError
            A ValueError naming the file that is damaged, missing or no regular file (a link, a
            pipe); or the directory holds no checkpoint, or one of another kind of buffer, version
            or byte order. Nothing is created or changed then.
        FileNotFoundError, NotADirectoryError
            If there is no such directory.
        MemoryError, OSError
            As for the constructor.

        Notes
        -----
        Reads each file once, into its place, and verifies it on the way. A save may replace the
        checkpoint meanwhile.
        """
        with _Checkpoint(Path(os.fsdecode(directory)), cls) as checkpoint:
            buffer = cls.__new__(cls)
            try:
                buffer._open(*checkpoint.layout, 0, bool(shared), storage_directory)
            except MemoryError as error:
                path = os.fsdecode(directory)
                raise MemoryError(f"'{path}' cannot be loaded: {error}") from error
            checkpoint.restore(buffer._storage)
        return buffer

    @classmethod
    def _checked_layout(cls, capacity: Any, fields: Any, options: Any) -> Layout:
        """Return what `_open` takes, or raise where a constructor would."""
        raise NotImplementedError

    def _open(
        self,
        capacity: int,
        fields: dict[str, Any],
        options: dict[str, Any],
        seed: int | None,
        shared: bool,
        directory: Any,
    ) -> None:
        """Make the storage of a checked layout."""
        raise NotImplementedError


def _kind(cls: type) -> str:
    """Return which of the package's buffers a class is: checkpoints outlive the names of classes derived from them."""
    package = __name__.partition(".")[0]
    return next(one.__name__ for one in cls.__mro__ if one.__module__.partition(".")[0] == package)


# ------------------------------------------------------------------------------------------- saving


def _write(storage: Storage, folder: Path) -> dict[str, Any]:
    """Write what the storage holds at one moment into a new folder; return what the manifest is to say of it."""
    with contextlib.ExitStack() as close:
        files: dict[str, NewFile] = {}
        files[ROWS] = rows = close.enter_context(_RowsFile(folder / ROWS, storage))
        rows.copy_all()
        state = storage.snapshot(rows.known())
        beta, priority_epsilon = storage.beta, storage.priority_epsilon
        rows.patch(state["changed"], state["rows"])
        for name, key in ((MASSES, "mass"), (PRIORITIES, "priority"), (RANKING, "ranking")):
            if state[key] is not None:
                files[name] = numbers = close.enter_context(NewFile(folder / name, CHUNK_NBYTES))
                numbers.write_all(state[key].view(np.uint8))
        for file in files.values():
            file.sync()
        return {
            **{name: state[name] for name in COUNTERS},
            "alpha": state["alpha"],
            "beta": beta,
            "priority_epsilon": priority_epsilon,
            "max_priority": state["max_priority"],
            "random": list(state["random"]),
            "files": {name: file.summary() for name, file in files.items()},
        }


class _RowsFile(NewFile):
    """The rows of a storage, written from the first to the last, and then again where they changed.

    A row copied without protection may be torn; its generation then differs from the one that the
    storage has later.
    """

    def __init__(self, path: Path, storage: Storage) -> None:
        self._per_chunk = max(1, CHUNK_NBYTES // storage.row_nbytes)
        super().__init__(path, self._per_chunk * storage.row_nbytes)
        self._storage, self._row_nbytes = storage, storage.row_nbytes
        self._scratch = np.empty(
            min(self._per_chunk, storage.capacity) * storage.row_nbytes, np.uint8
        )
        self._generations = np.zeros(storage.capacity, np.uint64)

    def known(self) -> npt.NDArray[np.uint64]:
        """Return the generations of the rows in the file."""
        return self._generations[: self._n_rows()]

    def copy_all(self) -> None:
        """Copy all rows, and again what others wrote meanwhile, until that is little or hardly becomes less."""
        n_rows = n_before = self._storage.n_touched
        for first in range(0, n_rows, self._per_chunk):
            self._replace(np.arange(first, min(first + self._per_chunk, n_rows)), None)
        for _ in range(MAX_ROUNDS):
            changed = self._storage.changed(self.known())
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
        """Write these slots' rows, ascending: the given ones or, unprotected, what the storage holds now."""
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
                    self._storage.copy_rows(first + start, table[start:stop].reshape(-1))
            self.write(number, chunk)
            self._generations[first : first + n] = chunk.view(np.uint64).reshape(n, -1)[:, 0]


def _parts(values: npt.NDArray[Any], ends: npt.NDArray[np.bool_]) -> Iterator[slice]:
    """Yield the parts of an array that end where ``ends`` [len - 1] says so; none of an empty one."""
    cuts = [0, *(np.flatnonzero(ends) + 1).tolist(), len(values)] if len(values) else []
    for i in range(len(cuts) - 1):
        yield slice(cuts[i], cuts[i + 1])


# ------------------------------------------------------------------------------------------ loading


class _Checkpoint:
    """A saved buffer, checked but for the content of its files. These are open: a save may replace them meanwhile."""

    def __init__(self, folder: Path, cls: type[Saved]) -> None:
        self._folder = folder
        self.content = read_manifest(folder)
        while True:
            try:
                with contextlib.ExitStack() as close:
                    self._check(cls, close)
                    self._close = close.pop_all()
                return
            except FileNotFoundError as error:
                before, self.content = self.content, read_manifest(folder)
                if self.content == before:  # else a save has just replaced the files
                    raise CheckpointError(
                        f"'{error.filename}' is missing, which '{folder / MANIFEST}' names"
                    ) from None

    def __enter__(self) -> _Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()

    def restore(self, storage: Storage) -> None:
        """Read everything, verified, into a new storage of the same capacity and fields."""
        content = self.content
        with self._named():
            if storage.offsets != content["offsets"]:
                raise CheckpointError(
                    f"'{self._folder}' was saved by kary-replay {content['version']}, which lays rows out differently: load it "
                    "with that version"
                )
            numbers: dict[str, Any] = {"mass": None, "priority": None, "ranking": None}
            if storage.tree is not None:
                for name, key in ((MASSES, "mass"), (PRIORITIES, "priority"), (RANKING, "ranking")):
                    if name in self._files:
                        numbers[key] = np.empty(content["files"][name]["nbytes"] // 8)
                        self._read(name, numbers[key].view(np.uint8))
                storage.beta = as_exponent("beta", content["beta"])
                storage.priority_epsilon = as_priority_epsilon(content["priority_epsilon"])
            storage.restore({**content, **numbers}, lambda rows: self._read(ROWS, rows))

    def _check(self, cls: type[Saved], close: contextlib.ExitStack) -> None:
        """Check what the manifest says of the layout, and open the files."""
        content, path, kind = self.content, self._folder / MANIFEST, _kind(cls)
        with self._named():
            found_format = as_count("format", content["format"])
            if found_format not in READABLE:
                raise CheckpointError(
                    f"'{path}' was saved by kary-replay {content['version']} in format {content['format']}; version {VERSION} "
                    f"reads formats {' and '.join(map(str, READABLE))}: load it with the version that saved it"
                )
            if content["byte_order"] != sys.byteorder:
                found = content["byte_order"]
                raise CheckpointError(
                    f"'{path}' was saved on a {found}-endian machine, this one is {sys.byteorder}-endian"
                )
            if content["kind"] != kind:
                found = content["kind"]
                raise CheckpointError(
                    f"'{self._folder}' holds a {found}: load it with {found}.load, not with {kind}.load"
                )
            fields, options = _from_json(content["fields"]), content["options"]
            self.layout = cls._checked_layout(content["capacity"], fields, options)
            names = [ROWS, MASSES] if cls._prioritized else [ROWS]
            if cls._prioritized and found_format > 1:
                names.append(PRIORITIES)
            if options.get("prioritization") == "rank":
                names.append(RANKING)
            self._files = open_data(self._folder, content, names, close)

    def _read(self, name: str, into: Bytes) -> None:
        read_data(self._files[name], self.content["files"][name], into)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Raise CheckpointError naming the manifest where what it says cannot be."""
        try:
            yield
        except CheckpointError:
            raise
        except WRONG as error:
            raise CheckpointError(
                f"'{self._folder / MANIFEST}' contradicts itself: {type(error).__name__}: {error}"
            ) from error


def _as_json(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields as JSON can hold them: each a list of shape and dtype, nested ones an object."""
    return {
        name: [list(field.shape), field.dtype.name] if isinstance(field, Field) else _as_json(field)
        for name, field in fields.items()
    }


def _from_json(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of which ``_as_json`` made this, or raise."""
    made: dict[str, Any] = {}
    for name, field in fields.items():
        if isinstance(field, list):
            shape, dtype = field
            made[name] = Field(tuple(shape), dtype)
        else:
            made[name] = _from_json(field)
    return made
