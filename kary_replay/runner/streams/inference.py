"""Choosing actions: asked for one group of environments, collected later, so that others can be stepped in between.

`LocalInference` computes in the worker itself, when the actions are collected. A stream to a worker
that does it for many actors would be another `Inference`.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ...algorithms import Algorithm
from .parameters import ParameterStream, load_vector

__all__ = ["Inference", "LocalInference", "as_tensors", "published"]


class Inference(Protocol):
    """Chooses actions for groups of environments: all that an actor knows of it."""

    updates: int
    """Of the parameters by which the actions that were collected last have been chosen."""

    def request(self, group: int, observation: Any, exploration: npt.NDArray[np.float32]) -> None:
        """Ask for the actions of a group; returns at once."""

    def collect(self, group: int) -> npt.NDArray[Any]:
        """Return the actions that were asked for."""


class LocalInference:
    """The worker's own copy of the networks, renewed whenever newer parameters are published."""

    def __init__(
        self,
        algorithm: Algorithm,
        parameters: ParameterStream,
        rng: np.random.Generator,
        whole: bool,
    ) -> None:
        """Act by ``algorithm``, whose trained networks are received ``whole``, or only its policy."""
        self.algorithm, self._stream, self._rng = algorithm, parameters, rng
        self._targets = published(algorithm, whole)
        self._asked: dict[int, tuple[Any, npt.NDArray[np.float32]]] = {}
        self._version = 0
        self.updates = 0

    def request(self, group: int, observation: Any, exploration: npt.NDArray[np.float32]) -> None:
        """Ask for the actions of a group."""
        self._asked[group] = observation, exploration

    def collect(self, group: int) -> npt.NDArray[Any]:
        """Choose the actions."""
        self._renew()
        observation, exploration = self._asked.pop(group)
        return self.algorithm.act(as_tensors(observation), exploration, self._rng)

    def _renew(self) -> None:
        """Take over newer parameters, if there are."""
        version = self._stream.version
        if version != self._version:
            newest = self._stream.fetch()
            if newest is not None:
                vector, self.updates = newest
                load_vector(self._targets, vector)
                self._version = version


def published(algorithm: Algorithm, whole: bool) -> list[torch.Tensor]:
    """Return the vectors that a parameter stream carries: all that is trained, or what trains the policy."""
    minimizers = algorithm.minimizers.values()
    return [
        minimizer.flat for minimizer in minimizers if whole or algorithm.policy in minimizer.modules
    ]


def as_tensors(observation: Any) -> Any:
    """Return arrays, or a dict of them, as tensors of the same memory."""
    if isinstance(observation, dict):
        return {key: torch.from_numpy(part) for key, part in observation.items()}
    return torch.from_numpy(observation)
