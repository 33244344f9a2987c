"""SumTree against the naive reference: any sequence of calls, invariants after every one.

Masses and total have to agree bit for bit. `find` has to agree bit for bit with the reference's
walk in the same float association; where all masses are integers, every sum is exact and it has to
agree with a linear scan in rational arithmetic as well; and otherwise it may miss the rational
answer by rounding only.
"""

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from reference import ReferenceTree

import kary_replay as kr

ARITIES = (2, 4, 8, 16, 32, 64)

INTEGERS = st.one_of(st.just(0.0), st.integers(1, 2**20).map(float))
REALS = st.one_of(
    st.just(0.0),
    st.floats(0.0, 10.0),
    st.floats(0.0, 2.3e-308),  # subnormals
    st.floats(1e-300, 1e-299),
    st.floats(1e299, 1e300),
    st.sampled_from([5e-324, 2.0**-1022, 1e-300, 1e300, 0.1, 1 / 3]),
)


def capacities(arity):
    """Powers of the arity, their neighbours, and numbers that have nothing to do with it."""
    powers = [arity**n for n in range(1, 5) if arity**n <= 4096]
    near = sorted({1} | {capacity + shift for capacity in powers for shift in (-1, 0, 1)})
    return st.one_of(st.sampled_from(near), st.integers(1, 3 * arity), st.integers(1, 300))


class SumTreeMachine(RuleBasedStateMachine):
    """One tree and its reference, in step. ``make_tree`` is the constructor under test."""

    def __init__(self, arity, make_tree=kr.SumTree):
        super().__init__()
        self.arity = arity
        self.make_tree = make_tree

    @initialize(data=st.data(), integers=st.booleans())
    def start(self, data, integers):
        self.capacity = data.draw(capacities(self.arity), "capacity")
        self.integers = integers
        self.masses = INTEGERS if integers else REALS
        self.leaves = st.integers(0, self.capacity - 1)
        self.tree = self.make_tree(self.capacity, arity=self.arity)
        self.reference = ReferenceTree(self.capacity, self.arity)

    def set(self, index, mass):
        self.tree.set(index, mass)
        self.reference.set(index, mass)

    @rule(data=st.data())
    def set_one(self, data):
        self.set(data.draw(self.leaves), data.draw(self.masses))

    @rule(data=st.data())
    def set_many_with_duplicates(self, data):
        pairs = data.draw(st.lists(st.tuples(self.leaves, self.masses), max_size=40))
        index, mass = [leaf for leaf, _ in pairs], [mass for _, mass in pairs]
        repeats = data.draw(st.sampled_from([1, 1, 2, 7]))
        self.set(np.array(index * repeats, np.int64), np.array(mass[::-1] * (repeats - 1) + mass))

    @rule(data=st.data())
    def set_a_range_to_one_mass(self, data):
        first, last = sorted((data.draw(self.leaves), data.draw(self.leaves)))
        self.set(np.arange(first, last + 1), data.draw(self.masses))

    @rule(seed=st.integers(0, 2**32 - 1), data=st.data())
    def set_more_leaves_than_there_are(self, seed, data):
        rng = np.random.default_rng(seed)
        palette = np.array(data.draw(st.lists(self.masses, min_size=1, max_size=8)))
        n_sets = min(2 * self.capacity + 3, 2000)
        self.set(rng.integers(0, self.capacity, n_sets), rng.choice(palette, n_sets))

    @rule()
    def survive_a_copy(self):
        before = self.tree
        self.tree = pickle.loads(pickle.dumps(copy.deepcopy(self.tree)))
        before.set(np.arange(self.capacity), 0.0)  # the copy must not share anything with it

    @precondition(lambda self: self.reference.total > 0)
    @rule(fraction=st.floats(0.0, 1.0, exclude_max=True), data=st.data())
    def find(self, fraction, data):
        levels = self.reference.levels()
        total = float(levels[0][0])
        edges = np.append(0.0, np.cumsum(self.reference.mass))
        edge = edges[data.draw(st.integers(0, self.capacity))]
        prefixes = np.array(
            [
                fraction * total,
                edge,
                np.nextafter(edge, 0.0),
                np.nextafter(edge, np.inf),
                np.nextafter(total, 0.0),
                0.0,
            ]
        )
        prefixes = prefixes[prefixes < total]
        found = self.tree.find(prefixes)
        assert found.tolist() == [self.reference.find(prefix, levels) for prefix in prefixes]
        assert (self.reference.mass[found] > 0).all()
        for prefix, leaf in zip(prefixes, found.tolist(), strict=True):
            if self.integers:
                assert leaf == self.reference.find_exact(prefix)
            else:
                self.check_within_rounding(prefix, leaf, total, len(levels))

    def check_within_rounding(self, prefix, leaf, total, n_levels):
        """The prefix lies in the leaf's share of the sum, give or take the additions' rounding."""
        exact = [Fraction(float(mass)) for mass in self.reference.mass[: leaf + 1]]
        slack = Fraction(total) * self.arity * n_levels / 2**52
        assert sum(exact[:-1]) - slack <= Fraction(float(prefix)) <= sum(exact) + slack

    @precondition(lambda self: self.reference.total > 0)
    @rule(seed=st.integers(0, 2**32 - 1), batch_size=st.integers(1, 300), stratified=st.booleans())
    def sample(self, seed, batch_size, stratified):
        uniforms = np.random.default_rng(seed).random(batch_size)
        wanted = self.reference.sample(uniforms, stratified)
        drawn = self.tree.sample(batch_size, stratified=stratified, rng=np.random.default_rng(seed))
        assert drawn.tolist() == wanted.tolist()
        assert (self.reference.mass[drawn] > 0).all()

    @precondition(lambda self: self.reference.total == 0)
    @rule()
    def refuse_to_sample_from_nothing(self):
        with pytest.raises(kr.errors.EmptyBufferError):
            self.tree.sample(3)
        with pytest.raises(ValueError, match="prefix"):
            self.tree.find(0.0)

    @invariant()
    def agrees_bit_for_bit(self):
        masses = self.tree.get(np.arange(self.capacity))
        assert masses.tobytes() == self.reference.mass.tobytes()
        assert self.tree.total == self.reference.total
        self.tree.check_invariants()


