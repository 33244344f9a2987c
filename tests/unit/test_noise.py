"""A uniform share that adapts: what TD errors show of the noise of batches, and what follows."""

import pickle

import numpy as np
import pytest

import kary_replay as kr

FIELDS = {"x": kr.Field((), "int64")}
PRIORITIZED, UNIFORM = 0.1, 1.0  # the shares that one that adapts takes


def filled(n_rows, share="auto", **options):
    options = {"alpha": 1.0, "beta": 1.0, "seed": 0, **options}
    buffer = kr.PrioritizedReplayBuffer(n_rows, FIELDS, uniform_share=share, **options)
    buffer.add(x=np.arange(n_rows))
    return buffer


def learn(buffer, td_error, n_batches, batch_size=64):
    """Draw batches and give back the TD errors of their rows."""
    for _ in range(n_batches):
        batch = buffer.sample(batch_size)
        buffer.update_priorities(batch.handle, td_error[batch.index])


def copied(buffer, through, tmp_path):
    if through == "checkpoint":
        buffer.save(tmp_path / "saved")
        return kr.PrioritizedReplayBuffer.load(tmp_path / "saved")
    return pickle.loads(pickle.dumps(buffer))


class NaiveNoise:
    """Weights, the size of TD errors, the noise of uniform batches, and that of those drawn."""

    def __init__(self):
        self.n_rows, self.means = 0, np.zeros(4)

    def learn(self, mass, share, td_error, all_masses):
        relative = mass / all_masses[all_masses > 0].mean()
        weight = 1 / ((1 - share) * relative + share)
        columns = [np.ones(len(mass)), td_error, td_error**2, td_error**2 * weight]
        self.n_rows += len(mass)
        part = min(1, max(len(mass) / 10_000, len(mass) / self.n_rows))
        self.means = (1 - part) * self.means + part * (
            np.column_stack(columns) * weight[:, None]
        ).mean(axis=0)

    @property
    def relative(self):
        return self.means[3] / self.means[2]

    @property
    def least(self):
        return self.means[1] ** 2 / (self.means[2] * self.means[0])

    @property
    def share(self):
        return PRIORITIZED if self.n_rows >= 10_000 and self.least < 0.5 else UNIFORM


@pytest.mark.parametrize("prioritization", ["proportional", "rank"])
@pytest.mark.parametrize("alpha", [0.6, 1.0])
def test_it_is_what_a_naive_estimate_gives(prioritization, alpha):
    rng = np.random.default_rng(1)
    buffer = filled(500, alpha=alpha, prioritization=prioritization)
    naive, td_error = NaiveNoise(), np.minimum(rng.standard_cauchy(500) ** 2, 50)
    shares = []
    assert np.isnan(buffer.relative_noise)
    for i in range(1_500):
        if i == 500:
            td_error = np.full(500, 50.0)  # nothing to choose
        if i == 1_000:
            td_error = 500 * np.linspace(0, 1, 500) ** 8
        assert buffer.uniform_share == naive.share
        batch, masses = buffer.sample(48), buffer.tree.get(np.arange(500))
        errors = td_error[batch.index] * rng.uniform(0.5, 1, 48)
        priority = np.abs(errors) + buffer.priority_epsilon
        naive.learn(masses[batch.index], buffer.uniform_share, priority, masses)
        buffer.update_priorities(batch.handle, errors)
        assert buffer.relative_noise == pytest.approx(naive.relative, rel=1e-9)
        assert buffer.least_noise == pytest.approx(naive.least, rel=1e-9)
        shares.append(buffer.uniform_share)
    expected = [UNIFORM, PRIORITIZED, UNIFORM, PRIORITIZED]
    assert [shares[i] for i in (0, 499, 999, 1_499)] == expected


def test_it_estimates_the_noise_of_the_whole_buffer():
    td_error = np.minimum(np.random.default_rng(2).standard_exponential(2_000) ** 3, 20)
    buffer = filled(2_000, share=0.5)
    buffer.update_priorities(buffer.sample(2_000).handle, np.ones(2_000))
    buffer.tree.set(np.arange(2_000), td_error)
    relative = td_error / td_error.mean()
    square = (td_error**2).mean()
    true = (td_error**2 / (0.5 * relative + 0.5)).mean() / square, td_error.mean() ** 2 / square
    estimates = []
    for seed in range(20):
        copy = pickle.loads(pickle.dumps(buffer))
        copy.reset()
        copy.add(x=np.arange(2_000), priority=np.maximum(td_error, 1e-9))
        copy._slots.block.set_random_state((seed, 7, 0))
        learn(copy, td_error, 200)
        estimates.append((copy.relative_noise, copy.least_noise))
    error = np.std(estimates, axis=0) / np.sqrt(len(estimates))
    assert (error < 0.02 * np.array(true)).all()
    assert (np.abs(np.mean(estimates, axis=0) - true) < 5 * error).all()


def test_priorities_that_tell_little_get_no_draws():
    buffer = filled(1_000)
    learn(buffer, np.ones(1_000), 300)
    assert buffer.uniform_share == UNIFORM
    assert buffer.relative_noise == pytest.approx(1)
    rng = np.random.default_rng(3)
    for _ in range(500):
        batch = buffer.sample(64)
        assert (batch.importance_weight == 1).all()
        buffer.update_priorities(batch.handle, rng.standard_normal(64))
    assert buffer.uniform_share == UNIFORM
    assert buffer.least_noise == pytest.approx(2 / np.pi, rel=0.05)


