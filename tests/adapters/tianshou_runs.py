"""Short seeded runs of Tianshou 2's algorithms with tiny networks; Tianshou 1 skips them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

pytest.importorskip(
    "tianshou.algorithm", reason="Tianshou 1 has no such classes; its buffers are the same"
)

import tianshou.algorithm as algorithms
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.discrete_sac import DiscreteSACPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.fqf import FQFPolicy
from tianshou.algorithm.modelfree.iqn import IQNPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.modelfree.redq import REDQPolicy
from tianshou.algorithm.modelfree.sac import SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import EnsembleLinear, Net
from tianshou.utils.net.continuous import (
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
)
from tianshou.utils.net.discrete import (
    DiscreteActor,
    DiscreteCritic,
    FractionProposalNetwork,
    FullQuantileFunction,
    ImplicitQuantileNetwork,
    NoisyLinear,
)
from tianshou.utils.torch_utils import policy_within_training_step

DISCRETE = ("DQN", "C51", "RainbowDQN", "QRDQN", "IQN", "FQF", "DiscreteSAC")
CONTINUOUS = ("DDPG", "TD3", "SAC", "REDQ")

torch.set_num_threads(1)


def build(name, env, hidden=(16,), n_step=1, lr=1e-3):
    """One of Tianshou's off-policy algorithms for `env`, with its stock classes throughout."""
    make = _discrete if name in DISCRETE else _continuous
    return make(
        name, env, list(hidden), AdamOptimizerFactory(lr=lr), {"n_step_return_horizon": n_step}
    )


def _discrete(name, env, hidden, optim, extra):
    n_obs, n_act = env.observation_space.shape, env.action_space.n
    spaces = {"action_space": env.action_space, "observation_space": env.observation_space}
    explore = {"eps_training": 0.1, "eps_inference": 0.05}
    if name in ("C51", "RainbowDQN"):
        dueling = (
            {"dueling_param": ({"linear_layer": NoisyLinear}, {"linear_layer": NoisyLinear})}
            if name != "C51"
            else {}
        )
        net = Net(
            state_shape=n_obs,
            action_shape=n_act,
            hidden_sizes=hidden,
            softmax=True,
            num_atoms=11,
            **dueling,
        )
        policy = C51Policy(
            model=net,
            action_space=env.action_space,
            observation_space=env.observation_space,
            num_atoms=11,
            v_min=-20.0,
            v_max=20.0,
            **explore,
        )
        return getattr(algorithms, name)(policy=policy, optim=optim, target_update_freq=50, **extra)
    if name == "DQN":
        policy = DiscreteQLearningPolicy(
            model=Net(state_shape=n_obs, action_shape=n_act, hidden_sizes=hidden),
            **spaces,
            **explore,
        )
        return algorithms.DQN(policy=policy, optim=optim, target_update_freq=50, **extra)
    if name == "QRDQN":
        net = Net(state_shape=n_obs, action_shape=n_act, hidden_sizes=hidden, num_atoms=8)
        policy = QRDQNPolicy(model=net, **spaces, **explore)
        return algorithms.QRDQN(
            policy=policy, optim=optim, num_quantiles=8, target_update_freq=50, **extra
        )
    features = Net(state_shape=n_obs, action_shape=hidden[-1], hidden_sizes=hidden[:-1])
    if name == "IQN":
        net = ImplicitQuantileNetwork(preprocess_net=features, action_shape=n_act, num_cosines=8)
        return algorithms.IQN(
            policy=IQNPolicy(model=net, **spaces, **explore),
            optim=optim,
            num_quantiles=8,
            target_update_freq=50,
            **extra,
        )
    if name == "FQF":
        net = FullQuantileFunction(preprocess_net=features, action_shape=n_act, num_cosines=8)
        fractions = FractionProposalNetwork(8, net.input_dim)
        policy = FQFPolicy(model=net, fraction_model=fractions, **spaces, **explore)
        return algorithms.FQF(
            policy=policy,
            optim=optim,
            fraction_optim=AdamOptimizerFactory(lr=1e-4),
            num_fractions=8,
            target_update_freq=50,
            **extra,
        )
    actor = DiscreteActor(preprocess_net=features, action_shape=n_act, softmax_output=False)
    critics = [
        DiscreteCritic(preprocess_net=Net(state_shape=n_obs, hidden_sizes=hidden), last_size=n_act)
        for _ in range(2)
    ]
    return algorithms.DiscreteSAC(
        policy=DiscreteSACPolicy(actor=actor, **spaces),
        policy_optim=optim,
        critic=critics[0],
        critic_optim=optim,
        critic2=critics[1],
        critic2_optim=optim,
        **extra,
    )


def _continuous(name, env, hidden, optim, extra):
    n_obs, n_act = env.observation_space.shape, env.action_space.shape
    spaces = {"action_space": env.action_space, "observation_space": env.observation_space}

    def critic(linear=torch.nn.Linear):
        net = Net(
            state_shape=n_obs,
            action_shape=n_act,
            hidden_sizes=hidden,
            concat=True,
            linear_layer=linear,
        )
        return ContinuousCritic(
            preprocess_net=net, linear_layer=linear, flatten_input=linear is torch.nn.Linear
        )

    features = Net(state_shape=n_obs, hidden_sizes=hidden)
    if name in ("DDPG", "TD3"):
        actor = ContinuousActorDeterministic(preprocess_net=features, action_shape=n_act)
        policy = ContinuousDeterministicPolicy(actor=actor, **spaces)
    else:
        actor = ContinuousActorProbabilistic(
            preprocess_net=features, action_shape=n_act, unbounded=True, conditioned_sigma=True
        )
        policy = (SACPolicy if name == "SAC" else REDQPolicy)(actor=actor, **spaces)
    critics = {"critic": critic(), "critic_optim": optim}
    if name in ("TD3", "SAC"):
        critics |= {"critic2": critic(), "critic2_optim": optim}
    if name == "REDQ":
        critics["critic"] = critic(lambda n_in, n_out: EnsembleLinear(3, n_in, n_out))
        extra = {**extra, "ensemble_size": 3, "actor_delay": 2}
    return getattr(algorithms, name)(policy=policy, policy_optim=optim, **critics, **extra)


def env_for(name, n_envs):
    """The environments an algorithm is tried on."""
    task = "CartPole-v1" if name in DISCRETE else "Pendulum-v1"
    return DummyVectorEnv([lambda: gym.make(task) for _ in range(n_envs)])


def train(
    name,
    buffer,
    n_envs=2,
    steps=60,
    batch_size=16,
    seed=3,
    warm_up=40,
    updates_per_step=0.5,
    **options,
):
    """Collect `warm_up` random steps, then train for `steps`; return the algorithm."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    env = env_for(name, n_envs)
    env.seed(seed)
    for i, space in enumerate(env.action_space):
        space.seed(seed + i)
    algorithm = build(
        name, gym.make("CartPole-v1" if name in DISCRETE else "Pendulum-v1"), **options
    )
    collector = Collector(algorithm, env, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=warm_up, random=True)
    algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=steps,
            batch_size=batch_size,
            collection_step_num_env_steps=4 * n_envs,
            update_step_num_gradient_steps_per_sample=updates_per_step,
            test_collector=None,
            verbose=False,
            show_progress=False,
        )
    )
    return algorithm


def update(algorithm, buffer, batch_size=16):
    """One step of training; return its statistics."""
    with policy_within_training_step(algorithm.policy):
        return algorithm.update(buffer, batch_size)
