"""The algorithms, by the names that configurations and the command line use."""

from __future__ import annotations

from .algorithm import Algorithm, Options
from .ddpg import DDPG, DDPGOptions
from .dqn import DQN, DQNOptions
from .minimizer import Minimizer, Share
from .sac import SAC, SACOptions
from .spaces import UnsuitableSpaceError
from .td3 import TD3, TD3Options

__all__ = [
    "ALGORITHMS",
    "DDPG",
    "DQN",
    "SAC",
    "TD3",
    "Algorithm",
    "DDPGOptions",
    "DQNOptions",
    "Minimizer",
    "Options",
    "SACOptions",
    "Share",
    "TD3Options",
    "UnsuitableSpaceError",
]

ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in (DQN, DDPG, TD3, SAC)}
