"""Pickle and deepcopy keep everything: rows, masses, generations, settings, random stream."""

import copy
import pickle

import numpy as np
import pytest

import kary_replay as kr

FIELDS = {
    "number": kr.Field((), "int64"),
    "nested": {"vector": kr.Field((3,), "float32"), "flag": kr.Field((), "bool")},
}

CLONES = pytest.mark.parametrize(
    "clone",
    [
        copy.deepcopy,
        copy.copy,
        *[lambda one, p=p: pickle.loads(pickle.dumps(one, p)) for p in (2, 4, 5)],
    ],
    ids=["deepcopy", "copy", "protocol 2", "protocol 4", "protocol 5"],
)


def rows(*numbers):
    number = np.array(numbers)
    return {
        "number": number,
        "nested": {"vector": np.repeat(number[:, None], 3, 1), "flag": number % 2 == 1},
    }


def used_buffer(kind=kr.PrioritizedReplayBuffer, n_rows=13, capacity=10):
    """A buffer that wrapped around, was reset once, and has drawn."""
    buffer = kind(capacity, FIELDS, seed=5)
    for n in (3, n_rows):
        buffer.add(**rows(*range(n)))
        batch = buffer.sample(6)
        if kind is kr.PrioritizedReplayBuffer:
            buffer.update_priorities(batch.handle, np.linspace(-2.0, 3.0, 6))
        if n == 3:
            buffer.reset()
    return buffer


def same_batch(one, two):
    names = set(one.keys()) - {"nested"}
    assert names == set(two.keys()) - {"nested"}
    for name in names:
        assert one[name].tobytes() == two[name].tobytes(), name
    for name in ("vector", "flag"):
        assert one.nested[name].tobytes() == two.nested[name].tobytes(), name


@CLONES
@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
def test_a_clone_gives_the_same_next_samples(kind, clone):
    buffer = used_buffer(kind)
    twin = clone(buffer)
    twin.check_invariants()
    assert len(twin) == len(buffer)
    for batch_size in (1, 5, 200):
        same_batch(buffer.sample(batch_size), twin.sample(batch_size))
    for one in (buffer, twin):
        assert one.add(**rows(50)).tolist() == [3]
    same_batch(buffer.sample(50), twin.sample(50))


@CLONES
def test_a_clone_keeps_priorities_and_settings(clone):
    buffer = used_buffer()
    buffer.alpha, buffer.beta, buffer.priority_epsilon, buffer.uniform_share = 0.5, 0.75, 0.125, 0.3
    twin = clone(buffer)
    assert (twin.alpha, twin.beta, twin.priority_epsilon) == (0.5, 0.75, 0.125)
    assert twin.uniform_share == 0.3
    assert twin.tree.get(np.arange(10)).tobytes() == buffer.tree.get(np.arange(10)).tobytes()
    assert (twin.total_mass, twin.max_priority) == (buffer.total_mass, buffer.max_priority)
    assert twin.fields == FIELDS


@CLONES
def test_handles_hold_across_a_clone(clone):
    buffer = used_buffer()
    old = buffer.sample(20).handle
    buffer.add(**rows(*range(4)))
    current = buffer.sample(20).handle
    twin = clone(buffer)
    assert twin.update_priorities(current, np.ones(20)) == 20
    gone = np.isin(old["index"], [3, 4, 5, 6])
    assert twin.update_priorities(old, np.full(20, 9.0)) == np.count_nonzero(~gone)


@CLONES
def test_a_clone_shares_nothing(clone):
    buffer = used_buffer()
    twin = clone(buffer)
    before = pickle.dumps(twin)
    buffer.reset()
    buffer.add(**rows(-1), priority=99.0)
    buffer.beta = 0.0
    assert pickle.dumps(twin) == before


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
def test_pickling_changes_nothing_and_repeats_itself(kind):
    buffer = used_buffer(kind)
    assert (
        pickle.dumps(buffer)
        == pickle.dumps(buffer)
        == pickle.dumps(pickle.loads(pickle.dumps(buffer)))
    )


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
def test_a_pickle_of_few_rows_is_small(kind):
    fields = {"image": kr.Field((84, 84), "uint8")}
    buffer = kind(2_000, fields)
    buffer.add(image=np.zeros((5, 84, 84), np.uint8))
    assert len(pickle.dumps(buffer)) < 1_000_000
    twin = pickle.loads(pickle.dumps(buffer))
    assert len(twin) == 5 and twin.capacity == 2_000
    assert twin.add(image=np.ones((1, 84, 84), np.uint8)).tolist() == [5]


@CLONES
@pytest.mark.parametrize("arity", [2, 4, 64])
def test_a_tree_keeps_masses_arity_and_stream(arity, clone, rng):
    tree = kr.SumTree(100, arity=arity)
    tree.set(np.arange(100), rng.random(100))
    twin = clone(tree)
    assert (twin.capacity, twin.arity, twin.total) == (100, arity, tree.total)
    assert twin.get(np.arange(100)).tobytes() == tree.get(np.arange(100)).tobytes()
    assert twin.sample(64, stratified=False).tolist() == tree.sample(64, stratified=False).tolist()
    twin.set(3, 9.0)
    assert tree.get(3) < 1.0
    twin.check_invariants()


