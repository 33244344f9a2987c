"""Parameters on their way from the learner to those who act.

The memory of the stream is a replay buffer of one row: adding overwrites the row, drawing copies it
whole or not at all, and how often it was written is its version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...algorithms import Algorithm
from ...buffers.replay_buffer import ReplayBuffer
from ...errors import EmptyBufferError
from ...types import Field
from .looking import found_within
from .stream import Checkpoint, Hosted, Medium

__all__ = [
    "HostedParameters",
    "Newest",
    "ParameterStream",
    "Parameters",
    "as_vector",
    "load_vector",
    "published",
]

FIRST_SECONDS = 1.0  # that one waits at most for the first parameters to be written


@dataclass(frozen=True)
class ParameterStream:
    """The newest parameters of some networks, as one vector.

    Parameters
    ----------
    n_parameters : int
        Length of the vector.
    """

    n_parameters: int

    def host(self, medium: Medium, checkpoint: Checkpoint) -> HostedParameters:
        """Make room for one vector; the learner publishes what its own checkpoint has."""
        vector = Field((self.n_parameters,), np.float32)
        fields = {"parameters": vector, "updates": Field((), np.int64)}
        return HostedParameters(ReplayBuffer(1, fields, seed=0, shared=medium.is_shared))


class HostedParameters(Hosted):
    """A parameter stream in the memory of this machine."""

    def __init__(self, row: ReplayBuffer) -> None:
        self._row, self._is_carried = row, False

    def sink(self) -> Parameters:
        """Return the end of those who publish, and of those who act."""
        return Parameters(self._row)

    def close(self) -> None:
        """Let go of the memory."""
        self._row.close()

    def carried(self) -> Parameters:
        """Return the end of who brings the parameters to the other machines from now on."""
        self._is_carried = True
        return self.sink()

    def broadcast(self, since: int) -> tuple[int, Any] | None:
        """Return the version and the newest parameters, if they are newer than ``since``.

        None if somebody else brings them to the other machines.
        """
        if self._is_carried:
            return None
        end = self.sink()
        version = end.version
        newest = end.newest() if version > since else None
        return None if newest is None else (version, newest)

    def receive(self, content: Any) -> None:
        """Publish here what was published elsewhere."""
        self.sink().publish(*content)


class Parameters:
    """Either end of a parameter stream.

    Notes
    -----
    Any number of workers publish and ask for the newest. Either costs a copy of the vector; no lock
    is held while it is made.
    """

    def __init__(self, row: ReplayBuffer) -> None:
        self._row = row

    @property
    def version(self) -> int:
        """How often parameters were published; 0: not yet."""
        return self._row.n_added

    def publish(self, parameters: npt.NDArray[np.float32], updates: int) -> None:
        """Make these parameters the newest, as they are after so many updates."""
        self._row.add(parameters=parameters, updates=updates)

    def newest(self) -> tuple[npt.NDArray[np.float32], int] | None:
        """Return the newest parameters and their updates.

        None means that there are none yet, or that they are just being written.
        """
        try:
            batch = self._row.sample(1)
        except EmptyBufferError:
            return None
        return batch.parameters[0], int(batch.updates[0])


class Newest:
    """A worker's own networks, which take up newer parameters.

    Parameters
    ----------
    algorithm : Algorithm
        Whose networks they are.
    parameters : Parameters
        Has the newest ones.
    whole : bool
        Whether these are those of all networks, or only the policy's.
    seed : sequence of int
        Of this worker: decides, with the updates, on the noise of networks that explore by it.
    """

    def __init__(
        self, algorithm: Algorithm, parameters: Parameters, whole: bool, seed: Sequence[int]
    ) -> None:
        self._targets, self._parameters = published(algorithm, whole), parameters
        self._algorithm, self._seed = algorithm, seed
        self._version = self._updates = 0

    def take_up(self) -> int:
        """Take up newer parameters, if there are any; return the updates of the current ones."""
        version = self._parameters.version
        if version != self._version:
            # Until it has taken up some, its weights are nobody's.
            patience_seconds = 0.0 if self._version else FIRST_SECONDS
            newest = found_within(patience_seconds, self._parameters.newest)
            if newest is not None:
                vector, self._updates = newest
                load_vector(self._targets, vector)
                self._algorithm.resample_noise((*self._seed, self._updates))
                self._version = version
        return self._updates


def published(algorithm: Algorithm, whole: bool) -> list[torch.Tensor]:
    """Return the vectors that a parameter stream carries.

    They are all that is trained if ``whole``, otherwise what trains the policy; and by what
    observations and rewards are normalized, if they are.
    """
    minimizers, normalization = algorithm.minimizers.values(), algorithm.normalization
    trained = [
        minimizer.flat for minimizer in minimizers if whole or algorithm.policy in minimizer.modules
    ]
    return trained if normalization is None else [*trained, normalization.vector]


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
