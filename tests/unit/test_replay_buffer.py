"""ReplayBuffer and PrioritizedReplayBuffer, one promise at a time, on both where it holds."""

import numpy as np
import pytest

import kary_replay as kr

FIELDS = {"number": kr.Field((), "int64"), "vector": kr.Field((3,), "float32")}


def rows(*numbers):
    number = np.array(numbers, np.int64)
    return {
        "number": number,
        "vector": np.repeat(number[:, None], 3, 1) + np.array([0.25, 0.5, 0.75]),
    }


def prioritized(capacity=8, n_rows=0, **options):
    buffer = kr.PrioritizedReplayBuffer(
        capacity, FIELDS, **{"uniform_share": 0.0, "seed": 1, **options}
    )
    if n_rows:
        buffer.add(**rows(*range(n_rows)))
    return buffer


def uniform(capacity=8, n_rows=0):
    buffer = kr.ReplayBuffer(capacity, FIELDS, seed=1)
    if n_rows:
        buffer.add(**rows(*range(n_rows)))
    return buffer


BOTH = pytest.mark.parametrize("make", [uniform, prioritized])


def handles_by_slot(buffer):
    """One current handle per slot that holds a row, in the order of the slots."""
    handles = np.unique(
        np.concatenate([buffer.sample(64 * buffer.capacity).handle for _ in range(10)])
    )
    assert len(handles) == len(buffer)
    return handles


@BOTH
def test_rows_go_into_slots_in_order_and_around(make):
    buffer = make(5)
    assert len(buffer) == 0
    assert buffer.add(**rows(0, 1, 2)).tolist() == [0, 1, 2]
    assert (len(buffer), buffer.capacity) == (3, 5)
    assert buffer.add(**rows(3, 4, 5, 6)).tolist() == [3, 4, 0, 1]
    assert len(buffer) == 5
    assert buffer.field_view("number").tolist() == [5, 6, 2, 3, 4]
    buffer.check_invariants()


@BOTH
def test_one_transition_needs_no_batch_axis(make):
    buffer = make()
    index = buffer.add(number=7, vector=[7.25, 7.5, 7.75])
    assert index.dtype == np.int64 and index.tolist() == [0]
    assert buffer.sample(1).vector.tolist() == [[7.25, 7.5, 7.75]]


@BOTH
@pytest.mark.parametrize("n_rows", [6, 11, 12, 29])
def test_more_rows_than_slots_are_added_one_after_another(make, n_rows):
    at_once, one_by_one = make(5), make(5)
    index = at_once.add(**rows(*range(n_rows)))
    assert index.tolist() == [number % 5 for number in range(n_rows)]
    for number in range(n_rows):
        one_by_one.add(**rows(number))
    assert at_once.field_view("number").tolist() == one_by_one.field_view("number").tolist()
    assert at_once.add(**rows(100)).tolist() == [n_rows % 5]
    at_once.check_invariants()


@BOTH
def test_no_rows_is_a_batch_too(make):
    buffer = make(5, 3)
    assert buffer.add(number=np.empty(0, np.int64), vector=np.empty((0, 3))).shape == (0,)
    assert len(buffer) == 3


@BOTH
def test_a_batch_has_rows_and_says_where_they_are(make):
    buffer = make(10, 14)
    batch = buffer.sample(200)
    assert batch.number.dtype == np.int64 and batch.number.shape == (200,)
    assert batch.vector.dtype == np.float32 and batch.vector.shape == (200, 3)
    assert batch.index.dtype == np.int64 and batch.handle.dtype == kr.HANDLE_DTYPE
    assert (batch.handle["index"] == batch.index).all()
    assert (batch.number == buffer.field_view("number")[batch.index]).all()
    assert (batch.vector == batch.number[:, None] + np.array([0.25, 0.5, 0.75], np.float32)).all()
    assert set(batch.number.tolist()) == set(range(4, 14))


@BOTH
@pytest.mark.parametrize("n_taken", [1, 3, 127, 128, 129, 300])
def test_take_returns_the_rows_of_given_slots(make, n_taken):
    buffer = make(10, 14)
    slots = np.random.default_rng(0).integers(0, 10, n_taken)
    batch = buffer.take(slots)
    assert set(batch.keys()) == set(buffer.sample(1).keys())
    assert (batch.index == slots).all() and (batch.handle["index"] == slots).all()
    assert (batch.number == buffer.field_view("number")[slots]).all()
    assert (batch.vector == batch.number[:, None] + np.array([0.25, 0.5, 0.75], np.float32)).all()
    assert buffer.n_sampled == n_taken + 1


