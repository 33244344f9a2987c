"""SumTree, one promise at a time."""

import numpy as np
import pytest
from reference import ReferenceTree

import kary_replay as kr

ARITIES = (2, 4, 8, 16, 32, 64)


def filled(masses, arity=4):
    tree = kr.SumTree(len(masses), arity=arity)
    tree.set(np.arange(len(masses)), masses)
    return tree


def test_a_new_tree_is_empty():
    tree = kr.SumTree(10, arity=8)
    assert (tree.capacity, len(tree), tree.arity, tree.total) == (10, 10, 8, 0.0)
    assert tree.get(np.arange(10)).tolist() == [0.0] * 10
    tree.check_invariants()


def test_the_default_arity_is_public():
    assert kr.SumTree(10).arity == kr.sum_tree.DEFAULT_ARITY
    assert kr.sum_tree.DEFAULT_ARITY in ARITIES


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("capacity", [1, 2, 63, 64, 65, 1000, 4096])
def test_total_is_the_sum_in_the_promised_association(arity, capacity, rng):
    masses = rng.random(capacity) * 10.0 ** rng.integers(-8, 8, capacity)
    reference = ReferenceTree(capacity, arity)
    reference.set(np.arange(capacity), masses)
    tree = filled(masses, arity)
    assert tree.total == reference.total
    assert tree.get(np.arange(capacity)).tolist() == masses.tolist()
    tree.check_invariants()


def test_one_index_gives_python_numbers():
    tree = filled([3.0, 1.0, 4.0])
    assert type(tree.get(2)) is float and tree.get(2) == 4.0
    assert type(tree.find(3.5)) is int and tree.find(3.5) == 1
    assert type(tree.total) is float


def test_many_indices_give_arrays():
    tree = filled([3.0, 1.0, 4.0])
    masses, leaves = tree.get([2, 0, 2]), tree.find([0.0, 3.0, 4.0])
    assert masses.dtype == np.float64 and masses.tolist() == [4.0, 3.0, 4.0]
    assert leaves.dtype == np.int64 and leaves.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_every_integer_dtype_is_an_index(dtype):
    tree = kr.SumTree(5)
    index = np.array([4, 1], dtype)
    tree.set(index, [2.0, 3.0])
    tree.set(index[0], 5.0)
    assert tree.get(index).tolist() == [5.0, 3.0]
    assert tree.get(index[1]) == 3.0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "uint8"])
def test_every_real_dtype_is_a_mass(dtype):
    tree = kr.SumTree(3)
    tree.set([0, 1, 2], np.array([1, 0, 7], dtype))
    assert tree.get([0, 1, 2]).tolist() == [1.0, 0.0, 7.0]


def test_strided_and_read_only_arrays_are_read_and_left_alone():
    index, mass = np.arange(12)[::-3], np.linspace(1.0, 2.0, 8)[::2]
    index.flags.writeable = mass.flags.writeable = False
    tree = kr.SumTree(12)
    tree.set(index, mass)
    assert tree.get(index).tolist() == mass.tolist()
    prefixes = np.array([0.0, 1.5, 3.0])
    tree.find(prefixes)
    assert prefixes.tolist() == [0.0, 1.5, 3.0]


def test_empty_arrays_change_nothing():
    tree = filled([1.0, 2.0])
    tree.set([], [])
    tree.set(np.empty(0, np.int64), 5.0)
    assert tree.total == 3.0
    assert tree.get([]).shape == (0,) and tree.find([]).shape == (0,)


def test_one_mass_for_many_leaves():
    tree = kr.SumTree(7)
    tree.set([1, 3, 5], 2.5)
    assert tree.get(np.arange(7)).tolist() == [0.0, 2.5, 0.0, 2.5, 0.0, 2.5, 0.0]


@pytest.mark.parametrize("arity", ARITIES)
def test_of_duplicates_the_last_one_wins(arity):
    tree = kr.SumTree(100, arity=arity)
    tree.set([7, 99, 7, 7, 99], [1.0, 2.0, 3.0, 4.0, 5.0])
    assert (tree.get(7), tree.get(99), tree.total) == (4.0, 5.0, 9.0)
    tree.check_invariants()


def test_the_example_of_the_documentation():
    tree = filled([3, 1, 4, 1, 5, 9])
    assert [tree.find(prefix) for prefix in range(23)] == [0] * 3 + [1] + [2] * 4 + [3] + [
        4
    ] * 5 + [5] * 9


