"""Prioritized replay for unmodified RLlib, on its new API stack.

>>> from ray.rllib.algorithms.dqn import DQNConfig
>>> from kary_replay.adapters.rllib import use
>>> config = use(DQNConfig().environment("CartPole-v1"), capacity=100_000, alpha=0.6, beta=0.4)
"""

from kary_replay.adapters.rllib.algorithms import (
    ReplayDQN,
    ReplayInCheckpoints,
    ReplaySAC,
    ReplayTQC,
)
from kary_replay.adapters.rllib.configuration import use
from kary_replay.adapters.rllib.drawn_rows import DrawnRows
from kary_replay.adapters.rllib.replay_buffer import PrioritizedEpisodeReplayBuffer
from kary_replay.adapters.rllib.replay_columns import ReplayColumns

__all__ = [
    "DrawnRows",
    "PrioritizedEpisodeReplayBuffer",
    "ReplayColumns",
    "ReplayDQN",
    "ReplayInCheckpoints",
    "ReplaySAC",
    "ReplayTQC",
    "use",
]
