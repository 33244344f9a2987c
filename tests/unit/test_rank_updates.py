"""Updates with prioritization by rank: what is applied takes a place, each row one."""

import numpy as np
import pytest

import kary_replay as kr

N = 64


def make():
    fields = {"x": kr.Field((), "int64")}
    buffer = kr.PrioritizedReplayBuffer(N, fields, seed=0, alpha=1.0, prioritization="rank")
    refill(buffer)
    return buffer


def refill(buffer):
    buffer.add(x=np.arange(N), priority=np.linspace(1, 2, N))
    buffer.rank()


def handles(buffer):
    """The handles of all rows, by slot."""
    handle = buffer.sample(N, unique=True).handle
    return handle[np.argsort(handle["index"])]


@pytest.mark.parametrize("n_stale", [0, 1, 50])
def test_a_stale_update_leaves_the_next_row_its_mass(n_stale):
    buffer = make()
    old = handles(buffer)
    refill(buffer)
    masses = buffer.tree.get(np.arange(N))
    for _ in range(n_stale):
        assert buffer.update_priorities(old[:1], [1e3]) == 0
    assert (buffer.tree.get(np.arange(N)) == masses).all()
    assert buffer.tree.get(buffer.add(x=7)) == 1.0  # rank 1


@pytest.mark.parametrize("n_times", [1, 2, 20])
def test_a_row_that_comes_many_times_takes_one_place(n_times):
    buffer = make()
    handle = handles(buffer)
    assert buffer.update_priorities(handle[[3] * n_times], [10.0] * n_times) == n_times
    assert buffer.tree.get(3) == 1.0
    assert buffer.tree.get(buffer.add(x=7)) == 0.5  # the next place


def test_the_last_of_several_values_counts():
    buffer, other = make(), make()
    buffer.update_priorities(handles(buffer)[[3, 5, 3]], [10.0, 1.2, 1.4])
    other.update_priorities(handles(other)[[3, 5]], [1.4, 1.2])
    assert (buffer.tree.get(np.arange(N)) == other.tree.get(np.arange(N))).all()


def test_the_order_of_a_batch_does_not_matter():
    rng = np.random.default_rng(0)
    chosen, values = rng.choice(N, 20, replace=False), rng.lognormal(1, 1, 20)
    masses = []
    for order in (np.arange(20), rng.permutation(20)):
        buffer = make()
        buffer.update_priorities(handles(buffer)[chosen[order]], values[order])
        masses.append(buffer.tree.get(np.arange(N)))
        buffer.check_invariants()
    assert (masses[0] == masses[1]).all()
