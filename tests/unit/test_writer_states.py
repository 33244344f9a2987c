"""Writers go on where another one stopped, beside a buffer that was saved at the same moment."""

import pickle

import numpy as np
import pytest

import kary_replay as kr

N_ENVS, CAPACITY = 3, 200
VECTOR = {
    "observation": {"near": kr.Field((2,), "float32"), "far": kr.Field((), "int64")},
    "next_observation": {"near": kr.Field((2,), "float32"), "far": kr.Field((), "int64")},
    "action": kr.Field((), "int64"),
    "reward": kr.Field((), "float32"),
    "discount": kr.Field((), "float32"),
}


class Vectors:
    """Steps of numbers, through an NStepWriter."""

    def __init__(self, n_step):
        self.n_step = n_step
        self.buffer = kr.PrioritizedReplayBuffer(CAPACITY, VECTOR, seed=1)

    def writer(self, buffer, gamma=0.9):
        return kr.NStepWriter(buffer, N_ENVS, self.n_step, gamma)

    def begin(self, writer):
        pass

    def step(self, writer, rng):
        def observation():
            return {
                "near": rng.random((N_ENVS, 2), np.float32),
                "far": rng.integers(9, size=N_ENVS),
            }

        writer.add(
            observation=observation(),
            next_observation=observation(),
            action=rng.integers(3, size=N_ENVS),
            reward=rng.random(N_ENVS),
            terminated=rng.random(N_ENVS) < 0.1,
            truncated=rng.random(N_ENVS) < 0.1,
        )


class Frames:
    """Frames of one pixel, through a FrameStackWriter."""

    def __init__(self, n_step):
        fields = {"action": kr.Field((), "int64")}
        self.buffer = kr.FrameReplayBuffer(
            CAPACITY, kr.Field((), "uint8"), fields, stack=3, n_step=n_step, seed=1
        )

    def writer(self, buffer, gamma=0.9):
        return kr.FrameStackWriter(buffer, N_ENVS, gamma)

    def begin(self, writer):
        writer.reset(np.arange(N_ENVS, dtype=np.uint8))

    def step(self, writer, rng):
        terminated = rng.random(N_ENVS) < 0.1
        frames = rng.integers(256, size=(2, N_ENVS), dtype=np.uint8)
        writer.add(
            next_frame=frames[0],
            action=rng.integers(3, size=N_ENVS),
            reward=rng.random(N_ENVS),
            terminated=terminated,
            truncated=np.zeros(N_ENVS, bool),
        )
        ended = np.flatnonzero(terminated)
        if len(ended):
            writer.reset(frames[1][ended], env=ended)


class Sequences:
    """Steps of numbers, through a SequenceWriter; a row has twice ``n_step`` steps."""

    def __init__(self, n_step):
        self.length = 2 * n_step
        step = {"observation": kr.Field((2,), "float32"), "reward": kr.Field((), "float32")}
        fields = kr.sequence_fields(step, self.length, recurrent_state=kr.Field((3,), "float32"))
        self.buffer = kr.PrioritizedReplayBuffer(CAPACITY, fields, seed=1)

    def writer(self, buffer, **changes):
        made = {"length": self.length, "period": self.length // 2, "burn_in": 1, "pad_start": True}
        return kr.SequenceWriter(buffer, N_ENVS, **{**made, **changes})

    def begin(self, writer):
        pass

    def step(self, writer, rng):
        writer.add(
            observation=rng.random((N_ENVS, 2), np.float32),
            reward=rng.random(N_ENVS),
            recurrent_state=rng.random((N_ENVS, 3), np.float32),
            terminated=rng.random(N_ENVS) < 0.1,
            truncated=rng.random(N_ENVS) < 0.1,
        )


KINDS = [(Vectors, 1), (Vectors, 4), (Frames, 1), (Frames, 3), (Sequences, 1), (Sequences, 4)]


def drawn(buffer):
    """Everything of many draws, which depend on all that a buffer holds."""
    batch = buffer.sample(256)
    return pickle.dumps([np.ascontiguousarray(part) for part in leaves(dict(batch))])


def leaves(value):
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in leaves(part)]
    return [value]


