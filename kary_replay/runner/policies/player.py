"""Acts with a policy step by step, without exploring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ...algorithms import Algorithm
from ..streams.inference import as_tensors

__all__ = ["Player"]


class Player:
    """Chooses what seems best in some environments, and carries what the policy remembers.

    Parameters
    ----------
    algorithm : Algorithm
        Whose policy it is; its parameters may change between episodes.
    n_envs : int
        Environments, N, whose actions are chosen together.
    scale : function of an array, optional
        Makes of actions as algorithms choose them those that are returned.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        n_envs: int,
        scale: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None,
    ) -> None:
        self._algorithm, self._rng, self._scale = algorithm, np.random.default_rng(0), scale
        self._greedy = np.zeros(n_envs, np.float32)
        self.begin()

    def begin(self) -> None:
        """Forget everything: new episodes begin in all environments."""
        self._state = self._algorithm.initial_state(len(self._greedy))

    def act(self, observation: Any) -> npt.NDArray[Any]:
        """Return the actions for the next observations of all environments, arrays [N, ...]."""
        read = as_tensors(observation)
        chosen = self._algorithm.choose(read, self._greedy, self._rng, self._state)
        self._state = chosen.get("next_state", self._state)
        action = chosen["action"]
        return action if self._scale is None else self._scale(action)
