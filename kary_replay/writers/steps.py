"""One step of several environments, as all writers take it; private to the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..errors import FieldError
from ..fields import leaves_of, look_up, map_leaves, missing, name_of, refuse_unknown
from ..types import Field
from ..validation import as_array, as_count

PriorityFunction = Callable[[dict[str, Any]], npt.ArrayLike]
"""A function that is given the rows about to be written, and returns their raw priorities [B]."""

FLAGS = ("terminated", "truncated")  # arguments of add, and fields of the buffers that want them
FLAG = Field((), np.bool_)
ARGUMENTS = ("env", "self")  # arguments of the writers' add, whose names no field can have


@runtime_checkable
class Buffer(Protocol):
    """A buffer that a writer can write to: a ReplayBuffer, or any class with these members."""

    @property
    def capacity(self) -> int:
        """The number of rows that the buffer keeps."""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a row."""

    def add(self, /, **fields: Any) -> npt.NDArray[np.int64]:
        """Append B rows and return their slots."""


def fields_of(buffer: Any) -> dict[str, Any]:
    """Return the fields of a buffer; raise if it is none, or if an argument would hide a field."""
    if not isinstance(buffer, Buffer):
        raise TypeError(
            "buffer must be a ReplayBuffer or a PrioritizedReplayBuffer, "
            f"got {type(buffer).__name__}"
        )
    for name in ARGUMENTS:
        if name in buffer.fields:
            raise ValueError(
                f"buffer has a field {name}, which add takes as an argument: "
                "give the field another name"
            )
    return buffer.fields


def checked_priority(priority: Any, buffer: Any) -> PriorityFunction | None:
    """Return ``priority`` if it is None, or if it is a function and the buffer has priorities."""
    if priority is None:
        return None
    if not callable(priority):
        raise TypeError(
            f"priority must be None or a function of the rows to be written, got {priority!r}"
        )
    if not hasattr(buffer, "update_priorities"):
        raise ValueError(
            f"priority must be None for a {type(buffer).__name__}, which has no priorities"
        )
    function: PriorityFunction = priority
    return function


class Step(NamedTuple):
    """One checked step of M environments.

    The columns may be the caller's own arrays, so a writer copies them and never keeps them.
    """

    streams: npt.NDArray[np.int64]  # [M], each at most once
    columns: dict[tuple[str, ...], npt.NDArray[Any]]  # [M, ...], by the paths of the leaves
    terminated: npt.NDArray[np.bool_]  # [M]
    truncated: npt.NDArray[np.bool_]  # [M]


class StepReader:
    """Checks the arguments of one ``add``.

    ``fields`` are the fields of one step without terminated and truncated, and ``computed`` is the
    name of the field that the writer itself computes.
    """

    def __init__(self, fields: Mapping[str, Any], n_envs: int, computed: str) -> None:
        self.n_envs = as_count("n_envs", n_envs)
        self.fields = dict(fields)
        self.computed = computed
        self.leaves = dict(leaves_of(self.fields))

    def read(self, env: Any, given: dict[str, Any], terminated: Any, truncated: Any) -> Step:
        """Return the step; FieldError, ValueError or TypeError if an argument does not fit."""
        streams = streams_of(env, self.n_envs)
        if self.computed in given:
            raise FieldError(f"{self.computed} is computed by the writer: leave it out")
        refuse_unknown(given, self.fields)
        try:
            values = [look_up(given, path) for path in self.leaves]
        except KeyError as error:
            raise missing(error.args[0]) from None
        n = len(streams)
        columns = {
            path: as_column(name_of(path), field, value, n)
            for (path, field), value in zip(self.leaves.items(), values, strict=True)
        }
        flags = (
            as_column("terminated", FLAG, terminated, n),
            as_column("truncated", FLAG, truncated, n),
        )
        return Step(streams, columns, *flags)


