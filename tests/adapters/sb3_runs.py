"""Short seeded SB3 runs, buffers that repeat draws, and a NumPy account of the priorities."""

from __future__ import annotations

import importlib
from unittest import mock

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3, HerReplayBuffer
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from kary_replay.adapters.sb3 import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedNStepReplayBuffer,
    PrioritizedReplayBuffer,
)
from kary_replay.adapters.sb3.prioritized_buffer import PrioritizedBuffer

ALGORITHMS = {
    algorithm.__name__: algorithm for algorithm in (DQN, DDPG, TD3, SAC, QRDQN, TQC, CrossQ)
}
DISCRETE = {"DQN", "QRDQN"}
ENV = {name: "CartPole-v1" if name in DISCRETE else "Pendulum-v1" for name in ALGORITHMS}

CLASSES = {  # ours and SB3's, by what they are for
    "array": (PrioritizedReplayBuffer, ReplayBuffer),
    "dict": (PrioritizedDictReplayBuffer, DictReplayBuffer),
    "n_step": (PrioritizedNStepReplayBuffer, NStepReplayBuffer),
    "her": (PrioritizedHerReplayBuffer, HerReplayBuffer),
}


def over_classes(*kinds):
    """Parametrize a test by `kind` and `buffer_class`: SB3's classes and ours."""
    pairs = [(kind, each) for kind in kinds or CLASSES for each in CLASSES[kind]]
    return pytest.mark.parametrize(
        ("kind", "buffer_class"), pairs, ids=[each.__name__ for _, each in pairs]
    )


torch.set_num_threads(1)


def learn(
    name,
    buffer_class,
    *,
    n_envs=1,
    steps=240,
    seed=3,
    batch_size=25,
    env=None,
    model_kwargs=None,
    **buffer_kwargs,
):
    """Train a tiny network for `steps`, with several gradient steps at a time and a full buffer."""
    env = env or make_vec_env(ENV[name], n_envs)
    policy_kwargs = {"net_arch": [8]}
    if name in ("QRDQN", "TQC"):
        policy_kwargs["n_quantiles"] = 5
    model = ALGORITHMS[name](
        **{
            "policy": "MlpPolicy",
            "env": env,
            "learning_starts": 60,
            "buffer_size": 150,
            "batch_size": batch_size,
            "train_freq": 8,
            "gradient_steps": 5,
            "policy_kwargs": policy_kwargs,
            "replay_buffer_class": buffer_class,
            "replay_buffer_kwargs": buffer_kwargs,
            "seed": seed,
            "device": "cpu",
            **({"target_update_interval": 40} if name in DISCRETE else {}),
            **(model_kwargs or {}),
        }
    )
    return model.learn(steps)


def environment(kind, name, n_envs=1, **env_kwargs):
    """The environment that an algorithm learns in with a buffer of this kind."""
    if kind == "her":
        return make_vec_env(
            lambda: BitFlippingEnv(n_bits=4, continuous=name not in DISCRETE), n_envs
        )
    return make_vec_env(
        ENV[name],
        n_envs,
        env_kwargs=env_kwargs,
        wrapper_class=DictObservation if kind == "dict" else None,
    )


def learn_with(
    kind, buffer_class, name, *, n_envs=1, steps=170, env=None, model_kwargs=None, **kwargs
):
    """`learn` in the environment and with the policy that this kind of buffer is for."""
    policy = {"policy": "MultiInputPolicy" if kind in ("dict", "her") else "MlpPolicy"}
    env = env or environment(kind, name, n_envs)
    return learn(
        name,
        buffer_class,
        steps=steps,
        env=env,
        model_kwargs=policy | (model_kwargs or {}),
        **kwargs,
    )


def arrays_of(buffer):
    """Every stored array by name, those of Dict observations one by one."""
    arrays = {}
    for name in ("observations", "actions", "rewards", "next_observations", "dones", "timeouts"):
        value = getattr(buffer, name, {})
        arrays |= (
            {f"{name}.{key}": array for key, array in value.items()}
            if isinstance(value, dict)
            else {name: value}
        )
    return arrays


