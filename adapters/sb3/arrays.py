"""What the buffers do with arrays: alone or in dicts of them, from torch, and as fields."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import kary_replay


def map_arrays(function: Callable[[np.ndarray], Any], value: Any) -> Any:
    """Return `function(value)`, or of a dict the same for every array in it."""
    return (
        {key: function(array) for key, array in value.items()}
        if isinstance(value, dict)
        else function(value)
    )


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor of any floating dtype, on any device, as an array of one that NumPy has."""
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy(force=True)


def field_of_row(array: np.ndarray) -> kary_replay.Field:
    """Return the field that holds what `array` [1, n_envs, …] holds for one environment."""
    return kary_replay.Field(array.shape[2:], array.dtype)


def warn_if_larger_than_memory(name: str, capacity: int, fields: dict[str, Any]) -> None:
    """Warn, as SB3 does and under the same condition that psutil is there, of rows that will not fit."""
    try:
        import psutil
    except ImportError:
        return
    leaves = [
        leaf
        for field in fields.values()
        for leaf in (field.values() if isinstance(field, dict) else (field,))
    ]
    needed = capacity * sum(field.nbytes for field in leaves)
    available = psutil.virtual_memory().available
    if needed > available:
        warnings.warn(
            f"{name}: {capacity} transitions take {needed / 1e9:.2f}GB, but only {available / 1e9:.2f}GB of memory are free",
            stacklevel=4,
        )
