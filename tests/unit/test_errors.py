"""Bad input: an error names argument, value and remedy, and nothing has changed afterwards.

Whether anything changed is read off the pickled state, which holds rows, masses, generations,
settings and the place in the random stream.
"""

import pickle
from contextlib import contextmanager

import numpy as np
import pytest

import kary_replay as kr

FIELDS = {
    "number": kr.Field((), "int64"),
    "vector": kr.Field((3,), "float32"),
    "nested": {"flag": kr.Field((), "bool"), "angle": kr.Field((2,), "float32")},
}
NAN, INF = float("nan"), float("inf")


@contextmanager
def refused(thing, kinds, *words):
    """The block raises all these kinds of error with these words, and leaves thing as it was."""
    before = pickle.dumps(thing)
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    with pytest.raises(kinds[0]) as caught:
        yield
    assert all(isinstance(caught.value, kind) for kind in kinds), type(caught.value)
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} not in {str(caught.value)!r}"
    assert pickle.dumps(thing) == before


def rows(n_rows=2):
    return {
        "number": np.arange(n_rows),
        "vector": np.zeros((n_rows, 3), np.float32),
        "nested": {"flag": np.zeros(n_rows, bool), "angle": np.zeros((n_rows, 2), np.float32)},
    }


@pytest.fixture(params=["partly filled", "full"])
def buffer(request):
    buffer = kr.PrioritizedReplayBuffer(5, FIELDS, alpha=0.5, seed=0)
    buffer.add(**rows(3 if request.param == "partly filled" else 7), priority=2.0)
    return buffer


@pytest.fixture
def tree():
    tree = kr.SumTree(5)
    tree.set([0, 1, 2], [1.0, 2.0, 3.0])
    return tree


def test_the_errors_are_also_the_builtin_ones():
    errors = kr.errors
    assert issubclass(errors.EmptyBufferError, (errors.KaryReplayError)) and issubclass(
        errors.EmptyBufferError, ValueError
    )
    assert issubclass(errors.IndexRangeError, IndexError) and issubclass(
        errors.IndexRangeError, ValueError
    )
    assert issubclass(errors.FieldError, TypeError) and issubclass(errors.FieldError, ValueError)
    for error in (errors.EmptyBufferError, errors.IndexRangeError, errors.FieldError):
        assert issubclass(error, errors.KaryReplayError)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_td_errors_that_are_not_finite(buffer, bad, place):
    handle = buffer.sample(3).handle
    td_error = np.ones(3)
    td_error[place] = bad
    with refused(buffer, ValueError, "td_error", "nan" if np.isnan(bad) else "inf", "finite"):
        buffer.update_priorities(handle, td_error)


def test_the_sign_of_a_td_error_is_dropped(buffer):
    handle = buffer.sample(3).handle
    assert buffer.update_priorities(handle, [-4.0, -4.0, -4.0]) == 3
    np.testing.assert_allclose(buffer.tree.get(handle["index"]), (4.0 + 1e-6) ** 0.5, rtol=1e-15)


def test_td_errors_beyond_what_a_sum_can_hold(buffer):
    handle = buffer.sample(1).handle
    with refused(buffer, ValueError, "td_error", "1.7e+308"):
        buffer.update_priorities(handle, [1.7e308])


@pytest.mark.parametrize("shape", [(2,), (4,), (3, 2), (1, 3), ()])
def test_td_errors_of_another_length(buffer, shape):
    handle = buffer.sample(3).handle
    with refused(buffer, ValueError, "td_error"):
        buffer.update_priorities(handle, np.ones(shape))


@pytest.mark.parametrize("bad", [["1", "2"], [None, 1.0], [1j, 1.0], [[1.0], [1.0, 2.0]]])
def test_td_errors_that_are_no_real_numbers(buffer, bad):
    handle = buffer.sample(2).handle
    with refused(buffer, (TypeError,) if bad[0] != [1.0] else (ValueError,), "td_error"):
        buffer.update_priorities(handle, bad)


