"""SequenceWriter and its helpers refuse what is wrong, and name argument, value and remedy."""

import numpy as np
import pytest
from sequence_writers import STATE, STEP, make, rows, step

import kary_replay as kr

GOOD = {"n_envs": 2, "length": 4, "period": 2, "burn_in": 1}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_envs": 0}, ValueError, "n_envs must be at least 1, got 0"),
        ({"length": 0}, ValueError, "length must be at least 1, got 0"),
        ({"length": 4.0}, TypeError, "length must be an integer, got 4.0"),
        (
            {"length": 5},
            ValueError,
            r"buffer must have a field mask of 5 bools, .*: "
            r"make the .* sequence_fields\(fields, 5\)",
        ),
        ({"period": 0}, ValueError, "period must be at least 1, got 0"),
        (
            {"period": 5},
            ValueError,
            "period must be at most length, 4, or steps would be left out, got 5",
        ),
        (
            {"burn_in": -1},
            ValueError,
            "burn_in must be from 0 to 3, shorter than a sequence, got -1",
        ),
        ({"burn_in": 4}, ValueError, "burn_in must be from 0 to 3, shorter than a sequence, got 4"),
        ({"burn_in": True}, TypeError, "burn_in must be an integer, got True"),
        ({"burn_in": None}, TypeError, "burn_in must be an integer, got None"),
        ({"priority": 1.0}, TypeError, "priority must be None or a function"),
        ({"pad_start": 1}, TypeError, "pad_start must be True or False, got 1"),
        (
            {"buffer": STEP},
            TypeError,
            "buffer must be a ReplayBuffer or a PrioritizedReplayBuffer, got dict",
        ),
        (
            {"buffer": kr.ReplayBuffer(9, STEP)},
            ValueError,
            "buffer must have a field mask of 4 bools, got None",
        ),
    ],
)
def test_bad_arguments_of_the_constructor(change, error, message):
    buffer = kr.PrioritizedReplayBuffer(10, kr.sequence_fields(STEP, 4))
    with pytest.raises(error, match=message):
        kr.SequenceWriter(**{"buffer": buffer, **GOOD, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mask": kr.Field((4,), "uint8")}, "buffer must have a field mask of 4 bools"),
        ({"mask": {"a": kr.Field((4,), "bool")}}, "buffer must have a field mask of 4 bools"),
        (
            {"reward": kr.Field((), "float32")},
            r"buffer has reward of shape \(\), which is not of 4 steps: make the fields",
        ),
        (
            {"a": {"b": kr.Field((3, 4), "int8")}},
            r"buffer has a\['b'\] of shape \(3, 4\), which is not of 4 steps",
        ),
        (
            {"terminated": kr.Field((4,), "float32")},
            "buffer must have terminated as one bool per step",
        ),
        (
            {"truncated": kr.Field((4, 1), "bool")},
            "buffer must have truncated as one bool per step",
        ),
        (
            {"env": kr.Field((4,), "int64")},
            "buffer has a field env, which add takes as an argument",
        ),
    ],
)
def test_fields_that_do_not_fit(change, message):
    buffer = kr.ReplayBuffer(10, {**kr.sequence_fields(STEP, 4), **change})
    with pytest.raises(ValueError, match=message):
        kr.SequenceWriter(buffer, **GOOD)


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((STEP, 0), ValueError, "length must be at least 1, got 0"),
        ((STEP, "4"), TypeError, "length must be an integer"),
        (([], 4), TypeError, "fields must be a mapping of names to Field, got list"),
        (({}, 4), ValueError, "fields must name at least one field"),
        (({"a": 1}, 4), TypeError, r"fields\['a'\] must be a Field"),
        (
            ({"mask": STATE}, 4),
            ValueError,
            "must not be named mask or recurrent_state, which the sequence has, got mask",
        ),
        (
            ({"recurrent_state": STATE}, 4),
            ValueError,
            "fields must not be named mask or recurrent_state",
        ),
        (
            (STEP, 4, (2,)),
            TypeError,
            "recurrent_state must be None, a Field or a mapping of them, got tuple",
        ),
        ((STEP, 4, {}), ValueError, "recurrent_state must name at least one field"),
        ((STEP, 4, {"h": 3}), TypeError, r"recurrent_state\['h'\] must be a Field"),
    ],
)
def test_bad_arguments_of_sequence_fields(args, error, message):
    with pytest.raises(error, match=message):
        kr.sequence_fields(*args)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"observation": ...}, kr.errors.FieldError, "field observation is missing"),
        ({"recurrent_state": ...}, kr.errors.FieldError, "field recurrent_state is missing"),
        (
            {"recurrent_state": np.zeros((2, 3))},
            kr.errors.FieldError,
            "recurrent_state must have shape",
        ),
        (
            {"mask": [True, True]},
            kr.errors.FieldError,
            "mask is computed by the writer: leave it out",
        ),
        (
            {"reward": [1.0, 1.0]},
            kr.errors.FieldError,
            "field reward is unknown; the fields are observation, recurrent_state",
        ),
        (
            {"observation": [1, 2, 3]},
            kr.errors.FieldError,
            "observation must have a leading axis of 2",
        ),
        ({"observation": [0.5, 1.5]}, kr.errors.FieldError, "cannot be cast safely to int64"),
        ({"terminated": [0, 0]}, kr.errors.FieldError, "terminated has dtype int64"),
        ({"truncated": False}, kr.errors.FieldError, "truncated must have a leading axis of 2"),
        ({"terminated": ...}, TypeError, "terminated"),
        ({"env": [0, 5]}, ValueError, "env must be from 0 to 1, got 5"),
        ({"env": [1, 1]}, ValueError, "env must name each environment once, got 1 more than once"),
        ({"env": "a"}, TypeError, "env must be None, an integer or a list of integers"),
    ],
)
def test_bad_arguments_of_add(change, error, message):
    buffer, writer = make(2, 2, n_envs=2)
    writer.add(**step([1, 11]))
    bad = {name: value for name, value in {**step([2, 12]), **change}.items() if value is not ...}
    with pytest.raises(error, match=message):
        writer.add(**bad)
    assert len(buffer) == 0
    writer.add(**step([2, 12]))
    assert rows(buffer)["observation"] == [[1, 2], [11, 12]]


