"""Stable-Baselines3's learners with full buffers, and SBX's, which are built in the same way."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.logger import configure

ENVS = {"dqn": "CartPole-v1", "ddpg": "Pendulum-v1", "td3": "Pendulum-v1", "sac": "Pendulum-v1"}
FILLED = 10_000  # transitions in the buffer
PERIOD = 2  # TD3 updates its actor every other time: a call makes both kinds of update


def filled_model(library: Any, algorithm: str, units: int) -> Any:
    """Return the library's algorithm: its own settings, two hidden layers, FILLED rows."""
    env = gym.make(ENVS[algorithm])
    model = getattr(library, algorithm.upper())(
        "MlpPolicy",
        env,
        policy_kwargs={"net_arch": [units, units]},
        buffer_size=FILLED,
        seed=0,
        device="cpu",
    )
    model.set_logger(configure(None, []))
    rng = np.random.default_rng(0)
    observation, reward = rng.standard_normal(env.observation_space.shape), rng.standard_normal(1)
    env.action_space.seed(0)
    for _ in range(FILLED):
        following, action = (
            rng.standard_normal(observation.shape),
            np.array([env.action_space.sample()]),
        )
        model.replay_buffer.add(observation, following, action, reward, np.zeros(1), [{}])
        observation, reward = following, rng.standard_normal(1)
    return model
