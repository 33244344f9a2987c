"""Stable-Baselines3 with the tuned settings of RL Baselines3 Zoo (rl_zoo3 2.9.2).

What differs from the zoo, besides the width of the network: see SETTINGS. The zoo gives exploration
as a fraction of its own number of steps; here it is given in steps, so that a longer budget does
not stretch it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv

from bench.runs.convergence.protocol import Course, Outcome, make
from bench.runs.convergence.tasks import Task

SETTINGS: dict[str, dict[str, Any]] = {
    # dqn.yml, CartPole-v1; 0.16 of 50,000 steps. Batches of 128, not 64: they were the faster ones
    # (tried.py).
    "cartpole_dqn": {
        "learning_rate": 2.3e-3,
        "batch_size": 128,
        "buffer_size": 100_000,
        "learning_starts": 1_000,
        "gamma": 0.99,
        "target_update_interval": 10,
        "train_freq": 256,
        "gradient_steps": 128,
        "exploration_steps": 8_000,
        "exploration_final_eps": 0.04,
    },
    # dqn.yml, LunarLander-v3; 0.12 of 100,000 steps
    "lunarlander_dqn": {
        "learning_rate": 6.3e-4,
        "batch_size": 128,
        "buffer_size": 50_000,
        "learning_starts": 0,
        "gamma": 0.99,
        "target_update_interval": 250,
        "train_freq": 4,
        "gradient_steps": -1,
        "exploration_steps": 12_000,
        "exploration_final_eps": 0.1,
    },
    # ddpg.yml and td3.yml, Pendulum-v1
    "pendulum_ddpg": {
        "learning_rate": 1e-3,
        "buffer_size": 200_000,
        "learning_starts": 10_000,
        "gamma": 0.98,
        "train_freq": 1,
        "gradient_steps": 1,
        "noise_std": 0.1,
    },
    # sac.yml, Pendulum-v1: the defaults with a larger learning rate
    "pendulum_sac": {"learning_rate": 1e-3},
}
SETTINGS["pendulum_td3"] = SETTINGS["pendulum_ddpg"]
COMMON = {"threads": 1, "n_envs": 1}


def settings(name: str, units: int) -> dict[str, Any]:
    """Return everything that is set for a task."""
    return {**COMMON, **SETTINGS[name], "units": units}


class Progress(BaseCallback):
    """Offers the policy to the course after every `train()`, which is before the next rollout."""

    def __init__(self, course: Course) -> None:
        super().__init__()
        self._course = course
        self._go_on = True

    def _on_training_start(self) -> None:
        self._course.start()

    def _on_rollout_start(self) -> None:
        self._go_on = self._course.step(self.model.num_timesteps, self.model._n_updates)

    def _on_step(self) -> bool:
        return self._go_on


def total(task: Task) -> int:
    """Return more steps than the budget, so that the course ends the run and not SB3."""
    return task.budget + 1_000


def falling(first: float, final_share: float, steps: int, task: Task) -> Any:
    """Return a learning rate that falls evenly to a share of it in so many environment steps."""

    def rate(progress_remaining: float) -> float:
        done = min(1.0, (1.0 - progress_remaining) * total(task) / steps)
        return first * (1.0 - done * (1.0 - final_share))

    return rate


def build(library: Any, task: Task, chosen: dict[str, Any], seed: int) -> Any:
    """Return the library's model."""
    arguments = dict(chosen)
    torch.set_num_threads(arguments.pop("threads"))
    units, n_envs = arguments.pop("units"), arguments.pop("n_envs")
    envs = DummyVecEnv([lambda: make(task.env_id)] * n_envs)
    if "learning_rate_final_share" in arguments:
        falls = arguments.pop("learning_rate_final_share"), arguments.pop("learning_rate_steps")
        arguments["learning_rate"] = falling(arguments["learning_rate"], *falls, task)
    if "exploration_steps" in arguments:
        arguments["exploration_fraction"] = arguments.pop("exploration_steps") / total(task)
    if "noise_std" in arguments:
        size = envs.action_space.shape
        arguments["action_noise"] = NormalActionNoise(
            np.zeros(size), arguments.pop("noise_std") * np.ones(size)
        )
    algorithm = getattr(library, task.algorithm.upper())
    return algorithm(
        "MlpPolicy",
        envs,
        policy_kwargs={"net_arch": [units, units]},
        seed=seed,
        device="cpu",
        **arguments,
    )


def actor(model: Any, algorithm: str) -> tuple[torch.nn.Module, Any]:
    """Return the network that acts, and how it acts greedily."""
    if algorithm == "dqn":
        return model.policy.q_net, lambda network, observations: network(observations).argmax(dim=1)
    if algorithm == "sac":
        return model.policy.actor, lambda network, observations: network(
            observations, deterministic=True
        )
    return model.policy.actor, lambda network, observations: network(observations)


def train(name: str, task: Task, seed: int, chosen: dict[str, Any]) -> Outcome:
    """Train until the course says that it is enough."""
    model = build(stable_baselines3, task, chosen, seed)
    course = Course(task, *actor(model, task.algorithm), chosen)
    model.learn(total(task), callback=Progress(course), log_interval=None)
    return course.outcome
