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