@pytest.mark.parametrize(("kind", "n_step"), KINDS)
@pytest.mark.parametrize("n_before", [0, 1, 2, 57, 150])
@pytest.mark.parametrize("takes_up", [True, False])
def test_going_on_changes_nothing(kind, n_step, n_before, takes_up, tmp_path):
    made = kind(n_step)
    writer, rng = made.writer(made.buffer), np.random.default_rng(5)
    made.begin(writer)
    for _ in range(n_before):
        made.step(writer, rng)
    made.buffer.save(tmp_path / "saved")
    state = pickle.loads(pickle.dumps(writer.state_dict()))
    again = type(made.buffer).load(tmp_path / "saved")
    other = made.writer(again)
    if takes_up:
        other.load_state_dict(state)
    elif kind is Frames:
        made.begin(other)
    other_rng = np.random.default_rng()
    other_rng.bit_generator.state = rng.bit_generator.state
    for _ in range(40):
        made.step(writer, rng)
        made.step(other, other_rng)
    is_needed = n_before > 0 and (kind is not Vectors or n_step > 1)
    same = drawn(made.buffer) == drawn(again)
    if kind is not Sequences:
        same = same and (writer.n_pending == other.n_pending).all()
    assert same == (takes_up or not (is_needed or kind is Frames))


@pytest.mark.parametrize(("kind", "n_step"), KINDS)
def test_a_state_is_a_copy(kind, n_step):
    made = kind(n_step)
    writer, rng = made.writer(made.buffer), np.random.default_rng(5)
    made.begin(writer)
    made.step(writer, rng)
    state = writer.state_dict()
    before = pickle.dumps(state)
    for _ in range(5):
        made.step(writer, rng)
    assert pickle.dumps(state) == before
    writer.load_state_dict(state)
    made.step(writer, rng)
    assert pickle.dumps(state) == before


@pytest.mark.parametrize(("kind", "n_step"), KINDS)
def test_the_state_of_another_kind_of_writer_is_refused_and_changes_nothing(kind, n_step):
    made = kind(n_step)
    writer, rng = made.writer(made.buffer), np.random.default_rng(5)
    made.begin(writer)
    made.step(writer, rng)
    before = pickle.dumps(writer.state_dict())
    state = writer.state_dict()
    name = "last observation" if kind is Sequences else "return"
    lacking = {other: array for other, array in state.items() if other != name}
    longer = {**state, name: np.concatenate([state[name], state[name]])}
    others = {**state, name: state[name].astype(np.int16)}
    for wrong in (lacking, longer, others, {}):
        with pytest.raises(ValueError, match=rf"state must have .*{name}"):
            writer.load_state_dict(wrong)
        assert pickle.dumps(writer.state_dict()) == before


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Vectors, {"gamma": 0.95}),
        (Frames, {"gamma": 0.95}),
        (Sequences, {"period": 3}),
        (Sequences, {"period": 5}),
        (Sequences, {"burn_in": 2}),
        (Sequences, {"pad_start": False}),
    ],
)
def test_the_state_of_a_writer_made_with_other_arguments_is_refused(kind, changes):
    """Its arrays may have the same shapes, and other meanings."""
    made = kind(4)
    writer, rng = made.writer(made.buffer), np.random.default_rng(5)
    made.begin(writer)
    for _ in range(3):
        made.step(writer, rng)
    other = made.writer(made.buffer, **changes)
    made.begin(other)
    before = pickle.dumps(other.state_dict())
    [(name, value)] = changes.items()
    with pytest.raises(ValueError, match=f"state must be of a writer with {name}={value}"):
        other.load_state_dict(writer.state_dict())
    assert pickle.dumps(other.state_dict()) == before
