"""Normalization: moments that merge exactly, and a defined scale whatever they are."""

import copy
import functools
import itertools
import pickle

import numpy as np
import pytest
import torch
from gymnasium import spaces

from kary_replay.algorithms import DQN, DQNOptions
from kary_replay.algorithms.normalization import Normalization, Normalized, merged, moments_of

CPU = torch.device("cpu")
BOX = spaces.Box(-np.inf, np.inf, (2,), np.float64)


def normalization(space=BOX, observations=True, rewards=True):
    return Normalization(space, observations, rewards, CPU)


def reference(rows):
    """The moments of rows by NumPy's mean and variance of the whole."""
    return np.stack([np.full(rows.shape[1], len(rows)), rows.mean(0), rows.var(0) * len(rows)])


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_moments_merge_to_those_of_the_whole_however_it_was_divided(offset):
    rng = np.random.default_rng(0)
    rows = offset + rng.standard_normal((500, 3)) * [1e-3, 1.0, 1e3]
    for n_parts in (2, 7, 500):
        cuts = np.sort(rng.choice(np.arange(1, 500), n_parts - 1, replace=False))
        parts = [moments_of(part) for part in np.split(rows, cuts)]
        for order in (parts, parts[::-1]):
            np.testing.assert_allclose(
                functools.reduce(merged, order), reference(rows), rtol=1e-7 if offset else 1e-12
            )


def test_merging_is_associative_and_nothing_changes_nothing():
    rng = np.random.default_rng(1)
    for sizes in itertools.permutations((1, 10, 300)):
        a, b, c = (moments_of(rng.standard_normal((n, 4))) for n in sizes)
        np.testing.assert_allclose(merged(merged(a, b), c), merged(a, merged(b, c)), rtol=1e-12)
        nothing = np.zeros_like(a)
        assert (merged(a, nothing) == a).all() and (merged(nothing, a) == a).all()
    assert (merged(nothing, nothing) == 0).all()


def test_observations_and_rewards_get_the_scale_of_what_was_seen():
    found, rng = normalization(), np.random.default_rng(2)
    observation = rng.normal([5.0, -3.0], [0.1, 40.0], (1_000, 2))
    returns = rng.normal(7.0, 20.0, 1_000)
    found.take_up(moments_of(found.numbers(observation, returns)))
    read = found.batch(
        {
            "observation": torch.from_numpy(observation),
            "next_observation": torch.from_numpy(observation),
            "reward": torch.full((3,), float(returns.std())),
            "discount": torch.ones(3),
        }
    )
    for name in ("observation", "next_observation"):
        assert read[name].dtype == torch.float32
        np.testing.assert_allclose(read[name].mean(0), 0, atol=1e-4)
        np.testing.assert_allclose(read[name].std(0), 1, atol=1e-2)
    np.testing.assert_allclose(read["reward"], 1, rtol=1e-6)  # and not shifted
    assert (read["discount"] == 1).all()