@pytest.mark.parametrize(
    "bad", [np.arange(2), [0, 1], np.zeros((2, 2)), None, np.zeros(2, [("index", "i8")])]
)
def test_handles_that_are_none(buffer, bad):
    with refused(buffer, TypeError, "handle"):
        buffer.update_priorities(bad, [1.0, 1.0])


@pytest.mark.parametrize("index", [5, -1, 2**40, -(2**63)])
def test_handles_of_slots_that_do_not_exist(buffer, index):
    handle = buffer.sample(2).handle
    handle["index"][1] = index
    with refused(buffer, kr.errors.IndexRangeError, "handle", str(index), "4"):
        buffer.update_priorities(handle, [1.0, 1.0])


@pytest.mark.parametrize("bad", [NAN, INF, -INF, -1.0, 0.0, -0.0, 1.7e308])
@pytest.mark.parametrize(
    "form",
    [lambda bad: bad, lambda bad: [bad, 1.0], lambda bad: [1.0, bad]],
    ids=["one", "first", "last"],
)
def test_priorities_out_of_range(buffer, bad, form):
    with refused(buffer, ValueError, "priority", str(bad), "above 0"):
        buffer.add(**rows(2), priority=form(bad))


@pytest.mark.parametrize("bad", [[1.0], [1.0, 2.0, 3.0], [[1.0], [2.0]], []])
def test_priorities_of_another_length(buffer, bad):
    with refused(buffer, ValueError, "priority"):
        buffer.add(**rows(2), priority=bad)


@pytest.mark.parametrize("bad", ["1.0", ["a", "b"], 1j, [None, 1.0]])
def test_priorities_that_are_no_real_numbers(buffer, bad):
    with refused(buffer, TypeError, "priority"):
        buffer.add(**rows(2), priority=bad)


def broken(**changes):
    """Rows with fields replaced, or left out for None; a dotted name reaches inside."""
    row = rows(2)
    for name, value in changes.items():
        part, _, name = name.rpartition("__")
        fields = row[part] if part else row
        if value is None:
            del fields[name]
        else:
            fields[name] = value
    return row


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (broken(vector=None), ["vector", "missing"]),
        (broken(nested__flag=None), ["nested", "flag", "missing"]),
        (broken(nested=None), ["nested", "missing"]),
        (broken(vektor=np.zeros(2)), ["vektor", "vector"]),
        (broken(nested__flags=np.zeros(2)), ["flags", "flag"]),
        (broken(nested=np.zeros(2)), ["nested", "mapping"]),
        (broken(vector={"x": np.zeros(2)}), ["vector"]),
        (broken(vector=np.zeros((2, 4))), ["vector", "(2, 4)", "(3,)"]),
        (broken(vector=np.zeros((3, 2))), ["vector", "(3, 2)", "(3,)"]),
        (broken(vector=np.zeros((2, 1, 3))), ["vector", "(2, 1, 3)", "(3,)"]),
        (broken(vector=np.zeros((3, 3))), ["vector", "number", "2", "3"]),
        (broken(vector=np.zeros(3)), ["vector", "number"]),
        (broken(number=5), ["number"]),
        (broken(number=np.zeros((2, 1), int)), ["number", "(2, 1)"]),
        (broken(nested__angle=np.zeros((3, 2))), ["angle", "2", "3"]),
        (broken(number=np.array([0.0, 1.0])), ["number", "float64", "int64"]),
        (broken(number=np.array([1, 2**63], np.uint64)), ["number", "uint64", "int64"]),
        (broken(nested__flag=np.array([0, 1])), ["flag", "int64", "bool"]),
        (broken(vector=np.zeros((2, 3), complex)), ["vector", "complex128", "float32"]),
        (broken(vector=np.full((2, 3), 1e300)), ["vector", "float64", "float32"]),
        (broken(vector=[[0, 0, 0], [0, 0]]), ["vector"]),
        (broken(vector=[["a", "b", "c"]] * 2), ["vector"]),
    ],
)
@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
def test_rows_that_do_not_fit_the_fields(kind, row, words):
    buffer = kind(5, FIELDS, seed=0)
    buffer.add(**rows(3))
    with refused(buffer, (kr.errors.FieldError, TypeError, ValueError), *words):
        buffer.add(**row)


