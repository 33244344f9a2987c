"""Parameters on their way from the learner to those who act.

A stream is a shared replay buffer of one row: adding overwrites the row, drawing copies it whole or
not at all, and how often it was written is its version.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ...buffers.replay_buffer import ReplayBuffer
from ...errors import EmptyBufferError
from ...types import Field

__all__ = ["ParameterStream", "as_vector", "load_vector"]


class ParameterStream:
    """The newest parameters of some networks, as one vector.

    Parameters
    ----------
    n_parameters : int
        Length of the vector.
    shared : bool
        Whether other processes take part.

    Notes
    -----
    One process publishes, any number fetch. Costs two copies of the vector; no lock is held while
    one is made.
    """

    def __init__(self, n_parameters: int, shared: bool) -> None:
        fields = {"parameters": Field((n_parameters,), np.float32), "updates": Field((), np.int64)}
        self._row = ReplayBuffer(1, fields, seed=0, shared=shared)

    @property
    def version(self) -> int:
        """How often parameters were published; 0: not yet."""
        return self._row.n_added

    def publish(self, parameters: npt.NDArray[np.float32], updates: int) -> None:
        """Make these the newest, as they are after so many updates."""
        self._row.add(parameters=parameters, updates=updates)

    def fetch(self) -> tuple[npt.NDArray[np.float32], int] | None:
        """Return the newest parameters and their updates; None if there are none, or they are just being written."""
        try:
            batch = self._row.sample(1)
        except EmptyBufferError:
            return None
        return batch.parameters[0], int(batch.updates[0])

    def close(self) -> None:
        """Let go of the memory."""
        self._row.close()


def as_vector(tensors: list[torch.Tensor]) -> npt.NDArray[np.float32]:
    """Return flat tensors as one vector, for `publish`."""
    vectors = [tensor.cpu().numpy() for tensor in tensors]
    return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def load_vector(tensors: list[torch.Tensor], vector: npt.NDArray[np.float32]) -> None:
    """Set flat tensors from the vector that `as_vector` made of their like."""
    source, start = torch.from_numpy(vector), 0
    for tensor in tensors:
        tensor.copy_(source[start : start + tensor.numel()])
        start += tensor.numel()
