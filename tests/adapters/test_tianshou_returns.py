"""Returns that Tianshou computes over a prioritized buffer, against a walk along the episodes."""

import numpy as np
import pytest
import torch
from tianshou.data import Batch
from tianshou_rows import BOTH, TIANSHOU_1

if TIANSHOU_1:
    from tianshou.policy import BasePolicy as Algorithm
else:
    from tianshou.algorithm.algorithm_base import Algorithm

GAMMA = 0.9


def filled(module, form, steps=14, size=10, **kwargs):
    """Return a buffer of one ring or of two, and the rows of each ring, oldest first."""
    n = 2 if form == "vector" else 1
    kwargs |= {"alpha": 0.6, "beta": 0.4}
    buffer = (
        module.PrioritizedVectorReplayBuffer(size * n, n, **kwargs)
        if n == 2
        else module.PrioritizedReplayBuffer(size, **kwargs)
    )
    ring = np.arange(n)
    for t in range(steps):
        ends = (t + ring) % 4 == 3
        cut = (t + ring) % 8 == 7  # every other end is a time limit, after which there is a value
        row = Batch(
            obs=t + ring,
            act=ring,
            rew=t + 1.0 + ring,
            terminated=ends & ~cut,
            truncated=cut,
            obs_next=t + 1 + ring,
        )
        buffer.add(row, buffer_ids=ring)
    oldest = steps % size if steps > size else 0
    order = (np.arange(min(steps, size)) + oldest) % size
    return buffer, [order + size * i for i in range(n)]


def value(buffer, index):
    """Of what comes after a row: anything that differs from row to row."""
    return 100.0 + 3.0 * np.asarray(index)


@BOTH
@pytest.mark.parametrize("form", ["single", "vector"])
@pytest.mark.parametrize("n_step", [1, 2, 10])
@pytest.mark.parametrize("ignore_obs_next", [False, True])
def test_n_step_returns(module, form, n_step, ignore_obs_next):
    """Sum n rewards, or those until the episode or the buffer ends, and a value if one follows."""
    buffer, rings = filled(module, form, ignore_obs_next=ignore_obs_next)
    expected = {}
    for rows in rings:
        for k, start in enumerate(rows):
            total, discount = 0.0, 1.0
            for row in rows[k : k + n_step]:
                total, discount = total + discount * buffer.rew[row], discount * GAMMA
                if buffer.done[row]:
                    break
            expected[start] = total + discount * value(buffer, row) * (not buffer.terminated[row])
    index = buffer.sample_indices(0)
    assert sorted(index) == sorted(expected)
    for width in (1, 5):  # a value may be several numbers

        def target(buffer, at, width=width):
            return torch.tensor(value(buffer, at))[:, None].repeat(1, width)

        batch = Algorithm.compute_nstep_return(
            buffer[index], buffer, index, target, gamma=GAMMA, n_step=n_step
        )
        wanted = np.array([[expected[i]] * width for i in index])
        np.testing.assert_allclose(batch.returns.numpy(), wanted, rtol=1e-6)
        assert isinstance(batch.weight, torch.Tensor) and (batch.weight == 1).all()


@BOTH
@pytest.mark.parametrize("form", ["single", "vector"])
@pytest.mark.parametrize("gae_lambda", [1.0, 0.95])
def test_episodic_returns(module, form, gae_lambda):
    buffer, rings = filled(module, form)
    index = buffer.sample_indices(0)
    before, after = 10.0 + index, 20.0 + 2 * index
    returns, advantages = Algorithm.compute_episodic_return(
        buffer[index], buffer, index, v_s_=after, v_s=before, gamma=GAMMA, gae_lambda=gae_lambda
    )
    expected = {}
    for rows in rings:
        advantage = 0.0
        for row in rows[::-1]:
            following = (20.0 + 2 * row) * (not buffer.terminated[row])
            goes_on = not buffer.done[row] and row != rows[-1]
            advantage = (
                buffer.rew[row]
                + GAMMA * following
                - (10.0 + row)
                + GAMMA * gae_lambda * goes_on * advantage
            )
            expected[row] = advantage
    np.testing.assert_allclose(advantages, [expected[i] for i in index])
    np.testing.assert_allclose(returns, advantages + before)