def test_bad_arguments_of_reset():
    buffer, writer = make(2, 2, n_envs=2)
    writer.add(**step([1, 11]))
    with pytest.raises(ValueError, match="env must be from 0 to 1, got 2"):
        writer.reset([0, 2])
    writer.add(**step([2, 12]))
    assert rows(buffer)["observation"] == [[1, 2], [11, 12]]


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        (([[1.0]], [[1]]), TypeError, "mask must be an array of bool, got dtype int64"),
        (([["a"]], [[True]]), TypeError, "td_error must be an array of real numbers"),
        (
            ([1.0], [True]),
            ValueError,
            r"td_error and mask must both have the shape \[B, T\], got \(1,\) and \(1,\)",
        ),
        (
            ([[1.0]], [[True, True]]),
            ValueError,
            r"must both have the shape \[B, T\], got \(1, 1\) and \(1, 2\)",
        ),
        ((np.empty((2, 0)), np.empty((2, 0), bool)), ValueError, "must both have the shape"),
        (
            ([[1.0], [np.nan]], [[True], [True]]),
            ValueError,
            "td_error must be finite where mask is true, .* in row 1",
        ),
        (([[np.inf]], [[True]]), ValueError, "td_error must be finite where mask is true"),
        (([[1.0]], [[True]], 1.5), ValueError, "eta must be from 0 to 1, got 1.5"),
        (([[1.0]], [[True]], None), TypeError, "eta must be a real number"),
    ],
)
def test_bad_arguments_of_sequence_priority(args, error, message):
    with pytest.raises(error, match=message):
        kr.sequence_priority(*args)


@pytest.mark.parametrize(
    ("value", "burn_in", "error", "message"),
    [
        (
            np.zeros((2, 4)),
            4,
            ValueError,
            "burn_in must be from 0 to 3, shorter than a sequence, got 4",
        ),
        (
            np.zeros((2, 4)),
            -1,
            ValueError,
            "burn_in must be from 0 to 3, shorter than a sequence, got -1",
        ),
        ({"a": np.zeros((2, 4))}, 1.0, TypeError, "burn_in must be an integer, got 1.0"),
        (
            np.zeros(4),
            1,
            TypeError,
            r"value must be an array of shape \[B, length, .* got shape \(4,\)",
        ),
        ([[1, 2]], 1, TypeError, "value must be an array of shape .*, got list"),
    ],
)
def test_bad_arguments_of_split_burn_in(value, burn_in, error, message):
    with pytest.raises(error, match=message):
        kr.split_burn_in(value, burn_in)