class StepWriter:
    """What the writers have in common that take whole steps: the steps of episodes, and the buffer.

    ``priority`` is a function of the rows about to be written, or None.
    """

    def __init__(
        self, buffer: Buffer, fields: dict[str, Any], reader: StepReader, priority: Any
    ) -> None:
        self._buffer = buffer
        self._fields = fields
        self._reader = reader
        self._priority = checked_priority(priority, buffer)
        # [n_envs] of the current episode
        self._n_steps: npt.NDArray[np.int64] = np.zeros(reader.n_envs, np.int64)

    @property
    def n_envs(self) -> int:
        """The number of environments."""
        return self._reader.n_envs

    def reset(self, env: npt.ArrayLike | None = None) -> None:
        """Drop the steps of some environments that are in no row yet, for instance after a crash.

        The next step of each of these environments begins an episode.

        Parameters
        ----------
        env : None, int or distinct ints
            The environments; None means all of them.

        Raises
        ------
        ValueError, TypeError
            If there is no such environment. Nothing has been dropped then.

        Notes
        -----
        The cost is O(n_envs). No call is needed after the end of an episode, when nothing is
        pending. Other threads may use the buffer meanwhile, but not this writer.
        """
        self._n_steps[streams_of(env, self.n_envs)] = 0

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is pending for `load_state_dict`: copies of arrays, by name.

        The cost is O(bytes of the steps that a writer keeps of its environments).
        """
        return copies(self._state(), self._settings())

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with what is pending of another writer of such steps, made with the same arguments.

        Raises
        ------
        ValueError
            If it was a writer of other steps, or made otherwise. Nothing has been changed then.

        Notes
        -----
        The cost is that of `state_dict`. Other threads may use the buffer meanwhile, but not this
        writer.
        """
        take_up_arrays(self._state(), self._settings(), state)

    def _state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all that changes from step to step."""
        raise NotImplementedError

    def _settings(self) -> dict[str, float]:
        """Return the arguments on which the meaning of a state depends."""
        raise NotImplementedError

    def _add_rows(self, columns: list[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Add rows, given as one column per leaf in the order of the leaves; return their slots."""
        column = iter(columns)
        rows = map_leaves(self._fields, lambda _: next(column))
        if self._priority is None:
            return self._buffer.add(**rows)
        return self._buffer.add(priority=self._priority(rows), **rows)


def streams_of(env: Any, n_envs: int) -> npt.NDArray[np.int64]:
    """Return the environments that ``env`` names, int64 [M].

    None names all of them; otherwise ``env`` is an integer, or distinct integers [M].
    """
    if env is None:
        return np.arange(n_envs)
    array = as_array("env", env)
    # An empty list becomes an array of float64, which names no environment.
    is_empty = array.size == 0 and array.dtype.kind != "b"
    if array.ndim > 1 or not (array.dtype.kind in "iu" or is_empty):
        raise TypeError(
            "env must be None, an integer or a list of integers "
            "(of a mask: np.flatnonzero(mask)), "
            f"got dtype {array.dtype} and shape {array.shape}"
        )
    streams = array.reshape(-1)
    bad = streams[(streams < 0) | (streams >= n_envs)]
    if bad.size:
        raise ValueError(f"env must be from 0 to {n_envs - 1}, got {bad[0]}")
    counts = np.bincount(streams.astype(np.int64), minlength=n_envs)
    if counts.max() > 1:
        raise ValueError(
            f"env must name each environment once, got {counts.argmax()} more than once: "
            "add step by step"
        )
    return streams.astype(np.int64)


def copies(
    arrays: Mapping[str, npt.NDArray[Any]], settings: Mapping[str, float]
) -> dict[str, npt.NDArray[Any]]:
    """Return the state of a writer: copies of its arrays, and what it was made with."""
    made_with = {name: np.array(value) for name, value in settings.items()}
    return {**{name: array.copy() for name, array in arrays.items()}, **made_with}


def take_up_arrays(
    own: Mapping[str, npt.NDArray[Any]],
    settings: Mapping[str, float],
    state: Mapping[str, npt.NDArray[Any]],
) -> None:
    """Set a writer's arrays to those of a state.

    ValueError, before any is, if they are others, or those of a writer made with other settings.
    """
    names = [*own, *settings]
    if state.keys() != set(names):
        raise ValueError(f"state must have {', '.join(names)}, got {', '.join(state) or 'nothing'}")
    for name, value in settings.items():
        if not np.array_equal(state[name], value):
            raise ValueError(
                f"state must be of a writer with {name}={value!r}, which this one has, "
                f"got {state[name]}: make both with the same arguments"
            )
    for name, array in own.items():
        given = np.asarray(state[name])
        if (given.shape, given.dtype) != (array.shape, array.dtype):
            raise ValueError(
                f"state must have {name} of {array.dtype} {array.shape}, "
                f"got {given.dtype} {given.shape}: it is of a writer of other steps"
            )
    for name, array in own.items():
        array[...] = state[name]


def as_column(name: str, field: Field, value: Any, n: int) -> npt.NDArray[Any]:
    """Return ``value`` as [n, *field.shape]; the leading axis may be missing if n is 1."""
    if (
        type(value) is np.ndarray
        and value.dtype == field.dtype
        and value.shape == (n, *field.shape)
    ):
        return value  # the usual case, at a tenth of the cost
    column, n_rows = field.cast(name, value)
    if n_rows is None and n == 1:
        return column.reshape(1, *field.shape)
    if n_rows != n:
        said = "no leading axis" if n_rows is None else f"a leading axis of {n_rows}"
        raise FieldError(
            f"{name} must have a leading axis of {n}, one value per environment that stepped, "
            f"got {said}"
        )
    return column
