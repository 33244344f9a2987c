"""RLlib (new API stack) with the settings of its own tuned examples, in an environment of its own.

From rllib/examples/algorithms/dqn/cartpole_dqn.py and sac/pendulum_sac.py of
github.com/ray-project/ray (commits 5d6ba4e2af08 and 06d824cd3950), which the package does not bring
along. What differs: the width of the networks, where the examples have 256. One process with an
EnvRunner and a Learner in it, as is the examples' default. Nothing else has been tried.
"""

from __future__ import annotations

from typing import Any

import ray
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from torch import nn

from bench.runs.convergence.protocol import Course, Outcome
from bench.runs.convergence.tasks import Task

SETTINGS: dict[str, dict[str, Any]] = {
    "cartpole_dqn": {
        "lr": 5e-4,
        "train_batch_size_per_learner": 32,
        "replay_buffer_config": {
            "type": "PrioritizedEpisodeReplayBuffer",
            "capacity": 50_000,
            "alpha": 0.6,
            "beta": 0.4,
        },
        "n_step": [2, 5],
        "double_q": True,
        "dueling": True,
        "epsilon": [[0, 1.0], [25_000, 0.02]],
    },
    "pendulum_sac": {
        "initial_alpha": 1.001,
        "actor_lr": 2e-4,
        "critic_lr": 8e-4,
        "alpha_lr": 9e-4,
        "lr": None,
        "target_entropy": "auto",
        "n_step": [2, 5],
        "tau": 0.005,
        "train_batch_size_per_learner": 256,
        "target_network_update_freq": 1,
        "replay_buffer_config": {
            "type": "PrioritizedEpisodeReplayBuffer",
            "capacity": 100_000,
            "alpha": 1.0,
            "beta": 0.0,
        },
        "num_steps_sampled_before_learning_starts": 256,
    },
}
COMMON = {"ray": ray.__version__, "threads": 1}
MODULE = "default_policy"
CONFIGS = {"dqn": DQNConfig, "sac": SACConfig}


def settings(name: str, units: int) -> dict[str, Any]:
    """Return everything that is set for a task."""
    return {**COMMON, **SETTINGS[name], "units": units}


def model(algorithm: str, units: int) -> DefaultModelConfig:
    """Networks as in the examples."""
    if algorithm == "dqn":
        return DefaultModelConfig(
            fcnet_hiddens=[units],
            fcnet_activation="tanh",
            fcnet_bias_initializer="zeros_",
            head_fcnet_hiddens=[units],
            head_fcnet_bias_initializer="zeros_",
        )
    return DefaultModelConfig(
        fcnet_hiddens=[units, units],
        fcnet_activation="relu",
        fcnet_kernel_initializer=nn.init.xavier_uniform_,
        head_fcnet_hiddens=[],
        head_fcnet_activation=None,
        head_fcnet_kernel_initializer="orthogonal_",
        head_fcnet_kernel_initializer_kwargs={"gain": 0.01},
        fusionnet_hiddens=[units] * 3,
        fusionnet_activation="relu",
    )


def build(task: Task, chosen: dict[str, Any], seed: int) -> Any:
    """Return the algorithm; one call of its `train` goes from snapshot to snapshot.

    With `plugged_in` among what is chosen, our replay buffer takes the place of RLlib's.
    """
    others = ("ray", "threads", "units", "plugged_in")
    arguments = {name: value for name, value in chosen.items() if name not in others}
    torch.set_num_threads(chosen["threads"])
    arguments["n_step"] = tuple(arguments["n_step"])
    config = CONFIGS[task.algorithm]().environment(task.env_id, disable_env_checking=True)
    config = (
        config.training(**arguments)
        .rl_module(model_config=model(task.algorithm, chosen["units"]))
        .debugging(seed=seed)
    )
    config = config.reporting(
        min_sample_timesteps_per_iteration=task.snapshot_every, min_time_s_per_iteration=0
    )
    if chosen.get("plugged_in"):
        from kary_replay.adapters.rllib import use

        use(config)
    return config.build_algo()


def greedy_action(network: nn.Module, observations: torch.Tensor) -> torch.Tensor:
    """Act as its own inference does: the best of the discrete actions, or the squashed mean."""
    with torch.no_grad():
        found = network.forward_inference({"obs": observations})
    return (
        found["actions"]
        if "actions" in found
        else torch.tanh(found["action_dist_inputs"].chunk(2, dim=1)[0])
    )


def train(name: str, task: Task, seed: int, chosen: dict[str, Any]) -> Outcome:
    """Train, an iteration from snapshot to snapshot, until the course says that it is enough."""
    ray.init(
        include_dashboard=False, log_to_driver=False, num_cpus=1, object_store_memory=200_000_000
    )
    algorithm = build(task, chosen, seed)
    network = algorithm.learner_group._learner.module[MODULE].unwrapped()
    course = Course(task, network, greedy_action, chosen)
    course.start()
    env_steps = updates = 0
    batch_size = chosen["train_batch_size_per_learner"]
    while course.step(env_steps, updates):
        result = algorithm.train()
        env_steps = int(result["num_env_steps_sampled_lifetime"])
        trained = (
            result.get("learners", {}).get(MODULE, {}).get("num_module_steps_trained_lifetime", 0)
        )
        updates = int(trained) // batch_size
    algorithm.stop()
    ray.shutdown()
    return course.outcome
