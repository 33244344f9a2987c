"""A share of Tianshou's draws goes to all rows alike, fixed or chosen by TD errors."""

import pickle

import numpy as np
import pytest
from scipy import stats
from tianshou.data import Batch

import kary_replay as kr
from kary_replay.adapters.tianshou import (
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    draws,
)
from kary_replay.adapters.tianshou.uniform_share import ShareOfDraws


def row(i, ends=False):
    return Batch(obs=float(i), act=0, rew=1.0, obs_next=i + 1.0, terminated=ends, truncated=False)


def filled(n, share, size=None, **options):
    options = {"alpha": 1.0, "beta": 1.0, "random_seed": 0, **options}
    buffer = PrioritizedReplayBuffer(size or n, uniform_share=share, **options)
    for i in range(n):
        buffer.add(row(i, ends=i % 7 == 6))
    return buffer


def chances(mass, share):
    return (1 - share) * mass / mass.sum() + share * (mass > 0) / (mass > 0).sum()


def is_drawn_with(buffer, n, chance, n_draws=200_000):
    counts = np.bincount(buffer.sample_indices(n_draws), minlength=n)
    assert counts[chance == 0].sum() == 0
    kept = chance > 0
    if kept.sum() == 1:
        return 1.0
    return stats.chisquare(counts[kept], n_draws * chance[kept]).pvalue


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_draws_and_weights_have_the_probabilities_that_they_should(share):
    n = 40
    buffer = filled(n, share, size=64)
    mass = np.linspace(0.1, 4, n)
    buffer.weight[np.arange(n)] = mass
    assert is_drawn_with(buffer, n, chances(mass, share)) > 1e-4
    wrong = chances(mass, min(share + 0.05, 1.0) if share < 1 else 0.95)
    assert is_drawn_with(buffer, n, wrong) < 1e-4
    batch, index = buffer.sample(500)
    np.testing.assert_allclose(batch.weight, 1 / (n * chances(mass, share)[index]), rtol=1e-12)
    np.testing.assert_allclose(buffer.get_weight(index), batch.weight)
    assert batch.weight.max() <= 1 / share + 1e-12


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("n_empty", [5, 37, 39])
def test_rows_without_mass_are_not_drawn_and_do_not_count(n_empty, share):
    buffer = filled(40, share)
    mass = np.where(np.arange(40) < n_empty, 0.0, np.arange(1, 41) ** 2)
    buffer.weight[np.arange(40)] = mass
    assert is_drawn_with(buffer, 40, chances(mass, share)) > 1e-4
    twin = pickle.loads(pickle.dumps(buffer))
    for one in buffer, twin:
        batch, index = one.sample(100)
        chance = (40 - n_empty) * chances(mass, share)[index]
        np.testing.assert_allclose(batch.weight, 1 / chance)
        buffer.update_weight(index, np.sqrt(mass[index]))
        mass[index] = np.sqrt(mass[index])
        twin.update_weight(index, mass[index])


def test_environments_of_different_lengths_are_drawn_alike():
    buffer = PrioritizedVectorReplayBuffer(
        80, buffer_num=4, alpha=1.0, beta=1.0, uniform_share=0.5, random_seed=0
    )
    for step in range(15):
        ids = [i for i in range(4) if step < 3 * (i + 1) or i == 3]
        rows = Batch.stack([row(step) for _ in ids])
        buffer.add(rows, buffer_ids=ids)
    there = buffer.sample_indices(0)
    assert len(there) == len(buffer) == 3 + 6 + 9 + 15
    mass = np.zeros(80)
    mass[there] = np.linspace(1, 3, len(there))
    buffer.weight[there] = mass[there]
    assert is_drawn_with(buffer, 80, chances(mass, 0.5)) > 1e-4


def test_stacks_with_all_their_frames_are_drawn_alike(monkeypatch):
    buffer = filled(50, 0.5, stack_num=3, sample_avail=True)
    available = buffer.sample_indices(0)
    mass = np.linspace(1, 3, 50)
    buffer.weight[np.arange(50)] = mass
    mass[np.setdiff1d(np.arange(50), available)] = 0
    # the share is one of all draws, of which the unavailable ones are made again
    chance = 0.5 * mass / np.linspace(1, 3, 50).sum() + 0.5 * (mass > 0) / 50
    assert is_drawn_with(buffer, 50, chance / chance.sum()) > 1e-4
    # and so it is where hardly a row is available
    with monkeypatch.context() as patch:
        patch.setattr(draws, "_MAX_REDRAWS", 0)
        assert is_drawn_with(buffer, 50, chance / chance.sum()) > 1e-4


