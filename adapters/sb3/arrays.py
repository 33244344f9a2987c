"""Helpers for the arrays of SB3's buffers, which stand alone or in dicts."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import kary_replay


def map_arrays(function: Callable[[np.ndarray], Any], value: Any) -> Any:
    """Return `function(value)`, or for a dict of arrays the dict of the results."""
    if isinstance(value, dict):
        return {key: function(array) for key, array in value.items()}
    return function(value)


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor on any device as an array. A bfloat16 tensor becomes a float32 array."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy(force=True)


def field_of_row(array: np.ndarray) -> kary_replay.Field:
    """Return the field that holds one environment's part of `array` [1, n_envs, …]."""
    return kary_replay.Field(array.shape[2:], array.dtype)


class StoredArray:
    """An attribute for one of SB3's arrays, which shows the rows of the native buffer.

    To assign to it writes the rows: `buffer.rewards = relabelled` does what it does with SB3's own
    buffer, where it replaces the array.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, buffer: Any, owner: type | None = None) -> Any:
        if buffer is None:
            return self
        try:
            return buffer.__dict__[self.name]
        except KeyError:
            what = f"{type(buffer).__name__!r} object has no attribute {self.name!r}"
            raise AttributeError(what) from None

    def __set__(self, buffer: Any, value: Any) -> None:
        if "_native" not in buffer.__dict__:  # SB3 makes it
            buffer.__dict__[self.name] = value
            return
        rows = self.__get__(buffer)
        pairs = [(self.name, rows, value)]
        if isinstance(rows, dict):
            if not isinstance(value, dict) or value.keys() != rows.keys():
                raise ValueError(f"{self.name} must be a dict of arrays with the keys {[*rows]}")
            pairs = [(f"{self.name}[{key!r}]", rows[key], value[key]) for key in rows]
        checked = [(stored, _fitting(name, stored, new)) for name, stored, new in pairs]
        for stored, new in checked:
            stored[...] = new


class StoredParts(dict[str, np.ndarray]):
    """The arrays of a Dict observation, whose rows lie in the native buffer.

    To assign to parts writes their rows, as with `StoredArray`. Copies are plain dicts.
    """

    def __setitem__(self, key: str, value: Any) -> None:
        self.update({key: value})

    def update(self, *parts: Any, **more: Any) -> None:
        """Write the rows of some parts, after all of them have been checked."""
        given = dict(*parts, **more)
        checked = [
            (self[key], _fitting(f"the part {key!r}", self[key], value))
            for key, value in given.items()
        ]
        for stored, new in checked:
            stored[...] = new

    def __ior__(self, other: Any) -> StoredParts:
        self.update(other)
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


def _fitting(name: str, stored: np.ndarray, value: Any) -> np.ndarray:
    """Return a value as an array that can take the place of stored rows, or raise."""
    new = np.asarray(value)
    if new.shape != stored.shape:
        raise ValueError(
            f"{name} must have the shape of the stored rows, {stored.shape}, got {new.shape}: "
            "add or extend fills a buffer, and reset() empties it"
        )
    if not np.can_cast(new.dtype, stored.dtype, "same_kind"):
        raise TypeError(f"{name} must be of the dtype {stored.dtype}, got {new.dtype}")
    return new


def warn_if_larger_than_memory(name: str, capacity: int, fields: dict[str, Any]) -> None:
    """Warn of rows that do not fit into memory, as SB3 does; without psutil there is no warning."""
    try:
        import psutil
    except ImportError:
        return
    row_nbytes = 0
    for field in fields.values():
        parts = field.values() if isinstance(field, dict) else (field,)
        row_nbytes += sum(part.nbytes for part in parts)
    needed = capacity * row_nbytes
    available = psutil.virtual_memory().available
    if needed > available:
        warnings.warn(
            f"{name}: {capacity} transitions take {needed / 1e9:.2f}GB, "
            f"but only {available / 1e9:.2f}GB of memory are free",
            stacklevel=4,
        )
