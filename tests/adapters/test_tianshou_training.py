"""Tianshou's own algorithms and collectors with our buffers: weighted losses, new priorities."""

import gymnasium as gym
import numpy as np
import pytest
import tianshou.data
import torch
from tianshou.data import Batch, Collector, ReplayBuffer
from tianshou_rows import step
from tianshou_runs import CONTINUOUS, DISCRETE, build, env_for, train, update

from kary_replay.adapters import tianshou as ours

EPSILON = np.finfo(np.float32).eps


class Audited(ours.PrioritizedVectorReplayBuffer):
    """Ours, beside a NumPy account of every priority."""

    n_updates = 0

    def add(self, batch, buffer_ids=None):
        result = super().add(batch, buffer_ids)
        self.__dict__.setdefault("account", np.zeros(self.maxsize))[result[0]] = self.__dict__.get(
            "top", 1.0
        )
        return result

    def reset(self, keep_statistics=False):
        super().reset(keep_statistics)
        self.account = np.zeros(self.maxsize)

    def sample(self, batch_size):
        batch, index = super().sample(batch_size)
        share = self.account**0.6 / (self.account**0.6).sum()
        weight = (np.count_nonzero(self.account) * share[index]) ** -0.4
        np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=1e-6)
        return batch, index

    def update_weight(self, index, new_weight):
        super().update_weight(index, new_weight)
        td_error = new_weight.detach().numpy().astype(float)
        assert td_error.shape == index.shape
        for i, priority in zip(index, np.abs(td_error) + EPSILON, strict=True):
            self.account[i] = priority
            self.top = max(self.__dict__.get("top", 1.0), priority)
        self.n_updates += 1


@pytest.mark.parametrize("name", [*DISCRETE, *CONTINUOUS])
def test_every_algorithm_trains(name):
    """It runs unchanged: every batch is weighted, and the tree holds the priorities set last."""
    buffer = Audited(50, 2, alpha=0.6, beta=0.4)  # smaller than the run: rows are overwritten
    algorithm = train(name, buffer, n_step=3 if name == "RainbowDQN" else 1)
    assert buffer.n_updates == 32 and len(np.unique(buffer.account)) > 20
    np.testing.assert_allclose(
        buffer.weight[np.arange(buffer.maxsize)], buffer.account**0.6, rtol=1e-6
    )
    assert all(torch.isfinite(p).all() for p in algorithm.parameters())


@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_a_run_repeats_itself(name):
    runs = [
        train(name, ours.PrioritizedVectorReplayBuffer(60, 2, alpha=0.6, beta=0.4, random_seed=5))
        for _ in range(2)
    ]
    for one, other in zip(runs[0].parameters(), runs[1].parameters(), strict=True):
        assert torch.equal(one, other)


def test_loss_and_priorities_of_dqn_against_numpy(rng):
    """One update, from the rows and the networks' numbers alone."""
    torch.manual_seed(0)
    env = gym.make("CartPole-v1")
    algorithm = build("DQN", env)
    buffer = ours.PrioritizedReplayBuffer(40, 0.6, 0.4)
    for t in range(40):
        row = step(t, 1, (4,))
        row.obs, row.obs_next = rng.normal(size=(2, 1, 4)).astype(np.float32)
        buffer.add(row, [0])
    buffer.update_weight(np.arange(40), rng.random(40))
    with torch.no_grad():
        for parameter in algorithm.model_old.parameters():  # unlike the network itself
            parameter.add_(0.1)
    layers = [
        [p.detach().numpy().astype(float).copy() for p in net.parameters()]
        for net in (algorithm.policy.model, algorithm.model_old)
    ]

    def q_values(net, obs):
        hidden_weight, hidden_bias, weight, bias = layers[net]
        return np.maximum(obs @ hidden_weight.T + hidden_bias, 0) @ weight.T + bias

    drawn = {}
    take = buffer.sample_indices
    buffer.sample_indices = lambda n: drawn.setdefault("index", take(n))
    mass = buffer.weight[np.arange(40)]
    stats = update(algorithm, buffer)
    index = drawn["index"]
    obs, obs_next = buffer.obs[index].astype(float), buffer.obs_next[index].astype(float)
    best = q_values(0, obs_next).argmax(1)
    target = (
        buffer.rew[index]
        + 0.99 * (1 - buffer.terminated[index]) * q_values(1, obs_next)[np.arange(16), best]
    )
    td_error = target - q_values(0, obs)[np.arange(16), buffer.act[index]]
    weight = (mass[index] / mass[index].min()) ** -0.4
    np.testing.assert_allclose(stats.loss, (weight * td_error**2).mean(), rtol=1e-4)
    last = {i: abs(d) for i, d in zip(index.tolist(), td_error, strict=True)}
    np.testing.assert_allclose(
        buffer.weight[np.array(list(last))], np.array(list(last.values())) ** 0.6, rtol=1e-3
    )


@pytest.mark.parametrize("form", ["PrioritizedReplayBuffer", "PrioritizedVectorReplayBuffer"])
def test_collectors_store_what_they_store_in_stock(form):
    stored = []
    for module in (tianshou.data, ours):
        torch.manual_seed(1)
        np.random.seed(1)
        size = (90,) if form == "PrioritizedReplayBuffer" else (90, 3)
        buffer = getattr(module, form)(*size, alpha=0.6, beta=0.4)
        env = env_for("DQN", 1 if len(size) == 1 else 3)
        env.seed(1)
        collector = Collector(build("DQN", gym.make("CartPole-v1")), env, buffer)
        collector.reset()
        stats = [collector.collect(n_step=60), collector.collect(n_episode=4)]
        stored.append((buffer, [(one.returns, one.lens) for one in stats]))
    (stock, stock_stats), (buffer, stats) = stored
    for mine, theirs in zip(stats, stock_stats, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    index = stock.sample_indices(0)
    for name in ("obs", "act", "rew", "done", "obs_next"):
        np.testing.assert_array_equal(buffer[index][name], stock[index][name])
    assert buffer.weight.reduce() == len(buffer)


def test_uniform_buffers_are_left_alone():
    """The adapter patches nothing of Tianshou's."""
    buffer = ReplayBuffer(10)
    buffer.add(Batch(obs=1, act=1, rew=1, terminated=False, truncated=False, obs_next=1))
    assert not hasattr(buffer[:], "weight")
    assert (
        type(tianshou.data.PrioritizedReplayBuffer(4, 0.6, 0.4).weight) is tianshou.data.SegmentTree
    )