def test_a_buffers_tree_can_be_cloned_alone():
    buffer = used_buffer()
    twin = copy.deepcopy(buffer.tree)
    buffer.tree.set(0, 123.0)
    assert twin.get(0) != 123.0 and twin.capacity == 10


def test_batches_and_fields_are_picklable():
    batch = used_buffer().sample(4)
    same_batch(batch, pickle.loads(pickle.dumps(batch)))
    same_batch(batch, copy.deepcopy(batch))
    assert pickle.loads(pickle.dumps(kr.Field((3,), "float32"))) == kr.Field((3,), "float32")


# -------------------------------------------------------------- states that no buffer was in


STATES = [
    *[("format", value) for value in (3, 1.0, True, "1", None)],
    *[("capacity", value) for value in (0, -1, 5, 10.0, True, "10", None, 2**45)],
    *[("fields", value) for value in ({}, None, [], {"x": 3}, {"index": kr.Field((), "int64")})],
    *[("options", value) for value in (None, [], {"prioritization": "rank"}, {"stack": 4})],
    *[("beta", value) for value in (-0.1, 1.1, float("nan"), "half", None, True)],
    *[("uniform_share", value) for value in (-0.1, 1.1, float("nan"), "half", None, True)],
    *[("priority_epsilon", value) for value in (-5.0, 0.0, float("nan"), "1", None, True)],
    *[("storage", value) for value in (None, {}, [])],
    *[("storage.n_touched", value) for value in (-1, 11, 10.0, None)],
    *[("storage.n_started", value) for value in (-1, 11, 10**15, 10.0, None)],
    *[("storage.position", value) for value in (-1, 10, 3.0, True, None)],
    *[("storage.n_added", value) for value in (-5, 16.0, 2**63, "16", None)],
    *[("storage.n_sampled", value) for value in (-5, True, 2**63, None)],
    *[("storage.alpha", value) for value in (-0.1, 1.1, float("nan"), "half", None)],
    *[("storage.max_priority", value) for value in (-1.0, 0.0, 0.5, 1e308, float("nan"), None)],
    *[
        ("storage.noise", value)
        for value in ([], [1.0] * 10, [-1.0] * 11, [np.nan] * 11, ["1"] * 11)
    ],
    *[("storage.random", value) for value in ((), (1, 2), (1, 2, -3), (1, 2, 2**64), (1, 2, 3.0))],
    *[("storage.row_nbytes", value) for value in (8, None)],
]


@pytest.mark.parametrize(("name", "value"), STATES, ids=str)
def test_a_state_that_contradicts_itself(name, value):
    state = used_buffer().__getstate__()
    part, _, key = name.rpartition(".")
    (state[part] if part else state)[key] = value
    with pytest.raises(ValueError, match="this pickle"):
        unpickled(state)


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
def test_a_state_that_lacks_something(kind):
    for part in ("", "storage"):
        whole = used_buffer(kind).__getstate__()
        for left_out in (whole[part] if part else whole).keys() - {
            "version",
            "changed",
            "uniform_share",
            "adapts_share",
            "noise",
        }:
            state = used_buffer(kind).__getstate__()
            del (state[part] if part else state)[left_out]
            with pytest.raises(ValueError, match="this pickle"):
                unpickled(state, kind)


def test_a_state_from_before_there_was_a_uniform_share():
    state = used_buffer().__getstate__()
    del state["uniform_share"], state["adapts_share"], state["storage"]["noise"]
    twin = unpickled(state)
    assert twin.uniform_share == 0.0
    twin.update_priorities(twin.sample(4).handle, np.ones(4))
    assert twin.uniform_share == 0.0


@pytest.mark.parametrize("state", [[], 5, "state", {}], ids=repr)
def test_what_is_no_state(state):
    with pytest.raises(ValueError, match="this pickle"):
        unpickled(state)


def test_a_frame_buffers_state():
    frame, action = kr.Field((4,), "uint8"), kr.Field((), "int64")
    buffer = kr.FrameReplayBuffer(50, frame, {"action": action}, stack=2, n_step=2, seed=0)
    assert pickle.loads(pickle.dumps(buffer)).stack == 2
    for change in (
        {"stack": 3},
        {"stack": 0},
        {"n_step": 1},
        {"n_step": 2.0},
        {"padding": "ones"},
        {"more": 1},
    ):
        state = buffer.__getstate__()
        state["options"] = {**state["options"], **change}
        with pytest.raises(ValueError, match="this pickle"):
            unpickled(state, kr.FrameReplayBuffer)


def unpickled(state, kind=kr.PrioritizedReplayBuffer):
    buffer = kind.__new__(kind)
    buffer.__setstate__(state)
    return buffer
