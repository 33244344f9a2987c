"""PrioritizedReplayBuffer against the naive reference: any calls, invariants after each.

Masses may differ from the reference's by two units in the last place, because `pow` is not
correctly rounded everywhere; the reference then takes them over, so that everything that follows
(total, slots drawn) has to agree exactly.
"""

import copy
import pickle

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
from reference import ReferenceBuffer, ReferenceStream

import kary_replay as kr

ARITY = kr.sum_tree.DEFAULT_ARITY
CAPACITIES = st.one_of(
    st.sampled_from([1, 2, ARITY - 1, ARITY, ARITY + 1, ARITY**2, ARITY**2 + 1, ARITY**3]),
    st.integers(1, 40),
)
EXPONENTS = st.sampled_from([0.0, 0.3, 0.5, 0.6, 1.0])
PRIORITIES = st.one_of(
    st.floats(1e-6, 1e3),
    st.floats(1e-300, 1e-290),
    st.floats(1e290, 1e300),
    st.sampled_from([1.0, 2.0, 5e-324, 2.0**-1022]),
)
ERRORS = st.one_of(
    st.just(0.0), st.floats(-1e3, 1e3), st.floats(-1e-300, 1e-300), st.sampled_from([1e300, -1e300])
)
FIELDS = {
    "number": kr.Field((), "int64"),
    "words": kr.Field((5,), "int64"),
    "flag": kr.Field((), "bool"),
}


def columns(numbers):
    """Fields that all derive from the row's number."""
    number = np.array(numbers, np.int64).reshape(-1)
    return {"number": number, "words": number[:, None] * 31 + np.arange(5), "flag": number % 2 == 1}


class ReplayBufferMachine(RuleBasedStateMachine):
    """One buffer and its reference, in step."""

    @initialize(
        capacity=CAPACITIES,
        alpha=EXPONENTS,
        beta=EXPONENTS,
        epsilon=st.sampled_from([1e-6, 0.5]),
        share=st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]),
        seed=st.integers(0, 2**64 - 1),
    )
    def start(self, capacity, alpha, beta, epsilon, share, seed):
        self.capacity = capacity
        options = {
            "alpha": alpha,
            "beta": beta,
            "priority_epsilon": epsilon,
            "uniform_share": share,
            "seed": seed,
        }
        self.buffer = kr.PrioritizedReplayBuffer(capacity, FIELDS, **options)
        self.buffer._slots.swept = 3  # new masses for all rows come in many pieces
        self.reference = ReferenceBuffer(capacity, ARITY, **options)
        self.n_added = 0
        self.handles = []  # pairs: the buffer's handle, the reference's

    def add(self, n_rows, priorities=None, one_for_all=False):
        numbers = list(range(self.n_added, self.n_added + n_rows))
        self.n_added += n_rows
        slots = self.buffer.add(
            **columns(numbers), priority=priorities[0] if one_for_all else priorities
        )
        wanted = self.reference.add(numbers, priorities)
        assert slots.tolist() == wanted

    @rule(data=st.data())
    def add_rows(self, data):
        self.add(data.draw(st.integers(0, 2 * self.capacity + 2)))

    @rule(data=st.data(), priority=PRIORITIES)
    def add_rows_of_one_priority(self, data, priority):
        n_rows = data.draw(st.integers(1, self.capacity + 1))
        self.add(n_rows, [priority] * n_rows, one_for_all=True)

    @rule(data=st.data())
    def add_rows_with_priorities(self, data):
        priorities = data.draw(
            st.lists(PRIORITIES, min_size=1, max_size=min(2 * self.capacity + 2, 30))
        )
        self.add(len(priorities), priorities)

    @rule(priority=PRIORITIES)
    def add_one_transition(self, priority):
        row = {name: column[0] for name, column in columns([self.n_added]).items()}
        assert self.buffer.add(**row, priority=priority).tolist() == self.reference.add(
            [self.n_added], [priority]
        )
        self.n_added += 1

    @precondition(lambda self: len(self.reference))
    @rule(
        batch_size=st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 300])),
        stratified=st.booleans(),
    )
    def sample(self, batch_size, stratified):
        slots, weights = self.reference.sample(batch_size, stratified)
        batch = self.buffer.sample(batch_size, stratified=stratified)
        assert batch.index.tolist() == slots.tolist()
        assert (batch.handle["index"] == batch.index).all()
        assert (self.reference.tree.mass[slots] > 0).all()
        numbers = [self.reference.rows[slot] for slot in slots]
        for name, column in columns(numbers).items():
            assert np.array_equal(batch[name], column), name
        np.testing.assert_allclose(batch.importance_weight, weights, rtol=1e-6, atol=1e-44)
        if self.reference.uniform_share == 0:
            assert batch.importance_weight.max() == 1.0
        self.remember(batch.handle[:3], self.reference.handles(slots[:3]))

    @precondition(lambda self: len(self.reference))
    @rule(data=st.data())
    def take(self, data):
        slots = data.draw(st.lists(st.integers(0, len(self.reference) - 1), min_size=1))
        batch, weights = self.buffer.take(slots), self.reference.weights(np.array(slots))
        assert batch.index.tolist() == slots
        for name, column in columns([self.reference.rows[slot] for slot in slots]).items():
            assert np.array_equal(batch[name], column), name
        np.testing.assert_allclose(batch.importance_weight, weights, rtol=1e-6, atol=1e-44)
        self.remember(batch.handle[-2:], self.reference.handles(np.array(slots[-2:])))

    def remember(self, handles, wanted):
        for handle, reference_handle in zip(handles, wanted, strict=True):
            self.handles.append((handle, reference_handle))
        # Equal handles in the buffer are equal handles in the reference, and nothing else is.
        pairs = {
            (int(handle["index"]), int(handle["generation"])): reference
            for handle, reference in self.handles
        }
        assert len(set(pairs.values())) == len(pairs)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def update_old_and_new_handles(self, data):
        picks = data.draw(
            st.lists(st.tuples(st.integers(0, len(self.handles) - 1), ERRORS), max_size=20)
        )
        handles = np.array([self.handles[pick][0] for pick, _ in picks], kr.HANDLE_DTYPE)
        errors = [error for _, error in picks]
        wanted = self.reference.update_priorities(
            [self.handles[pick][1] for pick, _ in picks], errors
        )
        assert self.buffer.update_priorities(handles, errors) == wanted

    @rule(alpha=EXPONENTS)
    def set_alpha(self, alpha):
        self.buffer.alpha = alpha
        self.reference.set_alpha(alpha)
        self.compare_masses()

    @rule(beta=EXPONENTS)
    def set_beta(self, beta):
        self.buffer.beta = self.reference.beta = beta

    @rule()
    def reset(self):
        self.buffer.reset()
        self.reference.reset()

    @rule()
    def survive_a_copy(self):
        before = self.buffer
        self.buffer = pickle.loads(pickle.dumps(copy.deepcopy(self.buffer)))
        before.reset()  # the copy must not share anything with it

    @precondition(lambda self: not len(self.reference))
    @rule()
    def refuse_to_sample_from_nothing(self):
        with pytest.raises(kr.errors.EmptyBufferError):
            self.buffer.sample(2)

    def compare_masses(self):
        masses = self.buffer.tree.get(np.arange(self.capacity))
        np.testing.assert_allclose(masses, self.reference.tree.mass, rtol=2 * 2.0**-52, atol=0)
        assert ((masses > 0) == [row is not None for row in self.reference.rows]).all()
        self.reference.tree.mass[:] = masses

    @invariant()
    def agrees(self):
        self.compare_masses()
        assert self.buffer.total_mass == self.reference.tree.total
        assert self.buffer.max_priority == self.reference.max_priority
        assert (self.buffer.alpha, self.buffer.beta) == (self.reference.alpha, self.reference.beta)
        assert len(self.buffer) == len(self.reference)
        self.buffer.check_invariants()


