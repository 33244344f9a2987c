"""Batches of arrays into batches of torch tensors, on the device that wants them.

To a CUDA device they travel through pinned memory, on a stream of their own. That memory is a ring,
and nobody else sees it: a slot of it is written again when the copy out of it has ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..fields import name_of
from ..types import Batch

cuda: Any = torch.cuda  # which has no annotations
HOST_COLUMNS = ("index", "handle")  # they go back to the buffer, and stay NumPy arrays


def check_dtypes(fields: Mapping[str, Any]) -> None:
    """Raise TypeError for a field of a dtype that torch does not have."""

    def check(path: tuple[str, ...], field: Any) -> None:
        try:
            torch.from_numpy(np.empty(0, field.dtype))
        except TypeError:
            raise TypeError(
                f"field {name_of(path)} has dtype {field.dtype}, which torch does not have"
            ) from None

    _map_tensors(fields, check)


class To:
    """Brings arrays to a device that is not CUDA."""

    def __init__(self, device: torch.device) -> None:
        """Bring to this device."""
        self.device = device

    def start(self) -> None:
        """Make what belongs to the thread that brings; called in it."""

    def bring(self, batch: Batch, transform: Callable[[Batch], Batch]) -> tuple[Batch, Any]:
        """Return the transformed batch of tensors, and what tells when it is whole; called in the thread."""
        return transform(_of_tensors(batch, lambda _, tensor: tensor.to(self.device))), None

    def receive(self, batch: Batch, whole: Any) -> Batch:
        """Return the batch, safe to use; called by whoever takes it."""
        return batch


class ToCuda(To):
    """Brings arrays to a CUDA device on a stream of its own, through a ring of pinned memory."""

    def __init__(self, device: torch.device, n_slots: int, pinned: bool) -> None:
        super().__init__(device)
        self.pinned = pinned
        self.stream = cuda.Stream(device)
        # What is in a slot's memory is needed until its event has come.
        slots: list[tuple[dict[Any, torch.Tensor], Any]] = [
            ({}, cuda.Event()) for _ in range(n_slots)
        ]
        self.slots = itertools.cycle(slots)

    def start(self) -> None:
        """Use the device in the thread; each thread has its own."""
        cuda.set_device(self.device)

    def bring(self, batch: Batch, transform: Callable[[Batch], Batch]) -> tuple[Batch, Any]:
        """Queue the copies, and the transform after them; called in the thread."""
        memory, copied = next(self.slots)
        copied.synchronize()

        def copy(path: tuple[str, ...], tensor: torch.Tensor) -> torch.Tensor:
            if self.pinned:
                if path not in memory:
                    memory[path] = torch.empty_like(tensor, pin_memory=True)
                tensor = memory[path].copy_(tensor)
            return tensor.to(self.device, non_blocking=self.pinned)

        with cuda.stream(self.stream):
            batch = _of_tensors(batch, copy)
            copied.record(self.stream)
            batch = transform(batch)
            whole = cuda.Event()
            whole.record(self.stream)
        return batch, whole

    def receive(self, batch: Batch, whole: Any) -> Batch:
        """Have the caller's stream wait for the batch; the caller itself does not."""
        stream = cuda.current_stream(self.device)
        stream.wait_event(whole)

        def keep(_: tuple[str, ...], value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_cuda:
                # else its memory might be given to our stream while the learner's still reads it
                value.record_stream(stream)
            return value

        _map_tensors(batch.__dict__, keep)
        return batch


def _of_tensors(
    batch: Batch, function: Callable[[tuple[str, ...], torch.Tensor], torch.Tensor]
) -> Batch:
    """Return the batch with ``function(path, tensor)`` for every array that is to be a tensor."""
    return Batch(
        _map_tensors(batch.__dict__, lambda path, array: function(path, torch.from_numpy(array)))
    )


def _map_tensors(
    columns: Mapping[str, Any], function: Callable[[Any, Any], Any], path: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the same nesting with ``function(path, value)`` for every column that is or becomes a tensor."""
    return {
        name: value
        if not path and name in HOST_COLUMNS
        else _map_tensors(value, function, (*path, name))
        if isinstance(value, Mapping)
        else function((*path, name), value)
        for name, value in columns.items()
    }