def test_priorities_that_tell_much_get_nearly_all_draws_and_rare_rows_are_noticed():
    buffer, td_error = filled(10_000), np.full(10_000, 1e-3)
    buffer.tree.set(np.arange(10_000), td_error)
    learn(buffer, td_error, 200)
    assert buffer.uniform_share == UNIFORM
    td_error[:3] = 1.0  # three rows get a new error: the next times they are drawn show it
    buffer.tree.set(np.arange(3), np.ones(3))
    learn(buffer, td_error, 500)
    assert buffer.uniform_share == PRIORITIZED
    assert buffer.relative_noise < 0.1
    td_error[:3] = 1e-3  # and when they have been learned, it is as before
    learn(buffer, td_error, 1_500)
    assert buffer.uniform_share == UNIFORM


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_noise_is_known_of_a_fixed_share_too(share):
    buffer = filled(1_000, share)
    learn(buffer, np.linspace(0.01, 1, 1_000), 300)
    assert buffer.uniform_share == share
    relative = np.linspace(0.01, 1, 1_000) / 0.505
    square = (relative**2).mean()
    true = (relative**2 / ((1 - share) * relative + share)).mean() / square
    assert buffer.relative_noise == pytest.approx(true, rel=0.05)
    assert buffer.least_noise == pytest.approx(1 / square, rel=0.05)


def test_it_can_be_set_and_be_fixed_again():
    buffer = filled(1_000, share=0.0)
    buffer.uniform_share = "auto"
    assert buffer.uniform_share == UNIFORM
    buffer.uniform_share = 0.4
    learn(buffer, np.ones(1_000), 50)
    assert buffer.uniform_share == 0.4


def test_it_adapts_by_what_comes_back_from_then_on():
    buffer = filled(1_000, share=0.5)
    learn(buffer, np.ones(1_000), 300)
    buffer.uniform_share = "auto"
    assert np.isnan(buffer.relative_noise)
    unequal = np.linspace(0, 1, 1_000) ** 8
    learn(buffer, unequal, 156)  # of 64 rows: fewer than 10,000
    assert buffer.uniform_share == UNIFORM
    learn(buffer, unequal, 1)
    assert buffer.uniform_share == PRIORITIZED


def test_a_reset_forgets_what_was_learned():
    buffer = filled(1_000)
    learn(buffer, np.linspace(0, 1, 1_000) ** 8, 300)
    assert buffer.uniform_share == PRIORITIZED
    buffer.reset()
    assert buffer.uniform_share == UNIFORM
    assert np.isnan(buffer.relative_noise) and np.isnan(buffer.least_noise)


@pytest.mark.parametrize("through", ["pickle", "checkpoint"])
def test_copies_go_on_as_the_buffer_does(through, tmp_path):
    td_error = np.random.default_rng(4).standard_cauchy(1_000)
    buffer = filled(1_000)
    learn(buffer, td_error, 100)
    twin = copied(buffer, through, tmp_path)
    for _ in range(50):
        learn(buffer, td_error, 1)
        learn(twin, td_error, 1)
        assert twin.uniform_share == buffer.uniform_share
        assert twin.relative_noise == buffer.relative_noise
        assert twin.least_noise == buffer.least_noise


@pytest.mark.parametrize("through", ["pickle", "checkpoint"])
def test_copies_adapt_when_the_buffer_does(through, tmp_path):
    td_error = np.linspace(0, 1, 1_000) ** 8
    buffer = filled(1_000)
    learn(buffer, td_error, 100)
    twin = copied(buffer, through, tmp_path)
    for share in (UNIFORM, PRIORITIZED):
        assert twin.uniform_share == buffer.uniform_share == share
        learn(buffer, td_error, 100)
        learn(twin, td_error, 100)
    assert twin.relative_noise == buffer.relative_noise


def test_errors_beyond_what_squares_can_hold_teach_nothing():
    buffer = filled(100)
    learn(buffer, np.ones(100), 30)
    before = buffer.relative_noise
    batch = buffer.sample(64)
    buffer.update_priorities(batch.handle, np.full(64, 1e200))
    assert buffer.relative_noise == before
    learn(buffer, np.zeros(100), 300)
    assert buffer.uniform_share in (PRIORITIZED, UNIFORM)
    assert np.isfinite(buffer.relative_noise)


def test_without_any_error_there_is_nothing_to_prioritize():
    buffer = filled(100)
    learn(buffer, np.zeros(100), 300)
    assert buffer.uniform_share == UNIFORM
    assert buffer.least_noise == pytest.approx(1)


@pytest.mark.parametrize("share", ["half", "", "0.5", -0.1, 1.1, float("nan"), None, True])
def test_what_is_no_share(share):
    with pytest.raises((ValueError, TypeError), match="uniform_share"):
        filled(10, share)
    buffer = filled(10)
    with pytest.raises((ValueError, TypeError), match="uniform_share"):
        buffer.uniform_share = share
    assert buffer.uniform_share == UNIFORM