class UniformBufferMachine(RuleBasedStateMachine):
    """ReplayBuffer against a list: each slot is the integer part of a uniform times the size."""

    @initialize(capacity=CAPACITIES, seed=st.integers(0, 2**64 - 1))
    def start(self, capacity, seed):
        self.capacity = capacity
        self.buffer = kr.ReplayBuffer(capacity, FIELDS, seed=seed)
        self.stream = ReferenceStream(seed)
        self.rows = []
        self.position = self.n_added = 0

    @rule(data=st.data())
    def add(self, data):
        numbers = list(
            range(self.n_added, self.n_added + data.draw(st.integers(0, 2 * self.capacity + 2)))
        )
        self.n_added += len(numbers)
        slots = self.buffer.add(**columns(numbers))
        for number, slot in zip(numbers, slots.tolist(), strict=True):
            assert slot == self.position
            self.rows[slot : slot + 1] = [number]
            self.position = (slot + 1) % self.capacity

    @precondition(lambda self: self.rows)
    @rule(batch_size=st.one_of(st.integers(1, 40), st.sampled_from([127, 128, 129, 300])))
    def sample(self, batch_size):
        slots = (self.stream.uniforms(batch_size) * len(self.rows)).astype(np.int64)
        batch = self.buffer.sample(batch_size)
        assert batch.index.tolist() == slots.tolist()
        for name, column in columns([self.rows[slot] for slot in slots]).items():
            assert np.array_equal(batch[name], column), name
        assert self.buffer.take(slots).number.tolist() == batch.number.tolist()

    @rule()
    def reset(self):
        self.buffer.reset()
        self.rows, self.position = [], 0

    @rule()
    def survive_a_copy(self):
        self.buffer = pickle.loads(pickle.dumps(copy.deepcopy(self.buffer)))

    @invariant()
    def agrees(self):
        assert len(self.buffer) == len(self.rows)
        self.buffer.check_invariants()


@pytest.mark.parametrize("machine", [ReplayBufferMachine, UniformBufferMachine])
def test_equals_the_reference(machine):
    run_state_machine_as_test(machine)


class ForgetsToReset(kr.PrioritizedReplayBuffer):
    """Keeps the priorities of before."""

    def reset(self):
        masses = self.tree.get(np.arange(self.capacity))
        super().reset()
        self.tree.set(np.arange(self.capacity), masses)


class AppliesStaleHandles(kr.PrioritizedReplayBuffer):
    """Writes a priority to the slot, whoever lives there now."""

    def update_priorities(self, handle, td_error):
        self.tree.set(handle["index"], (np.abs(td_error) + self.priority_epsilon) ** self.alpha)
        return len(handle)


@pytest.mark.parametrize("fault", [ForgetsToReset, AppliesStaleHandles])
def test_a_planted_fault_is_found(fault, monkeypatch):
    monkeypatch.setattr(kr, "PrioritizedReplayBuffer", fault)
    # found is enough, and may take some luck: no shrinking, and many attempts
    rarely = settings(phases=[Phase.generate], max_examples=1_000)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ReplayBufferMachine, settings=rarely)
