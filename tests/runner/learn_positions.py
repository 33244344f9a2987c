"""Trains PPO on CartPole without velocities, which it only solves if it remembers.

python tests/runner/learn_positions.py --seeds 3
python tests/runner/learn_positions.py --seeds 3 --without-memory
"""

import argparse
import sys
import tempfile
from pathlib import Path

from kary_replay.algorithms import PPOOptions
from kary_replay.runner import Runner, RunnerConfig

SOLVED = 475.0


def train(seed, lstm_hidden_size, total_env_steps, directory):
    """Return the result of a run that ends when an evaluation solves the task."""
    options = PPOOptions(
        hidden=(64,),
        lstm_hidden_size=lstm_hidden_size,
        n_envs=8,
        rollout_length=32,
        batch_size=256,
        n_epochs=20,
        learning_rate=1e-3,
        learning_rate_final_share=0.0,
        gamma=0.98,
        gae_lambda=0.8,
    )
    settings = RunnerConfig(
        "ppo",
        "masked_envs:cartpole_without_velocities",
        options=options,
        actors=1,
        backend="serial",
        seed=seed,
        total_env_steps=total_env_steps,
        normalize_observations=True,
        evaluation_interval=4_000,
        evaluation_episodes=20,
        target_return=SOLVED,
        directory=str(directory),
    )
    return Runner(settings).run()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--units", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--without-memory", action="store_true")
    given = parser.parse_args()
    units, solved = None if given.without_memory else given.units, 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seeds):
            result = train(seed, units, given.steps, Path(folder) / str(seed))
            solved += result.best_return >= SOLVED
            print(
                f"seed {seed}: best evaluation {result.best_return:.1f} of "
                f"{result.env_steps:,} steps, {result.wall_seconds:.0f} s"
            )
    print(f"{solved} of {given.seeds} solved")
    return solved == 0 if given.without_memory else solved == given.seeds


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    sys.exit(not main())
