"""The transfer of batches: arrays become torch tensors on the device that the learner uses.

Batches travel to a CUDA device through pinned memory, on a stream of their own. That memory is a
ring which no other code sees. A slot of the ring is written again once the copy out of it has
ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from ..fields import leaves_of, name_of
from ..types import Batch

cuda: Any = torch.cuda  # its functions have no annotations
HOST_COLUMNS = ("index", "handle")  # these return to the buffer, so they stay NumPy arrays

Transform = Callable[[Batch], Batch]


def check_dtypes(fields: dict[str, Any]) -> None:
    """Raise TypeError for a field of a dtype that torch does not have."""
    for path, field in leaves_of(fields):
        try:
            torch.from_numpy(np.empty(0, field.dtype))
        except TypeError:
            raise TypeError(
                f"field {name_of(path)} has dtype {field.dtype}, which torch does not have"
            ) from None


class Transfer(Protocol):
    """The way of batches from one thread, which sends them, to others, which receive them."""

    def start(self) -> None:
        """Prepare the sending thread, in which this is called."""

    def send(self, batch: Batch, transform: Transform) -> tuple[Batch, Any]:
        """Return the transformed batch of tensors, and the event of its completion."""

    def receive(self, batch: Batch, completed: Any) -> Batch:
        """Return the batch in a state that is safe to use by the thread that calls this."""


class HostTransfer:
    """Copies batches to a device without streams: a batch is complete when ``send`` returns."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def start(self) -> None:
        """Do nothing: the sending thread needs no preparation."""

    def send(self, batch: Batch, transform: Transform) -> tuple[Batch, None]:
        """Return the transformed batch of tensors, and None: there is no event to wait for."""
        return transform(_of_tensors(batch, lambda _, tensor: tensor.to(self.device))), None

    def receive(self, batch: Batch, completed: None) -> Batch:
        """Return the batch as it is."""
        return batch


class CudaTransfer:
    """Copies batches to a CUDA device on a stream of its own, through a ring of pinned memory.

    Parameters
    ----------
    device : torch.device
        The CUDA device.
    n_slots : int
        The number of slots of the ring, which is the number of copies that can be under way.
    pinned : bool
        Whether to use the ring; without it, a copy blocks the sending thread.
    """

    def __init__(self, device: torch.device, n_slots: int, pinned: bool) -> None:
        self.device = device
        self.pinned = pinned
        self.stream = cuda.Stream(device)
        # The memory of a slot must not be written again before the slot's event has occurred.
        slots: list[tuple[dict[Any, torch.Tensor], Any]] = [
            ({}, cuda.Event()) for _ in range(n_slots)
        ]
        self.slots = itertools.cycle(slots)

    def start(self) -> None:
        """Select the device in the sending thread, because every thread has its own selection."""
        cuda.set_device(self.device)

    def send(self, batch: Batch, transform: Transform) -> tuple[Batch, Any]:
        """Queue the copies, and the transform after them, and return the batch and its event."""
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
            completed = cuda.Event()
            completed.record(self.stream)
        return batch, completed

    def receive(self, batch: Batch, completed: Any) -> Batch:
        """Have the caller's stream wait for the batch. The calling thread itself does not wait."""
        stream = cuda.current_stream(self.device)
        stream.wait_event(completed)

        def keep(_: tuple[str, ...], value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.is_cuda:
                # Without this, the allocator might give the tensor's memory to our stream while the
                # learner's stream still reads it.
                value.record_stream(stream)
            return value

        _map_tensors(batch.__dict__, keep)
        return batch


def _of_tensors(
    batch: Batch, function: Callable[[tuple[str, ...], torch.Tensor], torch.Tensor]
) -> Batch:
    """Return the batch with ``function(path, tensor)`` in place of every array that it sends.

    A part of another column, as stacks are of frames, is not sent: it is that part of the tensor.
    """
    columns = batch.__dict__
    wholes: dict[int, tuple[tuple[str, ...], Any]] = {}
    sent: dict[int, torch.Tensor] = {}

    def take_note(path: tuple[str, ...], array: Any) -> None:
        wholes[id(array)] = path, array

    def of_array(path: tuple[str, ...], array: Any) -> torch.Tensor:
        if id(array) not in sent:
            whole = wholes.get(id(array.base))
            if whole is None or whole[1].dtype != array.dtype or not whole[1].flags.c_contiguous:
                sent[id(array)] = function(path, torch.from_numpy(array))
            else:
                sent[id(array)] = _part(of_array(*whole), whole[1], array)
        return sent[id(array)]

    _map_tensors(columns, take_note)
    return Batch(_map_tensors(columns, of_array))


def _part(tensor: torch.Tensor, whole: Any, part: Any) -> torch.Tensor:
    """Return what ``part`` is of ``whole``, of a tensor with the same numbers in the same order."""
    offset = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    strides = [stride // part.itemsize for stride in part.strides]
    return tensor.as_strided(part.shape, strides, offset // part.itemsize)


def _map_tensors(
    columns: Mapping[str, Any], function: Callable[[Any, Any], Any], path: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return the same nesting with ``function(path, value)`` in place of every tensor or array.

    The columns that return to the buffer, HOST_COLUMNS, stay as they are.
    """
    mapped = {}
    for name, value in columns.items():
        if not path and name in HOST_COLUMNS:
            mapped[name] = value
        elif isinstance(value, Mapping):
            mapped[name] = _map_tensors(value, function, (*path, name))
        else:
            mapped[name] = function((*path, name), value)
    return mapped
