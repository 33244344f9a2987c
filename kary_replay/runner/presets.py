"""Settings that solve their tasks: a row per algorithm, and what differs per environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..algorithms import Options, find
from .environments import atari, pools

__all__ = ["PRESETS", "REPLAY", "ROLLOUTS", "preset"]

# What every run has unless a row below or the user says otherwise. samples_per_insert: the batch
# size, one update per step.
COMMON: dict[str, Any] = {
    "total_env_steps": 1_000_000,
    "normalize_observations": False,
    "normalize_rewards": False,
    "evaluation_episodes": 20,
    "checkpoint_interval_seconds": 300.0,
}
REPLAY: dict[str, Any] = {
    **COMMON,
    "envs_per_actor": 8,
    "groups": 2,
    "buffer_capacity": 1_000_000,
    "learning_starts": 1_000,
    "alpha": 0.6,
    "beta": 0.4,
    "uniform_share": "auto",
    "initial_priority": "max",
    "exploration_spread": 0.0,
}
ROLLOUTS: dict[str, Any] = {**COMMON, "groups": 1, "max_staleness": 0}

# At an undiminished learning rate, networks go on changing after they have learned their task, and
# forget it now and then. Where that was seen, the rate falls to 0, and the run ends well.
STEADY: dict[str, Any] = {"learning_rate_final_share": 0.0}

# Small networks learn these in seconds. Pendulum's steps all tell something; of InvertedPendulum's,
# few do, so it gets more, and keeps all: a policy that never falls fills a small buffer with
# balancing, and then forgets what falling costs.
PENDULUM: dict[str, Any] = {
    "total_env_steps": 30_000,
    "buffer_capacity": 30_000,
    "learning_starts": 500,
    "evaluation_interval": 500,
    "options": {
        "hidden": (64, 64),
        "learning_rate": 2e-3,
        "batch_size": 64,
        "n_step": 3,
        "gamma": 0.98,
        "tau": 0.01,
    },
}
INVERTED: dict[str, Any] = {
    "total_env_steps": 200_000,
    "envs_per_actor": 16,
    "buffer_capacity": 200_000,
    "learning_starts": 500,
    "samples_per_insert": 16.0,
    "evaluation_interval": 2_000,
    "options": {**PENDULUM["options"], **STEADY, "gamma": 0.99},
}

# Actors and learner do not wait for each other: half of the groups fill while the others are
# learned from.
ASYNCHRONOUS: dict[str, Any] = {
    "groups": 2,
    "max_staleness": 4,
    "options": {"n_envs": 16, "envs_per_update": 8},
}

# With a gamma of 0.99, a policy that has learned not to crash hovers: what landing brings is too
# far away. Layers of 64 learn to land with some seeds only.
LANDING: dict[str, Any] = {
    "max_staleness": 1,  # actors go on while there is an update
    "total_env_steps": 1_000_000,
    "evaluation_interval": 50_000,
    "options": {
        **STEADY,
        "hidden": (128, 128),
        "n_envs": 16,
        "rollout_length": 256,
        "n_epochs": 4,
        "learning_rate": 1e-3,
        "gamma": 0.995,
        "gae_lambda": 0.95,
        "ent_coef": 0.01,
    },
}

# Frames of Atari, 7 KB each: a checkpoint is 3.6 GB. Updates take longer than many steps.
ATARI: dict[str, Any] = {
    "total_env_steps": 10_000_000,
    "envs_per_actor": 8,
    "buffer_capacity": 500_000,
    "learning_starts": 20_000,
    "evaluation_interval": 250_000,
    "evaluation_episodes": 10,
    "checkpoint_interval_seconds": 1_800.0,
}
MINATAR: dict[str, Any] = {
    "total_env_steps": 1_000_000,
    "envs_per_actor": 8,
    "buffer_capacity": 100_000,
    "learning_starts": 5_000,
    "samples_per_insert": 8.0,
    "evaluation_interval": 50_000,
}

Q_LEARNING: dict[str, Any] = {
    "learning_rate": 5e-4,
    "batch_size": 128,
    "n_step": 3,
    "target_interval": 1,
    "tau": 0.005,
}

# (algorithm, environment) -> settings of the run, and hyperparameters under "options"; "*" is any
# environment, and "FAMILY/*" any of a family.
PRESETS: dict[tuple[str, str], dict[str, Any]] = {
    ("dqn", "*"): {"envs_per_actor": 16, "options": Q_LEARNING},
    ("rainbow", "*"): {"envs_per_actor": 16, "options": Q_LEARNING},
    # Rows are sequences. Environments explore differently, as in Kapturowski et al. (2019).
    ("r2d2", "*"): {
        "exploration_spread": 7.0,
        "envs_per_actor": 16,
        "buffer_capacity": 10_000,
        "learning_starts": 100,
        "samples_per_insert": 64.0,
        "options": {"learning_rate": 1e-3, "tau": 0.01},
    },
    # Sequences have whole stacks, 2.3 MB each. The paper, whose networks and rates these are, draws
    # each sequence about once, has a thousand times as many steps, priorities to the power of 0.9
    # (here 0.6) and no importance weights.
    ("r2d2", "ALE/*"): {
        **ATARI,
        "envs_per_actor": 16,
        "buffer_capacity": 2_000,
        "learning_starts": 200,
        "samples_per_insert": 8.0,
        "options": {
            "hidden": (512,),
            "lstm_hidden_size": 512,
            "burn_in": 40,
            "learning_rate": 1e-4,
            "adam_epsilon": 1e-3,
            "target_interval": 2_500,
            "tau": 1.0,
        },
    },
    # In both, what matters is rare among the steps: a fall, or the reward for coming to rest. The
    # loss beyond its delta settles on the median of what follows, and ignores it. With a delta of 1
    # and a larger buffer, values on CartPole, which are at most 100, grew to 80,000 in a run. On
    # CartPole a good policy meets no falls but those that exploration brings, so there is more.
    ("dqn", "CartPole-v1"): {
        "total_env_steps": 150_000,
        "buffer_capacity": 20_000,
        "samples_per_insert": 16.0,
        "evaluation_interval": 2_000,
        "options": {
            "hidden": (64, 64),
            "learning_rate": 1e-3,
            "batch_size": 64,
            "n_step": 5,
            "huber_delta": 10.0,
            "max_gradient_norm": 100.0,
            "exploration_final": 0.15,
            "exploration_fraction": 0.04,
            **STEADY,
        },
    },
    # Those of RL Baselines3 Zoo, whose target network moves every 1,000 steps. Beyond it:
    # priorities, a double target, and a buffer of 500,000 steps, of which 20,000 come before
    # learning (the zoo: 100,000 and 100,000).
    ("dqn", "ALE/*"): {
        **ATARI,
        "samples_per_insert": 8.0,
        "options": {
            "hidden": (),
            "learning_rate": 1e-4,
            "batch_size": 32,
            "target_interval": 250,
            "tau": 1.0,
            "n_step": 1,
            "exploration_final": 0.01,
            "exploration_fraction": 0.1,
        },
    },
    # Those of Hessel et al. (2018), arXiv:1710.02298, table 1, where they differ.
    ("rainbow", "ALE/*"): {
        **ATARI,
        "samples_per_insert": 8.0,
        "alpha": 0.5,
        "options": {
            "hidden": (512,),
            "learning_rate": 6.25e-5,
            "adam_epsilon": 1.5e-4,
            "batch_size": 32,
            "target_interval": 2_000,
            "tau": 1.0,
            "n_atoms": 51,  # over 10 each way, which clipped rewards stay in
            "n_quantiles": 1,
        },
    },
    # One update for four steps, and a new target network after 1,000 steps, as in Obando-Ceron &
    # Castro (2021), arXiv:2011.14826.
    ("dqn", "MinAtar/*"): {
        **MINATAR,
        "options": {
            "hidden": (),
            "learning_rate": 2.5e-4,
            "batch_size": 32,
            "target_interval": 250,
            "tau": 1.0,
            "n_step": 1,
            "exploration_final": 0.01,
            "exploration_fraction": 0.1,
        },
    },
    ("rainbow", "MinAtar/*"): {
        **MINATAR,
        "alpha": 0.5,
        "options": {
            "hidden": (128,),
            "learning_rate": 2.5e-4,
            "batch_size": 32,
            "target_interval": 250,
            "tau": 1.0,
        },
    },
    ("dqn", "LunarLander-v3"): {
        "total_env_steps": 600_000,
        "buffer_capacity": 100_000,
        "samples_per_insert": 64.0,
        "evaluation_interval": 5_000,
        "alpha": 0.3,
        "options": {
            "hidden": (64, 64),
            "learning_rate": 1e-3,
            "tau": 0.002,
            "huber_delta": 100.0,
            "max_gradient_norm": 1000.0,
            "exploration_fraction": 0.03,
            **STEADY,
        },
    },
    ("ddpg", "Pendulum-v1"): PENDULUM,
    ("td3", "Pendulum-v1"): PENDULUM,
    ("sac", "Pendulum-v1"): PENDULUM,
    ("ddpg", "InvertedPendulum-v5"): INVERTED,
    # Small actions balance this pole. With the usual noise on the actions of its targets, 0.2, some
    # policies learn after 80,000 steps only, or never; with half of it, after 10,000 to 36,000.
    ("td3", "InvertedPendulum-v5"): {
        **INVERTED,
        "total_env_steps": 100_000,
        "samples_per_insert": 64.0,
        "options": {
            **INVERTED["options"],
            "batch_size": 128,
            "learning_rate": 1e-3,
            "target_noise": 0.1,
            "target_noise_clip": 0.2,
        },
    },
    ("sac", "InvertedPendulum-v5"): INVERTED,
    # Those of RL Baselines3 Zoo, https://github.com/DLR-RM/rl-baselines3-zoo, but for what is said.
    ("ppo", "ALE/*"): {
        "total_env_steps": 10_000_000,
        "evaluation_interval": 250_000,
        "evaluation_episodes": 10,
        "options": {
            **STEADY,
            "hidden": (),
            "activation": "relu",
            "n_envs": 8,
            "rollout_length": 128,
            "batch_size": 256,
            "n_epochs": 4,
            "learning_rate": 2.5e-4,
            "clip_range": 0.1,
            "clip_range_final_share": 0.0,
            "ent_coef": 0.01,
        },
    },
    ("ppo", "MinAtar/*"): {
        "total_env_steps": 1_000_000,
        "evaluation_interval": 50_000,
        "options": {
            **STEADY,
            "hidden": (64,),
            "n_envs": 16,
            "rollout_length": 128,
            "batch_size": 256,
            "n_epochs": 4,
            "learning_rate": 5e-4,
            "ent_coef": 0.01,
        },
    },
    ("ppo", "CartPole-v1"): {
        "total_env_steps": 100_000,
        "evaluation_interval": 2_000,
        "options": {
            **STEADY,
            "n_envs": 8,
            "rollout_length": 32,
            "batch_size": 256,
            "n_epochs": 20,
            "learning_rate": 1e-3,
            "gamma": 0.98,
            "gae_lambda": 0.8,
            "clip_range_final_share": 0.0,
        },
    },
    ("ppo", "Pendulum-v1"): {
        "total_env_steps": 150_000,
        "evaluation_interval": 5_000,
        "options": {
            **STEADY,
            "n_envs": 4,
            "rollout_length": 1024,
            "learning_rate": 1e-3,
            "gamma": 0.9,
        },
    },
    ("ppo", "Acrobot-v1"): {
        "max_staleness": 1,
        "total_env_steps": 150_000,
        "evaluation_interval": 10_000,
        "options": {
            **STEADY,
            "n_envs": 16,
            "rollout_length": 256,
            "n_epochs": 4,
            "gamma": 0.99,
            "gae_lambda": 0.94,
        },
    },
    ("ppo", "LunarLander-v3"): LANDING,
    # Policies hover if there is a bonus for entropy, which keeps the noise on the thrust, or less
    # of a future.
    ("ppo", "LunarLanderContinuous-v3"): {
        **LANDING,
        "options": {
            **LANDING["options"],
            "learning_rate": 5e-4,
            "gamma": 0.999,
            "gae_lambda": 0.98,
            "ent_coef": 0.0,
        },
    },
    ("ppo", "HalfCheetah-v5"): {
        "normalize_observations": True,
        "normalize_rewards": True,
        "total_env_steps": 2_500_000,
        "evaluation_interval": 50_000,
        "options": {
            "hidden": (256, 256),
            "activation": "relu",
            "n_envs": 1,
            "rollout_length": 512,
            "batch_size": 64,
            "n_epochs": 20,
            "learning_rate": 2.0633e-5,
            "learning_rate_final_share": 0.0,
            "gamma": 0.98,
            "gae_lambda": 0.92,
            "clip_range": 0.1,
            "ent_coef": 0.000401762,
            "vf_coef": 0.58096,
            "max_gradient_norm": 0.8,
            "log_std": -2.0,
            "orthogonal_init": False,
        },
    },
    ("impala", "*"): ASYNCHRONOUS,
    ("appo", "*"): ASYNCHRONOUS,
    ("a2c", "CartPole-v1"): {
        "total_env_steps": 500_000,
        "evaluation_interval": 10_000,
        "options": {**STEADY, "n_envs": 8, "learning_rate": 1e-3},
    },
    # An update of its wide networks takes longer than many steps: four of them for each.
    ("sac", "HalfCheetah-v5"): {
        "learning_starts": 10_000,
        "alpha": 0.0,
        "samples_per_insert": 64.0,
        "evaluation_interval": 20_000,
    },
}


def preset(
    algorithm: str, env: str, env_options: Mapping[str, Any], options: Options | None
) -> dict[str, Any]:
    """Return the settings for an algorithm and an environment, where it has these options.

    Rows of Atari are for games that are prepared, and not for what they show by themselves.
    """
    learns_from = find(algorithm).learns_from
    settings: dict[str, Any] = {**(REPLAY if learns_from == "replay" else ROLLOUTS)}
    tuned: dict[str, Any] = {}
    _, _, full_name = env.rpartition(":")
    family, slash, _ = full_name.rpartition("/")
    names = ("*", *((f"{family}/*",) if slash else ()), full_name)
    if full_name.startswith(atari.FAMILY) and not atari.is_game(env, env_options):
        names = ("*",)
    if full_name.startswith(pools.FAMILY):  # the rows of what it is
        is_game = pools.is_pool_game(full_name, env_options)
        names = ("*", f"{atari.FAMILY}*" if is_game else full_name.removeprefix(pools.FAMILY))
    for name in names:
        row = PRESETS.get((algorithm, name), {})
        tuned.update(row.get("options", {}))
        settings.update({key: value for key, value in row.items() if key != "options"})
    settings["options"] = options if options is not None else find(algorithm).options_class(**tuned)
    if learns_from == "replay":
        settings.setdefault("samples_per_insert", float(settings["options"].batch_size))
    return settings
