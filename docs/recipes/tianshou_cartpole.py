"""Train Tianshou's own DQN on CartPole-v1 with prioritized replay.

This is a stock training script with two changes: one import with the name of the buffer, and a
function that anneals beta before every training step. Run it with ``python
docs/recipes/tianshou_cartpole.py``; with ``--steps 30000`` it balances the pole.
"""

import argparse

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net

from kary_replay.adapters.tianshou import PrioritizedVectorReplayBuffer

N_ENVS = 8


def main() -> None:
    """Train, and print the return of each test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=2000, help="environment steps (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002 - Tianshou explores with this stream
    torch.set_num_threads(1)

    env = gym.make("CartPole-v1")
    training_envs = DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(N_ENVS)])
    test_envs = DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(10)])
    training_envs.seed(args.seed)
    test_envs.seed(args.seed + 1000)

    policy = DiscreteQLearningPolicy(
        model=Net(
            state_shape=env.observation_space.shape,
            action_shape=env.action_space.n,
            hidden_sizes=[128, 128],
        ),
        action_space=env.action_space,
        eps_training=0.1,
        eps_inference=0.0,
    )
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.99,
        n_step_return_horizon=3,
        target_update_freq=320,
    )

    buffer = PrioritizedVectorReplayBuffer(
        20_000, N_ENVS, alpha=0.6, beta=0.4, random_seed=args.seed
    )
    collector = Collector(algorithm, training_envs, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=64 * N_ENVS, random=True)

    def anneal_beta(epoch: int, env_step: int) -> None:
        buffer.set_beta(min(1.0, 0.4 + 0.6 * env_step / args.steps))

    result = algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=Collector(algorithm, test_envs),
            max_epochs=max(1, args.steps // 2000),
            epoch_num_steps=min(args.steps, 2000),
            collection_step_num_env_steps=N_ENVS,
            test_step_num_episodes=10,
            batch_size=64,
            update_step_num_gradient_steps_per_sample=1 / N_ENVS,
            training_fn=anneal_beta,
            stop_fn=lambda mean_return: mean_return >= 475,
            verbose=False,
            show_progress=False,
        )
    )
    print(f"best mean return of 10 episodes: {result.best_score:.1f}")
    print(f"beta at the end: {buffer._beta:.2f}")


if __name__ == "__main__":
    main()
