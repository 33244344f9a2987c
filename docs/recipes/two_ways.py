"""Solve CartPole-v1 twice: with stock Stable-Baselines3 and our buffer, then with our runner.

The first way is the recipe sb3_cartpole.py, which changes one word of a training script. The second
way is that of ``kary-replay train dqn CartPole-v1 --target-return 475``. Run it with ``python
docs/recipes/two_ways.py``. The exit code is 0 if both ways reached the threshold, and 1 otherwise.
"""

import argparse
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from kary_replay.runner import Runner, RunnerConfig, RunResult

NOTE = (
    "The seconds are those of training. SB3 does not train while it evaluates, "
    "and that time is left out."
)


def with_sb3(seed: int, steps: int, threshold: float) -> tuple[int, int, float, float, float]:
    """Train a stock model, and return the numbers of its row in the table.

    They are environment steps, updates, seconds of training, seconds before it, and the last
    return.
    """
    start = time.perf_counter()
    import sb3_cartpole  # imported here because the runner's processes import this file, too

    model, callback, seconds = sb3_cartpole.train(seed, steps, threshold)
    startup = time.perf_counter() - start - seconds - callback.seconds
    _, returns = sb3_cartpole.columns(callback.evaluations)
    return (
        model.num_timesteps,
        model._n_updates,
        seconds,
        startup,
        returns[-1] if len(returns) else float("nan"),
    )


def with_the_runner(
    seed: int, steps: int, threshold: float, directory: Path, **settings: str
) -> RunResult:
    """Train with actors, a learner and an evaluator side by side."""
    config = RunnerConfig(
        "dqn",
        "CartPole-v1",
        seed=seed,
        total_env_steps=steps,
        target_return=threshold,
        evaluation_interval=1000,
        directory=str(directory),
        **settings,
    )
    return Runner(config).run()


def main() -> int:
    """Train both ways and compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps",
        type=int,
        default=RunnerConfig("dqn", "CartPole-v1").total_env_steps,
        help="environment steps at most (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold", type=float, default=475.0, help="mean return to reach (default: %(default)s)"
    )
    parser.add_argument(
        "--backend",
        help="of the runner: process or serial (default: process, where there is Linux)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs"),
        help="where runs are kept (default: %(default)s)",
    )
    args = parser.parse_args()

    console = Console()
    torch.set_num_threads(1)  # a network this small is fastest on one thread
    directory, number = args.output / "two_ways", 1
    while directory.exists():
        number += 1
        directory = args.output / f"two_ways_{number}"

    console.rule("1. Stable-Baselines3 with our replay buffer")
    theirs = with_sb3(args.seed, args.steps, args.threshold)
    console.rule("2. the runner")
    result = with_the_runner(
        args.seed,
        args.steps,
        args.threshold,
        directory,
        **({"backend": args.backend} if args.backend else {}),
    )

    table = Table(
        title=f"DQN on CartPole-v1 until a mean return of {args.threshold:g}",
        title_justify="left",
        caption_justify="left",
        caption=NOTE,
    )
    for name in ("", "env steps", "updates", "seconds", "start-up", "return"):
        table.add_column(name, justify="right" if name else "left")
    ours = (
        result.env_steps,
        result.updates,
        result.wall_seconds,
        result.startup_seconds,
        result.last_return,
    )
    rows = {"SB3 + our buffer": theirs, "our runner": ours}
    for name, (*numbers, reached) in rows.items():
        mark = "" if reached >= args.threshold else " (not solved)"
        table.add_row(name, *(f"{number:,.0f}" for number in numbers), f"{reached:.1f}{mark}")
    console.print(table)
    print(f"the runner's learning curve: {result.directory / 'learning_curve.png'}")
    print(f"to watch it play: {sys.executable} -m kary_replay play {result.directory}")
    return 0 if min(theirs[-1], result.last_return) >= args.threshold else 1


if __name__ == "__main__":
    sys.exit(main())
