"""The two replay buffers: uniform and prioritized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .errors import FieldError
from .storage import Storage, as_columns
from .sum_tree import SumTree
from .types import HANDLE_DTYPE, Batch, Field
from .validation import as_exponent, as_float64, as_real

__all__ = ["PrioritizedReplayBuffer", "ReplayBuffer"]

Fields = Mapping[str, Any]  # name -> Field, or again such a mapping
Self = TypeVar("Self", bound="ReplayBuffer")

RESERVED = ("index", "handle", "importance_weight", "priority")
FORMAT = 1  # of pickles


class ReplayBuffer:
    """A ring of transitions from which batches are drawn uniformly.

    Parameters
    ----------
    capacity : int
        Transitions kept, at least 1; then the oldest is overwritten.
    fields : mapping of str to Field
        What a transition consists of; a value may again be such a mapping (a dict observation). The names index, handle,
        importance_weight and priority are taken.
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
    >>> buffer = ReplayBuffer(100, {"observation": Field((2,), "float32"), "reward": Field((), "float32")}, seed=0)
    >>> buffer.add(observation=[[0, 1], [2, 3]], reward=[0.5, 1.0])
    array([0, 1])
    >>> buffer.sample(4)
    Batch(observation=float32[4, 2], reward=float32[4], index=int64[4], handle=[('index', '<i8'), ('generation', '<u8')][4])
    """

    _prioritized = False

    def __init__(self, capacity: int, fields: Fields, seed: int | None = None, shared: bool = False) -> None:
        if shared:
            raise NotImplementedError("shared must be False: buffers shared between processes are not implemented yet")
        self._fields = _checked_fields(fields, "fields")
        taken = [name for name in self._fields if name in RESERVED]
        if taken:
            raise ValueError(f"fields must not be named {', '.join(RESERVED)}, got {', '.join(taken)}")
        paths, self._leaves = map(list, zip(*_leaves(self._fields), strict=True))
        self._paths: list[tuple[str, ...]] = paths
        self._names = [_name(path) for path in paths]
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
        observation = _space_fields(observation_space, "observation_space")
        fields = {
            "observation": observation,
            "action": _space_fields(action_space, "action_space"),
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
        return _map_leaves(self._fields, lambda field: field)

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

    def add(self, **fields: Any) -> npt.NDArray[np.int64]:
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
        return _map_leaves({name: self._fields[name]}, lambda _: next(views))[name]

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
            _refuse_unknown(fields, self._fields, "")
        try:
            values = [_look_up(fields, path) for path in self._paths] if self._nested else [fields[name] for name in self._names]
        except KeyError as error:
            raise FieldError(f"field {error.args[0]} is missing: every field must be given") from None
        return as_columns(values, self._names, self._leaves)

    def _batch(self, columns: dict[str, Any]) -> Batch:
        """Return what the storage drew, nested like the fields."""
        if self._nested:
            drawn = iter([columns.pop(name) for name in self._names])
            columns = {**_map_leaves(self._fields, lambda _: next(drawn)), **columns}
        return Batch(columns)


class PrioritizedReplayBuffer(ReplayBuffer):
    """A ring of transitions, drawn with probability proportional to priority ** alpha.

    Parameters
    ----------
    capacity, fields, seed, shared
        As for ReplayBuffer.
    alpha : float
        0 to 1: how much priorities count; 0 draws uniformly.
    beta : float
        0 to 1: how far importance weights correct for it; 1 corrects fully.
    priority_epsilon : float
        Above 0; added to every |TD error|, so that no row is lost for ever.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As for ReplayBuffer; the memory is about 19 bytes more per transition.

    Notes
    -----
    Any number of threads may ``add``, ``sample`` and ``update_priorities`` at once: no row is torn, none of mass 0 is drawn,
    and a priority never lands on a row that has been overwritten since. P(i) = mass_i / total is exact at rest. A batch is not
    a snapshot. docs/concurrency.md states the promise in full.

    Schaul et al. (2016), Prioritized experience replay, arXiv:1511.05952; equations 1 and 2.

    Examples
    --------
    >>> fields = {"observation": Field((2,), "float32"), "reward": Field((), "float32")}
    >>> buffer = PrioritizedReplayBuffer(100, fields, alpha=0.6, beta=0.4, seed=0)
    >>> index = buffer.add(observation=[[0, 1], [2, 3]], reward=[0.5, 1.0])
    >>> batch = buffer.sample(2)
    >>> buffer.update_priorities(batch.handle, [0.1, -2.0])
    2
    >>> buffer.max_priority
    2.000001
    """

    _prioritized = True

    def __init__(
        self,
        capacity: int,
        fields: Fields,
        alpha: float = 0.6,
        beta: float = 0.4,
        priority_epsilon: float = 1e-6,
        seed: int | None = None,
        shared: bool = False,
    ) -> None:
        alpha = as_exponent("alpha", alpha)
        self.beta = beta
        self.priority_epsilon = priority_epsilon
        super().__init__(capacity, fields, seed=seed, shared=shared)
        self._storage.set_alpha(alpha)

    @property
    def alpha(self) -> float:
        """How much priorities count, 0 to 1. Settable: every stored mass becomes mass ** (new / old).

        From alpha = 0, where all masses are 1, the old priorities are unknown: every row gets the largest priority seen.
        Setting costs O(capacity) under the lock.
        """
        return self._storage.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._storage.set_alpha(as_exponent("alpha", value))

    @property
    def beta(self) -> float:
        """Exponent of the importance weights, 0 to 1; settable at any time, the next ``sample`` uses it."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = as_exponent("beta", value)

    @property
    def priority_epsilon(self) -> float:
        """What is added to every |TD error|; settable, above 0."""
        return self._priority_epsilon

    @priority_epsilon.setter
    def priority_epsilon(self, value: float) -> None:
        number = as_real("priority_epsilon", value)
        if not 0 < number < np.inf:
            raise ValueError(f"priority_epsilon must be finite and above 0, got {value!r}")
        self._priority_epsilon = number

    @property
    def tree(self) -> SumTree:
        """The sum tree: leaf i is the mass of slot i. ``tree.get`` reads masses, ``tree.set`` sets them without a handle.

        Set masses only of slots that hold a row.
        """
        return self._storage.tree

    @property
    def total_mass(self) -> float:
        """Sum of all masses."""
        return self.tree.total

    @property
    def max_priority(self) -> float:
        """Largest priority seen, at least 1: what a new transition gets."""
        return self._storage.max_priority

    def add(self, *, priority: npt.ArrayLike | None = None, **fields: Any) -> npt.NDArray[np.int64]:
        """Append one transition, or B of them; see ReplayBuffer.add.

        Parameters
        ----------
        priority : None, float or array of float [B]
            Raw priorities, finite and above 0; mass becomes priority ** alpha. None: the largest priority seen.
        **fields
            Every field by name.

        Returns
        -------
        int64 [B]
            The slots written.

        Raises
        ------
        FieldError, ValueError, TypeError
            If a field or a priority is wrong. No row of the batch is written then.

        Notes
        -----
        O(B · (bytes of a row + K · log_K(capacity))), GIL released; the lock is held for the tree, not for the copy.
        """
        columns, n = self._columns(fields)
        priorities = None
        if priority is not None:
            priorities = as_float64("priority", priority)
            if priorities.ndim and priorities.shape[0] != n:
                raise ValueError(f"priority must be one number or have length {n}, got {priorities.shape[0]}")
            limit = self.tree.max_mass
            bad = np.flatnonzero(~((priorities > 0) & (priorities <= limit)))
            if bad.size:
                value = priorities.reshape(-1)[bad[0]]
                raise ValueError(f"priority must be above 0 and at most {limit:.3g}, got {value} at position {bad[0]}")
            priorities = np.ascontiguousarray(np.broadcast_to(priorities, (n,)))
        return self._storage.add(columns, n, priorities)

    def sample(self, batch_size: int, *, stratified: bool = True) -> Batch:
        """Draw ``batch_size`` rows with probability mass_i / total, with replacement.

        Parameters
        ----------
        batch_size : int
            B, at least 1.
        stratified : bool
            True: row i comes from the i-th of B equal parts of the total mass. False: B independent draws.

        Returns
        -------
        Batch
            The fields with a leading axis B; ``importance_weight`` float32 [B], (N · P(i)) ** -beta over its largest in the
            batch; ``index``; ``handle`` for ``update_priorities``.

        Raises
        ------
        EmptyBufferError
            If there is no row with mass.
        ValueError, TypeError
            If batch_size is not an integer of at least 1.

        Notes
        -----
        O(B · (bytes of a row + K · log_K(capacity))), with the GIL released and no lock. A row that another thread overwrites
        during the copy is drawn again from the same part.
        """
        return self._batch(self._storage.sample(batch_size, stratified, self._beta))

    def update_priorities(self, handle: npt.NDArray[np.void], td_error: npt.ArrayLike) -> int:
        """Set priorities to |td_error| + priority_epsilon.

        Parameters
        ----------
        handle : array [B] of HANDLE_DTYPE
            ``batch.handle``, or rows of it.
        td_error : array of float [B] or [B, 1]
            Finite; the sign does not matter. Where a row comes twice, the last one wins.

        Returns
        -------
        int
            How many handles were applied. A handle whose row has been overwritten since changes nothing.

        Raises
        ------
        ValueError, TypeError
            If td_error is NaN or infinite, a length differs, or handle is no array of handles. Nothing is changed then.

        Notes
        -----
        O(B · K · log_K(capacity)), GIL released, under the lock.
        """
        handles = np.asarray(handle)
        if handles.dtype is not HANDLE_DTYPE and handles.dtype != HANDLE_DTYPE:
            raise TypeError(f"handle must be the handle of a batch (dtype {HANDLE_DTYPE}), got dtype {handles.dtype}")
        errors = np.asarray(td_error)
        if errors.ndim == 2 and errors.shape[1] == 1:
            errors = errors[:, 0]
        errors = as_float64("td_error", errors)
        if errors.size != handles.size:
            raise ValueError(f"td_error must have one value per handle, {handles.size}, got {errors.size}")
        return self._storage.update(np.ascontiguousarray(handles), errors, self._priority_epsilon)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "beta": self._beta, "priority_epsilon": self._priority_epsilon}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._beta = state["beta"]
        self._priority_epsilon = state["priority_epsilon"]