@pytest.mark.parametrize("arity", ARITIES)
def test_equals_the_reference(arity):
    run_state_machine_as_test(lambda: SumTreeMachine(arity))


def test_a_prefix_at_the_end_of_a_node_stays_in_its_last_child():
    """Rounding carries it past the children's sum, yet not to the end of the last child."""
    rng = np.random.default_rng(1440)
    tree, reference = kr.SumTree(152, arity=8), ReferenceTree(152, 8)
    leaves, masses = (
        rng.integers(0, 152, 307),
        rng.choice([0.0, 7.820563771145567e299, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0], 307),
    )
    tree.set(leaves, masses)
    reference.set(leaves, masses)
    prefix = np.nextafter(tree.total, 0.0)
    assert tree.find(prefix) == reference.find(prefix) == 124


class DriftingTree:
    """A tree with the classic fault: the total is adjusted by differences instead of recomputed."""

    def __init__(self, capacity, arity):
        self.inner = kr.SumTree(capacity, arity=arity)
        self.total = 0.0

    def set(self, index, mass):
        for leaf, value in zip(
            np.atleast_1d(index), np.broadcast_to(mass, np.shape(np.atleast_1d(index))), strict=True
        ):
            self.total += value - self.inner.get(leaf)
            self.inner.set(leaf, value)

    def __getattr__(self, name):
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)


class ShiftedTree(DriftingTree):
    """A tree that finds the leaf after the right one."""

    def set(self, index, mass):
        self.inner.set(index, mass)
        self.total = self.inner.total

    def find(self, prefix):
        return (self.inner.find(prefix) + 1) % self.inner.capacity


@pytest.mark.parametrize("fault", [DriftingTree, ShiftedTree])
def test_a_planted_fault_is_found(fault):
    with pytest.raises(AssertionError):  # found is enough: no shrinking
        run_state_machine_as_test(
            lambda: SumTreeMachine(4, fault),
            settings=settings(max_examples=1_000, phases=[Phase.generate]),
        )
