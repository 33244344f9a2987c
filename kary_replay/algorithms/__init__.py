"""The algorithms, by the names that configurations and the command line use."""

from __future__ import annotations

from .algorithm import Algorithm, Options
from .ddpg import DDPG, DDPGOptions
from .dqn import DQN, DQNOptions
from .networks import MLP, Encoder
from .off_policy import OffPolicy, OffPolicyOptions
from .registry import ALGORITHMS, find, register
from .sac import SAC, SACOptions
from .spaces import UnsuitableSpaceError
from .td3 import TD3, TD3Options
from .updates.minimizer import Minimizer, Share, flatten

__all__ = [
    "ALGORITHMS",
    "DDPG",
    "DQN",
    "MLP",
    "SAC",
    "TD3",
    "Algorithm",
    "DDPGOptions",
    "DQNOptions",
    "Encoder",
    "Minimizer",
    "OffPolicy",
    "OffPolicyOptions",
    "Options",
    "SACOptions",
    "Share",
    "TD3Options",
    "UnsuitableSpaceError",
    "find",
    "flatten",
    "register",
]

for _algorithm in (DQN, DDPG, TD3, SAC):
    register(_algorithm)
