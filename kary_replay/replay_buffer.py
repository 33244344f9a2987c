"""The uniform replay buffer, and what the prioritized one shares with it."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import FieldError
from .fields import Fields, checked_fields, fields_of_space, leaves_of, look_up, map_leaves, name_of, refuse_unknown
from .storage import Storage, as_columns
from .types import Batch, Field

__all__ = ["ReplayBuffer"]

Self = TypeVar("Self", bound="ReplayBuffer")

RESERVED = ("index", "handle", "importance_weight", "priority", "keys")
FORMAT = 1  # of pickles


class ReplayBuffer:
    """A ring of transitions from which batches are drawn uniformly.

    Parameters
    ----------
    capacity : int
        Transitions kept, at least 1; then the oldest is overwritten.
    fields : mapping of str to Field
        What a transition consists of; a value may again be such a mapping (a dict observation). The names index, handle,
        importance_weight, priority and keys are taken.
    seed : None or int
        Of this buffer's own random stream; None seeds it from the system.
    shared : bool
        Only False for now: threads of one process.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range or of the wrong kind.
    MemoryError
        If the system refuses the memory, about ``capacity`` times the bytes of a transition plus 8.

    Notes
    -----
    Any number of threads may ``add`` and ``sample`` at once: no row is ever torn, and none is drawn before it is complete.
    docs/concurrency.md states what is promised and what is not.

    Examples
    --------
    >>> import kary_replay as kr
    >>> fields = {"observation": kr.Field((2,), "float32"), "reward": kr.Field((), "float32")}
    >>> buffer = kr.ReplayBuffer(100, fields, seed=0)
    >>> buffer.add(observation=[[0, 1], [2, 3]], reward=[0.5, 1.0])
    array([0, 1])
    >>> buffer.sample(4)
    Batch(observation=float32[4, 2], reward=float32[4], index=int64[4], handle=[('index', '<i8'), ('generation', '<u8')][4])
    """

    _prioritized = False

    def __init__(self, capacity: int, fields: Fields, seed: int | None = None, shared: bool = False) -> None:
        if shared:
            raise NotImplementedError("shared must be False: buffers shared between processes are not implemented yet")
        self._fields = checked_fields(fields, "fields")
        taken = [name for name in self._fields if name in RESERVED]
        if taken:
            raise ValueError(f"fields must not be named {', '.join(RESERVED)}, got {', '.join(taken)}")
        paths, self._leaves = map(list, zip(*leaves_of(self._fields), strict=True))
        self._paths: list[tuple[str, ...]] = paths
        self._names = [name_of(path) for path in paths]
        self._nested = any(len(path) > 1 for path in paths)
        self._storage = Storage(capacity, self._names, self._leaves, self._prioritized, seed)

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
            With the fields observation, action, reward (float32), next_observation, terminated (bool) and the extra ones.

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

    @property
    def capacity(self) -> int:
        """Transitions kept."""
        return self._storage.capacity

    @property
    def fields(self) -> dict[str, Any]:
        """The fields, nested as given."""
        return map_leaves(self._fields, lambda field: field)

    @property
    def nbytes(self) -> int:
        """Bytes of everything the buffer keeps."""
        return self._storage.block.nbytes

    @property
    def nbytes_overhead(self) -> int:
        """Bytes beyond the transitions themselves: tree, generations, padding, header."""
        return self.nbytes - self.capacity * self._storage.payload_nbytes

    def __len__(self) -> int:
        """Return the number of rows that can be drawn now; a row being overwritten does not count."""
        return len(self._storage)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(capacity={self.capacity}, len={len(self)}, fields={list(self._fields)})"

    def add(self, /, **fields: Any) -> npt.NDArray[np.int64]:
        """Append one transition, or B of them.

        Parameters
        ----------
        **fields
            Every field of the buffer by name, in its own shape (one transition) or with a leading axis B. A nested field takes
            a mapping. Values are cast where that is safe: floats to the field's precision, integers where every value fits.

        Returns
        -------
        int64 [B]
            The slots written: 0, 1, 2, … and around again. B may exceed the capacity; the last rows remain then.

        Raises
        ------
        FieldError
            If a field is missing or unknown, has another shape, or cannot be cast safely. No row of the batch is written then.

        Notes
        -----
        O(B · bytes of a row), with the GIL released. The rows are copied holding no lock; another thread's ``sample`` draws
        each of them whole or not at all. A slot that a slower thread is still writing is skipped.
        """
        columns, n = self._columns(fields)
        return self._storage.add(columns, n, None)

    def sample(self, batch_size: int) -> Batch:
        """Draw ``batch_size`` rows uniformly and independently, with replacement.

        Parameters
        ----------
        batch_size : int
            B, at least 1.

        Returns
        -------
        Batch
            The fields with a leading axis B, ``index`` and ``handle``.

        Raises
        ------
        EmptyBufferError
            If there is no row.
        ValueError, TypeError
            If batch_size is not an integer of at least 1.

        Notes
        -----
        O(B · bytes of a row), with the GIL released and no lock. A row that another thread overwrites during the copy is drawn
        again.
        """
        return self._batch(self._storage.sample(batch_size, False, 0.0))

    def field_view(self, name: str) -> Any:
        """Return one field of all slots, onto the storage itself, for adapters and for looking inside.

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
        No other thread may add or sample while you read or write through it: what it shows has no protection.
        """
        if name not in self._fields:
            raise FieldError(f"name must be one of {', '.join(self._fields)}, got {name!r}")
        views = iter([self._storage.view(i) for i, path in enumerate(self._paths) if path[0] == name])
        return map_leaves({name: self._fields[name]}, lambda _: next(views))[name]

    def reset(self) -> None:
        """Forget all rows. Handles handed out before stay stale for ever. Waits for threads that are adding; O(capacity)."""
        self._storage.reset()

    def check_invariants(self) -> None:
        """Raise AssertionError naming the first invariant (I1 … I6 of docs/concurrency.md) that is broken.

        O(capacity); waits for threads that are adding, and they wait for it.
        """
        self._storage.check_invariants()

    def __getstate__(self) -> dict[str, Any]:
        return {"format": FORMAT, "fields": self._fields, "capacity": self.capacity, "storage": self._storage.snapshot()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["format"] != FORMAT:
            raise ValueError(f"this pickle has format {state['format']}, this version of kary-replay reads format {FORMAT}")
        ReplayBuffer.__init__(self, state["capacity"], state["fields"], seed=0)
        self._storage.restore(state["storage"])

    def _columns(self, fields: dict[str, Any]) -> tuple[list[npt.NDArray[Any]], int]:
        """Return the checked columns in storage order, and B."""
        if len(fields) != len(self._fields) or self._nested:
            refuse_unknown(fields, self._fields)
        try:
            values = [look_up(fields, path) for path in self._paths] if self._nested else [fields[name] for name in self._names]
        except KeyError as error:
            raise FieldError(f"field {error.args[0]} is missing: every field must be given") from None
        return as_columns(values, self._names, self._leaves)

    def _batch(self, columns: dict[str, Any]) -> Batch:
        """Return what the storage drew, nested like the fields."""
        if self._nested:
            drawn = iter([columns.pop(name) for name in self._names])
            columns = {**map_leaves(self._fields, lambda _: next(drawn)), **columns}
        return Batch(columns)
