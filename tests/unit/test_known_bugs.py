"""Bugs that other prioritized buffers are known for, each as a test that it is not here."""

import copy
import pickle

import numpy as np
import pytest
from reference import ReferenceTree

import kary_replay as kr

ARITIES = (2, 4, 8, 16, 32, 64)
FIELDS = {"number": kr.Field((), "int64")}


def buffer_of(capacity, n_rows=0, **options):
    buffer = kr.PrioritizedReplayBuffer(
        capacity, FIELDS, **{"alpha": 1.0, "uniform_share": 0.0, "seed": 0, **options}
    )
    if n_rows:
        buffer.add(number=np.arange(n_rows))
    return buffer


def one_handle_per_slot(buffer):
    handles = np.unique(buffer.sample(100 * buffer.capacity).handle)
    assert len(handles) == len(buffer)
    return handles


class AlmostOne(np.random.Generator):
    """Draws the largest double below 1, where rounding is at its worst."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def random(self, size=None, dtype=np.float64, out=None):
        out = np.empty(size) if out is None else out
        out[...] = 1 - 2.0**-53
        return out


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("mass", [0.1, 1 / 3, 1e-300, 1e300, 5e-324])
def test_rounding_never_returns_an_empty_leaf_or_one_beyond_the_size(arity, mass):
    """A prefix just below the total, with nothing but empty leaves behind the last full one."""
    for n_full in (1, 2, 3, 7, 9, 63, 65, 100):
        tree = kr.SumTree(200, arity=arity)
        tree.set(np.arange(n_full), mass)
        assert tree.find(np.nextafter(tree.total, 0.0)) < n_full
        for batch_size in (1, 3, 7, 49, 1000):
            for stratified in (True, False):
                assert (
                    tree.sample(batch_size, stratified=stratified, rng=AlmostOne()).max() < n_full
                )


@pytest.mark.parametrize("arity", ARITIES)
def test_a_huge_leaf_beside_tiny_ones(arity, rng):
    """Beside 1e300 every other mass is lost in the sums, but an empty leaf still never comes."""
    masses = np.where(
        rng.random(300) < 0.5, 0.0, rng.random(300) * 10.0 ** rng.integers(-300, 0, 300)
    )
    masses[150] = 1e300
    tree = kr.SumTree(300, arity=arity)
    tree.set(np.arange(300), masses)
    edges = np.nextafter(np.cumsum(masses), 0.0)
    prefixes = np.concatenate(
        [rng.random(1000) * tree.total, edges[(edges >= 0) & (edges < tree.total)], [0.0]]
    )
    assert (masses[tree.find(prefixes)] > 0).all()
    assert (masses[tree.sample(1000, rng=rng)] > 0).all()


def test_float32_masses_would_lose_these_leaves():
    """2^24 leaves of mass 1 and one more: a float32 sum stops growing there."""
    tree = kr.SumTree(2**24 + 2)
    tree.set(np.arange(2**24 + 2), 1.0)
    assert tree.total == 2**24 + 2
    assert tree.find(2.0**24 + 1) == 2**24 + 1


@pytest.mark.parametrize("arity", ARITIES)
def test_a_million_updates_do_not_drift(arity, rng):
    tree, reference = kr.SumTree(1000, arity=arity), ReferenceTree(1000, arity)
    index = rng.integers(0, 1000, (10_000, 100))
    mass = rng.random((10_000, 100)) * 10.0 ** rng.integers(-9, 9, (10_000, 1))
    for leaves, values in zip(index, mass, strict=True):
        tree.set(leaves, values)
    reference.set(index.ravel()[-50_000:], mass.ravel()[-50_000:])
    assert (tree.get(np.arange(1000)) == reference.mass).all()
    assert tree.total == reference.total
    tree.set(np.arange(1000), 0.0)
    assert tree.total == 0.0
    tree.set(np.arange(1000), 0.5)
    assert tree.total == 500.0


def test_a_million_priority_updates_do_not_drift(rng):
    buffer = buffer_of(100, 100, priority_epsilon=0.5)
    handles = one_handle_per_slot(buffer)
    for errors in rng.integers(0, 1000, (10_000, 100)).astype(float) * 1e6:
        buffer.update_priorities(handles, errors)
    assert buffer.update_priorities(handles, np.zeros(100)) == 100
    assert buffer.total_mass == 50.0


def test_duplicates_in_one_batch_are_applied_once_and_the_last_wins():
    """With updates by difference, each duplicate would add its own difference to every ancestor."""
    buffer = buffer_of(8, 8, priority_epsilon=0.5)
    handles = one_handle_per_slot(buffer)[[3, 3, 5, 3]]
    buffer.update_priorities(handles, [10.0, 20.0, 1.0, 30.0])
    assert buffer.tree.get([3, 5]).tolist() == [30.5, 1.5]
    assert buffer.total_mass == 6 * 1.0 + 30.5 + 1.5
    buffer.check_invariants()


def test_alpha_is_applied_once_to_new_rows():
    """The largest priority is no mass: with alpha applied twice, new rows would come too rarely."""
    buffer = buffer_of(4, 1, alpha=0.5, priority_epsilon=0.5)
    buffer.update_priorities(buffer.sample(1).handle, [255.5])
    assert buffer.max_priority == 256.0
    buffer.add(number=[1, 2])
    assert buffer.tree.get([0, 1, 2]).tolist() == [16.0, 16.0, 16.0]


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("capacity", [3, 5, 6, 7, 10, 33, 100, 257])
def test_a_capacity_that_is_no_power_keeps_the_leaves_in_order(arity, capacity):
    """In a heap of 2·capacity − 1 nodes, such a tree's leaves are on two levels, and rotated."""
    tree = kr.SumTree(capacity, arity=arity)
    tree.set(np.arange(capacity), np.arange(1.0, capacity + 1))
    ends = np.cumsum(np.arange(1.0, capacity + 1))
    assert tree.find(ends - 1).tolist() == list(range(capacity))
    assert tree.find(np.append(0.0, ends[:-1])).tolist() == list(range(capacity))


