"""Batches that go into arrays of the caller."""

import numpy as np
import pytest

import kary_replay as kr
from kary_replay.errors import ClosedError, FieldError

FIELDS = {
    "observation": {"camera": kr.Field((3, 2), "uint8"), "speed": kr.Field((), "float64")},
    "reward": kr.Field((), "float32"),
}
KINDS = {"uniform": kr.ReplayBuffer, "prioritized": kr.PrioritizedReplayBuffer}
B = 5


def filled(kind, n=20):
    buffer = kind(32, FIELDS, seed=3)
    rows = np.arange(n)
    buffer.add(
        observation={
            "camera": np.full((n, 3, 2), rows[:, None, None]),
            "speed": rows.astype(float),
        },
        reward=rows.astype(np.float32),
    )
    return buffer


def columns_of(batch):
    """Return the arrays of a batch by name, nested ones too."""
    observation = batch.observation
    return {**{k: batch[k] for k in batch if k != "observation"}, **observation}


@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_former_batch_is_filled_with_what_a_new_one_would_hold(kind, unique):
    one, other = filled(kind), filled(kind)
    old = columns_of(one.sample(B, unique=unique))
    former = other.sample(B, unique=unique)
    batch = other.sample(B, unique=unique, out=former)
    wanted = columns_of(one.sample(B, unique=unique))
    for name, array in columns_of(batch).items():
        np.testing.assert_array_equal(array, wanted[name])
        assert array is columns_of(former)[name]
    assert any((old[name] != wanted[name]).any() for name in ("reward", "index"))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_is_not_given_is_made(kind):
    camera = np.zeros((B, 3, 2), np.uint8)
    index = np.zeros(B, np.int64)
    batch = filled(kind).sample(B, out={"observation": {"camera": camera}, "index": index})
    assert batch.observation["camera"] is camera and batch.index is index
    np.testing.assert_array_equal(camera[:, 0, 0], batch.reward)
    np.testing.assert_array_equal(index, batch.reward)
    assert filled(kind).sample(B, out={}).reward.shape == (B,)


def read_only(array):
    array.flags.writeable = False
    return array


WRONG = {
    "another length": (np.zeros(B + 1, np.float32), ValueError, r"float32\[5\], got float32\[6\]"),
    "more axes": (np.zeros((B, 1), np.float32), ValueError, r"got float32\[5, 1\]"),
    "another dtype": (np.zeros(B), ValueError, "got float64"),
    "another byte order": (np.zeros(B, ">f4"), ValueError, "reward must be an array"),
    "read-only": (read_only(np.zeros(B, np.float32)), ValueError, "writeable"),
    "strided": (np.zeros(2 * B, np.float32)[::2], ValueError, "contiguous"),
    "unaligned": (np.zeros(4 * B + 1, np.uint8)[1:].view(np.float32), ValueError, "aligned"),
    "a list": ([0.0] * B, TypeError, "got list"),
    "none": (None, TypeError, "got NoneType"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_arrays_that_do_not_fit_are_refused_before_anything_is_drawn(kind, case):
    array, error, message = WRONG[case]
    buffer, twin = filled(kind), filled(kind)
    index = np.full(B, -7)
    with pytest.raises(error, match=message):
        buffer.sample(B, out={"index": index, "reward": array})
    assert (index == -7).all() and buffer.n_sampled == 0
    np.testing.assert_array_equal(buffer.sample(B).index, twin.sample(B).index)  # the same stream


@pytest.mark.parametrize("own", ["importance_weight", "index", "handle"])
def test_columns_beside_the_fields_are_checked_too(own):
    buffer = filled(kr.PrioritizedReplayBuffer)
    with pytest.raises(ValueError, match=f"out: {own} must be"):
        buffer.sample(B, out={own: np.zeros(B, np.int8)})
    assert buffer.n_sampled == 0


def test_names_that_the_batch_lacks_are_refused():
    buffer = filled(kr.ReplayBuffer)
    for out in (
        {"importance_weight": np.zeros(B, np.float32)},  # it has none
        {"action": np.zeros(B)},
        {"observation": {"sonar": np.zeros(B)}},
        {"observation": np.zeros(B)},
    ):
        with pytest.raises(FieldError):
            buffer.sample(B, out=out)
    with pytest.raises(TypeError, match="out must be a batch or a mapping, got list"):
        buffer.sample(B, out=[1, 2])
    assert buffer.n_sampled == 0


def test_arrays_that_overlap_do_no_harm_but_to_each_other():
    """What comes out may be anything; the buffer looks at handles of its own."""
    buffer = kr.PrioritizedReplayBuffer(64, {"x": kr.Field((2,), "int64")}, seed=0)
    priority = np.ones(64)
    priority[0] = 1e12
    buffer.add(x=np.full((64, 2), 10**12), priority=priority)
    raw = np.zeros((65, 2), np.int64)
    handle = raw[1:].view(kr.HANDLE_DTYPE).reshape(64)
    batch = buffer.sample(64, unique=True, out={"x": raw[:64], "handle": handle})
    assert sorted(batch.index) == list(range(64))


def test_masked_arrays_and_closed_buffers_are_refused():
    buffer = filled(kr.PrioritizedReplayBuffer)
    with pytest.raises(TypeError, match="got MaskedArray"):
        buffer.sample(B, out={"reward": np.ma.zeros(B, np.float32)})
    buffer.close()
    with pytest.raises(ClosedError):
        buffer.sample(B, out=5)


def test_frames_go_where_they_were():
    fields = {"action": kr.Field((), "int64"), "reward": kr.Field((), "float32")}
    buffers = [
        kr.FrameReplayBuffer(64, kr.Field((4, 4), "uint8"), fields, stack=2, seed=1)
        for _ in range(2)
    ]
    for buffer in buffers:
        writer = kr.FrameStackWriter(buffer, 1, 0.9)
        writer.reset(np.zeros((1, 4, 4), np.uint8))
        for step in range(30):
            frame = np.full((1, 4, 4), step + 1, np.uint8)
            ends = {"terminated": [False], "truncated": [False]}
            writer.add(action=[step], reward=[float(step)], next_frame=frame, **ends)
    wanted, former = [buffer.sample(B) for buffer in buffers]
    wanted = buffers[0].sample(B)
    batch = buffers[1].sample(B, out=former)
    assert batch.frames is former.frames
    for name in wanted:
        np.testing.assert_array_equal(batch[name], wanted[name])
    for out, message in (
        ({"observation": wanted.observation}, "observation is a view of frames"),
        ({"history": np.zeros((B, 1))}, "a batch has frames"),
    ):
        with pytest.raises(FieldError, match=message):
            buffers[1].sample(B, out=out)
