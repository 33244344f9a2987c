"""Whole training runs of stock Tianshou algorithms, on Tianshou's buffer or on ours.

Two settings differ, alike for both: a learning rate of 0 changes no cost and keeps the policies as
they were, so that both are timed with the same kind of episodes; and there is no logger and no
progress bar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import gymnasium as gym
import numpy as np
import tianshou.data
import torch
from tianshou.algorithm import DQN, SAC, RainbowDQN
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.sac import SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainer, OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import NoisyLinear
from tianshou.utils.torch_utils import policy_within_training_step

from bench.rivals.rows import ALPHA, BETA
from kary_replay.adapters import tianshou as adapter


@dataclass(frozen=True)
class Setting:
    """What one of Tianshou's example scripts sets."""

    algorithm: Callable[[gym.Env[Any, Any]], Any]
    env_id: str
    n_envs: int
    steps_per_collect: int
    updates_per_step: float
    batch: int
    slots: int


def optimizer() -> AdamOptimizerFactory:
    return AdamOptimizerFactory(lr=0.0)


def dqn(env: gym.Env[Any, Any]) -> DQN[Any]:
    net = Net(
        state_shape=env.observation_space.shape,
        action_shape=int(env.action_space.n),
        hidden_sizes=[128] * 4,
    )
    policy = DiscreteQLearningPolicy(model=net, action_space=env.action_space, eps_training=0.1)
    return DQN(
        policy=policy, optim=optimizer(), gamma=0.9, n_step_return_horizon=3, target_update_freq=320
    )


def rainbow(env: gym.Env[Any, Any]) -> RainbowDQN:
    noisy = {"linear_layer": lambda n_in, n_out: NoisyLinear(n_in, n_out, 0.1)}
    net = Net(
        state_shape=env.observation_space.shape,
        action_shape=int(env.action_space.n),
        hidden_sizes=[128] * 4,
        softmax=True,
        num_atoms=51,
        dueling_param=(noisy, noisy),
    )
    policy = C51Policy(
        model=net,
        action_space=env.action_space,
        num_atoms=51,
        v_min=-10.0,
        v_max=10.0,
        eps_training=0.1,
    )
    return RainbowDQN(
        policy=policy, optim=optimizer(), gamma=0.9, n_step_return_horizon=3, target_update_freq=320
    )


def sac(env: gym.Env[Any, Any]) -> SAC[Any]:
    state, action = env.observation_space.shape, env.action_space.shape
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(state_shape=state, hidden_sizes=[256, 256]),
        action_shape=action,
        unbounded=True,
        conditioned_sigma=True,
    )
    critics = [
        ContinuousCritic(
            preprocess_net=Net(
                state_shape=state, action_shape=action, hidden_sizes=[256, 256], concat=True
            )
        )
        for _ in range(2)
    ]
    return SAC(
        policy=SACPolicy(actor=actor, action_space=env.action_space),
        policy_optim=optimizer(),
        critic=critics[0],
        critic_optim=optimizer(),
        critic2=critics[1],
        critic2_optim=optimizer(),
        alpha=0.2,
    )


SETTINGS = {  # name → Tianshou's test_dqn.py, test_rainbow.py and mujoco_sac.py
    "DQN, CartPole-v1": Setting(dqn, "CartPole-v1", 10, 10, 0.1, 64, 20_000),
    "Rainbow, CartPole-v1": Setting(rainbow, "CartPole-v1", 8, 8, 0.125, 64, 20_000),
    "SAC, HalfCheetah-v5": Setting(sac, "HalfCheetah-v5", 1, 1, 1.0, 256, 1_000_000),
}


class Training:
    """An algorithm, its environments, and a buffer with `rows` transitions of a random policy."""

    def __init__(self, name: str, ours: bool, rows: int) -> None:
        torch.manual_seed(0)
        np.random.seed(0)
        setting = SETTINGS[name]
        self._batch = setting.batch
        envs = DummyVectorEnv([lambda: gym.make(setting.env_id) for _ in range(setting.n_envs)])
        envs.seed(0)
        source = adapter if ours else tianshou.data
        options = {"alpha": ALPHA, "beta": BETA}
        if setting.n_envs > 1:
            self.buffer = source.PrioritizedVectorReplayBuffer(
                setting.slots, setting.n_envs, **options
            )
        else:
            self.buffer = source.PrioritizedReplayBuffer(setting.slots, **options)
        self.algorithm = setting.algorithm(gym.make(setting.env_id))
        collector = Collector(self.algorithm, envs, self.buffer, exploration_noise=True)
        collector.reset()
        collector.collect(n_step=rows, random=True)
        self._parameters = OffPolicyTrainerParams(
            training_collector=collector,
            collection_step_num_env_steps=setting.steps_per_collect,
            update_step_num_gradient_steps_per_sample=setting.updates_per_step,
            batch_size=setting.batch,
            show_progress=False,
            verbose=False,
        )
        self._trainer = OffPolicyTrainer(self.algorithm, self._parameters)
        self._trainer.reset(reset_collectors=False)
        # every row of the priorities' first updates is warm-up
        self.train(20 * setting.steps_per_collect)

    def train(self, n_steps: int) -> float:
        """Run the trainer for n environment steps with their updates; return steps per second."""
        self._parameters.epoch_num_steps = n_steps
        start = perf_counter()
        self._trainer.execute_epoch()
        return n_steps / (perf_counter() - start)

    def update(self, n_updates: int) -> float:
        """Update n times, without environments; return updates per second."""
        with policy_within_training_step(self.algorithm.policy):
            start = perf_counter()
            for _ in range(n_updates):
                self.algorithm.update(buffer=self.buffer, sample_size=self._batch)
            return n_updates / (perf_counter() - start)
