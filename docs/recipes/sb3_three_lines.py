"""Train a stock Stable-Baselines3 algorithm with prioritized replay, in three lines."""

from stable_baselines3 import DQN

from kary_replay.adapters.sb3 import PrioritizedReplayBuffer

DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=PrioritizedReplayBuffer).learn(5_000)