def test_one_bad_row_leaves_the_whole_batch_unwritten(buffer):
    vector = np.zeros((100, 3))
    vector[99, 2] = 1e300
    with refused(buffer, kr.errors.FieldError, "vector"):
        buffer.add(**{**rows(100), "vector": vector})
    with refused(buffer, ValueError, "priority", "nan"):
        buffer.add(**rows(100), priority=np.append(np.ones(99), NAN))


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    ("bad", "error"),
    [(0, ValueError), (-1, ValueError), (2.0, TypeError), ("2", TypeError), (None, TypeError)],
)
def test_batch_sizes(kind, bad, error):
    buffer = kind(5, FIELDS, seed=0)
    buffer.add(**rows(3))
    with refused(buffer, error, "batch_size", str(bad)):
        buffer.sample(bad)


@pytest.mark.parametrize(
    "make", [lambda b: b, lambda b: (b.add(**rows(3)), b.reset(), b)[-1]], ids=["new", "reset"]
)
@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
def test_an_empty_buffer(kind, make):
    buffer = make(kind(5, FIELDS, seed=0))
    with refused(buffer, (kr.errors.EmptyBufferError, ValueError), "add"):
        buffer.sample(2)


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    ("bad", "error"),
    [(0, ValueError), (-3, ValueError), (2.5, TypeError), ("5", TypeError), (True, TypeError)],
)
def test_capacities(kind, bad, error):
    with pytest.raises(error, match=f"capacity.*{bad}"):
        kind(bad, FIELDS)
    with pytest.raises(error, match=f"capacity.*{bad}"):
        kr.SumTree(bad)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (0, ValueError),
        (1, ValueError),
        (3, ValueError),
        (6, ValueError),
        (128, ValueError),
        (4.0, TypeError),
    ],
)
def test_arities(bad, error):
    with pytest.raises(error, match=rf"arity.*{bad}"):
        kr.SumTree(10, arity=bad)


@pytest.mark.parametrize("name", ["alpha", "beta"])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (-0.1, ValueError),
        (1.1, ValueError),
        (NAN, ValueError),
        ("0.5", TypeError),
        (None, TypeError),
    ],
)
def test_exponents(buffer, name, bad, error):
    with pytest.raises(error, match=f"{name}.*{bad}"):
        kr.PrioritizedReplayBuffer(5, FIELDS, **{name: bad})
    with refused(buffer, error, name, str(bad)):
        setattr(buffer, name, bad)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (0.0, ValueError),
        (-1e-6, ValueError),
        (NAN, ValueError),
        (INF, ValueError),
        ("1", TypeError),
    ],
)
def test_priority_epsilons(buffer, bad, error):
    with pytest.raises(error, match=f"priority_epsilon.*{bad}"):
        kr.PrioritizedReplayBuffer(5, FIELDS, priority_epsilon=bad)
    with refused(buffer, error, "priority_epsilon", str(bad)):
        buffer.priority_epsilon = bad


@pytest.mark.parametrize("kind", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, ValueError),
        ({"observation": {}}, ValueError),
        ({"index": kr.Field((), "int64")}, ValueError),
        ({"handle": kr.Field((), "int64")}, ValueError),
        ({"importance_weight": kr.Field((), "int64")}, ValueError),
        ({"priority": kr.Field((), "int64")}, ValueError),
        ({"number": "int64"}, TypeError),
        ({1: kr.Field((), "int64")}, TypeError),
        ({"a": {"b": kr.Field((), "int64")}, "a['b']": kr.Field((), "int64")}, ValueError),
        ([("number", kr.Field((), "int64"))], TypeError),
    ],
)
def test_fields_that_a_buffer_cannot_have(kind, fields, error):
    with pytest.raises(error, match="fields"):
        kind(5, fields)