def _checked_fields(fields: Any, name: str) -> dict[str, Any]:
    """Return a private copy of a mapping of fields, or raise."""
    if not isinstance(fields, Mapping):
        raise TypeError(f"{name} must be a mapping of names to Field, got {type(fields).__name__}")
    if not fields:
        raise ValueError(f"{name} must name at least one field")
    checked: dict[str, Any] = {}
    for key, value in fields.items():
        if not isinstance(key, str):
            raise TypeError(f"{name} must have strings as names, got {key!r}")
        if not isinstance(value, (Field, Mapping)):
            raise TypeError(f"{name}[{key!r}] must be a Field or a mapping of them, got {type(value).__name__}")
        checked[key] = value if isinstance(value, Field) else _checked_fields(value, f"{name}[{key!r}]")
    return checked


def _space_fields(space: Any, name: str) -> Any:
    """Return the Field of a gymnasium space, or the nested fields of a Dict space."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {key: _space_fields(part, f"{name}[{key!r}]") for key, part in parts.items()}
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None or parts is not None:
        raise TypeError(f"{name} must be a space of fixed shape and dtype or a Dict of them, got {space!r}; flatten it first")
    return Field(tuple(shape), dtype)


def _leaves(fields: dict[str, Any], path: tuple[str, ...] = ()) -> Any:
    """Yield the path and Field of every leaf, in order."""
    for name, value in fields.items():
        if isinstance(value, Field):
            yield (*path, name), value
        else:
            yield from _leaves(value, (*path, name))


def _map_leaves(fields: dict[str, Any], function: Any) -> dict[str, Any]:
    """Return the same nesting with ``function(field)`` for every Field, in order."""
    return {
        name: function(value) if isinstance(value, Field) else _map_leaves(value, function) for name, value in fields.items()
    }


def _look_up(fields: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the value at a path; KeyError with the name of what is missing."""
    value: Any = fields
    for depth, key in enumerate(path):
        if not isinstance(value, Mapping):
            raise FieldError(f"{_name(path[:depth])} must be a mapping with {key!r}, got {type(value).__name__}")
        if key not in value:
            raise KeyError(_name(path[: depth + 1]))
        value = value[key]
    return value


def _name(path: tuple[str, ...]) -> str:
    return path[0] + "".join(f"[{key!r}]" for key in path[1:])


def _refuse_unknown(given: Mapping[str, Any], fields: Mapping[str, Any], where: str) -> None:
    for name, value in given.items():
        if name not in fields:
            raise FieldError(f"field {where}{name} is unknown; the fields are {', '.join(fields)}")
        if isinstance(fields[name], Mapping) and isinstance(value, Mapping):
            _refuse_unknown(value, fields[name], f"{where}{name}.")
