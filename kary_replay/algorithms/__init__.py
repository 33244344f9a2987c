"""The algorithms, by the names that configurations and the command line use."""

from __future__ import annotations

from .algorithm import Algorithm, Options, UnsuitableSpaceError
from .dqn import DQN, DQNOptions
from .minimizer import Minimizer, Share

__all__ = ["ALGORITHMS", "DQN", "Algorithm", "DQNOptions", "Minimizer", "Options", "Share", "UnsuitableSpaceError"]

ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in (DQN,)}
