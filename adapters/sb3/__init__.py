"""Prioritized replay for unmodified Stable-Baselines3, which takes it as ``replay_buffer_class``.

>>> from stable_baselines3 import DQN
>>> from kary_replay.adapters.sb3 import PrioritizedReplayBuffer
>>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=PrioritizedReplayBuffer)
"""

from kary_replay.adapters.sb3.callback import PrioritizedReplayCallback
from kary_replay.adapters.sb3.dict_replay_buffer import PrioritizedDictReplayBuffer
from kary_replay.adapters.sb3.her_replay_buffer import PrioritizedHerReplayBuffer
from kary_replay.adapters.sb3.n_step_replay_buffer import PrioritizedNStepReplayBuffer
from kary_replay.adapters.sb3.replay_buffer import PrioritizedReplayBuffer

__all__ = [
    "PrioritizedDictReplayBuffer",
    "PrioritizedHerReplayBuffer",
    "PrioritizedNStepReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedReplayCallback",
]