def test_it_adapts_as_the_native_buffer_does():
    rng = np.random.default_rng(0)
    native = kr.PrioritizedReplayBuffer(
        300, {"x": kr.Field((), "int64")}, uniform_share="auto", priority_epsilon=1e-9, seed=0
    )
    native.add(x=np.arange(300))
    share = ShareOfDraws("auto")
    seen = set()
    for i in range(600):
        scale = np.ones(300) if 200 <= i < 400 else np.linspace(0, 1, 300) ** 8
        batch, masses = native.sample(96), native.tree.get(np.arange(300))
        error = scale[batch.index] * rng.uniform(0.9, 1, 96)
        share.learn(masses[batch.index] / masses.mean(), error + 1e-9)
        native.update_priorities(batch.handle, error)
        assert share.value == native.uniform_share
        assert share.least_noise == pytest.approx(native.least_noise, rel=1e-9)
        seen.add(share.value)
    assert seen == {0.1, 1.0}


@pytest.mark.parametrize("kind", ["one", "vector"])
def test_a_buffer_is_uniform_replay_where_all_rows_err_alike(kind):
    if kind == "one":
        buffer = filled(100, "auto", beta=0.4)
    else:
        buffer = PrioritizedVectorReplayBuffer(
            100, buffer_num=2, alpha=0.6, beta=0.4, uniform_share="auto", random_seed=0
        )
        for i in range(50):
            buffer.add(Batch.stack([row(i), row(i)]))
    assert buffer.uniform_share == 1
    assert np.isnan(buffer.least_noise)
    unequal = np.linspace(0, 1, 100) ** 8
    for errors, share in ((unequal, 0.1), (np.ones(100), 1)):
        for _ in range(2_000):
            index = buffer.sample_indices(64)
            buffer.update_weight(index, errors[index])
        assert buffer.uniform_share == share
    assert buffer.least_noise == pytest.approx(1, rel=0.05)
    batch, index = buffer.sample(64)
    assert (batch.weight == 1).all()
    twin = pickle.loads(pickle.dumps(buffer))
    assert twin.uniform_share == 1
    assert twin.least_noise == buffer.least_noise
    with pytest.raises(ValueError, match="nan"):
        buffer.update_weight(index, np.full(64, np.nan))
    assert twin.least_noise == buffer.least_noise
    buffer.reset()
    assert buffer.uniform_share == 1
    assert np.isnan(buffer.least_noise)


def test_it_can_be_set():
    buffer = filled(100, 0.0)
    buffer.uniform_share = "auto"
    assert buffer.uniform_share == 1
    buffer.update_weight(np.arange(4), 0.5)  # one error for several rows
    assert np.isfinite(buffer.least_noise)
    with np.errstate(all="raise"):
        buffer.update_weight(np.arange(4), np.full(4, 1e160))
    before = buffer.least_noise
    with pytest.raises(AssertionError, match="uniform_share"):
        buffer.uniform_share = 2
    assert (buffer.uniform_share, buffer.least_noise) == (1, before)
    buffer.uniform_share = 0.3
    assert buffer.uniform_share == 0.3


def test_the_rings_of_a_vector_buffer_have_its_share():
    options = {"alpha": 1.0, "beta": 1.0, "uniform_share": "auto"}
    buffer = PrioritizedVectorReplayBuffer(20, buffer_num=2, **options)
    for i in range(10):
        buffer.add(Batch.stack([row(i), row(i)]))
    for _ in range(200):
        buffer.update_weight(buffer.sample_indices(64), np.ones(64))
    assert [ring.uniform_share for ring in buffer.buffers] == [buffer.uniform_share] * 2 == [1, 1]
    buffer.reset()
    assert {ring._share for ring in buffer.buffers} == {buffer._share}
    buffer.uniform_share = 0.5
    assert [ring.uniform_share for ring in buffer.buffers] == [0.5, 0.5]


def test_a_file_keeps_the_share(tmp_path):
    buffer = filled(10, 0.25)
    buffer.save_hdf5(tmp_path / "buffer.hdf5")
    assert PrioritizedReplayBuffer.load_hdf5(tmp_path / "buffer.hdf5").uniform_share == 0.25


def test_states_of_before_have_none():
    state = filled(10, 0.0).__getstate__()
    del state["_share"]
    buffer = PrioritizedReplayBuffer.__new__(PrioritizedReplayBuffer)
    buffer.__setstate__(state)
    assert buffer.uniform_share == 0
    assert len(buffer.sample(4)[1]) == 4


@pytest.mark.parametrize("share", [-0.1, 1.5, np.nan, "half", None, [0.1], True, 10**400])
def test_what_is_no_share(share):
    with pytest.raises((AssertionError, TypeError), match="uniform_share"):
        filled(1, share)
