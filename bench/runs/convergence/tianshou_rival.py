"""Tianshou 2.x with the settings of its own scripts, or with faster ones: see SETTINGS."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tianshou.algorithm import DDPG, DQN, SAC, TD3
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, ReplayBuffer, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.exploration import GaussianNoise
from tianshou.trainer import OffPolicyTrainer, OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import (
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)

from bench.runs.convergence.protocol import Course, Outcome, make
from bench.runs.convergence.tasks import Task

# The times are seconds to the threshold, 64 units, one seed, on a machine with two cores: enough to
# tell twice from once. `eps` goes from its first number to its second in that many environment
# steps. Buffers are small because Tianshou looks through all of a buffer after every collection.
SETTINGS: dict[str, dict[str, Any]] = {
    # From examples/discrete/discrete_dqn.py (learning rate 1e-3, gamma 0.9, 3-step targets, epsilon
    # 0.1, 10 steps and 1 update at a time), which did not get there in 300,000 steps: best mean
    # return 459. As below 23 s, 10,375 updates. The zoo's rate, 1-step targets and 250 steps at a
    # time: 27 s with an update per 2 steps, 11,780 updates with one per 4. A rate of 1e-3 and 50
    # steps at a time, an update per 2: 64 s. Gamma 0.98, 250 steps at a time, an update per 2:
    # 20,250 updates.
    "cartpole_dqn": {
        "lr": 2e-3,
        "batch_size": 64,
        "buffer_size": 20_000,
        "random_steps": 1_000,
        "gamma": 0.99,
        "n_step": 3,
        "target_update_freq": 100,
        "n_envs": 10,
        "steps_per_collect": 100,
        "updates_per_step": 0.25,
        "huber": None,
        "eps": [1.0, 0.05, 5_000],
    },
    # examples/box2d/lunarlander_dqn.py (not run) learns with a rate of 0.013, dueling heads,
    # epsilon 0.73, an update per 16 steps, ten epochs of 80,000. Here the zoo's rate, gamma,
    # target, epsilon and Huber loss, with 16 environments: solved after 101,120 steps. With squared
    # errors, an update per 2 steps: stopped, unsolved, after 280 s of processor time.
    "lunarlander_dqn": {
        "lr": 6.3e-4,
        "batch_size": 128,
        "buffer_size": 50_000,
        "random_steps": 0,
        "gamma": 0.99,
        "n_step": 1,
        "target_update_freq": 250,
        "n_envs": 16,
        "steps_per_collect": 64,
        "updates_per_step": 1.0,
        "huber": 1.0,
        "eps": [1.0, 0.1, 12_000],
    },
    # From test/continuous/test_ddpg.py (learning rate of the actor 1e-4, gamma 0.99, an update per
    # 8 steps, no random steps), which took 12.2 s, 2,331 updates. An actor's rate of 1e-3 and an
    # update per 2 steps: 10.3 s, 2,772 updates; with the zoo's gamma, a random start and 1-step
    # targets 3,528 updates. As below 1,512 updates, the fewest.
    "pendulum_ddpg": {
        "actor_lr": 1e-3,
        "lr": 1e-3,
        "tau": 0.005,
        "batch_size": 128,
        "buffer_size": 20_000,
        "random_steps": 1_000,
        "gamma": 0.98,
        "n_step": 3,
        "noise_std": 0.1,
        "n_envs": 8,
        "steps_per_collect": 8,
        "updates_per_step": 1.0,
    },
    # From test/continuous/test_td3.py: 28.9 s, 4,914 updates. An actor's rate of 1e-3 and an update
    # per 2 steps: 17.2 s, 4,032 updates. As below as many updates, with 5,032 steps for 8,064. With
    # 1-step targets 5,544 and 6,300 updates.
    "pendulum_td3": {
        "actor_lr": 1e-3,
        "lr": 1e-3,
        "tau": 0.005,
        "batch_size": 128,
        "buffer_size": 20_000,
        "random_steps": 1_000,
        "gamma": 0.98,
        "n_step": 3,
        "noise_std": 0.1,
        "n_envs": 8,
        "steps_per_collect": 8,
        "updates_per_step": 1.0,
    },
    # From test/continuous/test_sac_with_il.py (learning rates 1e-3, batch 128, an update per 10
    # steps), which took 15.3 s. With a deviation that depends on the state and 0.3 updates per step
    # 12.6 s, with 1 update per step 17.8 s, with 1-step targets 15.6 and 22.5 s, with 0.5 updates
    # per step, rates of 2e-3 and a batch of 256 9.8 s.
    "pendulum_sac": {
        "actor_lr": 2e-3,
        "lr": 2e-3,
        "alpha_lr": 3e-4,
        "tau": 0.005,
        "conditioned_sigma": True,
        "batch_size": 256,
        "buffer_size": 20_000,
        "random_steps": 0,
        "gamma": 0.99,
        "n_step": 3,
        "n_envs": 10,
        "steps_per_collect": 10,
        "updates_per_step": 0.5,
    },
}
COMMON = {"threads": 1}


def settings(name: str, units: int) -> dict[str, Any]:
    """Return everything that is set for a task."""
    return {**COMMON, **SETTINGS[name], "units": units}


def build(task: Task, chosen: dict[str, Any]) -> tuple[Any, torch.nn.Module, Any]:
    """Return the algorithm, the network that acts, and how it acts greedily."""
    env = make(task.env_id)
    shape, hidden = env.observation_space.shape, [chosen["units"]] * 2
    common = {"gamma": chosen["gamma"], "n_step_return_horizon": chosen["n_step"]}
    optim = AdamOptimizerFactory(lr=chosen["lr"])
    if task.algorithm == "dqn":
        net = Net(state_shape=shape, action_shape=int(env.action_space.n), hidden_sizes=hidden)
        policy = DiscreteQLearningPolicy(
            model=net, action_space=env.action_space, eps_training=chosen["eps"][0]
        )
        common |= {
            "target_update_freq": chosen["target_update_freq"],
            "huber_loss_delta": chosen["huber"],
        }
        algorithm = DQN(policy=policy, optim=optim, **common)
        return algorithm, net, lambda network, observations: network(observations)[0].argmax(dim=1)
    action = env.action_space.shape
    critics = [
        ContinuousCritic(
            preprocess_net=Net(
                state_shape=shape, action_shape=action, hidden_sizes=hidden, concat=True
            )
        )
        for _ in range(1 if task.algorithm == "ddpg" else 2)
    ]
    trunk = Net(state_shape=shape, hidden_sizes=hidden)
    names = dict(zip(("critic", "critic2"), critics, strict=False))
    names |= {f"{name}_optim": optim for name in names}
    names |= {
        "policy_optim": AdamOptimizerFactory(lr=chosen["actor_lr"]),
        "tau": chosen["tau"],
        **common,
    }
    if task.algorithm == "sac":
        actor = ContinuousActorProbabilistic(
            preprocess_net=trunk,
            action_shape=action,
            unbounded=True,
            conditioned_sigma=chosen["conditioned_sigma"],
        )
        alpha = AutoAlpha(-float(np.prod(action)), 0.0, AdamOptimizerFactory(lr=chosen["alpha_lr"]))
        algorithm = SAC(
            policy=SACPolicy(actor=actor, action_space=env.action_space), alpha=alpha, **names
        )
        return (
            algorithm,
            actor,
            lambda network, observations: torch.tanh(network(observations)[0][0]),
        )
    actor = ContinuousActorDeterministic(preprocess_net=trunk, action_shape=action)
    noise = GaussianNoise(sigma=chosen["noise_std"])
    policy = ContinuousDeterministicPolicy(
        actor=actor, exploration_noise=noise, action_space=env.action_space
    )
    algorithm = (DDPG if task.algorithm == "ddpg" else TD3)(policy=policy, **names)
    return algorithm, actor, lambda network, observations: network(observations)[0]


def train(name: str, task: Task, seed: int, chosen: dict[str, Any]) -> Outcome:
    """Train, an epoch from snapshot to snapshot, until the course says that it is enough."""
    torch.set_num_threads(chosen["threads"])
    np.random.seed(seed)
    torch.manual_seed(seed)
    n_envs = chosen["n_envs"]
    envs = DummyVectorEnv([lambda: make(task.env_id)] * n_envs)
    envs.seed(seed)
    algorithm, network, act = build(task, chosen)
    course = Course(task, network, act, chosen)
    size = chosen["buffer_size"]
    buffer = VectorReplayBuffer(size, n_envs) if n_envs > 1 else ReplayBuffer(size)
    collector = Collector(algorithm, envs, buffer, exploration_noise=True)

    def explore(_epoch: int, env_step: int) -> None:
        first, last, steps = chosen["eps"]
        algorithm.policy.set_eps_training(max(last, first + (last - first) * env_step / steps))

    per_collect = chosen["steps_per_collect"]
    updates_per_collect = round(chosen["updates_per_step"] * per_collect)
    parameters = OffPolicyTrainerParams(
        training_collector=collector,
        epoch_num_steps=task.snapshot_every,
        collection_step_num_env_steps=per_collect,
        update_step_num_gradient_steps_per_sample=chosen["updates_per_step"],
        batch_size=chosen["batch_size"],
        training_fn=explore if task.algorithm == "dqn" else None,
        show_progress=False,
        verbose=False,
    )
    trainer = OffPolicyTrainer(algorithm, parameters)
    trainer.reset()
    course.start()
    if chosen["random_steps"]:
        collector.collect(n_step=chosen["random_steps"], random=True)
    n_epochs, env_steps, updates = 0, chosen["random_steps"], 0
    collects_per_epoch = -(-task.snapshot_every // per_collect)
    while course.step(env_steps, updates):
        trainer.execute_epoch()
        n_epochs += 1
        env_steps = chosen["random_steps"] + n_epochs * collects_per_epoch * per_collect
        updates = n_epochs * collects_per_epoch * updates_per_collect
    return course.outcome
