"""A learner's whole update, its draw included: ours against SB3's, with the same network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.logger import configure

import kary_replay as kr
from bench.harness.timing import Contender
from kary_replay.algorithms import ALGORITHMS

OURS, SB3 = "kary-replay", "SB3"
ENVS = {"dqn": "CartPole-v1", "ddpg": "Pendulum-v1", "td3": "Pendulum-v1", "sac": "Pendulum-v1"}
BATCHES = {"dqn": 64, "ddpg": 256, "td3": 256, "sac": 256}
FILLED = 10_000  # transitions in the buffer
PERIOD = 2  # TD3 updates its actor every other time: a call makes both kinds of update


def ours(algorithm: str, units: int, batch_size: int) -> Callable[[], object]:
    """Return a call that makes one update: two hidden layers of `units`, FILLED rows."""
    kind, env = ALGORITHMS[algorithm], gym.make(ENVS[algorithm])
    discrete = hasattr(env.action_space, "n")
    options = kind.options_class(hidden=(units, units), batch_size=batch_size)
    learner = kind(env.observation_space, env.action_space, options, seed=0)
    shape = env.observation_space.shape
    action = kr.Field((), "int64") if discrete else kr.Field(env.action_space.shape, "float32")
    scalars = {name: kr.Field((), "float32") for name in ("reward", "discount")}
    observations = {
        name: kr.Field(shape, "float32") for name in ("observation", "next_observation")
    }
    buffer = kr.PrioritizedReplayBuffer(
        FILLED, {**observations, "action": action, **scalars}, seed=0
    )
    rng = np.random.default_rng(0)
    drawn = (
        rng.integers(2, size=FILLED)
        if discrete
        else rng.uniform(-1, 1, (FILLED, *action.shape)).astype(np.float32)
    )
    both = {name: rng.standard_normal((FILLED, *shape), np.float32) for name in observations}
    buffer.add(
        **both,
        action=drawn,
        reward=rng.standard_normal(FILLED, np.float32),
        discount=np.full(FILLED, 0.99, np.float32),
    )
    names = (*observations, "action", *scalars, "importance_weight")

    def update() -> None:
        batch = buffer.sample(batch_size)
        td_error = learner.update({name: torch.from_numpy(batch[name]) for name in names})
        buffer.update_priorities(batch.handle, td_error.numpy())

    return update


def sb3(algorithm: str, units: int, batch_size: int) -> Callable[[], object]:
    """Return a call that makes one update of SB3's learner, stock settings."""
    kind: Any = getattr(stable_baselines3, algorithm.upper())
    env = gym.make(ENVS[algorithm])
    model = kind(
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
    return lambda: model.train(gradient_steps=1, batch_size=batch_size)


def contender(name: str, update: Callable[[], object]) -> Contender:
    """Make calls of PERIOD updates each; the batches are drawn inside, as learners do."""

    def call() -> None:
        for _ in range(PERIOD):
            update()

    return Contender(name, call, lambda n: [()] * n, operations=PERIOD)


@pytest.mark.parametrize("units", [64, 256])
@pytest.mark.parametrize("algorithm", ENVS)
def test_update(compare, algorithm, units):
    torch.set_num_threads(1)
    batch_size = BATCHES[algorithm]
    parameters = {"algorithm": algorithm, "units": units, "batch": batch_size}
    candidates = [
        contender(name, make(algorithm, units, batch_size))
        for name, make in ((OURS, ours), (SB3, sb3))
    ]
    compare.times("learner: update", parameters, candidates[0], candidates[1:])