def test_rows_that_were_taken_have_weights_and_handles_like_drawn_ones():
    buffer = prioritized(5, 5, alpha=1.0, beta=0.5)
    assert buffer.update_priorities(buffer.take([4, 2]).handle, [4.0, 9.0]) == 2
    assert buffer.tree.get([2, 4]).tolist() == [9.000001, 4.000001]
    weights = buffer.take([2, 4]).importance_weight
    np.testing.assert_allclose(weights, [2 / 3, 1], rtol=1e-6)
    drawn = buffer.sample(400)
    assert (buffer.take(drawn.index).importance_weight == drawn.importance_weight).all()
    buffer.uniform_share = 1.0
    assert buffer.take([0, 2, 4]).importance_weight.tolist() == [1, 1, 1]
    handle = buffer.take([0]).handle
    buffer.add(**rows(10))
    assert buffer.update_priorities(handle, [7.0]) == 0
    assert buffer.take([0]).number.tolist() == [10]


@BOTH
@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        ([0, 5], kr.errors.IndexRangeError, "slot 5 has none, got at position 1"),
        ([0, -1], IndexError, "index -1 is out of range: it must be in 0 … 7"),
        ([8], IndexError, "index 8 is out of range"),
        ([2**63], IndexError, "out of range"),
        ([], ValueError, "at least 1, got 0"),
        ([[0]], ValueError, "one-dimensional"),
        (0, ValueError, "one-dimensional"),
        ([0.5], TypeError, "integer"),
        ([True], TypeError, "integer"),
        ("one", TypeError, "integer"),
    ],
)
def test_take_refuses_what_is_no_slot_of_a_row(make, index, error, message):
    buffer = make(8, 3)
    with pytest.raises(error, match=message):
        buffer.take(index)
    assert buffer.n_sampled == 0


def test_take_refuses_rows_that_cannot_be_drawn():
    buffer = prioritized(8, 8)
    buffer.tree.set([3], 0.0)
    with pytest.raises(IndexError, match="slot 3 has none, got at position 2"):
        buffer.take([1, 2, 3, 4])
    buffer.reset()
    with pytest.raises(IndexError, match="slot 0 has none, got at position 0"):
        buffer.take([0])


@BOTH
def test_a_batch_reads_like_a_mapping_too(make):
    batch = make(4, 4).sample(3)
    names = {"number", "vector", "index", "handle"} | (
        {"importance_weight"} if make is prioritized else set()
    )
    assert set(batch.keys()) == set(batch) == set(dict(batch)) == names
    assert batch["vector"] is batch.vector and len(batch) == 3
    assert "vector=float32[3, 3]" in repr(batch)
    for missing in ("vektor", "keyword"):
        with pytest.raises(KeyError, match=missing):
            batch[missing]
        assert not hasattr(batch, missing)


@BOTH
def test_the_arrays_of_a_batch_belong_to_the_caller(make):
    buffer = make(4, 4)
    batch = buffer.sample(8)
    kept = batch.number.copy(), batch.handle.copy()
    buffer.add(**rows(*range(10, 18)))
    buffer.sample(8)
    assert (batch.number == kept[0]).all() and (batch.handle == kept[1]).all()
    batch.vector[:] = -1.0
    assert (buffer.field_view("vector") >= 0).all()


@BOTH
def test_what_was_added_can_be_changed_by_the_caller(make):
    buffer, row = make(), rows(1, 2)
    buffer.add(**row)
    row["vector"][:] = -1.0
    assert (buffer.sample(10).vector > 0).all()


@BOTH
def test_one_seed_gives_one_sequence(make):
    one, two = make(50, 50), make(50, 50)
    for batch_size in (1, 7, 256):
        assert one.sample(batch_size).index.tolist() == two.sample(batch_size).index.tolist()


def test_without_a_seed_every_buffer_draws_differently():
    one, two = prioritized(1000, 1000, seed=None), prioritized(1000, 1000, seed=None)
    assert one.sample(50).index.tolist() != two.sample(50).index.tolist()


@BOTH
def test_the_generation_rises_with_every_use_of_a_slot(make):
    buffer = make(2, 2)
    before = handles_by_slot(buffer)["generation"]
    for number in range(2, 8):
        slot = buffer.add(**rows(number))[0]
        after = handles_by_slot(buffer)["generation"]
        assert after[slot] > before[slot] and after[1 - slot] == before[1 - slot]
        before = after


