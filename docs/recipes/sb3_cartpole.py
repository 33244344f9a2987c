"""Train Stable-Baselines3's own DQN on CartPole-v1 with prioritized replay, until it is solved.

Prioritized replay takes one argument, ``replay_buffer_class``. The rest of this file belongs to any
training script: an evaluation, a progress bar and two plots. Run it with ``python
docs/recipes/sb3_cartpole.py``. The exit code is 0 if the mean return reached the threshold, and 1
if the steps ran out first.
"""

import argparse
import sys
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from kary_replay.adapters.sb3 import PrioritizedReplayBuffer

mpl.use("Agg")
import matplotlib.pyplot as plt

BLUE, GREY, RED = "#2166ac", "#9a9a9a", "#c0392b"


def make_model(seed: int, steps: int) -> DQN:
    """Build the model, with the settings of RL Baselines3 Zoo for all but the replay buffer."""
    return DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=1, seed=seed),
        replay_buffer_class=PrioritizedReplayBuffer,
        replay_buffer_kwargs={"alpha": 0.6, "beta": 0.4},
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=min(1.0, 8000 / steps),
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
        device="cpu",
    )


class StopWhenSolved(BaseCallback):
    """Evaluates the greedy policy at intervals, shows the progress, and stops at the threshold."""

    def __init__(
        self, threshold: float, progress: Progress, task: int, seed: int, every: int = 1024
    ) -> None:
        super().__init__()
        self.threshold, self.progress, self.task, self.every = threshold, progress, task, every
        self.env = make_vec_env("CartPole-v1", n_envs=20, seed=seed + 1000)
        self.episodes: list[tuple[int, float]] = []  # (step, return) of each training episode
        self.evaluations: list[tuple[int, float]] = []  # (step, mean return)
        self.solved = False
        self.seconds = 0.0  # spent on evaluations

    def evaluate(self, n_episodes: int) -> float:
        """Return the mean return of the greedy policy."""
        start = time.perf_counter()
        mean_return = float(evaluate_policy(self.model, self.env, n_episodes)[0])
        self.seconds += time.perf_counter() - start
        return mean_return

    def _on_step(self) -> bool:
        step = self.num_timesteps
        self.episodes += [
            (step, info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info
        ]
        if step % self.every == 0 and step > self.model.learning_starts:
            mean_return = self.evaluate(20)
            if mean_return >= self.threshold:
                mean_return = self.evaluate(100)  # 20 episodes may have been lucky
            self.evaluations.append((step, mean_return))
            self.solved = mean_return >= self.threshold
            share = self.model.replay_buffer.uniform_share
            drawn = "uniformly" if share == 1 else "by priority"
            status = f"return {mean_return:5.1f}, drawing {drawn}"
            self.progress.update(self.task, description=status)
            if not self.progress.console.is_terminal:
                self.progress.console.print(f"step {step:6d}: {status}")
        self.progress.update(self.task, completed=step)
        return not self.solved


def priority_masses(model: DQN) -> np.ndarray:
    """Read the masses, priority**alpha, of all stored transitions from the tree."""
    native = model.replay_buffer.native
    return native.tree.get(np.arange(len(native)))


def plot_learning_curve(path: Path, callback: StopWhenSolved) -> None:
    """Draw the training episodes, the evaluations and the threshold over environment steps."""
    fig, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
    ax.plot(*columns(callback.episodes), ".", color=GREY, ms=4, alpha=0.6, label="training episode")
    ax.plot(
        *columns(callback.evaluations),
        "o-",
        color=BLUE,
        ms=4,
        lw=1.8,
        label="evaluation, mean of 20 episodes or more",
    )
    ax.axhline(
        callback.threshold, color=RED, ls="--", lw=1.2, label=f"solved: {callback.threshold:g}"
    )
    ax.set(
        xlabel="environment steps",
        ylabel="return",
        ylim=(0, 520),
        title="DQN with prioritized replay on CartPole-v1",
    )
    ax.set_xlim(left=0)
    ax.legend(loc="center left", bbox_to_anchor=(0.0, 0.8), framealpha=0.9)
    save(fig, path)


def columns(points: list[tuple[int, float]]) -> np.ndarray:
    """Return the steps and the values of a curve, which may be empty."""
    return np.array(points).reshape(-1, 2).T


def plot_priorities(path: Path, model: DQN) -> None:
    """Draw how priorities are distributed: of what is stored, and of draws by priority."""
    masses = priority_masses(model)
    priorities = masses ** (1 / model.replay_buffer.alpha)
    bins = np.geomspace(priorities.min(), priorities.max() * 1.001, 60)
    fig, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
    share = np.full(len(masses), 1 / len(masses))
    ax.hist(
        priorities,
        bins,
        weights=share,
        color=GREY,
        alpha=0.6,
        label="stored, and drawn uniformly",
    )
    ax.hist(
        priorities,
        bins,
        weights=masses / masses.sum(),
        histtype="step",
        color=BLUE,
        lw=2,
        label="drawn by priority",
    )
    new = "new, not drawn yet: at the largest seen;\nand TD errors where the loss turns linear"
    ax.annotate(new, (0.93, 0.6), xycoords="axes fraction", ha="right", color=BLUE)
    ax.set(
        xscale="log", xlabel="priority, |TD error| up to 1", ylabel="share of transitions per bin"
    )
    now = f"{model.replay_buffer.uniform_share:.0%} of draws are uniform now"
    ax.set_title(f"Priorities of {len(masses):,} transitions: {now}")
    ax.legend(loc="upper left")
    save(fig, path)


def save(fig: plt.Figure, path: Path) -> None:
    """Write the figure and say where."""
    for side in ("top", "right"):
        fig.axes[0].spines[side].set_visible(False)
    fig.axes[0].grid(alpha=0.25)
    fig.savefig(path, dpi=150)
    plt.close(fig)
    print(f"wrote {path}")


def train(seed: int, steps: int, threshold: float) -> tuple[DQN, StopWhenSolved, float]:
    """Train up to the threshold or the last step; return the seconds without evaluations, too."""
    model = make_model(seed, steps)
    bar = (
        TextColumn("{task.description}"),
        BarColumn(16),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
    )
    start = time.perf_counter()
    with Progress(*bar, console=Console()) as progress:
        task = progress.add_task("filling the buffer", total=steps)
        callback = StopWhenSolved(threshold, progress, task, seed)
        model.learn(steps, callback=callback)
    return model, callback, time.perf_counter() - start - callback.seconds


def main() -> int:
    """Train, plot and report; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps",
        type=int,
        default=100_000,
        help="environment steps at most (default: %(default)s)",
    )
    parser.add_argument(
        "--threshold", type=float, default=475.0, help="mean return to reach (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs/sb3_cartpole"),
        help="where plots go (default: %(default)s)",
    )
    args = parser.parse_args()

    torch.set_num_threads(1)  # a network this small is fastest on one thread
    args.output.mkdir(parents=True, exist_ok=True)
    model, callback, seconds = train(args.seed, args.steps, args.threshold)

    plot_learning_curve(args.output / "learning_curve.png", callback)
    plot_priorities(args.output / "priorities.png", model)
    best = max((mean_return for _, mean_return in callback.evaluations), default=0.0)
    spent = f"after {model.num_timesteps} steps and {seconds:.0f} s"
    if callback.solved:
        print(f"solved: mean return {best:.1f} over 100 episodes, {spent}")
        return 0
    print(f"NOT solved: best mean return {best:.1f} of {args.threshold:g}, {spent}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
