"""Train RLlib's own DQN on CartPole-v1 with our prioritized replay, and go on from a checkpoint.

This is a stock training script with one change, ``use(config)``. Run it with ``python
docs/recipes/rllib_cartpole.py``; with ``--steps 60000`` it balances the pole.
"""

import argparse
import tempfile

import ray
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from kary_replay.adapters.rllib import use


def main() -> None:
    """Train half of the steps, save, restore into a new algorithm, and train the rest."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=4_000, help="environment steps (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    config = (
        DQNConfig()
        .environment("CartPole-v1")
        .training(
            lr=5e-4,
            train_batch_size_per_learner=32,
            n_step=(2, 5),
            epsilon=[(0, 1.0), (args.steps // 2, 0.02)],
        )
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[256]))
        .reporting(
            min_sample_timesteps_per_iteration=max(args.steps // 8, 1), min_time_s_per_iteration=0
        )
        .debugging(seed=args.seed)
    )
    use(config, capacity=50_000, alpha=0.6, beta=0.4)  # the change

    ray.init(include_dashboard=False, log_to_driver=False)
    algorithm = config.build_algo()
    train(algorithm, until=args.steps // 2)
    with tempfile.TemporaryDirectory() as folder:
        algorithm.save_to_path(folder)
        algorithm.stop()
        algorithm = config.algo_class.from_checkpoint(folder)
    print(f"restored with {algorithm.local_replay_buffer}")
    train(algorithm, until=args.steps)
    algorithm.stop()
    ray.shutdown()


def train(algorithm, until: int) -> None:
    """Train up to so many environment steps in all, and print the mean return."""
    n_steps = 0
    while n_steps < until:
        result = algorithm.train()
        n_steps = int(result["num_env_steps_sampled_lifetime"])
        mean = result["env_runners"].get("episode_return_mean", float("nan"))
        print(f"{n_steps:7,} steps, mean return {mean:6.1f}")


if __name__ == "__main__":
    main()