@BOTH
def test_reset_empties_and_starts_over(make):
    buffer = make(5, 7)
    buffer.reset()
    assert len(buffer) == 0
    with pytest.raises(kr.errors.EmptyBufferError):
        buffer.sample(1)
    buffer.check_invariants()
    assert buffer.add(**rows(20, 21)).tolist() == [0, 1]
    assert set(buffer.sample(50).number.tolist()) == {20, 21}
    buffer.check_invariants()


@BOTH
def test_a_field_view_is_the_storage(make):
    buffer = make(4, 4)
    buffer.field_view("vector")[2] = 99.0
    batch = buffer.sample(100)
    assert (batch.vector[batch.index == 2] == 99.0).all()
    assert buffer.field_view("vector").shape == (4, 3)


def test_a_uniform_batch_has_no_weights():
    assert not hasattr(uniform(4, 4).sample(2), "importance_weight")


@BOTH
def test_bytes_beyond_the_payload_stay_small(make):
    fields = {
        "observation": kr.Field((17,), "float32"),
        "action": kr.Field((6,), "float32"),
        "terminated": kr.Field((), "bool"),
    }
    buffer = type(make())(100_000, fields)
    payload = 100_000 * (17 * 4 + 6 * 4 + 1)
    assert buffer.nbytes - payload == buffer.nbytes_overhead
    # A generation, a priority, a leaf and a third for the nodes above it, three bytes of padding.
    assert buffer.nbytes_overhead / 100_000 <= 8 + 8 + 8 * 4 / 3 + 3 + 0.1


def test_new_rows_get_the_largest_priority_seen():
    buffer = prioritized(4, alpha=0.5)
    buffer.add(**rows(0))
    assert buffer.tree.get(0) == 1.0 and buffer.max_priority == 1.0
    buffer.add(**rows(1), priority=0.25)
    assert buffer.tree.get(1) == 0.5 and buffer.max_priority == 1.0
    buffer.add(**rows(2), priority=16.0)
    buffer.add(**rows(3))
    assert buffer.tree.get([2, 3]).tolist() == [4.0, 4.0] and buffer.max_priority == 16.0
    assert buffer.total_mass == buffer.tree.total == 9.5


def test_priorities_one_for_all_or_one_each():
    buffer = prioritized(6, alpha=1.0)
    buffer.add(**rows(0, 1), priority=3)
    buffer.add(**rows(2, 3, 4), priority=np.array([1, 2, 5], np.float32))
    buffer.add(number=5, vector=np.zeros(3), priority=7.0)
    assert buffer.tree.get(np.arange(6)).tolist() == [3.0, 3.0, 1.0, 2.0, 5.0, 7.0]


def test_an_update_sets_priority_to_the_error_plus_epsilon():
    buffer = prioritized(4, 4, alpha=1.0, priority_epsilon=0.5)
    assert buffer.update_priorities(handles_by_slot(buffer), [1.0, -2.0, 0.0, 7]) == 4
    assert buffer.tree.get(np.arange(4)).tolist() == [1.5, 2.5, 0.5, 7.5]
    assert buffer.max_priority == 7.5
    buffer.priority_epsilon = 0.25
    buffer.update_priorities(handles_by_slot(buffer)[:1], [1.0])
    assert buffer.tree.get(0) == 1.25


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_errors_come_in_the_shapes_that_losses_have(shape, dtype):
    buffer = prioritized(4, 4, alpha=1.0, priority_epsilon=0.5)
    assert (
        buffer.update_priorities(handles_by_slot(buffer), np.arange(4).reshape(shape).astype(dtype))
        == 4
    )
    assert buffer.tree.get(np.arange(4)).tolist() == [0.5, 1.5, 2.5, 3.5]


def test_no_handles_are_an_update_too():
    buffer = prioritized(4, 4)
    assert buffer.update_priorities(buffer.sample(3).handle[:0], []) == 0


def test_weights_correct_for_the_mass_and_have_maximum_one():
    buffer = prioritized(4, alpha=1.0, beta=1.0)
    buffer.add(**rows(0, 1, 2, 3), priority=[1.0, 2.0, 4.0, 8.0])
    for beta in (1.0, 0.5, 0.0):
        buffer.beta = beta
        batch = buffer.sample(64)
        mass = buffer.tree.get(batch.index)
        assert batch.importance_weight.dtype == np.float32
        assert batch.importance_weight.max() == 1.0
        np.testing.assert_allclose(batch.importance_weight, (mass / mass.min()) ** -beta, rtol=1e-6)


