"""What fields can be, what is cast into them, and what gymnasium spaces become."""

import numpy as np
import pytest

import kary_replay as kr


def buffer_of(dtype, shape=(), capacity=4):
    return kr.PrioritizedReplayBuffer(capacity, {"value": kr.Field(shape, dtype)}, seed=0)


def stored(buffer, n_rows):
    return buffer.field_view("value")[:n_rows]


@pytest.mark.parametrize(
    "dtype",
    [
        "bool",
        "int8",
        "uint8",
        "int16",
        "int32",
        "int64",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
    ],
)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (7,), (33,), (5, 3), (2, 3, 4), (61, 5)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype, shape, rng):
    # Beside a narrow field, so that offsets are odd; finite bytes, so that equality means equality.
    fields = {
        "flag": kr.Field((), "bool"),
        "value": kr.Field(shape, dtype),
        "tail": kr.Field((3,), "uint8"),
    }
    buffer = kr.PrioritizedReplayBuffer(6, fields, seed=0)
    value = rng.integers(0, 2 if dtype == "bool" else 100, (6, *shape)).astype(dtype)
    tail = rng.integers(0, 256, (6, 3)).astype(np.uint8)
    buffer.add(flag=np.arange(6) % 2 == 1, value=value, tail=tail)
    batch = buffer.sample(40)
    assert batch.value.dtype == np.dtype(dtype) and batch.value.shape == (40, *shape)
    assert batch.value.flags.c_contiguous
    assert batch.value.tobytes() == value[batch.index].tobytes()
    assert (batch.tail == tail[batch.index]).all()
    assert (batch.flag == (batch.index % 2 == 1)).all()


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", np.array([0.1, 2.0])),
        ("float32", np.array([1, 2], np.int64)),
        ("float32", np.array([np.inf, np.nan])),
        ("float64", np.array([0.1, 2.0], np.float32)),
        ("float16", np.array([1.0, 2.0])),
        ("float32", np.array([True, False])),
        ("int64", np.array([3, -4], np.int8)),
        ("int8", np.array([127, -128], np.int64)),
        ("uint8", np.array([0, 255], np.int64)),
        ("uint64", np.array([0, 2**62], np.int64)),
        ("int64", np.array([0, 2**62], np.uint64)),
        ("int64", np.array([True, False])),
        ("uint8", np.array([True, False])),
        ("bool", np.array([True, False])),
        ("int64", [1, 2]),
        ("float32", [1, 2.5]),
        ("complex64", np.array([1.0, 2.0])),
    ],
)
def test_what_is_safe_is_cast(dtype, value):
    buffer = buffer_of(dtype)
    buffer.add(value=value)
    np.testing.assert_array_equal(stored(buffer, 2), np.asarray(value).astype(dtype))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int64", np.array([1.0, 2.0])),
        ("uint8", np.array([0.0, 1.0], np.float32)),
        ("bool", np.array([0, 1])),
        ("bool", np.array([0.0, 1.0])),
        ("float32", np.array([1 + 2j, 0])),
        ("int8", np.array([1, 128])),
        ("uint8", np.array([1, -1])),
        ("uint8", np.array([1, 256], np.uint16)),
        ("uint64", np.array([1, -1])),
        ("int64", np.array([1, 2**63], np.uint64)),
        ("float32", np.array([1.0, 1e39])),
        ("float16", np.array([1.0, 1e5], np.float32)),
        ("float16", np.array([1, 65535], np.uint16)),
        ("float16", np.array([1, 10**6], np.int64)),
        ("complex64", np.array([1.0, 1e39j])),
        ("float32", np.array(["1.0", "2.0"])),
        ("float32", np.array([None, 1.0])),
        ("int64", np.array(["2020-01-01", "2020-01-02"], "datetime64[D]")),
    ],
)
def test_what_would_lose_values_is_refused(dtype, value):
    buffer = buffer_of(dtype)
    with pytest.raises(kr.errors.FieldError, match="value"):
        buffer.add(value=value)
    assert len(buffer) == 0


INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = ["float16", "float32", "float64", "longdouble", "complex64", "complex128", "clongdouble"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("integers", INTEGERS)
def test_integers_keep_their_value_as_floats_or_are_refused(integers, dtype, rng):
    """Against Python's own integers, near every power of two and elsewhere."""
    limits, field = np.iinfo(integers), kr.Field((), dtype)
    powers = [sign * 2**power for power in range(65) for sign in (1, -1)]
    near = {power + more for power in powers for more in range(-2, 3)} | {3 * one for one in powers}
    near |= set(rng.integers(0, 2**63, 99).tolist())
    for number in sorted(one for one in near if limits.min <= one <= limits.max):
        with np.errstate(over="ignore"):
            became = np.array(number, integers).astype(dtype).real
        survives = bool(np.isfinite(became)) and int(became) == number
        for value in (np.array(number, integers), np.array([0, number, 1], integers)):
            if survives:
                cast = field.cast("value", value)[0].real
                assert cast.shape == value.shape
                assert [int(one) for one in cast.flat] == value.ravel().tolist()
            else:
                with pytest.raises(kr.errors.FieldError, match=f": {number} would become"):
                    field.cast("value", value)


def test_an_integer_that_a_float_cannot_hold_is_refused_before_anything_is_added():
    buffer = buffer_of("float32")
    buffer.add(value=[2**24, -(2**24), 2**40])
    with pytest.raises(kr.errors.FieldError, match="16777217 would become 16777216"):
        buffer.add(value=[1, 2**24 + 1])
    assert len(buffer) == 3 and stored(buffer, 3).tolist() == [2**24, -(2**24), 2**40]


def test_strided_transposed_and_read_only_arrays_are_copied_right(rng):
    fields = {"image": kr.Field((3, 5), "float32")}
    buffer = kr.ReplayBuffer(4, fields, seed=0)
    image = rng.random((4, 5, 3)).astype(np.float32)
    image.flags.writeable = False
    buffer.add(image=image.transpose(0, 2, 1)[::-1])
    assert (buffer.field_view("image") == image.transpose(0, 2, 1)[::-1]).all()


def test_arrays_of_the_other_byte_order_are_cast(rng):
    buffer = buffer_of("float32")
    buffer.add(value=np.array([1.5, 2.5], ">f4"))
    assert stored(buffer, 2).tolist() == [1.5, 2.5]


def test_a_field_is_a_value():
    assert kr.Field((3,), "float32") == kr.Field([3], np.float32) == kr.Field(3, np.dtype("f4"))
    assert kr.Field((3,), "float32") != kr.Field((3,), "float64")
    with pytest.raises(AttributeError):
        kr.Field((3,), "float32").shape = (4,)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((-1,), "f4"),
        ((0,), "f4"),
        (("3",), "f4"),
        ((2.0,), "f4"),
        ((), "O"),
        ((), "U3"),
        ((), "no such"),
    ],
)
def test_a_field_that_cannot_be_is_refused(shape, dtype):
    with pytest.raises((ValueError, TypeError)):
        kr.Field(shape, dtype)


NESTED = {
    "observation": {
        "camera": kr.Field((4, 4), "uint8"),
        "arm": {"angle": kr.Field((2,), "float32"), "grip": kr.Field((), "bool")},
    },
    "reward": kr.Field((), "float32"),
}


def nested_rows(rng, n_rows):
    camera = rng.integers(0, 256, (n_rows, 4, 4)).astype(np.uint8)
    arm = {"angle": rng.random((n_rows, 2)).astype(np.float32), "grip": rng.random(n_rows) < 0.5}
    return {
        "observation": {"camera": camera, "arm": arm},
        "reward": np.arange(n_rows, dtype=np.float32),
    }


def test_nested_fields_come_back_nested(rng):
    buffer = kr.PrioritizedReplayBuffer(10, NESTED, seed=0)
    rows = nested_rows(rng, 10)
    buffer.add(**rows)
    batch = buffer.sample(30)
    assert (batch.observation["camera"] == rows["observation"]["camera"][batch.index]).all()
    assert (
        batch.observation["arm"]["angle"] == rows["observation"]["arm"]["angle"][batch.index]
    ).all()
    assert (
        batch.observation["arm"]["grip"] == rows["observation"]["arm"]["grip"][batch.index]
    ).all()
    assert (batch.reward == batch.index).all()
    view = buffer.field_view("observation")
    assert (view["arm"]["angle"] == rows["observation"]["arm"]["angle"]).all()
    assert view["camera"].shape == (10, 4, 4)


def test_a_nested_field_with_one_part_stays_nested():
    buffer = kr.ReplayBuffer(
        4,
        {"number": kr.Field((), "int64"), "observation": {"camera": kr.Field((2,), "uint8")}},
        seed=0,
    )
    buffer.add(number=[1, 2], observation={"camera": [[1, 1], [2, 2]]})
    batch = buffer.sample(8)
    assert set(batch.observation) == {"camera"}
    assert (batch.observation["camera"] == batch.number[:, None]).all()
    assert buffer.field_view("observation")["camera"].shape == (4, 2)


