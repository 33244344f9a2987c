"""The uniform replay buffer, and what the prioritized one shares with it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from ..core import shared_memory, snapshots
from ..core.reader import Reader
from ..core.slots import UNIFORM, Slots
from ..core.writer import Writer
from ..errors import AttachError, ClosedError, FieldError
from ..fields import (
    Fields,
    checked_fields,
    fields_of_space,
    leaves_of,
    look_up,
    map_leaves,
    missing,
    names_of,
    refuse_unknown,
)
from ..types import Batch, Field
from ..validation import as_count
from ..version import VERSION
from .checkpoint import WRONG, Checkpoint, Layout, save

__all__ = ["ReplayBuffer"]

Self = TypeVar("Self", bound="ReplayBuffer")

RESERVED = ("index", "handle", "importance_weight", "priority", "keys")
FORMAT, READABLE = 2, (1, 2)  # of pickles; 1 has masses, and no priorities
MAX_CAPACITY = 1 << 40


class ReplayBuffer:
    """A ring of transitions from which batches are drawn uniformly.

    Parameters
    ----------
    capacity : int
        Transitions kept, at least 1; then the oldest is overwritten.
    fields : mapping of str to Field
        What a transition consists of; a value may again be such a mapping (a dict observation). The
        names index, handle, importance_weight, priority and keys are taken.
    seed : None or int
        Of this buffer's own random stream; None seeds it from the system.
    shared : bool
        True: other processes may `attach`, by `descriptor`, and use the buffer at the same time.
        Linux only.
    storage_directory : path, optional
        Keep everything in a file in this directory, for buffers larger than memory. The file has no
        name, and is gone when the buffer is.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range or of the wrong kind.
    MemoryError
        If the system refuses so much memory (or space in the directory), about ``capacity`` times
        the bytes of a transition plus 8. A shared buffer reserves it; of another one, systems often
        promise more than they have.
    OSError
        If storage_directory is missing, or nothing may be written there.

    Notes
    -----
    Any number of threads may ``add`` and ``sample`` at once: no row is ever torn, and none is drawn
    before it is complete. docs/concurrency.md states what is promised and what is not.

    Examples
    --------
    >>> import kary_replay as kr
    >>> fields = {"observation": kr.Field((2,), "float32"), "reward": kr.Field((), "float32")}
    >>> buffer = kr.ReplayBuffer(100, fields, seed=0)
    >>> buffer.add(observation=[[0, 1], [2, 3]], reward=[0.5, 1.0])
    array([0, 1])
    >>> buffer.sample(4)
    Batch(observation=float32[4, 2], reward=float32[4], index=int64[4], handle=[('index', '<i8'),
    ('generation', '<u8')][4])
    """

    _options: dict[str, Any] = {}  # noqa: RUF012  # never changed; what a subclass needs to know

    def __init__(
        self,
        capacity: int,
        fields: Fields,
        seed: int | None = None,
        shared: bool = False,
        storage_directory: str | os.PathLike[str] | None = None,
    ) -> None:
        layout = self._checked_layout(capacity, fields, self._options)
        self._open(layout, seed, bool(shared), storage_directory)

    @classmethod
    def _checked_layout(cls, capacity: Any, fields: Any, options: Any) -> Layout:
        """Return the layout of such a buffer, or raise where a constructor would.

        What a checkpoint, a pickle or a descriptor says goes through here before anything is made
        of it.
        """
        count = as_count("capacity", capacity, MAX_CAPACITY)
        checked = checked_fields(fields, "fields")
        taken = [name for name in checked if name in RESERVED]
        if taken:
            reserved = ", ".join(RESERVED)
            raise ValueError(f"fields must not be named {reserved}, got {', '.join(taken)}")
        names_of([path for path, _ in leaves_of(checked)])  # raises where two have one name
        if not isinstance(options, Mapping):
            raise TypeError(f"options must be a mapping, got {options!r}")
        found = cls._checked_options(count, checked, dict(options))
        return Layout(count, checked, found, cls._selection(found))

    @classmethod
    def _checked_options(
        cls, capacity: int, fields: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the options, or raise where buffers of this kind do not have such ones."""
        if options:
            raise ValueError(f"options must be empty, got {options!r}")
        return options

    @classmethod
    def _selection(cls, options: dict[str, Any]) -> int:
        """Return how a buffer with these options selects rows."""
        return UNIFORM

    def _new_reader(self) -> Reader:
        """Return what draws rows out of the slots, and copies them."""
        return Reader(self._slots)

    def _open(
        self,
        layout: Layout,
        seed: int | None,
        shared: bool = False,
        directory: str | os.PathLike[str] | None = None,
        file: int = -1,
    ) -> None:
        """Make the slots of a checked layout, or attach to ``file``, which the slots close."""
        self._fields, self._options = layout.fields, layout.options
        paths, leaves = map(list, zip(*leaves_of(self._fields), strict=True))
        self._paths: list[tuple[str, ...]] = paths
        self._names = names_of(paths)
        self._nested = any(len(path) > 1 for path in paths)
        # of the fields, for draws that end after `close`
        self._nesting = map_leaves(self._fields, lambda field: None)
        self._shared = shared
        self._slots = Slots(
            layout.capacity, self._names, leaves, layout.selection, seed, shared, directory, file
        )
        weights = () if self._slots.tree is None else ("importance_weight",)
        self._own_columns = (*weights, "index", "handle")  # of a batch, beside the fields
        self._columns = {*self._names, *self._own_columns}
        self._reader = self._new_reader()
        self._writer = Writer(self._slots)

    @classmethod
    def from_spaces(
        cls: type[Self],
        capacity: int,
        observation_space: Any,
        action_space: Any,
        *,
        extra_fields: Fields | None = None,
        **kwargs: Any,
    ) -> Self:
        """Return a buffer for the transitions of a gymnasium environment.

        Parameters
        ----------
        capacity : int
            Transitions kept.
        observation_space, action_space : gymnasium.Space
            Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these, nested as you like.
        extra_fields : mapping of str to Field, optional
            Further fields, such as ``truncated``.
        **kwargs
            For the constructor.

        Returns
        -------
        ReplayBuffer
            With the fields observation, action, reward (float32), next_observation, terminated
            (bool) and the extra ones.

        Raises
        ------
        TypeError
            For a space without a fixed shape and dtype.
        """
        observation = fields_of_space(observation_space, "observation_space")
        fields = {
            "observation": observation,
            "action": fields_of_space(action_space, "action_space"),
            "reward": Field((), np.float32),
            "next_observation": observation,
            "terminated": Field((), np.bool_),
            **(extra_fields or {}),
        }
        return cls(capacity, fields, **kwargs)

    @classmethod
    def attach(cls: type[Self], descriptor: shared_memory.Descriptor) -> Self:
        """Return a shared buffer of another process, to use at the same time.

        Parameters
        ----------
        descriptor : Descriptor
            ``buffer.descriptor``, pickled here by whatever means.

        Returns
        -------
        ReplayBuffer
            Another view of the same rows, priorities, beta and random stream. It stays when the
            process that made the descriptor ends.

        Raises
        ------
        AttachError
            An OSError: that process has ended or closed its buffer; the descriptor comes from
            another machine, container or version; or 512 processes use the buffer. Nothing is
            created or changed then.
        TypeError
            If it is no descriptor, or one of another kind of buffer.

        Notes
        -----
        Costs what mapping memory costs; no data are copied.
        """
        shared_memory.check(descriptor)
        if descriptor.kind != cls.__name__:
            raise TypeError(
                f"descriptor must be of a {cls.__name__}, got one of a {descriptor.kind}"
            )
        layout = cls._checked_layout(descriptor.capacity, descriptor.fields, descriptor.options)
        buffer = cls.__new__(cls)
        buffer._open(layout, seed=0, shared=True, file=shared_memory.open_of(descriptor))
        if buffer._slots.block.token != descriptor.token:
            raise AttachError(
                f"process {descriptor.pid} has closed the buffer and opened another one since"
            )
        return buffer

    @property
    def descriptor(self) -> shared_memory.Descriptor:
        """What other processes `attach` to, a small object that can be pickled.

        It is good for as long as this process keeps the buffer. ValueError if the buffer is not
        shared.
        """
        block = self._slots.block
        if not self._shared:
            raise ValueError("descriptor: this buffer is not shared; make it with shared=True")
        kind = type(self).__name__
        return shared_memory.describe(
            kind, self.capacity, self._fields, block.nbytes, block.token, block.file, self._options
        )

    def close(self) -> None:
        """Let go of the memory; every later use raises ClosedError, a ValueError.

        Closing twice is no error. Arrays from `sample` stay, and those of `field_view` keep the
        memory until they are gone, too. Other processes go on: the memory of a shared buffer is
        freed when the last process has closed it or has ended, by a crash or otherwise.
        """
        closed: Any = _Closed()
        self._slots = self._reader = self._writer = self._fields = self._options = closed

    def __enter__(self: Self) -> Self:
        len(self)  # refuses a closed one
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def capacity(self) -> int:
        """Transitions kept."""
        return self._slots.capacity

    @property
    def n_added(self) -> int:
        """Transitions ever added by all threads and processes; resets and pickles keep it."""
        return self._slots.n_added

    @property
    def n_sampled(self) -> int:
        """Transitions ever drawn, by all threads and processes."""
        return self._slots.n_sampled

    @property
    def fields(self) -> dict[str, Any]:
        """The fields, nested as given."""
        return {name: map_leaves(part, lambda field: field) for name, part in self._fields.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of everything the buffer keeps."""
        return self._slots.block.nbytes

    @property
    def nbytes_overhead(self) -> int:
        """Bytes beyond the transitions themselves: tree, generations, padding, header."""
        return self.nbytes - self.capacity * self._slots.payload_nbytes

    def __len__(self) -> int:
        """Return the number of rows that can be drawn now, without those being overwritten."""
        return len(self._slots)

    def __repr__(self) -> str:
        if isinstance(self._slots, _Closed):
            return f"{type(self).__name__}(closed)"
        what = f"capacity={self.capacity}, len={len(self)}, fields={list(self._fields)}"
        return f"{type(self).__name__}({what})"

    def add(self, /, **fields: Any) -> npt.NDArray[np.int64]:
        """Append one transition, or B of them.

        Parameters
        ----------
        **fields
            Every field of the buffer by name, in its own shape (one transition) or with a leading
            axis B. A nested field takes a mapping. Values are cast where that is safe: floats to
            the field's precision, integers where every value fits, also into floats.

        Returns
        -------
        int64 [B]
            The slots written: 0, 1, 2, … and around again. B may exceed the capacity; the last rows
            remain then.

        Raises
        ------
        FieldError
            If a field is missing or unknown, has another shape, or cannot be cast safely. No row of
            the batch is written then.

        Notes
        -----
        O(B · bytes of a row), with the GIL released. The rows are copied holding no lock; another
        thread's ``sample`` draws each of them whole or not at all. A slot that a slower thread is
        still writing is skipped.
        """
        return self._writer.add(self._by_leaf(fields) if self._nested else fields)

    def sample(
        self, batch_size: int, *, unique: bool = False, out: Batch | Mapping[str, Any] | None = None
    ) -> Batch:
        """Draw ``batch_size`` rows uniformly and independently, with replacement.

        Parameters
        ----------
        batch_size : int
            B, at least 1.
        unique : bool
            True: without replacement, no row twice in the batch.
        out : Batch or mapping, optional
            Where the batch goes: a former batch of that size, or arrays by the names that its
            columns have, nested likewise; what is not there is made. It spares the system the work
            of finding fresh memory for large rows, and fills pinned memory. No two arrays may
            overlap, and no other thread may use them meanwhile.

        Returns
        -------
        Batch
            The fields with a leading axis B, ``index`` and ``handle``.

        Raises
        ------
        EmptyBufferError
            If there is no row.
        ValueError, TypeError
            If batch_size is not an integer of at least 1, or more than there are rows and
            ``unique`` is set; if an array of ``out`` has another shape or dtype, is not contiguous
            or read-only (nothing is drawn then, nor written).
        FieldError
            If ``out`` names what the batch does not have.

        Notes
        -----
        O(B · bytes of a row), with the GIL released and no lock. A row that another thread
        overwrites during the copy is drawn again.
        """
        reader = self._reader  # refuses a closed buffer, whatever it was given
        given = None if out is None else self._arrays_of(out)
        return self._batch(reader.sample(batch_size, False, unique, given))

    def take(self, index: npt.ArrayLike) -> Batch:
        """Return the rows of slots of your choice, as `sample` would return them.

        Parameters
        ----------
        index : array of int [B]
            Slots, such as `add` returned; one may come twice.

        Returns
        -------
        Batch
            As from `sample`, and counted in `n_sampled`. Importance weights, and the noise that a
            prioritized buffer learns from TD errors, are right if rows are chosen with the
            probabilities with which `sample` would draw them.

        Raises
        ------
        IndexRangeError
            An IndexError and a ValueError: a slot is out of range, or has no row that can be drawn.
        ValueError, TypeError
            If index is not one-dimensional, has no or no integer values.

        Notes
        -----
        O(B · bytes of a row), with the GIL released and, as a rule, no lock. Of a row that another
        thread overwrites meanwhile you get the new one: this waits for it, and does not answer
        Ctrl-C while it does.

        Examples
        --------
        >>> import kary_replay as kr
        >>> buffer = kr.ReplayBuffer(4, {"reward": kr.Field((), "float32")})
        >>> slots = buffer.add(reward=[0.5, 1.0, 1.5])
        >>> buffer.take(slots[[2, 0]]).reward
        array([1.5, 0.5], dtype=float32)
        """
        return self._batch(self._reader.take(index))

    def field_view(self, name: str) -> Any:
        """Return a view of one field of all slots, for adapters and for looking inside.

        Parameters
        ----------
        name : str
            A field.

        Returns
        -------
        array [capacity, ...] or dict of them
            Writable and strided. Slots that hold no row have any content.

        Raises
        ------
        FieldError
            If there is no such field.

        Notes
        -----
        No other thread may add or sample while you read or write through the view, for nothing
        protects what it shows.
        """
        if name not in self._fields:
            raise FieldError(f"name must be one of {', '.join(self._fields)}, got {name!r}")
        slots = self._slots
        views = iter([slots.view(i) for i, path in enumerate(self._paths) if path[0] == name])
        return map_leaves(self._fields[name], lambda _: next(views))

    def reset(self) -> None:
        """Forget all rows; handles handed out before stay stale for ever.

        It waits for threads that are adding. O(capacity).
        """
        self._slots.reset()

    def check_invariants(self) -> None:
        """Raise AssertionError naming the first broken invariant, I1 … I6 of docs/concurrency.md.

        It waits for threads that are adding, and they wait for it. O(capacity).
        """
        len(self)  # refuses a closed one
        snapshots.check_invariants(self._slots)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Save everything for `load`: rows, priorities, settings, counters, the random stream.

        Parameters
        ----------
        directory : path
            Made if it is missing; otherwise it must be empty, or hold what an earlier save left,
            which is replaced.

        Raises
        ------
        CheckpointError, NotADirectoryError
            If the directory holds other things, or is a file. Nothing is written then.
        BlockingIOError
            If another thread or process is saving to the directory.
        OSError
            If it cannot be written, or the disk is full. The checkpoint before stays, and the new
            files are removed.

        Notes
        -----
        One moment is saved, whatever others do meanwhile; of a shared buffer, any process can save
        it. Writers wait while the last of what they changed during the save is copied; samplers do
        not wait. The disk needs room for both checkpoints. Until the new one is complete and on the
        disk, the one before stays in force, through crashes and power cuts.
        """
        len(self)  # refuses a closed one, which makes no directory
        save(self._slots, directory, _kind(type(self)), self._fields, self._options)

    @classmethod
    def load(
        cls: type[Self],
        directory: str | os.PathLike[str],
        shared: bool = False,
        storage_directory: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Return a buffer as it was saved; it goes on with the draws of the saved one.

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
        It reads each file once, into its place, and verifies it on the way. A save may replace the
        checkpoint meanwhile.
        """
        folder = Path(os.fsdecode(directory))
        with Checkpoint(folder, _kind(cls), cls._checked_layout) as checkpoint:
            buffer = cls.__new__(cls)
            try:
                buffer._open(checkpoint.layout, 0, bool(shared), storage_directory)
            except MemoryError as error:
                raise MemoryError(f"'{folder}' cannot be loaded: {error}") from error
            checkpoint.restore(buffer._slots)
        return buffer

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._shared:
            from multiprocessing.context import get_spawning_popen  # here, as it is slow to import

            # for a process that is to work with this buffer, not with a copy
            if get_spawning_popen() is not None:
                return type(self).attach, (self.descriptor,)
        return super().__reduce_ex__(protocol)

    def __getstate__(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "fields": self._fields,
            "capacity": self.capacity,
            "storage": snapshots.snapshot(self._slots),
            "options": self._options,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        with _named():
            found = as_count("format", state["format"])
        if found not in READABLE:
            saved = f"kary-replay {state.get('version', '?')} in format {found}"
            known = f"version {VERSION} reads formats {' and '.join(map(str, READABLE))}"
            raise ValueError(
                f"this pickle was saved by {saved}; {known}: load it with the version that saved it"
            )
        with _named():
            layout = self._checked_layout(state["capacity"], state["fields"], state["options"])
            self._open(layout, seed=0)
            if found == 1:
                state = {**state, "storage": {"priority": None, **state["storage"]}}
            self._restore(state)

    def _restore(self, state: dict[str, Any]) -> None:
        """Take over what ``__getstate__`` returned; the slots are there, and new."""
        snapshots.restore(self._slots, state["storage"])

    def _by_leaf(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the values of nested fields by the names of the leaves."""
        refuse_unknown(fields, self._fields)
        try:
            return {
                name: look_up(fields, path)
                for name, path in zip(self._names, self._paths, strict=True)
            }
        except KeyError as error:
            raise missing(error.args[0]) from None

    def _arrays_of(self, out: Batch | Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays of a batch to be filled, by the names of the leaves."""
        if not isinstance(out, (Batch, Mapping)):
            raise TypeError(f"out must be a batch or a mapping, got {type(out).__name__}")
        fields = vars(out) if isinstance(out, Batch) else dict(out)
        if not self._nested and self._columns.issuperset(fields):
            return fields
        fields = dict(fields)
        arrays = {name: fields.pop(name) for name in self._own_columns if name in fields}
        refuse_unknown(fields, self._fields)
        for name, path in zip(self._names, self._paths, strict=True):
            try:
                arrays[name] = look_up(fields, path)
            except KeyError:  # made anew
                continue
        return arrays

    def _batch(self, columns: dict[str, Any]) -> Batch:
        """Return what the reader drew, nested like the fields."""
        if self._nested:
            drawn = iter([columns.pop(name) for name in self._names])
            columns = {**map_leaves(self._nesting, lambda _: next(drawn)), **columns}
        return Batch(columns)


def _kind(cls: type) -> str:
    """Return which of the package's buffers a class is.

    A checkpoint names that kind, for it outlives the names of classes derived from the buffers.
    """
    package = __name__.partition(".")[0]
    return next(one.__name__ for one in cls.__mro__ if one.__module__.partition(".")[0] == package)


@contextmanager
def _named() -> Iterator[None]:
    """Raise ValueError where a pickle contradicts itself."""
    try:
        yield
    except WRONG as error:
        what = f"{type(error).__name__}: {error}"
        raise ValueError(f"this pickle is damaged, or of another version: {what}") from error


class _Closed:
    """What stands in for the slots, fields and options of a closed buffer."""

    def _refuse(self, *_: object) -> NoReturn:
        raise ClosedError("the buffer is closed")

    __getattr__ = __setattr__ = __len__ = __iter__ = __contains__ = __getitem__ = _refuse
