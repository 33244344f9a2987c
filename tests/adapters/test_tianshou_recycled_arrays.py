"""Large arrays of batches are used again, and never while somebody holds them."""

import copy
import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("kary_replay.adapters.tianshou")

from tianshou.data import Batch

from kary_replay.adapters.tianshou import PrioritizedReplayBuffer
from kary_replay.adapters.tianshou.recycled_arrays import RecycledArrays

INDEX = np.arange(8)


@pytest.fixture
def field():
    return np.random.default_rng(0).integers(0, 255, (16, 4, 512, 512), np.uint8)


@pytest.fixture
def recycled():
    return RecycledArrays()


def address(array):
    return array.__array_interface__["data"][0]


def addresses_of_a_draw(buffer):
    batch, _ = buffer.sample(32)
    return {address(batch.obs), address(batch.obs_next)}


def test_an_array_that_nobody_holds_is_used_again(field, recycled):
    first = recycled.take(field, INDEX)
    at = address(first)
    del first
    again = recycled.take(field, INDEX[::-1])
    assert address(again) == at
    np.testing.assert_array_equal(again, field[INDEX[::-1]])


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array,
        lambda array: array[2:, 0],
        lambda array: array.view(np.int8).reshape(-1)[3:],
        torch.from_numpy,
        lambda array: torch.as_tensor(array)[1],
        torch.from_dlpack,
        memoryview,
        lambda array: Batch(obs=array),
        lambda array: iter(array),
    ],
    ids=["itself", "part", "view", "tensor", "row", "dlpack", "memoryview", "batch", "iterator"],
)
def test_an_array_that_somebody_holds_is_left_alone(hold, field, recycled):
    array = recycled.take(field, INDEX)
    at, held = address(array), hold(array)
    del array
    others = [recycled.take(field, INDEX) for _ in range(6)]
    assert at not in map(address, others)
    assert len({address(other) for other in others}) == 6
    del held


def test_keeps_few_arrays(field, recycled):
    held = [recycled.take(field, INDEX) for _ in range(9)]
    assert len(recycled._arrays) == 4 and recycled._arrays[-1] is held[-1]


def test_another_shape_or_dtype_gets_an_array_of_its_own(field, recycled):
    at = address(recycled.take(field, INDEX))
    for other, index in ((field, np.arange(7)), (field.view(np.int8), INDEX)):
        array = recycled.take(other, index)
        assert address(array) != at and array.dtype == other.dtype
        np.testing.assert_array_equal(array, other[index])


def test_indices_mean_what_they_mean_to_numpy(field, recycled):
    np.testing.assert_array_equal(recycled.take(field, INDEX - 3), field[INDEX - 3])
    np.testing.assert_array_equal(
        recycled.take(field, INDEX.reshape(4, 2)), field[INDEX.reshape(4, 2)]
    )
    with pytest.raises(IndexError):
        recycled.take(field, INDEX + 9)


def test_copies_and_pickles_hold_none(field, recycled):
    recycled.take(field, INDEX)
    for other in (copy.deepcopy(recycled), pickle.loads(pickle.dumps(recycled))):
        assert other._arrays == []


def test_batches_of_a_buffer_do_not_change_each_other():
    rng = np.random.default_rng(0)
    buffer = PrioritizedReplayBuffer(32, alpha=0.6, beta=0.4)
    for step in range(32):
        frames = rng.integers(0, 255, (2, 4, 256, 256), np.uint8)
        ends = {"terminated": step % 8 == 7, "truncated": False}
        buffer.add(Batch(obs=frames[0], act=0, rew=1.0, obs_next=frames[1], **ends))
    held = [buffer.sample(32) for _ in range(4)]
    assert addresses_of_a_draw(buffer) == addresses_of_a_draw(buffer)
    for batch, index in held:
        np.testing.assert_array_equal(batch.obs, buffer.obs[index])
        np.testing.assert_array_equal(batch.obs_next, buffer.obs_next[index])