def test_one_nested_transition(rng):
    buffer = kr.ReplayBuffer(10, NESTED, seed=0)
    arm = {"angle": [0.5, 0.25], "grip": True}
    assert buffer.add(
        observation={"camera": np.ones((4, 4), np.uint8), "arm": arm}, reward=1.0
    ).tolist() == [0]
    batch = buffer.sample(1)
    assert batch.observation["arm"]["angle"].tolist() == [[0.5, 0.25]] and batch.observation["arm"][
        "grip"
    ].tolist() == [True]


# Stand-ins with what gymnasium's spaces of these names have.
class Box:
    def __init__(self, low, high, shape, dtype):
        self.low, self.high = np.full(shape, low, dtype), np.full(shape, high, dtype)
        self.shape, self.dtype = shape, np.dtype(dtype)


class Discrete:
    def __init__(self, n):
        self.n, self.start, self.shape, self.dtype = np.int64(n), np.int64(0), (), np.dtype("int64")


class MultiDiscrete:
    def __init__(self, nvec):
        self.nvec = np.array(nvec)
        self.shape, self.dtype = self.nvec.shape, np.dtype("int64")


class MultiBinary:
    def __init__(self, n):
        self.n, self.shape, self.dtype = n, (n,), np.dtype("int8")


class Dict:
    shape = dtype = None

    def __init__(self, spaces):
        self.spaces = spaces


class Text:
    shape, dtype = None, str


SPACES = [
    (Box(-1, 1, (17,), "float32"), kr.Field((17,), "float32")),
    (Box(0, 255, (84, 84, 4), "uint8"), kr.Field((84, 84, 4), "uint8")),
    (Discrete(5), kr.Field((), "int64")),
    (MultiDiscrete([3, 4]), kr.Field((2,), "int64")),
    (MultiBinary(6), kr.Field((6,), "int8")),
    (
        Dict({"a": Discrete(2), "b": Dict({"c": Box(0, 1, (2,), "float64")})}),
        {"a": kr.Field((), "int64"), "b": {"c": kr.Field((2,), "float64")}},
    ),
]


@pytest.mark.parametrize("make", [kr.ReplayBuffer, kr.PrioritizedReplayBuffer])
@pytest.mark.parametrize(("space", "field"), SPACES)
def test_from_spaces_knows_every_space_of_fixed_shape(make, space, field):
    buffer = make.from_spaces(9, space, Discrete(3), seed=3)
    assert type(buffer) is make and buffer.capacity == 9
    assert buffer.fields == {
        "observation": field,
        "action": kr.Field((), "int64"),
        "reward": kr.Field((), "float32"),
        "next_observation": field,
        "terminated": kr.Field((), "bool"),
    }


def test_from_spaces_passes_the_rest_on():
    extra = {"truncated": kr.Field((), "bool"), "log": {"length": kr.Field((), "int32")}}
    buffer = kr.PrioritizedReplayBuffer.from_spaces(
        4,
        Box(-1, 1, (2,), "float32"),
        Box(-1, 1, (1,), "float32"),
        extra_fields=extra,
        alpha=0.25,
        beta=0.75,
    )
    assert (buffer.alpha, buffer.beta) == (0.25, 0.75)
    assert {name: buffer.fields[name] for name in extra} == extra
    assert buffer.fields["action"] == kr.Field((1,), "float32")


@pytest.mark.parametrize("space", [Text(), Dict({"a": Text()}), object(), None])
def test_other_spaces_are_refused_by_name(space):
    with pytest.raises(TypeError, match="observation_space"):
        kr.PrioritizedReplayBuffer.from_spaces(4, space, Discrete(2))
    with pytest.raises(TypeError, match="action_space"):
        kr.PrioritizedReplayBuffer.from_spaces(4, Discrete(2), space)


def test_from_spaces_of_gymnasium_itself():
    spaces = pytest.importorskip("gymnasium").spaces
    observation = spaces.Dict(
        {"image": spaces.Box(0, 255, (8, 8), np.uint8), "goal": spaces.MultiBinary(3)}
    )
    buffer = kr.PrioritizedReplayBuffer.from_spaces(
        8, observation, spaces.MultiDiscrete([2, 3]), seed=0
    )
    assert buffer.fields["observation"] == {
        "image": kr.Field((8, 8), "uint8"),
        "goal": kr.Field((3,), "int8"),
    }
    observation.seed(1)
    for step in range(10):
        buffer.add(
            observation=observation.sample(),
            action=[1, 2],
            reward=step,
            next_observation=observation.sample(),
            terminated=False,
        )
    assert buffer.sample(5).next_observation["image"].shape == (5, 8, 8)
    with pytest.raises(TypeError, match="observation_space"):
        kr.PrioritizedReplayBuffer.from_spaces(
            8, spaces.Tuple([spaces.Discrete(2)]), spaces.Discrete(2)
        )