def test_setting_alpha_exponentiates_what_is_stored():
    buffer = prioritized(4, alpha=1.0)
    buffer.add(**rows(0, 1, 2), priority=[1.0, 4.0, 16.0])
    buffer.alpha = 0.5
    np.testing.assert_allclose(buffer.tree.get(np.arange(4)), [1.0, 2.0, 4.0, 0.0], rtol=1e-14)
    buffer.add(**rows(3))
    np.testing.assert_allclose(buffer.tree.get(3), 4.0, rtol=1e-14)
    buffer.alpha = 1.0
    np.testing.assert_allclose(buffer.tree.get(np.arange(4)), [1.0, 4.0, 16.0, 16.0], rtol=1e-14)
    assert (buffer.alpha, buffer.max_priority) == (1.0, 16.0)
    buffer.check_invariants()


def test_priorities_outlive_alpha_zero():
    buffer = prioritized(4, alpha=0.0)
    buffer.add(**rows(0, 1, 2), priority=[1.0, 4.0, 16.0])
    assert buffer.tree.get(np.arange(4)).tolist() == [1.0, 1.0, 1.0, 0.0]
    buffer.alpha = 0.5
    np.testing.assert_allclose(buffer.tree.get(np.arange(4)), [1.0, 2.0, 4.0, 0.0], rtol=1e-14)
    buffer.check_invariants()


def test_no_way_of_annealing_alpha_wears_priorities_out():
    """Masses are those of the priorities, bit for bit, wherever alpha was in between."""
    given = np.random.default_rng(0).lognormal(0, 3, 1000)
    for path in (np.linspace(0.6, 0.0, 101), [1e-6], [1e-12], [1e-16], [2.8e-17], [0.0]):
        buffer = kr.PrioritizedReplayBuffer(1000, FIELDS, seed=0, alpha=0.6)
        buffer.add(**rows(*range(1000)), priority=given)
        masses = buffer.tree.get(np.arange(1000))
        for alpha in path:
            buffer.alpha = float(alpha)
        buffer.alpha = 0.6
        assert (buffer.tree.get(np.arange(1000)) == masses).all()
        buffer.check_invariants()


def test_reset_forgets_the_largest_priority_and_keeps_the_settings():
    buffer = prioritized(4, alpha=0.5, beta=0.7)
    buffer.add(**rows(0), priority=100.0)
    buffer.reset()
    assert (buffer.max_priority, buffer.total_mass, buffer.alpha, buffer.beta) == (
        1.0,
        0.0,
        0.5,
        0.7,
    )
    buffer.add(**rows(1))
    assert buffer.tree.get(0) == 1.0


def test_masses_can_be_set_through_the_tree():
    buffer = prioritized(4, 4)
    buffer.tree.set(np.arange(4), [0.0, 0.0, 5.0, 0.0])
    batch = buffer.sample(20)
    assert set(batch.index.tolist()) == {2}
    assert buffer.total_mass == 5.0
    buffer.alpha = buffer.alpha / 2  # what was set stands for priorities
    np.testing.assert_allclose(
        buffer.tree.get(np.arange(4)), [0.0, 0.0, np.sqrt(5.0), 0.0], rtol=1e-14
    )


def test_stratified_draws_spread_evenly_and_independent_ones_do_not():
    buffer = prioritized(64, 64)
    assert buffer.sample(64).index.tolist() == list(range(64))
    assert len(set(buffer.sample(64, stratified=False).index.tolist())) < 60


def test_settings_can_be_read_back():
    buffer = prioritized(4, alpha=0.3, beta=0.9, priority_epsilon=0.125)
    assert (buffer.alpha, buffer.beta, buffer.priority_epsilon) == (0.3, 0.9, 0.125)
    buffer.uniform_share = 0.25
    assert buffer.uniform_share == 0.25
    assert buffer.fields == FIELDS


def test_a_buffer_with_nested_fields_that_is_closed_during_a_draw():
    """The draw comes to its end: what it gives is its own."""
    buffer = kr.ReplayBuffer(4, {"observation": {"a": kr.Field((), "float32")}}, seed=0)
    buffer.add(observation={"a": 1.0})
    drawn = buffer._reader.sample(2, False, False, None)
    buffer.close()
    assert buffer._batch(drawn).observation["a"].tolist() == [1.0, 1.0]