NUMBERS = {  # of one observation: what was seen, and what it is then read as
    "nothing": (np.zeros(0), 3.0, 3.0),
    "zeros": (np.zeros(50), 2.0, 2.0),
    "a constant": (np.full(50, 0.1), 0.1, 0.0),
    "a constant and rounding": (np.full(50, 1e5) + 1e-3 * np.arange(50), 1e5, 0.0),
    "once": (np.array([4.0]), 4.0, 0.0),
    "tiny": (np.array([-1e-30, 1e-30]), 1e-30, 1.0),
    "too large for a square": (np.array([-1e300, 1e300]), 2.0, 2.0),
    "too small for float32": (np.array([-1e-60, 1e-60]), 0.0, 0.0),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seen", NUMBERS)
def test_a_scale_of_0_or_nan_is_1(seen):
    values, raw, read = NUMBERS[seen]
    found = normalization(spaces.Box(-np.inf, np.inf, (1,), np.float64))
    moments = np.zeros((3, 2))
    if len(values):
        moments = moments_of(found.numbers(values[:, None], 0 * values))  # all rewards are 0
    found.take_up(moments)
    assert torch.isfinite(found.vector).all()
    np.testing.assert_allclose(found.observation(torch.tensor([[raw]])), [[read]], atol=0.1)
    reward = found.batch({"reward": torch.tensor([5.0])})["reward"]
    assert reward == 5.0


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int32])
def test_numbers_far_from_0_keep_their_differences(dtype):
    """Float32 has one number in 128 there."""
    found = normalization(spaces.Box(-np.inf, np.inf, (1,), np.float64), rewards=False)
    numbers = np.random.default_rng(0).normal(2e9, 8192, (1000, 1)).astype(dtype)
    found.take_up(moments_of(numbers))
    read = found.observation(torch.from_numpy(numbers))
    assert read.dtype == torch.float32
    wanted = (numbers - numbers.mean()) / numbers.std()
    offset = read.numpy() - wanted
    assert abs(offset).max() < 0.02 and offset.std() < 1e-6
    rounded = found.observation(torch.from_numpy(numbers).float())
    assert (rounded.numpy() - wanted).std() > 1e-3  # as they were read


def test_images_and_what_is_counted_stay_as_they_are():
    space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (3, 36, 36), np.uint8),
            "number": spaces.Discrete(3),
            "bits": spaces.MultiBinary(2),
            "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
        }
    )
    found = normalization(space, rewards=False)
    assert found.n_numbers == 4
    rows = found.numbers({key: np.stack([space.sample()[key]] * 5) for key in space}, np.zeros(5))
    assert rows.shape == (5, 4)
    found.take_up(np.stack([np.full(4, 5.0), np.full(4, 2.0), np.full(4, 5.0)]))
    given = {key: torch.from_numpy(np.asarray(space.sample()[key]))[None] for key in space}
    read = found.observation(given)
    for key in ("image", "number", "bits"):
        assert read[key] is given[key]
    torch.testing.assert_close(read["matrix"], given["matrix"] - 2)


def test_an_algorithm_trains_and_acts_as_on_normalized_rows():
    options = DQNOptions(hidden=(8,), batch_size=16)
    space = spaces.Box(-1, 1, (2,), np.float32)
    plain, inner = (DQN(space, spaces.Discrete(2), options, seed=3) for _ in range(2))
    wrapped = Normalized(inner, normalization(space))
    wrapped.normalization.take_up(moments_of(np.random.default_rng(0).normal(3, 9, (50, 3))))
    generator = torch.Generator().manual_seed(0)
    batch = {
        "observation": torch.randn(16, 2, generator=generator),
        "action": torch.randint(2, (16,), generator=generator),
        "reward": torch.randn(16, generator=generator),
        "next_observation": torch.randn(16, 2, generator=generator),
        "discount": torch.ones(16),
        "importance_weight": torch.ones(16),
    }
    read = wrapped.normalization.batch(batch)
    assert torch.equal(wrapped.td_error(batch), plain.td_error(read))
    assert torch.equal(wrapped.update(batch), plain.update(read))
    assert torch.equal(inner.minimizers["q"].flat, plain.minimizers["q"].flat)
    how = np.zeros(16, np.float32), np.random.default_rng(0)
    assert (wrapped.act(batch["observation"], *how) == plain.act(read["observation"], *how)).all()
    state = wrapped.state_dict()
    again = Normalized(DQN(space, spaces.Discrete(2), options), normalization(space))
    again.load_state_dict(state)
    assert torch.equal(again.normalization.vector, wrapped.normalization.vector)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_of_what_normalizes_learn_by_themselves(copied):
    options = DQNOptions(hidden=(8,))
    one = Normalized(DQN(BOX, spaces.Discrete(2), options), normalization(BOX))
    twin = copied(one)
    before = one.minimizers["q"].flat.clone()
    twin.minimizers["q"].flat += 1
    assert torch.equal(one.minimizers["q"].flat, before)
    assert torch.equal(next(twin.policy.parameters()), next(one.policy.parameters()) + 1)