@pytest.mark.parametrize("capacity", [1, 2, 7, 64, 100])
def test_a_full_buffer_samples_and_overwrites(capacity):
    """No IndexError at the last slot, before, at and after the moment the buffer is full."""
    buffer = buffer_of(capacity)
    for number in range(3 * capacity):
        assert buffer.add(number=number).tolist() == [number % capacity]
        batch = buffer.sample(capacity)
        buffer.update_priorities(batch.handle, np.ones(capacity))
        assert batch.number.min() > number - capacity and batch.number.max() <= number
    assert set(buffer.sample(50 * capacity).number.tolist()) == set(
        range(2 * capacity, 3 * capacity)
    )


def test_a_late_update_does_not_hit_the_slots_next_row():
    buffer = buffer_of(4, 4, priority_epsilon=0.5)
    late = one_handle_per_slot(buffer)
    buffer.add(number=[10, 11], priority=3.0)
    state = buffer.tree.get(np.arange(4)).tolist()
    assert buffer.update_priorities(late[:2], [1e6, 1e6]) == 0
    assert buffer.tree.get(np.arange(4)).tolist() == state
    assert buffer.max_priority == 3.0  # not of a row that is gone
    assert buffer.update_priorities(late, [1e6, 1e6, 0.5, 1.5]) == 2
    assert buffer.tree.get(np.arange(4)).tolist() == [3.0, 3.0, 1.0, 2.0]
    assert buffer.max_priority == 3.0


def test_a_late_update_after_going_round_many_times_and_a_reset():
    buffer = buffer_of(2, 2)
    late = one_handle_per_slot(buffer)
    for number in range(1000):
        buffer.add(number=number)
        assert buffer.update_priorities(late[number % 2 :][:1], [7.0]) == 0
    late = one_handle_per_slot(buffer)
    buffer.reset()
    assert buffer.update_priorities(late, [7.0, 7.0]) == 0
    buffer.add(number=[1, 2])
    assert buffer.update_priorities(late, [7.0, 7.0]) == 0
    assert buffer.total_mass == 2.0


@pytest.mark.parametrize("generation", [0, 1, 3, 2**64 - 1])
def test_a_handle_that_no_batch_ever_had_changes_nothing(generation):
    """A zeroed handle must not give mass to a slot that has never held a row."""
    buffer = buffer_of(4, 2)
    handles = np.zeros(4, kr.HANDLE_DTYPE)
    handles["index"] = np.arange(4)
    handles["generation"] = generation
    assert buffer.update_priorities(handles, np.full(4, 5.0)) == 0
    assert buffer.total_mass == 2.0 and buffer.max_priority == 1.0
    assert buffer.sample(10).number.max() <= 1
    buffer.check_invariants()


def test_reset_forgets_priorities():
    buffer = buffer_of(4, 4, priority_epsilon=0.5)
    buffer.update_priorities(one_handle_per_slot(buffer), [99.5, 1.0, 2.0, 3.0])
    buffer.reset()
    assert (buffer.total_mass, buffer.max_priority) == (0.0, 1.0)
    buffer.add(number=[0, 1])
    assert buffer.tree.get(np.arange(4)).tolist() == [1.0, 1.0, 0.0, 0.0]
    assert set(buffer.sample(100).index.tolist()) == {0, 1}


@pytest.mark.parametrize("save", [pickle.dumps, lambda buffer: pickle.dumps(copy.deepcopy(buffer))])
def test_priorities_survive_saving(save):
    buffer = buffer_of(4, 6, priority_epsilon=0.5)
    handles = one_handle_per_slot(buffer)
    buffer.update_priorities(handles, [3.5, 1.0, 2.0, 3.0])
    loaded, again = pickle.loads(save(buffer)), pickle.loads(save(buffer))
    assert loaded.sample(64).number.tolist() == again.sample(64).number.tolist()
    assert loaded.tree.get(np.arange(4)).tolist() == [4.0, 1.5, 2.5, 3.5]
    assert (loaded.total_mass, loaded.max_priority) == (11.5, 4.0)
    assert loaded.update_priorities(handles, np.ones(4)) == 4


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_a_beta_that_is_set_reaches_the_next_sample(beta):
    buffer = buffer_of(2, beta=0.5)
    buffer.add(number=[0, 1], priority=[1.0, 16.0])
    assert set(buffer.sample(32).importance_weight.tolist()) == {1.0, 0.25}
    buffer.beta = beta
    assert set(buffer.sample(32).importance_weight.tolist()) == {1.0, 16.0**-beta}


def test_the_weight_maximum_is_the_batchs_own():
    """Not of the whole buffer: a batch without the rarest row would have no weight of 1."""
    buffer = buffer_of(3, beta=1.0)
    buffer.add(number=[0, 1, 2], priority=[1e-12, 4.0, 8.0])
    batch = buffer.sample(32)
    assert set(batch.index.tolist()) == {1, 2}
    assert set(batch.importance_weight.tolist()) == {1.0, 0.5}
