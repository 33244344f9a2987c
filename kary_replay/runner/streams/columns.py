"""Columns of arrays in the memory that workers share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ...types import Field

__all__ = ["arrays_in", "leaves", "n_numbers", "nested", "put"]


def leaves(columns: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Field]]:
    """Yield the fields of nested columns, each with its path, such as "observation.camera"."""
    for name, field in columns.items():
        if isinstance(field, Mapping):
            yield from leaves(field, f"{path}{name}.")
        else:
            yield f"{path}{name}", field


def nested(columns: Mapping[str, Any], flat: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return what belongs to paths in the shape of nested columns."""
    return {
        name: nested(field, flat, f"{path}{name}.")
        if isinstance(field, Mapping)
        else flat[f"{path}{name}"]
        for name, field in columns.items()
    }


def n_numbers(columns: Mapping[str, Any], shape: tuple[int, ...]) -> int:
    """Return how many numbers of 8 bytes the memory has that `arrays_in` needs."""
    n = int(np.prod(shape))
    return sum(-(-n * field.nbytes // 8) for _, field in leaves(columns))


def arrays_in(
    numbers: npt.NDArray[np.float64], columns: Mapping[str, Any], shape: tuple[int, ...]
) -> dict[str, npt.NDArray[Any]]:
    """Return an array [*shape, *field.shape] for each field, by its path, in such memory."""
    memory, begin = numbers.view(np.uint8), 0
    arrays: dict[str, npt.NDArray[Any]] = {}
    for path, field in leaves(columns):
        end = begin + int(np.prod(shape)) * field.nbytes
        whole = (*shape, *field.shape)
        arrays[path] = memory[begin:end].view(field.dtype).reshape(whole)
        begin = -(-end // 8) * 8
    return arrays


def put(column: Any, where: Any, value: Any) -> None:
    """Write into an array, or into those of a dict."""
    if isinstance(column, dict):
        for key, part in column.items():
            put(part, where, value[key])
    else:
        column[where] = value
