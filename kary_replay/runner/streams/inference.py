"""Where actors get their actions from.

Actions are asked for one group of environments and collected later, so that other groups can be
stepped in between. With `LocalInference` the actor computes them itself; `remote_inference` has the
stream to a worker that does so for many actors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from ...algorithms import Algorithm
from ...fields import map_leaves
from .parameters import Newest
from .stream import Checkpoint, Hosted, Medium

__all__ = ["Inference", "LocalInference", "LocalInferenceStream", "as_tensors", "moved"]


class Inference(Protocol):
    """Chooses actions for groups of environments: all that an actor knows of it."""

    updates: int
    """Updates of the parameters by which the actions collected last were chosen."""

    def request(
        self,
        group: int,
        observation: Any,
        exploration: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Ask for the actions of a group, as `Algorithm.choose` does; return at once."""

    def ask_again(
        self,
        group: int,
        observation: Any,
        exploration: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Ask for what was asked before a checkpoint; an answer that it has, stays."""

    def is_ready(self, group: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether `collect` would return at once."""

    def collect(self, group: int) -> dict[str, npt.NDArray[Any]]:
        """Return the actions that were asked for, and what `Algorithm.choose` says beside."""


@dataclass(frozen=True)
class LocalInferenceStream(Hosted):
    """Inference in the process of the actor, which copies the parameters whenever they are newer.

    Parameters
    ----------
    whole : bool
        Whether the parameter stream carries all networks, or only the policy.
    """

    whole: bool

    def host(self, medium: Medium, checkpoint: Checkpoint) -> LocalInferenceStream:
        """Return the stream itself, for it needs no memory between workers."""
        return self

    def sink(self) -> LocalInferenceStream:
        """Return the actors' end."""
        return self

    def client(self, seat: Any, algorithm: Algorithm, rng: np.random.Generator) -> LocalInference:
        """Return what an actor asks for its actions."""
        newest = Newest(
            algorithm, seat.streams["parameters"], self.whole, (seat.config.seed, seat.index)
        )
        return LocalInference(algorithm, newest, rng)


class LocalInference:
    """The worker's own copy of the networks, renewed whenever newer parameters are published."""

    def __init__(self, algorithm: Algorithm, newest: Newest, rng: np.random.Generator) -> None:
        self.algorithm, self._rng, self._newest = algorithm, rng, newest
        self._asked: dict[int, tuple[Any, ...]] = {}
        self.updates = 0

    def request(
        self,
        group: int,
        observation: Any,
        exploration: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Ask for the actions of a group."""
        self._asked[group] = observation, exploration, state

    ask_again = request

    def is_ready(self, group: int, patience_seconds: float) -> bool:
        """Return True: `collect` chooses them."""
        return True

    def collect(self, group: int) -> dict[str, npt.NDArray[Any]]:
        """Choose the actions."""
        self.updates = self._newest.take_up()
        observation, exploration, state = self._asked.pop(group)
        return self.algorithm.choose(as_tensors(observation), exploration, self._rng, state)


def as_tensors(observation: Any) -> Any:
    """Return arrays, or a dict of them, as tensors of the same memory."""
    return map_leaves(observation, torch.from_numpy)


def moved(column: Any, device: torch.device) -> Any:
    """Return tensors, or a dict of them, on a device."""
    return map_leaves(column, lambda part: part.to(device))
