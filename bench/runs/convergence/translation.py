"""The runner's preset as settings of Stable-Baselines3 and SBX, and SB3's settings as the runner's.

Everything that both sides have is translated: rates, batches, discounts, n-step returns, numbers of
environments, updates for each step, exploration, warm-up, and how fast targets follow. What one
side lacks is left out: priorities, the double Q-network, and a delta of the Huber loss other than 1
are the runner's alone, and SBX's DQN also lacks a limit to its gradients and a falling learning
rate.
"""

from __future__ import annotations

import inspect
from fractions import Fraction
from typing import Any

import stable_baselines3

from bench.runs.convergence import runner_rival, sb3_rival
from bench.runs.convergence.tasks import TASKS

Settings = dict[str, Any]
# Environment steps of the runner with SB3's settings. It does not stop when a task is solved, so
# these are fewer than the budget, and still about twice what SB3 usually needs, or more.
STEPS = {
    "cartpole_dqn": 100_000,
    "lunarlander_dqn": 300_000,
    "pendulum_ddpg": 30_000,
    "pendulum_td3": 30_000,
    "pendulum_sac": 10_000,
}


def sb3_for_sbx(name: str) -> Settings:
    """Return the settings that are tuned for SB3 in place of those that are faster for SBX."""
    return {"train_freq": 1, "gradient_steps": 1, **sb3_rival.SETTINGS[name]}


def taus_share(tau: float, moves: float) -> float:
    """Return the tau of one move that takes a target as far as so many moves with this one."""
    return float(1.0 - (1.0 - tau) ** moves)


def preset_for(rival: str, name: str, units: int) -> Settings:
    """Return our preset of a task as settings of "sb3" or "sbx"."""
    task = TASKS[name]
    config = runner_rival.configured(task, runner_rival.settings(name, units))
    options: Any = config.options
    n_envs = config.envs_per_actor
    # of one step of all environments
    updates = n_envs * Fraction(config.samples_per_insert / options.batch_size).limit_denominator(
        1_000
    )
    settings = {
        "n_envs": n_envs,
        "learning_rate": options.learning_rate,
        "batch_size": options.batch_size,
        "buffer_size": config.buffer_capacity,
        "learning_starts": config.learning_starts,
        "gamma": options.gamma,
        "n_steps": options.n_step,
        "train_freq": updates.denominator,
        "gradient_steps": updates.numerator,
    }
    if options.learning_rate_final_share < 1 and (rival, task.algorithm) != ("sbx", "dqn"):
        settings |= {
            "learning_rate_final_share": options.learning_rate_final_share,
            "learning_rate_steps": config.total_env_steps,
        }
    if task.algorithm == "dqn":
        # Their target moves by steps of all environments, and stands still while they train.
        settings |= {
            "target_update_interval": n_envs * updates.denominator,
            "tau": taus_share(options.tau, updates.numerator / options.target_interval),
            "exploration_steps": round(options.exploration_fraction * config.total_env_steps),
            "exploration_initial_eps": options.exploration_initial,
            "exploration_final_eps": options.exploration_final,
        }
        if rival == "sb3":
            settings["max_grad_norm"] = options.max_gradient_norm
        return settings
    # Targets of SB3's TD3 move when its actor learns; those of SBX's in every update.
    interval = options.policy_delay if (rival, task.algorithm) == ("sb3", "td3") else 1
    settings["tau"] = taus_share(options.tau, interval / options.target_interval)
    if task.algorithm != "sac":
        settings["noise_std"] = options.exploration_noise
    return settings


def sb3_for_runner(name: str, units: int) -> Settings:
    """Return the settings that are tuned for SB3 as the runner's."""
    task = TASKS[name]
    signature = inspect.signature(getattr(stable_baselines3, task.algorithm.upper()))
    given = {key: each.default for key, each in signature.parameters.items()}
    given |= sb3_rival.settings(name, units)
    together = given["train_freq"] * given["n_envs"]  # environment steps between two trainings
    updates = given["gradient_steps"] if given["gradient_steps"] >= 0 else together
    per_step = updates / together
    options = {
        "hidden": [units, units],
        "learning_rate": given["learning_rate"],
        "learning_rate_final_share": 1.0,
        "batch_size": given["batch_size"],
        "gamma": given["gamma"],
        "n_step": given["n_steps"],
        "tau": given["tau"],
    }
    if task.algorithm == "dqn":
        options |= {
            "target_interval": round(max(given["target_update_interval"], together) * per_step),
            "double": False,
            "huber_delta": 1.0,
            "max_gradient_norm": float(given["max_grad_norm"]),
            "exploration_initial": given["exploration_initial_eps"],
            "exploration_final": given["exploration_final_eps"],
            "exploration_fraction": given["exploration_steps"] / STEPS[name],
        }
    if "noise_std" in given:
        options["exploration_noise"] = given["noise_std"]
    return {
        "total_env_steps": STEPS[name],
        "evaluation_interval": task.snapshot_every,
        "envs_per_actor": given["n_envs"],
        "groups": 1,
        "buffer_capacity": given["buffer_size"],
        "learning_starts": max(1, given["learning_starts"]),
        "samples_per_insert": float(per_step * given["batch_size"]),
        "alpha": 0.0,  # uniform replay
        "options": options,
    }