@pytest.mark.parametrize(
    ("bad", "error"), [(-1, ValueError), ("seed", TypeError), (1.5, TypeError)]
)
def test_seeds(bad, error):
    with pytest.raises(error, match="seed"):
        kr.ReplayBuffer(5, FIELDS, seed=bad)


def test_more_memory_than_there_is():
    with pytest.raises((MemoryError, ValueError), match="capacity"):
        kr.ReplayBuffer(2**39, {"image": kr.Field((84, 84, 4), "uint8")})


@pytest.mark.parametrize("index", [5, -1, 2**40, [0, 5], [-1, 0], np.array([2**63], np.uint64)])
def test_tree_indices_out_of_range(tree, index):
    bad = next(one for one in np.atleast_1d(index).tolist() if not 0 <= one < 5)
    for call in (lambda: tree.get(index), lambda: tree.set(index, 1.0)):
        with refused(
            tree, (kr.errors.IndexRangeError, IndexError, ValueError), "index", str(bad), "4"
        ):
            call()


@pytest.mark.parametrize("index", [1.0, True, "1", None, [0.0, 1.0], [True, False], 1j])
def test_tree_indices_that_are_no_integers(tree, index):
    for call in (lambda: tree.get(index), lambda: tree.set(index, 1.0)):
        with refused(tree, TypeError, "index"):
            call()


@pytest.mark.parametrize("bad", [NAN, INF, -INF, -1.0, -5e-324, 1.7e308])
@pytest.mark.parametrize(
    "form",
    [lambda bad: bad, lambda bad: [bad, 1.0], lambda bad: [1.0, bad]],
    ids=["one", "first", "last"],
)
def test_masses_out_of_range(tree, bad, form):
    with refused(tree, ValueError, "mass", str(bad), "finite"):
        tree.set([0, 1], form(bad))


@pytest.mark.parametrize("bad", [[1.0, 2.0, 3.0], [[1.0], [2.0]], []])
def test_masses_of_another_length(tree, bad):
    with refused(tree, ValueError, "mass"):
        tree.set([0, 1], bad)


@pytest.mark.parametrize("prefix", [6.0, -1e-9, NAN, INF, [0.0, 7.0]])
def test_prefixes_out_of_range(tree, prefix):
    with refused(tree, ValueError, "prefix", str(np.atleast_1d(prefix)[-1]), "6.0"):
        tree.find(prefix)


@pytest.mark.parametrize("bad", ["0.5", None, 1j])
def test_prefixes_that_are_no_real_numbers(tree, bad):
    with refused(tree, TypeError, "prefix"):
        tree.find(bad)


@pytest.mark.parametrize(
    ("bad", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (None, TypeError)]
)
def test_tree_batch_sizes(tree, bad, error):
    with refused(tree, error, "batch_size", str(bad)):
        tree.sample(bad)


@pytest.mark.parametrize(
    ("bad", "error"), [("1", TypeError), (1.5, TypeError), (np.random, TypeError), (-1, ValueError)]
)
def test_random_generators(tree, bad, error):
    with refused(tree, error, "rng"):
        tree.sample(2, rng=bad)


def test_an_empty_tree():
    tree = kr.SumTree(5)
    with refused(tree, (kr.errors.EmptyBufferError, ValueError), "mass"):
        tree.sample(2)
    with refused(tree, ValueError, "prefix"):
        tree.find(0.0)


def test_unknown_names_of_views_and_batches(buffer):
    with refused(buffer, kr.errors.FieldError, "vektor", "vector"):
        buffer.field_view("vektor")
    batch = buffer.sample(1)
    with pytest.raises(AttributeError, match="vektor"):
        batch.vektor  # noqa: B018
