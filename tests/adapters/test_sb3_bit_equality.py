"""Training is that of SB3's own buffer, bit for bit: by uniform replay, with the same seed;

with priorities and all weights 1, given the same draws.
"""

import numpy as np
import pytest
import torch
from sb3_runs import (
    ALGORITHMS,
    CLASSES,
    ENV,
    DictObservation,
    RecordedDraws,
    RepeatedDraws,
    first_difference,
    learn,
    learn_with,
    recorded,
    repeating,
    state_of,
)
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from kary_replay.adapters.sb3 import (
    PrioritizedDictReplayBuffer,
    PrioritizedNStepReplayBuffer,
    PrioritizedReplayBuffer,
)
from kary_replay.adapters.sb3.prioritized_loss import SampledBatch

OURS_ALONE = ("alpha", "beta", "priority_epsilon", "uniform_share")


def difference(name, classes=(RecordedDraws, RepeatedDraws), **kwargs):
    """Train with ours, then with SB3's buffer fed the same draws; return what differs, or None."""
    env = kwargs.pop("env", lambda: None)
    theirs = {key: value for key, value in kwargs.items() if key not in OURS_ALONE}
    ours = learn(name, classes[0], env=env(), **({"uniform_share": 0.0} | kwargs))
    stock = learn(name, classes[1], env=env(), draws=ours.replay_buffer.draws, **theirs)
    assert len(ours.replay_buffer.draws) >= 25
    assert ours.replay_buffer.full
    return first_difference(ours, stock)


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_uniform_draws(name, n_envs):
    assert difference(name, n_envs=n_envs, alpha=0.0, beta=0.0) is None


@pytest.mark.parametrize("batch_size", [25, 64])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_prioritized_draws_with_weights_of_one(name, batch_size):
    assert difference(name, alpha=0.7, beta=0.0, batch_size=batch_size) is None


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_alpha_zero_makes_all_weights_one(name):
    assert difference(name, alpha=0.0, beta=0.8) is None


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("kind", CLASSES)
def test_uniform_replay_is_sb3s_own(kind, name, n_envs):
    if name == "CrossQ" and kind in ("dict", "her"):
        pytest.skip("CrossQ has no policy for Dict observations")
    ours, stock = CLASSES[kind]
    settings = {"n_steps": 3, "gamma": 0.9} if kind == "n_step" else {}
    models = [
        learn_with(kind, ours, name, n_envs=n_envs, steps=240, uniform_share=1.0, **settings),
        learn_with(kind, stock, name, n_envs=n_envs, steps=240, **settings),
    ]
    assert all(model.replay_buffer.full for model in models)
    assert first_difference(*models) is None


@pytest.mark.parametrize("name", ["DQN", "TD3"])
def test_uniform_replay_of_one_array_for_both_observations_is_sb3s_own(name):
    settings = {"n_envs": 3, "handle_timeout_termination": False}
    settings["model_kwargs"] = {"optimize_memory_usage": True}
    ours = learn(name, PrioritizedReplayBuffer, uniform_share=1.0, **settings)
    stock = learn(name, ReplayBuffer, **settings)
    assert ours.replay_buffer.full
    assert first_difference(ours, stock) is None


def test_the_default_is_sb3s_own_until_priorities_pay(monkeypatch):
    stock = learn("DQN", ReplayBuffer)
    assert first_difference(learn("DQN", PrioritizedReplayBuffer), stock) is None

    class PaysAtOnce(PrioritizedReplayBuffer):
        def add(self, *args):
            super().add(*args)
            if self.pos == 100:
                self.uniform_share = 0.1

    assert first_difference(learn("DQN", PaysAtOnce), stock) is not None


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("name", ["DQN", "TQC", "CrossQ"])
def test_n_step_returns(name, n_envs):
    classes = recorded(PrioritizedNStepReplayBuffer), repeating(NStepReplayBuffer)
    assert (
        difference(name, classes, n_envs=n_envs, alpha=0.7, beta=0.0, n_steps=3, gamma=0.9) is None
    )


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("name", ["DQN", "SAC", "QRDQN"])
def test_dict_observations(name, n_envs):
    def env():
        return make_vec_env(ENV[name], n_envs, wrapper_class=DictObservation)

    classes = recorded(PrioritizedDictReplayBuffer), repeating(DictReplayBuffer)
    multi = {"policy": "MultiInputPolicy"}
    assert (
        difference(name, classes, n_envs=n_envs, env=env, alpha=0.7, beta=0.0, model_kwargs=multi)
        is None
    )


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("name", ["DQN", "TD3"])
def test_one_array_for_both_observations(name, n_envs):
    lean = {"optimize_memory_usage": True}
    kwargs = {
        "n_envs": n_envs,
        "alpha": 0.7,
        "beta": 0.0,
        "handle_timeout_termination": False,
        "model_kwargs": lean,
    }
    assert difference(name, **kwargs) is None


@pytest.mark.parametrize("name", ["DQN", "TD3"])
def test_normalized_observations_and_rewards(name):
    assert (
        difference(
            name,
            alpha=0.6,
            beta=0.0,
            n_envs=2,
            env=lambda: VecNormalize(make_vec_env(ENV[name], 2)),
        )
        is None
    )


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_rejects_weights_that_are_not_one(name):
    assert difference(name, alpha=0.7, beta=0.5, uniform_share=0.1) is not None


def test_rejects_a_loss_scaled_in_its_last_bit(monkeypatch):
    true_loss = SampledBatch.loss
    monkeypatch.setattr(
        SampledBatch, "loss", lambda *args, **kwargs: true_loss(*args, **kwargs) * (1 + 2**-23)
    )
    assert difference("SAC", alpha=0.7, beta=0.0) is not None


def test_rejects_other_draws(monkeypatch):
    ours = learn("DQN", RecordedDraws, beta=0.0, uniform_share=0.0)
    draws = [np.roll(slots, 1) for slots in ours.replay_buffer.draws]
    draws[7][0] = (draws[7][0] + 1) % 60
    stock = learn("DQN", RepeatedDraws, draws=draws)
    a, b = state_of(ours), state_of(stock)
    assert any(not torch.equal(a[key], b[key]) for key in a)
