"""What every worker is given: the configuration, the spaces, the streams. Small, and picklable to other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..algorithms import Algorithm, Share
from .board import Board
from .config import RunnerConfig
from .environments import Maker
from .streams.parameters import ParameterStream
from .streams.replay import ReplayStream

__all__ = ["Ended", "Evaluation", "Plan", "Problem", "Ready", "WorkerFailedError"]

KINDS = {"actor": 0, "learner": 1, "evaluator": 2}


class WorkerFailedError(RuntimeError):
    """A worker has failed for good: the message has its traceback."""


@dataclass
class Plan:
    """A run, as its workers know it."""

    config: RunnerConfig
    make: Maker
    observation_space: Any
    action_space: Any
    replay: ReplayStream
    parameters: ParameterStream
    board: Board
    n_actors: int

    def algorithm(self, device: str = "cpu", share: Share | None = None) -> Algorithm:
        """Return the algorithm, with the weights that every worker begins with."""
        config = self.config
        return config.algorithm_class(
            self.observation_space, self.action_space, config.options, seed=config.seed, device=device, share=share
        )

    def rng(self, kind: str, index: int, incarnation: int = 0) -> np.random.Generator:
        """Return a worker's own random stream."""
        return np.random.default_rng([self.config.seed, KINDS[kind], index, incarnation])

    @property
    def publishes_all(self) -> bool:
        """Whether actors need all networks, not only the policy."""
        return self.config.initial_priority == "td_error"


class Ended(NamedTuple):
    """A report: an episode has ended."""

    env_steps: int
    episode_return: float
    length: int


class Evaluation(NamedTuple):
    """A report: the policy has been evaluated."""

    env_steps: int
    updates: int
    wall_seconds: float
    mean_return: float
    returns: tuple[float, ...]


class Problem(NamedTuple):
    """A report: a worker ends, for this reason."""

    worker: str
    message: str
    is_environment: bool


class Ready(NamedTuple):
    """A report: a worker has saved its state; or, with no path, is about to begin."""

    worker: str
    path: str
