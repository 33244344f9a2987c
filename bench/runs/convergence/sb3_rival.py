"""Stable-Baselines3 with the tuned settings of RL Baselines3 Zoo (rl_zoo3 2.9.2).

What differs from the zoo, besides the width of the network: see SETTINGS. The zoo gives exploration
as a fraction of its own number of steps; here it is given in steps, so that a longer budget does
not stretch it.
"""

from __future__ import annotations

from functools import partial
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
    # ppo.yml, CartPole-v1; learning rate and clip range fall to 0 over its 100,000 steps
    "cartpole_ppo": {
        "n_envs": 8,
        "n_steps": 32,
        "batch_size": 256,
        "n_epochs": 20,
        "learning_rate": 1e-3,
        "learning_rate_final_share": 0.0,
        "learning_rate_steps": 100_000,
        "clip_range": 0.2,
        "clip_range_final_share": 0.0,
        "clip_range_steps": 100_000,
        "gamma": 0.98,
        "gae_lambda": 0.8,
    },
    # ppo.yml, Pendulum-v1, without state-dependent exploration, which is SB3's alone
    "pendulum_ppo": {
        "n_envs": 4,
        "n_steps": 1_024,
        "batch_size": 64,
        "n_epochs": 10,
        "learning_rate": 1e-3,
        "clip_range": 0.2,
        "gamma": 0.9,
        "gae_lambda": 0.95,
    },
    # Our preset's. a2c.yml, CartPole-v1, has as many environments, and the defaults: RMSprop, whose
    # rate of 7e-4 does not fall.
    "cartpole_a2c": {
        "n_envs": 8,
        "n_steps": 5,
        "use_rms_prop": False,
        "learning_rate": 1e-3,
        "learning_rate_final_share": 0.0,
        "learning_rate_steps": 500_000,
        "gamma": 0.99,
        "gae_lambda": 1.0,
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
    """Return what falls evenly to a share of it in so many environment steps."""

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
    for name in ("learning_rate", "clip_range"):
        if f"{name}_final_share" in arguments:
            falls = arguments.pop(f"{name}_final_share"), arguments.pop(f"{name}_steps")
            arguments[name] = falling(arguments[name], *falls, task)
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
    if algorithm in ("ppo", "a2c"):
        return model.policy, partial(policy_actions, model.action_space)
    if algorithm == "sac":
        return model.policy.actor, lambda network, observations: network(
            observations, deterministic=True
        )
    return model.policy.actor, lambda network, observations: network(observations)


def policy_actions(space: Any, policy: Any, observations: torch.Tensor) -> torch.Tensor:
    """Return a policy's best actions: indices, or numbers from -1 to 1."""
    actions: torch.Tensor = policy._predict(observations, deterministic=True)
    return actions if hasattr(space, "n") else from_bounds(space, actions)


def from_bounds(space: Any, actions: torch.Tensor) -> torch.Tensor:
    """Return an environment's own actions as numbers from -1 to 1, clipped."""
    low, high = torch.from_numpy(space.low), torch.from_numpy(space.high)
    return ((actions - low) / (high - low) * 2 - 1).clamp(-1, 1)


def train(name: str, task: Task, seed: int, chosen: dict[str, Any]) -> Outcome:
    """Train until the course says that it is enough."""
    model = build(stable_baselines3, task, chosen, seed)
    course = Course(task, *actor(model, task.algorithm), chosen)
    model.learn(total(task), callback=Progress(course), log_interval=None)
    return course.outcome
