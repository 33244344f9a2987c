"""FrameReplayBuffer and FrameStackWriter refuse what is wrong, and name argument and value."""

import numpy as np
import pytest
from frame_writers import FIELDS, NUMBER, TERMINATED, drawable, make, step

import kary_replay as kr

BUFFER = {"capacity": 10, "frame": NUMBER, "fields": FIELDS, "stack": 3, "n_step": 2}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"stack": 0}, ValueError, "stack must be at least 1, got 0"),
        ({"stack": 1.5}, TypeError, "stack must be an integer"),
        ({"n_step": 0}, ValueError, "n_step must be at least 1, got 0"),
        ({"n_step": True}, TypeError, "n_step must be an integer"),
        ({"stack": 9}, ValueError, r"stack \+ n_step must be at most capacity, 10: .* got 9 \+ 2"),
        ({"n_step": 8}, ValueError, r"stack \+ n_step must be at most capacity, 10"),
        ({"capacity": 0}, ValueError, "capacity must be at least 1"),
        ({"padding": "reset"}, ValueError, "padding must be one of repeat, zeros, got 'reset'"),
        ({"padding": None}, ValueError, "padding must be one of"),
        ({"frame": "uint8"}, TypeError, "frame must be a mapping"),
        ({"frame": {}}, ValueError, "frame must name at least one field"),
        (
            {"frame": kr.Field((1,) * 31, "uint8")},
            ValueError,
            "frame must have at most 30 axes, got 31",
        ),
        ({"fields": {"reward": NUMBER}}, ValueError, "fields must name action, got reward"),
        ({"fields": {}}, ValueError, "fields must name at least one field"),
        (
            {"fields": {"action": NUMBER, "observation": NUMBER}},
            ValueError,
            "fields must not be named .* got observation",
        ),
        ({"fields": {"action": NUMBER, "history": NUMBER}}, ValueError, "got history"),
        ({"fields": {"action": NUMBER, "index": NUMBER}}, ValueError, "got index"),
        ({"alpha": 1.5}, ValueError, "alpha must be from 0 to 1"),
    ],
)
def test_bad_arguments_of_the_buffer(change, error, message):
    with pytest.raises(error, match=message):
        kr.FrameReplayBuffer(**{**BUFFER, **change})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"n_envs": 0}, ValueError, "n_envs must be at least 1"),
        (
            {"n_envs": 3},
            ValueError,
            r"n_envs \* \(stack \+ n_step\) must be at most the buffer's capacity, 10, "
            r"got 3 \* \(3 \+ 2\)",
        ),
        ({"gamma": 1.5}, ValueError, "gamma must be from 0 to 1"),
        ({"priority": 1.0}, TypeError, "priority must be None or a function"),
        (
            {"buffer": kr.ReplayBuffer(9, {"action": NUMBER})},
            TypeError,
            "buffer must be a FrameReplayBuffer, got ReplayBuffer",
        ),
        (
            {"buffer": kr.FrameReplayBuffer(10, NUMBER, {"action": NUMBER, "reward": NUMBER})},
            ValueError,
            "must have reward as a floating scalar",
        ),
        (
            {"buffer": kr.FrameReplayBuffer(10, NUMBER, {"action": NUMBER, "env": NUMBER})},
            ValueError,
            "has a field env",
        ),
    ],
)
def test_bad_arguments_of_the_writer(change, error, message):
    good = {"buffer": kr.FrameReplayBuffer(**BUFFER), "n_envs": 2, "gamma": 0.9}
    with pytest.raises(error, match=message):
        kr.FrameStackWriter(**{**good, **change})


def test_other_writers_refuse_the_buffer_and_it_refuses_rows():
    buffer = kr.FrameReplayBuffer(**BUFFER)
    with pytest.raises(ValueError, match="buffer lacks the fields observation"):
        kr.NStepWriter(buffer, 1, 2, 0.9)
    with pytest.raises(ValueError, match="buffer must have a field mask"):
        kr.SequenceWriter(buffer, 1, 2, 1)
    with pytest.raises(TypeError, match="come from a FrameStackWriter"):
        buffer.add(frame=0, action=0, reward=0.0)


