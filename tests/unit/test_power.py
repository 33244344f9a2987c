"""Powers of priorities, one by one and many at once, against numbers of more digits."""

import numpy as np
import pytest

import kary_replay as kr

FIELDS = {"x": kr.Field((), "float32")}
N = 4096
KINDS = {
    "near 1": lambda rng: rng.uniform(0.5, 2, N),
    "TD errors": lambda rng: rng.lognormal(0, 3, N),
    "any exponent": lambda rng: np.exp2(rng.uniform(-1000, 1010, N)),
    "without leading bits": lambda rng: rng.integers(1, 2**52, N, np.uint64).view(np.float64),
}
ALPHAS = [0.0, 1e-300, 1e-3, 0.3, 0.5, 0.6, 1 - 1e-12, 1.0]
wide = pytest.mark.skipif(
    np.finfo(np.longdouble).nmant < 63, reason="needs numbers of more than 53 bits"
)


LEAST = 5e-324


def buffer_of(priority, alpha):
    buffer = kr.PrioritizedReplayBuffer(N, FIELDS, alpha=alpha, seed=0, priority_epsilon=LEAST)
    buffer.add(x=np.zeros(N), priority=priority)
    return buffer


@wide
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("kind", KINDS)
def test_masses_are_precise_to_two_units(kind, alpha, rng):
    priority = KINDS[kind](rng)
    mass = buffer_of(priority, alpha).tree.get(np.arange(N))
    exact = priority.astype(np.longdouble) ** np.longdouble(alpha)
    error = np.abs(mass - exact) / np.spacing(exact.astype(np.float64))
    assert error.max() < (0.5 if alpha in (0, 1) else 2), priority[error.argmax()]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_by_one_and_many_at_once_are_the_same(kind, alpha, rng):
    """Rows that are added get their masses one by one, those that are updated all at once."""
    priority = KINDS[kind](rng)
    added, updated = buffer_of(priority, alpha), buffer_of(None, alpha)
    batch = updated.take(np.arange(N))
    td_error = np.where(np.spacing(priority) == LEAST, priority - LEAST, priority)
    for rows in np.array_split(np.arange(N), 14):  # of no whole number of registers
        updated.update_priorities(batch.handle[rows], td_error[rows])
    np.testing.assert_array_equal(*(one.tree.get(np.arange(N)) for one in (added, updated)))


@wide
@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("beta", [0.0, 1e-3, 0.4, 1.0])
def test_weights_are_as_precise_as_their_type(beta, share, rng):
    priority = rng.lognormal(0, 4, N)
    buffer = buffer_of(priority, 1.0)
    buffer.beta, buffer.uniform_share = beta, share
    batch = buffer.take(np.arange(N))
    mass = priority.astype(np.longdouble)
    p = (1 - share) * mass / mass.sum() + share / N
    weight = (N * p) ** -np.longdouble(beta)
    exact = weight if share else weight / weight.max()
    np.testing.assert_allclose(batch.importance_weight, exact.astype(np.float64), rtol=3e-7)


def test_weights_of_masses_whose_quotient_is_infinite():
    buffer = kr.PrioritizedReplayBuffer(2, FIELDS, alpha=1.0, beta=0.01, seed=0)
    buffer.add(x=np.zeros(2), priority=[1e-300, 1e100])
    batch = buffer.take([0, 1])
    np.testing.assert_allclose(batch.importance_weight, [1, 1e-4], rtol=1e-6)