def assert_trained(model):
    """Assert that networks, and a buffer of ours, were updated, stayed finite, and did not warn."""
    assert model._n_updates > 0
    state = state_of(model)
    assert all(torch.isfinite(value).all() for value in state.values())
    if isinstance(model.replay_buffer, PrioritizedBuffer):
        assert not model.replay_buffer._updates.warned
        native = model.replay_buffer.native
        masses = native.tree.get(np.arange(native.capacity))
        # far from their targets, all quantiles of QR-DQN and TQC are pulled alike
        n_alike = 1 if isinstance(model, (QRDQN, TQC)) else 3
        assert np.unique(masses[masses > 0]).size > n_alike
        native.check_invariants()


def state_of(model):
    """Every number that training changes: networks, targets, optimizers, entropy coefficient."""
    names, tensor_names = model._get_torch_save_params()
    state = {name: getattr(model, name.split(".")[0]) for name in names}
    for name in names:
        for part in name.split(".")[1:]:
            state[name] = getattr(state[name], part)
    tensors = {}
    for name, holder in state.items():
        _collect(name, holder.state_dict(), tensors)
    return tensors | {name: getattr(model, name).detach().clone() for name in tensor_names}


def _collect(path, value, into):
    if isinstance(value, dict):
        for key, item in value.items():
            _collect(f"{path}.{key}", item, into)
    elif isinstance(value, torch.Tensor):
        into[path] = value.clone()


def first_difference(ours, stock):
    """Return which number differs between two models, None if none does."""
    a, b = state_of(ours), state_of(stock)
    assert a.keys() == b.keys()
    assert any("optimizer" in key for key in a)
    return next((key for key in a if not torch.equal(a[key], b[key])), None)


def recorded(base):
    """Return the class of one of our buffers that notes the slots of every batch."""

    class RecordedDraws(base):
        def sample(self, batch_size, env=None):
            samples = super().sample(batch_size, env)
            self.__dict__.setdefault("draws", []).append(
                samples.rewards.batch.handle["index"].copy()
            )
            return samples

    return RecordedDraws


def repeating(base):
    """Return the class of one of SB3's buffers, made to draw the given slots, in their order."""

    class RepeatedDraws(base):
        def __init__(self, *args, draws, **kwargs):
            super().__init__(*args, **kwargs)
            self.draws = iter(draws)

        def sample(self, batch_size, env=None):
            rows, envs = np.divmod(next(self.draws), self.n_envs)
            if self.optimize_memory_usage and self.full:
                rows = rows - self.pos  # SB3 adds it
            with mock.patch.object(np.random, "randint", side_effect=[rows, envs]):
                return super().sample(batch_size, env)

    return RepeatedDraws


RecordedDraws, RepeatedDraws = recorded(PrioritizedReplayBuffer), repeating(ReplayBuffer)


class DictObservation(gym.ObservationWrapper):
    """A Box observation as a dict of two."""

    def __init__(self, env):
        super().__init__(env)
        low, high = env.observation_space.low, env.observation_space.high
        self.observation_space = gym.spaces.Dict(
            {"a": gym.spaces.Box(low[:1], high[:1]), "b": gym.spaces.Box(low[1:], high[1:])}
        )

    def observation(self, observation):
        return {"a": observation[:1], "b": observation[1:]}


class Account(PrioritizedReplayBuffer):
    """Ours, beside the priorities that each slot should have, kept in NumPy from the outside."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.expected = np.zeros(self.buffer_size * self.n_envs)  # raw priorities by slot
        self.largest = 1.0
        self.slots = self.td_error = self.weights = None
        self.n_losses = self.n_batches = 0

    def settle(self):
        """Write the TD errors of the last batch: of duplicate slots, the last one wins."""
        if self.td_error is not None:
            for slot, error in zip(self.slots, self.td_error.astype(float), strict=True):
                self.expected[slot] = error + self._native.priority_epsilon
                self.largest = max(self.largest, self.expected[slot])
        self.td_error = None

    def add(self, *args):
        self.settle()
        slots = self.pos * self.n_envs + np.arange(self.n_envs)
        self.expected[slots] = self.largest
        super().add(*args)

    def sample(self, batch_size, env=None):
        self.settle()
        samples = super().sample(batch_size, env)
        self.slots = samples.rewards.batch.handle["index"].copy()
        mass, share = self.expected[self.slots] ** self.alpha, self.uniform_share
        if share:
            mean = (self.expected[self.expected > 0] ** self.alpha).mean()
            self.weights = ((1 - share) * mass / mean + share) ** -self.beta
        else:
            self.weights = (mass / mass.min()) ** -self.beta
        self.n_batches += 1
        return samples

    def check(self, result, by_row, td_error, is_huber):
        """Compare a loss with the weighted mean of the rows' losses [B]; note their TD errors."""
        np.testing.assert_allclose(result.item(), np.mean(self.weights * by_row), rtol=1e-5)
        if self.prioritize_by == "gradient" and is_huber:
            td_error = np.minimum(td_error, 1)
        self.td_error = td_error if self.td_error is None else np.maximum(self.td_error, td_error)
        self.n_losses += 1


