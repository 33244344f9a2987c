"""The algorithms, by the names that configurations and the command line use."""

from __future__ import annotations

from .a2c import A2C, IMPALA, A2COptions, IMPALAOptions
from .algorithm import Algorithm, Options
from .ddpg import DDPG, DDPGOptions
from .dqn import DQN, DQNOptions, Rainbow, RainbowOptions
from .networks import MLP, Encoder
from .off_policy import OffPolicy, OffPolicyOptions
from .on_policy import OnPolicy, OnPolicyOptions
from .ppo import APPO, PPO, APPOOptions, PPOOptions
from .r2d2 import R2D2, R2D2Options
from .registry import ALGORITHMS, find, register
from .sac import SAC, SACOptions
from .spaces import UnsuitableSpaceError
from .td3 import TD3, TD3Options
from .updates.minimizer import Minimizer, Share, flatten

__all__ = [
    "A2C",
    "ALGORITHMS",
    "APPO",
    "DDPG",
    "DQN",
    "IMPALA",
    "MLP",
    "PPO",
    "R2D2",
    "SAC",
    "TD3",
    "A2COptions",
    "APPOOptions",
    "Algorithm",
    "DDPGOptions",
    "DQNOptions",
    "Encoder",
    "IMPALAOptions",
    "Minimizer",
    "OffPolicy",
    "OffPolicyOptions",
    "OnPolicy",
    "OnPolicyOptions",
    "Options",
    "PPOOptions",
    "R2D2Options",
    "Rainbow",
    "RainbowOptions",
    "SACOptions",
    "Share",
    "TD3Options",
    "UnsuitableSpaceError",
    "find",
    "flatten",
    "register",
]

for _algorithm in (DQN, Rainbow, R2D2, DDPG, TD3, SAC, A2C, PPO, IMPALA, APPO):
    register(_algorithm)