@pytest.mark.parametrize("arity", ARITIES)
def test_find_at_every_boundary(arity, rng):
    masses = rng.integers(0, 4, 200).astype(float)
    tree = filled(masses, arity)
    ends = np.cumsum(masses)
    wanted = np.searchsorted(ends, np.arange(ends[-1]), side="right")
    assert tree.find(np.arange(ends[-1])).tolist() == wanted.tolist()
    just_below = np.nextafter(np.arange(1.0, ends[-1] + 1), 0.0)
    assert tree.find(just_below).tolist() == wanted.tolist()


@pytest.mark.parametrize("arity", ARITIES)
def test_find_of_a_long_batch_equals_one_at_a_time(arity, rng):
    tree = filled(rng.random(777), arity)
    prefixes = rng.random(1000) * tree.total
    assert tree.find(prefixes).tolist() == [tree.find(prefix) for prefix in prefixes]


def test_rounding_at_the_end_leads_to_the_last_leaf():
    """The prefix within the node above 8, 9 and 10 is its whole mass: the search meets padding."""
    mass = [0.1, 0.1, 1.0, 0.1, 0.1, 0.1, 0.7, 0.7, 0.1, 0.7, 3.3]
    tree = filled(np.array(mass), arity=2)
    assert tree.find(np.nextafter(tree.total, 0.0)) == 10


@pytest.mark.parametrize("arity", ARITIES)
@pytest.mark.parametrize("capacity", [1, 5, 64, 4097])
def test_the_largest_masses_do_not_overflow(arity, capacity):
    tree = kr.SumTree(capacity, arity=arity)
    tree.set(np.arange(capacity), tree.max_mass)
    assert np.isfinite(tree.total)
    assert tree.max_mass > 1e300
    assert tree.find(np.nextafter(tree.total, 0.0)) == capacity - 1
    tree.check_invariants()


def test_minus_zero_is_zero():
    tree = kr.SumTree(2)
    tree.set(0, -0.0)
    assert np.copysign(1.0, tree.get(0)) == 1.0 and np.copysign(1.0, tree.total) == 1.0


def test_samples_are_int64_and_of_any_length(rng):
    tree = filled([1.0, 0.0, 2.0])
    for batch_size in (1, 2, 3, 127, 128, 129, 1000, np.int32(5)):
        for stratified in (True, False):
            leaves = tree.sample(batch_size, stratified=stratified, rng=rng)
            assert leaves.dtype == np.int64 and leaves.shape == (batch_size,)
            assert set(leaves.tolist()) <= {0, 2}


def test_a_stratified_sample_takes_one_leaf_of_each_stratum(rng):
    tree = filled(np.ones(64))
    assert tree.sample(64, rng=rng).tolist() == list(range(64))


@pytest.mark.parametrize("stratified", [True, False])
def test_one_seed_gives_one_sample(stratified):
    tree = filled(np.arange(1.0, 50.0))
    draws = [
        tree.sample(20, stratified=stratified, rng=rng).tolist()
        for rng in (3, np.random.default_rng(3), 3, 4)
    ]
    assert draws[0] == draws[1] == draws[2] != draws[3]


def test_a_generator_moves_on_and_the_trees_own_stream_too():
    tree, rng = filled(np.ones(1000)), np.random.default_rng(0)
    assert tree.sample(20, rng=rng).tolist() != tree.sample(20, rng=rng).tolist()
    assert tree.sample(20).tolist() != tree.sample(20).tolist()


def test_two_trees_have_different_streams():
    masses = np.ones(1000)
    assert filled(masses).sample(20).tolist() != filled(masses).sample(20).tolist()


def test_numpys_global_stream_is_left_alone():
    tree = filled(np.ones(100))
    before = np.random.get_state(legacy=False)
    tree.sample(20)
    tree.sample(20, rng=1)
    after = np.random.get_state(legacy=False)
    assert before["state"]["pos"] == after["state"]["pos"]
    assert np.array_equal(before["state"]["key"], after["state"]["key"])


@pytest.mark.parametrize("arity", ARITIES)
def test_nodes_cost_no_more_than_the_geometry(arity):
    capacity = 100_000
    nodes = capacity * arity / (arity - 1)
    assert (
        8 * capacity <= kr.SumTree(capacity, arity=arity).nbytes <= 8 * (nodes + 20 * (arity + 8))
    )


def test_a_large_tree(rng):
    masses = rng.random(300_001)
    tree = filled(masses)
    leaves = tree.find(np.cumsum(masses)[::1000] - masses[::1000] / 2)
    assert leaves.tolist() == list(range(0, 300_001, 1000))
    tree.check_invariants()