IMAGE = kr.Field((4, 5), "uint8")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"next_frame": np.zeros((2, 4, 4), np.uint8)},
            kr.errors.FieldError,
            r"next_frame must have shape \(4, 5\)",
        ),
        (
            {"next_frame": np.zeros((2, 3, 4, 5), np.uint8)},
            kr.errors.FieldError,
            "next_frame must have shape",
        ),
        (
            {"next_frame": np.zeros((3, 4, 5), np.uint8)},
            kr.errors.FieldError,
            "next_frame must have a leading axis of 2",
        ),
        (
            {"next_frame": np.zeros((4, 5), np.uint8)},
            kr.errors.FieldError,
            "next_frame must have a leading axis of 2",
        ),
        (
            {"next_frame": np.full((2, 4, 5), 300)},
            kr.errors.FieldError,
            "next_frame has dtype int64, .* 0 … 255",
        ),
        ({"next_frame": {"a": 1}}, kr.errors.FieldError, "next_frame"),
        ({"action": [1]}, kr.errors.FieldError, "action must have a leading axis of 2"),
        ({"action": None}, kr.errors.FieldError, "action"),
        ({"reward": [1e39, 0.0]}, kr.errors.FieldError, "reward is beyond"),
        ({"discount": [1.0, 1.0]}, kr.errors.FieldError, "discount is computed by the writer"),
        (
            {"observation": [1, 1]},
            kr.errors.FieldError,
            "field observation is unknown; the fields are",
        ),
        ({"frame": [1, 1]}, kr.errors.FieldError, "field frame is unknown"),
        ({"terminated": [True]}, kr.errors.FieldError, "terminated must have a leading axis of 2"),
        ({"env": [0, 2]}, ValueError, "env must be from 0 to 1, got 2"),
        ({"env": [1, 1]}, ValueError, "env must name each environment once"),
        ({"env": [True, False]}, TypeError, "env must be None"),
        ({"priority": [1.0, 1.0]}, kr.errors.FieldError, "field priority is unknown"),
    ],
)
def test_a_bad_step_is_not_taken(change, error, message):
    buffer = kr.FrameReplayBuffer(40, IMAGE, {"action": NUMBER}, stack=2, n_step=2)
    writer = kr.FrameStackWriter(buffer, 2, 0.9)
    good = {"action": [0, 1], "reward": [0.0, 1.0], "next_frame": np.zeros((2, 4, 5), np.uint8)}
    good |= {"terminated": [False, False], "truncated": [False, False]}
    writer.reset(good["next_frame"])
    writer.add(**good)
    with pytest.raises(error, match=message):
        writer.add(**{**good, **change})
    assert (len(buffer), buffer.n_added, writer.n_pending.tolist()) == (4, 0, [1, 1])
    assert writer.add(**good).tolist() == [4, 5]


@pytest.mark.parametrize(
    ("frame", "env", "error", "message"),
    [
        (
            np.zeros((2, 5, 4), np.uint8),
            None,
            kr.errors.FieldError,
            r"frame must have shape \(4, 5\)",
        ),
        (
            np.zeros((1, 4, 5), np.uint8),
            None,
            kr.errors.FieldError,
            "frame must have a leading axis of 2",
        ),
        (np.zeros((1, 4, 5), np.uint8), [2], ValueError, "env must be from 0 to 1, got 2"),
        (
            np.zeros((2, 4, 5), np.float32),
            None,
            kr.errors.FieldError,
            "frame has dtype float32, which cannot be cast",
        ),
        (None, None, kr.errors.FieldError, "frame"),
    ],
)
def test_a_bad_reset_drops_nothing(frame, env, error, message):
    buffer = kr.FrameReplayBuffer(40, IMAGE, {"action": NUMBER}, stack=2, n_step=2)
    writer = kr.FrameStackWriter(buffer, 2, 0.9)
    zeros = np.zeros((2, 4, 5), np.uint8)
    writer.reset(zeros)
    good = {
        "action": [0, 1],
        "reward": [0.0, 1.0],
        "next_frame": zeros,
        "terminated": [False] * 2,
        "truncated": [False] * 2,
    }
    writer.add(**good)
    with pytest.raises(error, match=message):
        writer.reset(frame, env=env)
    assert (len(buffer), writer.n_pending.tolist()) == (4, [1, 1])


@pytest.mark.parametrize(
    ("stack", "env", "error", "message"),
    [
        (
            np.zeros((2, 1, 4, 5), np.uint8),
            None,
            kr.errors.FieldError,
            r"stack must have 2 frames for each of 2 environments, .* got \(2, 1, 4, 5\)",
        ),
        (np.zeros((2, 3, 4, 5), np.uint8), None, kr.errors.FieldError, "must have 2 frames"),
        (np.zeros((2, 2, 4, 5), np.uint8), [1], kr.errors.FieldError, "each of 1 environments"),
        (np.zeros((2, 2, 4), np.uint8), None, kr.errors.FieldError, "stack"),
        (np.zeros((2, 2, 4, 5), np.float32), None, kr.errors.FieldError, "has dtype float32"),
        (7, None, kr.errors.FieldError, r"must have 2 frames .* got \(\)"),
        (np.zeros((2, 2, 4, 5), np.uint8), [2, 0], ValueError, "env must be from 0 to 1, got 2"),
    ],
)
def test_a_bad_beginning_within_an_episode_writes_nothing(stack, env, error, message):
    buffer = kr.FrameReplayBuffer(40, IMAGE, {"action": NUMBER}, stack=2, n_step=2)
    writer = kr.FrameStackWriter(buffer, 2, 0.9)
    with pytest.raises(error, match=message):
        writer.begin_within(stack, env=env)
    assert len(buffer) == 0 and not writer.has_begun.any()
    good = np.arange(80, dtype=np.uint8).reshape(2, 2, 4, 5)
    writer.begin_within(good)
    assert (writer.shown() == good).all()


