"""The tuned examples of RLlib with our buffer, until they are solved: `make test-rllib`.

The settings are those of its cartpole_dqn.py and pendulum_sac.py.
"""

from __future__ import annotations

import faulthandler
import os
import tempfile

import pytest
import ray
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from torch import nn

from kary_replay.adapters.rllib import use

pytestmark = pytest.mark.skipif(
    "RLLIB_EXAMPLES" not in os.environ, reason="takes minutes: make test-rllib"
)


def cartpole_dqn():
    return (
        DQNConfig()
        .environment("CartPole-v1")
        .training(
            lr=5e-4,
            train_batch_size_per_learner=32,
            replay_buffer_config={
                "type": "PrioritizedEpisodeReplayBuffer",
                "capacity": 50_000,
                "alpha": 0.6,
                "beta": 0.4,
            },
            n_step=(2, 5),
            double_q=True,
            dueling=True,
            epsilon=[(0, 1.0), (25_000, 0.02)],
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[256],
                fcnet_activation="tanh",
                fcnet_bias_initializer="zeros_",
                head_fcnet_bias_initializer="zeros_",
                head_fcnet_hiddens=[256],
            )
        )
    )


def pendulum_sac():
    return (
        SACConfig()
        .environment("Pendulum-v1")
        .training(
            initial_alpha=1.001,
            actor_lr=2e-4,
            critic_lr=8e-4,
            alpha_lr=9e-4,
            lr=None,
            target_entropy="auto",
            n_step=(2, 5),
            tau=0.005,
            train_batch_size_per_learner=256,
            target_network_update_freq=1,
            replay_buffer_config={
                "type": "PrioritizedEpisodeReplayBuffer",
                "capacity": 100_000,
                "alpha": 1.0,
                "beta": 0.0,
            },
            num_steps_sampled_before_learning_starts=256,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[256, 256],
                fcnet_activation="relu",
                fcnet_kernel_initializer=nn.init.xavier_uniform_,
                head_fcnet_hiddens=[],
                head_fcnet_activation=None,
                head_fcnet_kernel_initializer="orthogonal_",
                head_fcnet_kernel_initializer_kwargs={"gain": 0.01},
                fusionnet_hiddens=[256, 256, 256],
                fusionnet_activation="relu",
            )
        )
    )


@pytest.mark.parametrize(
    ("example", "threshold", "budget"),
    [(cartpole_dqn, 450.0, 200_000), (pendulum_sac, -250.0, 20_000)],
)
def test_it_is_solved(example, threshold, budget):
    faulthandler.cancel_dump_traceback_later()  # some learn for longer than ten minutes
    with tempfile.TemporaryDirectory(prefix="kr-") as folder:
        ray.init(address="local", include_dashboard=False, log_to_driver=False, _temp_dir=folder)
        try:
            config = example().reporting(
                min_sample_timesteps_per_iteration=1_000, min_time_s_per_iteration=0
            )
            algorithm = use(config.debugging(seed=0)).build_algo()
            mean, n_steps = float("-inf"), 0
            while mean < threshold and n_steps < budget:
                result = algorithm.train()
                n_steps = int(result["num_env_steps_sampled_lifetime"])
                mean = result["env_runners"].get("episode_return_mean", mean)
            algorithm.stop()
        finally:
            ray.shutdown()
    print(f"{example.__name__}: {mean:.1f} after {n_steps:,} steps")
    assert mean >= threshold
