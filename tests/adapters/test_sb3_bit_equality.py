"""With all weights 1, training is that of SB3's own buffer, bit for bit, given the same draws."""

import numpy as np
import pytest
import torch
from sb3_runs import ALGORITHMS, RecordedDraws, RepeatedDraws, learn, state_of
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from kary_replay.adapters.sb3.prioritized_loss import SampledBatch


def first_difference(name, **kwargs):
    """Train with ours, then with SB3's buffer fed the same draws; return what differs, None if nothing does."""
    env = kwargs.pop("env", lambda: None)
    stock_kwargs = {key: kwargs[key] for key in ("n_envs", "batch_size", "handle_timeout_termination") if key in kwargs}
    ours = learn(name, RecordedDraws, env=env(), **kwargs)
    stock = learn(name, RepeatedDraws, env=env(), draws=ours.replay_buffer.draws, **stock_kwargs)
    assert len(ours.replay_buffer.draws) >= 25
    a, b = state_of(ours), state_of(stock)
    assert a.keys() == b.keys()
    assert any("optimizer" in key for key in a)
    assert any("target" in key for key in a)
    return next((key for key in a if not torch.equal(a[key], b[key])), None)


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_uniform_draws(name, n_envs):
    assert first_difference(name, n_envs=n_envs, alpha=0.0, beta=0.0) is None


@pytest.mark.parametrize("batch_size", [25, 64])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_prioritized_draws_with_weights_of_one(name, batch_size):
    assert first_difference(name, alpha=0.7, beta=0.0, batch_size=batch_size) is None


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_alpha_zero_makes_all_weights_one(name):
    assert first_difference(name, alpha=0.0, beta=0.8) is None


@pytest.mark.parametrize("name", ["DQN", "TD3"])
def test_normalized_observations_and_rewards(name):
    env_id = "CartPole-v1" if name == "DQN" else "Pendulum-v1"
    assert first_difference(name, alpha=0.6, beta=0.0, n_envs=2, env=lambda: VecNormalize(make_vec_env(env_id, 2))) is None


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_rejects_weights_that_are_not_one(name):
    assert first_difference(name, alpha=0.7, beta=0.5) is not None


def test_rejects_a_loss_scaled_in_its_last_bit(monkeypatch):
    true_loss = SampledBatch.loss
    monkeypatch.setattr(SampledBatch, "loss", lambda *args, **kwargs: true_loss(*args, **kwargs) * (1 + 2**-23))
    assert first_difference("SAC", alpha=0.7, beta=0.0) is not None


def test_rejects_other_draws(monkeypatch):
    ours = learn("DQN", RecordedDraws, beta=0.0)
    draws = [np.roll(slots, 1) for slots in ours.replay_buffer.draws]
    draws[7][0] = (draws[7][0] + 1) % 60
    stock = learn("DQN", RepeatedDraws, draws=draws)
    a, b = state_of(ours), state_of(stock)
    assert any(not torch.equal(a[key], b[key]) for key in a)