def test_parts_of_a_frame():
    buffer = kr.FrameReplayBuffer(
        40, {"left": NUMBER, "right": NUMBER}, {"action": NUMBER}, stack=2
    )
    writer = kr.FrameStackWriter(buffer, 1, 0.9)
    for frame, message in [
        ({"left": 1}, r"frame\['right'\] is missing"),
        ({"left": 1, "right": 2, "up": 3}, "field frame.up is unknown"),
        (1, r"frame must be a mapping with 'left'"),
        ({"left": 1, "right": [[2]]}, r"frame\['right'\] must have shape"),
    ]:
        with pytest.raises(kr.errors.FieldError, match=message):
            writer.reset(frame)
    assert len(buffer) == 0
    writer.reset({"left": 1, "right": 2})
    step = {"action": [0], "reward": [0.0], "terminated": [False], "truncated": [False]}
    for frame, message in [
        ({"left": 1}, r"next_frame\['right'\] is missing"),
        (1, r"next_frame must be a mapping with 'left'"),
        ({"left": 1, "right": 2, "up": 3}, "field next_frame.up is unknown"),
    ]:
        with pytest.raises(kr.errors.FieldError, match=message):
            writer.add(**step, next_frame=frame)
    assert len(buffer) == 1


def test_every_episode_needs_its_first_frame():
    buffer, writer = make(2, n_envs=2)
    with pytest.raises(
        ValueError, match="environment 0 has no episode: call reset with its first frame"
    ):
        writer.add(**step([11, 101], [1.0, 1.0], [(False, False)] * 2))
    writer.reset([10, 100])
    writer.add(**step([11, 101], [1.0, 1.0], [(False, False), TERMINATED]))
    with pytest.raises(ValueError, match="environment 1 has no episode"):
        writer.add(**step([12, 102], [1.0, 1.0], [(False, False)] * 2))
    writer.add(**step([12], [1.0], env=0))
    assert len(drawable(buffer)) == 3


def test_bad_priorities_are_refused_and_the_step_again_goes_through():
    answers = [np.array([0.0]), np.array([1.0, 2.0]), "x", np.array([-1.0]), np.array([1.5])]
    buffer = kr.FrameReplayBuffer(20, NUMBER, FIELDS, stack=2, n_step=2, alpha=1.0)
    writer = kr.FrameStackWriter(buffer, 1, 0.5, priority=lambda _: answers.pop(0))
    writer.reset(10)
    writer.add(**step(11))
    for _ in range(4):
        with pytest.raises((ValueError, TypeError)):
            writer.add(**step(12))
        assert (len(buffer), writer.n_pending.tolist()) == (2, [1])
    assert writer.add(**step(12)).tolist() == [2]
    assert buffer.total_mass == 1.5


def test_a_closed_buffer():
    buffer, writer = make(2)
    buffer.close()
    with pytest.raises(kr.errors.ClosedError):
        writer.reset(1)
    with pytest.raises(kr.errors.ClosedError):
        buffer.sample(1)


def test_a_sum_of_rewards_beyond_float64_is_no_step():
    fields = {"action": kr.Field((), "int64"), "reward": kr.Field((), "float64")}
    buffer = kr.FrameReplayBuffer(20, kr.Field((), "int64"), fields, stack=2, n_step=2, seed=0)
    writer = kr.FrameStackWriter(buffer, n_envs=1, gamma=1.0)
    writer.reset(0)
    step = {"action": 0, "terminated": False, "truncated": False}
    writer.add(**step, reward=1.7e308, next_frame=1)
    n_rows = len(buffer)
    with pytest.raises(kr.errors.FieldError, match="n-step sum of reward is beyond"):
        writer.add(**step, reward=1.7e308, next_frame=2)
    assert (len(buffer), writer.n_pending.tolist()) == (n_rows, [1])
    writer.add(**step, reward=-1e308, next_frame=2)
    assert buffer.sample(1).reward.tolist() == [1.7e308 - 1e308]
