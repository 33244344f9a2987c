"""The tasks that learning is measured on: what is trained, where, for how long, and how.

The hyperparameters are those of RL Baselines3 Zoo, which were tuned for uniform replay. Where the
zoo has none, they are ours, and ``variant`` says so. They are the same for all buffers.

To compare tasks with each other, a return is put on a scale on which 0 is the mean return of a
policy that picks actions at random, and 1 a good return: the threshold at which gymnasium calls the
task solved, or what good policies reach where it has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["TASKS", "Task", "environments", "random_return"]


@dataclass(frozen=True)
class Task:
    """An algorithm, an environment, and the settings that all buffers get."""

    algorithm: str
    env: str
    steps: int
    evaluate_every: int
    episodes: int  # of one evaluation
    scale: tuple[float, float]  # the return of a random policy, and a good one
    values: tuple[float, float]  # least and greatest discounted return, rounded outwards
    settings: dict[str, Any] = field(default_factory=dict)
    variant: str = ""  # in what its settings differ from the zoo's
    policy: str = "MlpPolicy"
    hindsight: dict[str, Any] | None = None  # arguments of hindsight replay, if it is that
    is_aggregated: bool = True  # with the other tasks

    def scaled(self, returns: Any) -> Any:
        """Return returns on the scale on which 0 is a random policy and 1 a good one."""
        low, high = self.scale
        return (returns - low) / (high - low)

    def is_diverged(self, values: Iterable[float]) -> bool:
        """Say whether values that a learner believes in are beyond what returns can be.

        Q-learning overestimates, so values may pass each bound by the distance between the two.
        """
        low, high = self.values
        return any(not 2 * low - high <= value <= 2 * high - low for value in values)


def environments(task: Task, n: int, seed: int) -> Any:
    """Return n environments of a task as Stable-Baselines3 takes them."""
    from stable_baselines3.common.env_util import make_vec_env

    return make_vec_env(_makers().get(task.env, task.env), n_envs=n, seed=seed)


def random_return(task: Task, episodes: int, seed: int = 0) -> float:
    """Return the mean return of a policy that picks actions at random."""
    env = environments(task, 1, seed)
    env.action_space.seed(seed)
    env.reset()
    total, ended = 0.0, 0
    while ended < episodes:
        _, reward, done, _ = env.step([env.action_space.sample()])
        total, ended = total + float(reward[0]), ended + int(done[0])
    return total / episodes


def _makers() -> dict[str, Callable[[], Any]]:
    """Return what makes an environment that `gymnasium.make` does not make as it is wanted."""
    import gymnasium
    import numpy as np

    def doorkey() -> Any:
        from minigrid.wrappers import FullyObsWrapper, ImgObsWrapper

        # the cells within the walls, one-hot: kind of object, colour, and state or direction
        sizes = 11, 6, 4

        def one_hot(cells: np.ndarray) -> np.ndarray:
            inner = cells[1:-1, 1:-1]
            planes = [np.eye(n, dtype=np.float32)[inner[..., i]] for i, n in enumerate(sizes)]
            return np.concatenate(planes, axis=-1).ravel()

        env = ImgObsWrapper(FullyObsWrapper(gymnasium.make("MiniGrid-DoorKey-5x5-v0")))
        space = gymnasium.spaces.Box(0, 1, (9 * sum(sizes),), np.float32)
        return gymnasium.wrappers.TransformObservation(env, one_hot, space)

    def breakout() -> Any:
        from minatar.gym import register_envs

        if "MinAtar/Breakout-v1" not in gymnasium.registry:
            register_envs()
        return gymnasium.wrappers.FlattenObservation(gymnasium.make("MinAtar/Breakout-v1"))

    def bits() -> Any:
        from stable_baselines3.common.envs import BitFlippingEnv

        return BitFlippingEnv(n_bits=12, continuous=False, max_steps=12)

    return {
        "MiniGrid-DoorKey-5x5-v0": doorkey,
        "MinAtar/Breakout-v1": breakout,
        "BitFlipping, 12 bits": bits,
    }


ZOO_LUNARLANDER = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [256, 256]},
}
# MinAtar's paper (Young & Tian 2019, arXiv:1903.03176) and the sparse tasks have no entry in the
# zoo: a buffer, target and exploration that fit a run of that length.
SMALL = {
    "learning_rate": 1e-4,
    "batch_size": 32,
    "buffer_size": 100_000,
    "learning_starts": 1_000,
    "target_update_interval": 1_000,
    "train_freq": 4,
    "exploration_fraction": 0.2,
    "exploration_final_eps": 0.05,
    "policy_kwargs": {"net_arch": [128, 128]},
}
OWN = "settings of our own, not tuned"

TASKS = {
    "cartpole": Task(
        "DQN",
        "CartPole-v1",
        steps=50_000,
        evaluate_every=2_000,
        episodes=20,
        scale=(22, 475),
        values=(0, 100),
        settings={
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "acrobot": Task(
        "DQN",
        "Acrobot-v1",
        steps=100_000,
        evaluate_every=5_000,
        episodes=10,
        scale=(-498, -100),
        values=(-100, 0),
        settings=ZOO_LUNARLANDER,
    ),
    "mountaincar": Task(
        "DQN",
        "MountainCar-v0",
        steps=120_000,
        evaluate_every=6_000,
        episodes=10,
        scale=(-200, -110),
        values=(-50, 0),
        settings={
            "learning_rate": 4e-3,
            "batch_size": 128,
            "buffer_size": 10_000,
            "learning_starts": 1000,
            "gamma": 0.98,
            "target_update_interval": 600,
            "train_freq": 16,
            "gradient_steps": 8,
            "exploration_fraction": 0.2,
            "exploration_final_eps": 0.07,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "lunarlander": Task(
        "DQN",
        "LunarLander-v3",
        steps=100_000,
        evaluate_every=5_000,
        episodes=10,
        scale=(-180, 200),
        values=(-400, 320),
        settings=ZOO_LUNARLANDER,
    ),
    "pendulum": Task(
        "SAC",
        "Pendulum-v1",
        steps=10_000,
        evaluate_every=500,
        episodes=10,
        scale=(-1230, -150),
        values=(-1630, 0),
        settings={"learning_rate": 1e-3},
        variant="half of the zoo's steps",
    ),
    "pendulum_td3": Task(
        "TD3",
        "Pendulum-v1",
        steps=20_000,
        evaluate_every=1_000,
        episodes=10,
        scale=(-1230, -150),
        values=(-820, 0),
        settings={
            "learning_rate": 1e-3,
            "gamma": 0.98,
            "buffer_size": 200_000,
            "learning_starts": 10_000,
            "action_noise": 0.1,
            "gradient_steps": 1,
            "train_freq": 1,
            "policy_kwargs": {"net_arch": [400, 300]},
        },
    ),
    "frozenlake": Task(
        "DQN",
        "FrozenLake8x8-v1",
        steps=100_000,
        evaluate_every=5_000,
        episodes=50,
        scale=(0, 0.85),
        values=(0, 1),
        settings=SMALL,
        variant=OWN,
    ),
    # With the learner's step, discount and target of the other sparse tasks, 128 units and the
    # agent's own view, uniform replay learned nothing in 100,000 steps.
    "doorkey": Task(
        "DQN",
        "MiniGrid-DoorKey-5x5-v0",
        steps=60_000,
        evaluate_every=3_000,
        episodes=20,
        scale=(0.03, 0.95),
        values=(0, 1),
        settings={
            **SMALL,
            "learning_rate": 1e-3,
            "batch_size": 64,
            "gamma": 0.95,
            "target_update_interval": 250,
            "exploration_fraction": 0.5,
            "exploration_final_eps": 0.1,
        },
        variant="settings of our own, tuned for uniform replay; the agent sees the whole grid",
    ),
    "breakout": Task(
        "DQN",
        "MinAtar/Breakout-v1",
        steps=200_000,
        evaluate_every=10_000,
        episodes=20,
        scale=(0.4, 10),
        values=(0, 20),
        settings=SMALL,
        variant=OWN,
    ),
    "bits": Task(
        "DQN",
        "BitFlipping, 12 bits",
        steps=30_000,
        evaluate_every=1_500,
        episodes=50,
        scale=(-12, -5),
        values=(-12, 0),
        settings={**SMALL, "train_freq": 1},
        variant=OWN,
        policy="MultiInputPolicy",
        hindsight={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
    ),
}
# Prioritized replay repeats the rows with large errors, so its paper takes a quarter of uniform
# replay's step size (section 4). Here both buffers get it.
TASKS["lunarlander_gentle"] = replace(
    TASKS["lunarlander"],
    settings={**ZOO_LUNARLANDER, "learning_rate": 6.3e-4 / 4},
    variant="a quarter of the zoo's learning rate",
    is_aggregated=False,
)