class AuditedFunctional:
    """`torch.nn.functional` that checks each loss against NumPy and notes its TD errors."""

    rowwise = {  # noqa: RUF012
        "mse_loss": np.square,
        "smooth_l1_loss": lambda d: np.where(np.abs(d) < 1, 0.5 * np.square(d), np.abs(d) - 0.5),
    }

    def __init__(self, account):
        self.account = account

    def __getattr__(self, name):
        function = getattr(torch.nn.functional, name)
        return self.audited(name, function) if name in self.rowwise else function

    def audited(self, name, function):
        def loss(current, target):
            result = function(current, target)
            difference = (current.detach().numpy() - target.detach().numpy())[:, 0]
            self.account().check(
                result,
                self.rowwise[name](difference.astype(float)),
                np.abs(difference),
                name == "smooth_l1_loss",
            )
            return result

        return loss


def audited_quantile_loss(account):
    """Return sb3-contrib's quantile loss, checked against NumPy (Dabney et al. 2018)."""
    from sb3_contrib.common.utils import quantile_huber_loss

    def loss(current, target, sum_over_quantiles):
        result = quantile_huber_loss(current, target, sum_over_quantiles=sum_over_quantiles)
        # [B, …, n], [B, …, m]
        predictions, targets = current.detach().numpy(), target.detach().numpy()
        delta = targets[..., None, :] - predictions[..., :, None]  # [B, …, n, m]
        n = predictions.shape[-1]
        midpoints = ((np.arange(n) + 0.5) / n)[:, None]
        huber = np.where(np.abs(delta) > 1, np.abs(delta) - 0.5, 0.5 * delta**2)
        slope = np.abs(midpoints - (delta < 0)) * (n if sum_over_quantiles else 1)
        by_row = tuple(range(1, delta.ndim))
        td_error = np.abs(delta).mean(by_row)
        if account().prioritize_by == "gradient":  # its length, over all predictions of a row
            gradient = (slope * np.clip(delta, -1, 1)).sum(-1) / delta[0].size
            td_error = np.sqrt((gradient.astype(float) ** 2).sum(by_row[:-1]))
        account().check(result, (slope * huber).mean(by_row), td_error, is_huber=False)
        return result

    return loss


def audited_run(name, monkeypatch, **kwargs):
    """Train with an `Account` as the buffer, compare the tree with it, and return the model."""
    accounts = []

    class Noted(Account):
        def __init__(self, *args, **kw):
            super().__init__(*args, **kw)
            accounts.append(self)

    module = importlib.import_module(ALGORITHMS["TD3" if name == "DDPG" else name].__module__)
    if name in ("QRDQN", "TQC"):
        monkeypatch.setattr(
            module, "quantile_huber_loss", audited_quantile_loss(lambda: accounts[0])
        )
    else:
        monkeypatch.setattr(module, "F", AuditedFunctional(lambda: accounts[0]))
    model = learn(name, Noted, **kwargs)
    (account,) = accounts
    account.settle()
    masses = account.native.tree.get(np.arange(len(account.expected)))
    # What is summed over quantiles is summed in float32, in another order: a few 1e-7 of it.
    rtol = 2e-6 if name in ("QRDQN", "TQC") else 1e-12
    np.testing.assert_allclose(masses, account.expected**account.alpha, rtol=rtol)
    account.native.check_invariants()
    return model
