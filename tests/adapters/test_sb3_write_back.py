"""How a loss's TD errors reach the tree: several losses of a batch, and errors that are refused."""

import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces

from kary_replay.adapters.sb3 import PrioritizedReplayBuffer

BOX = spaces.Box(-1, 1, (3,), np.float32)


def filled(**kwargs):
    """A buffer of 20 rows, all of them equal."""
    buffer = PrioritizedReplayBuffer(20, BOX, BOX, "cpu", **kwargs)
    row = np.zeros((1, 3), np.float32)
    for _ in range(30):
        buffer.add(row, row, row, np.zeros(1), np.zeros(1, bool), [{}])
    return buffer


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_diverged_network_is_named(value):
    buffer = filled()
    before = buffer.native.tree.get(np.arange(20))
    rewards = buffer.sample(5).rewards
    current = torch.zeros(5, 1)
    current[3] = value
    F.mse_loss(current, rewards)
    with pytest.raises(
        ValueError, match=rf"TD error is {value} in row 3 of a batch of 5 .*no longer finite"
    ):
        buffer.sample(5)
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(buffer)).native.tree.get(np.arange(20)), before
    )


def test_a_buffer_whose_last_loss_was_nan_can_be_saved():
    """By SB3, which empties the file of the save before first."""
    buffer = filled()
    F.mse_loss(torch.full((5, 1), np.nan), buffer.sample(5).rewards)
    with pytest.warns(UserWarning, match="saved without the priorities of a batch: the loss's TD"):
        saved = pickle.dumps(buffer)
    before = filled().native.tree.get(np.arange(20))
    np.testing.assert_array_equal(pickle.loads(saved).native.tree.get(np.arange(20)), before)
    buffer.sample(5)


def test_a_td_error_that_is_only_too_large_is_not_called_infinite():
    buffer = filled()
    buffer.sample(3)
    with pytest.raises(ValueError, match=r"at most .*got 1e\+308 at position 2"):
        buffer.update_priorities(np.array([1.0, 2.0, 1e308]))


def test_losses_of_other_shapes_count_by_row():
    buffer = filled(alpha=1.0)
    rewards = buffer.sample(4).rewards
    plain = rewards.as_subclass(torch.Tensor)
    F.l1_loss(plain + 2, rewards)
    F.l1_loss(plain + torch.tensor([1.0, 5.0]), rewards.expand(-1, 2))  # 3 a row
    np.testing.assert_allclose(buffer.native.tree.get(rewards.batch.handle["index"]), 3, rtol=1e-5)


def test_of_rows_that_diverged_one_that_can_be_drawn_is_named():
    buffer = filled(optimize_memory_usage=True, handle_timeout_termination=False)
    rewards = buffer.sample(5).rewards
    buffer.native.tree.set(rewards.batch.handle["index"][:2], 0.0)
    visible = int(np.flatnonzero(buffer.native.tree.get(rewards.batch.handle["index"]) > 0)[0])
    F.mse_loss(rewards.as_subclass(torch.Tensor) + np.nan, rewards)
    with pytest.raises(ValueError, match=rf"in row {visible} of a batch of 5"):
        buffer.sample(5)
