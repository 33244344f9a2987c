"""NStepWriter refuses what is wrong, and names argument, value and remedy."""

import pytest
from n_step_writers import FIELDS, NOT, make, rows, step

import kary_replay as kr

GOOD = {"n_envs": 2, "n_step": 3, "gamma": 0.9}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_envs": 0}, ValueError, "n_envs must be at least 1, got 0"),
        ({"n_envs": 1.5}, TypeError, "n_envs must be an integer, got 1.5"),
        ({"n_step": 0}, ValueError, "n_step must be at least 1, got 0"),
        ({"n_step": True}, TypeError, "n_step must be an integer, got True"),
        ({"n_step": 11}, ValueError, "n_step must be at most the buffer's capacity, 10, got 11"),
        ({"gamma": 1.01}, ValueError, "gamma must be from 0 to 1, got 1.01"),
        ({"gamma": float("nan")}, ValueError, "gamma must be from 0 to 1, got nan"),
        ({"gamma": "0.9"}, TypeError, "gamma must be a real number"),
        ({"priority": 1.0}, TypeError, "priority must be None or a function"),
        (
            {"buffer": kr.SumTree(4)},
            TypeError,
            "buffer must be a ReplayBuffer or a PrioritizedReplayBuffer, got SumTree",
        ),
        ({"buffer": None}, TypeError, "buffer must be a ReplayBuffer"),
        (
            {"buffer": kr.ReplayBuffer(10, FIELDS), "priority": abs},
            ValueError,
            "priority must be None for a ReplayBuffer",
        ),
    ],
)
def test_bad_arguments_of_the_constructor(change, error, message):
    buffer = kr.PrioritizedReplayBuffer(10, FIELDS)
    with pytest.raises(error, match=message):
        kr.NStepWriter(**{"buffer": buffer, **GOOD, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"discount": None},
            r'buffer lacks the fields discount; add "discount": Field\(\(\), "float32"\), '
            r"which replaces term",
        ),
        (
            {"discount": None, "terminated": None},
            r'lacks the fields discount; add "discount": Field\(\(\), "float32"\): gamma',
        ),
        (
            {"action": None, "reward": None},
            "lacks the fields action, reward; give it at least observation, action, reward, nex",
        ),
        ({"reward": kr.Field((), "int64")}, "must have reward as a floating scalar"),
        ({"reward": kr.Field((2,), "float32")}, "must have reward as a floating scalar"),
        ({"discount": kr.Field((), "bool")}, "must have discount as a floating scalar"),
        ({"terminated": kr.Field((1,), "bool")}, "must have terminated as a boolean scalar"),
        ({"terminated": {"a": kr.Field((), "bool")}}, "must have terminated as a boolean scalar"),
        ({"env": kr.Field((), "int64")}, "buffer has a field env, which add takes as an argument"),
    ],
)
def test_fields_that_do_not_fit(change, message):
    fields = {name: field for name, field in {**FIELDS, **change}.items() if field is not None}
    with pytest.raises(ValueError, match=message):
        kr.NStepWriter(kr.PrioritizedReplayBuffer(10, fields), **GOOD)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"action": ...}, kr.errors.FieldError, "field action is missing"),
        (
            {"colour": [1, 2]},
            kr.errors.FieldError,
            "field colour is unknown; the fields are observation, action, reward, next_o",
        ),
        (
            {"discount": [1.0, 1.0]},
            kr.errors.FieldError,
            "discount is computed by the writer: leave it out",
        ),
        (
            {"observation": [1, 2, 3]},
            kr.errors.FieldError,
            "observation must have a leading axis of 2, one value per .*, got a le",
        ),
        (
            {"observation": 1},
            kr.errors.FieldError,
            "observation must have a leading axis of 2, .* got no leading axis",
        ),
        ({"observation": [[1], [2]]}, kr.errors.FieldError, "observation must have shape"),
        ({"observation": [0.5, 1.0]}, kr.errors.FieldError, "cannot be cast safely to int64"),
        ({"reward": ["a", "b"]}, kr.errors.FieldError, "reward has dtype <U1"),
        ({"terminated": False}, kr.errors.FieldError, "terminated must have a leading axis of 2"),
        (
            {"terminated": [0, 1]},
            kr.errors.FieldError,
            "terminated has dtype int64, which cannot be cast safely to bool",
        ),
        (
            {"truncated": [False]},
            kr.errors.FieldError,
            "truncated must have a leading axis of 2, .* got a leading axis of 1",
        ),
        ({"truncated": ...}, TypeError, "truncated"),
        ({"env": [0, 2]}, ValueError, "env must be from 0 to 1, got 2"),
        ({"env": -1}, ValueError, "env must be from 0 to 1, got -1"),
        ({"env": [0, 0]}, ValueError, "env must name each environment once, got 0 more than once"),
        (
            {"env": [True, False]},
            TypeError,
            "env must be None, an integer or a list of integers .of a mask: np.flatnonzero",
        ),
        ({"env": [0.0, 1.0]}, TypeError, "env must be None, an integer"),
        ({"env": [[0, 1]]}, TypeError, "env must be None, an integer"),
        (
            {"env": [1]},
            kr.errors.FieldError,
            "observation must have a leading axis of 1, .* got a leading axis of 2",
        ),
    ],
)
def test_bad_arguments_of_add(change, error, message):
    buffer, writer = make(2, n_envs=2)
    writer.add(**step([0, 10], [1.0, 2.0], [NOT, NOT]))
    bad = {
        name: value
        for name, value in {**step([1, 11], [1.0, 2.0], [NOT, NOT]), **change}.items()
        if value is not ...
    }
    with pytest.raises(error, match=message):
        writer.add(**bad)
    assert (len(buffer), writer.n_pending.tolist()) == (0, [1, 1])
    writer.add(**step([1, 11], [1.0, 2.0], [NOT, NOT]))
    assert [row[:3] for row in rows(buffer)] == [(0, 2, 1.5), (10, 12, 3.0)]


def test_bad_arguments_of_reset():
    _, writer = make(3, n_envs=2)
    writer.add(**step([0, 10], [1.0, 2.0], [NOT, NOT]))
    with pytest.raises(ValueError, match="env must be from 0 to 1, got 2"):
        writer.reset([0, 2])
    assert writer.n_pending.tolist() == [1, 1]
