"""Spaces that an algorithm cannot handle are refused by name, with what to do instead."""

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
torch = pytest.importorskip("torch")
from algorithm_runs import BOX, DISCRETE, IMAGE, NAMES, VECTOR, make  # noqa: E402
from gymnasium import spaces  # noqa: E402

from kary_replay.algorithms import ALGORITHMS, UnsuitableSpaceError  # noqa: E402

BAD_OBSERVATIONS = {
    "Tuple": spaces.Tuple([VECTOR, VECTOR]),
    "Text": spaces.Text(5),
    "Sequence": spaces.Sequence(VECTOR),
    "Graph": spaces.Graph(VECTOR, None),
    "OneOf": spaces.OneOf([VECTOR, DISCRETE]),
    "Dict under 'inner'": spaces.Dict({"inner": spaces.Dict({"x": VECTOR}), "outer": VECTOR}),
    "Text under 'words'": spaces.Dict({"words": spaces.Text(5), "outer": VECTOR}),
}
GOOD_OBSERVATIONS = [
    spaces.Discrete(4, start=2),
    spaces.MultiBinary([2, 3]),
    spaces.MultiDiscrete([3, 4]),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.Box(0, 255, (10, 10, 3), np.uint8),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", BAD_OBSERVATIONS)
def test_observations_that_are_no_numbers(name, kind):
    match = f"{name} cannot handle observations of kind {kind.split()[0]}.*FlattenObservation"
    with pytest.raises(UnsuitableSpaceError, match=match) as caught:
        make(name, BAD_OBSERVATIONS[kind])
    assert kind in str(caught.value)


@pytest.mark.parametrize("space", GOOD_OBSERVATIONS, ids=str)
def test_observations_that_are(space):
    algorithm = make("dqn", space)
    observation = np.stack([np.asarray(space.sample()) for _ in range(6)])
    assert algorithm.act(observation, np.zeros(6, np.float32), np.random.default_rng(0)).shape == (
        6,
    )


def test_images_have_their_channels_first():
    image = spaces.Box(0, 255, (84, 84, 3), np.uint8)
    for space in (image, spaces.Dict({"camera": image})):
        with pytest.raises(
            UnsuitableSpaceError, match="channels of images first, got shape \\(84, 84, 3\\)"
        ):
            make("sac", space)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((4, 84, 84, 3), np.uint8, r"three axes, channels first, got shape \(4, 84, 84, 3\)"),
        ((4, 84, 84, 1), np.uint8, "GrayscaleObservation makes them without keep_dim"),
        ((4, 3, 84, 84), np.uint8, "put all channels of a stack into one axis"),
        ((4, 84, 84), np.float32, r"as bytes, .*, got float32 of shape \(4, 84, 84\)"),
        ((84, 84, 3), np.float64, "flatten what is no image with"),
        ((84, 84), np.float32, r"as bytes, .*, got float32 of shape \(84, 84\)"),
        ((3, 40, 40), np.int32, "as bytes, .*, got int32"),
    ],
)
def test_images_that_the_convolutions_do_not_take_are_refused(shape, dtype, message):
    image = spaces.Box(0, 255, shape, dtype)
    for space in (image, spaces.Dict({"camera": image})):
        with pytest.raises(UnsuitableSpaceError, match=message):
            make("dqn", space)


def test_dqn_needs_one_discrete_action():
    with pytest.raises(
        UnsuitableSpaceError, match=r"dqn needs discrete actions.*use ddpg, td3, sac or ppo$"
    ):
        make("dqn", action_space=BOX)


UNBOUNDED = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, 1], np.float32))
BAD_ACTIONS = {
    "use dqn": DISCRETE,
    "one Box of floats": spaces.Dict({"left": BOX, "right": BOX}),
    "float dtype": spaces.Box(0, 5, (2,), np.int32),
    "finite bounds.*RescaleAction": UNBOUNDED,
}


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac"])
@pytest.mark.parametrize("remedy", BAD_ACTIONS)
def test_the_others_need_a_bounded_box(name, remedy):
    with pytest.raises(UnsuitableSpaceError, match=f"{name} needs .*{remedy}"):
        make(name, action_space=BAD_ACTIONS[remedy])


def test_spaces_can_be_checked_before_anything_is_made():
    for name in NAMES:
        cls = ALGORITHMS[name]
        assert cls.check_spaces(VECTOR, DISCRETE if name == "dqn" else BOX) is None
        with pytest.raises(ValueError, match=name):
            cls.check_spaces(spaces.Text(3), DISCRETE if name == "dqn" else BOX)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_spaces_without_numbers_are_refused(name):
    empty = spaces.Box(-1, 1, (0,))
    action_space = BOX if name in ("ddpg", "td3", "sac") else DISCRETE
    for space, message in (
        (empty, r"at least one number in an observation, got shape \(0,\): leave"),
        (spaces.Dict({"a": VECTOR, "b": empty}), r"got shape \(0,\) under 'b': leave"),
        (spaces.Dict({}), "got an empty Dict"),
    ):
        with pytest.raises(UnsuitableSpaceError, match=message):
            ALGORITHMS[name].check_spaces(space, action_space)
    message = "actions of at least one number" if action_space is BOX else "discrete|at least one"
    with pytest.raises(UnsuitableSpaceError, match=message):
        ALGORITHMS[name].check_spaces(VECTOR, empty)


HINTS = {
    "dqn, integers": (
        "dqn",
        spaces.Box(0, 3, (2,), np.int64),
        "no algorithm here takes these as they are. Wrap",
    ),
    "dqn, no bounds": (
        "dqn",
        spaces.Box(-np.inf, 1, (2,)),
        "use ddpg, td3, sac or ppo, with actions between finite bounds",
    ),
    "dqn, bits": ("dqn", spaces.MultiBinary(3), "no algorithm here takes these"),
    "sac, bits": (
        "sac",
        spaces.MultiBinary(3),
        "one Discrete, for dqn or ppo, or one Box of floats",
    ),
    "sac, numbers": ("sac", spaces.Discrete(3), "use dqn"),
    "dqn, dict": ("dqn", spaces.Dict({"a": spaces.Discrete(2)}), "no algorithm here takes these"),
}


@pytest.mark.parametrize("case", HINTS)
def test_hints_name_what_would_work(case):
    name, space, message = HINTS[case]
    with pytest.raises(UnsuitableSpaceError, match=message):
        ALGORITHMS[name].check_spaces(VECTOR, space)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_wrapper_named_for_several_discrete_actions_works(name):
    """The message has its code, which is run here."""

    class Lights(gymnasium.Env):
        observation_space, action_space = VECTOR, spaces.MultiDiscrete([3, 2])

        def step(self, action):
            assert self.action_space.contains(action)
            return tuple(action)

    with pytest.raises(UnsuitableSpaceError, match="no algorithm here takes these") as caught:
        ALGORITHMS[name].check_spaces(VECTOR, Lights.action_space)
    code = str(caught.value).split("for dqn or ppo: ")[1]
    env = eval(
        code, {"gymnasium": gymnasium, "numpy": np, "Discrete": spaces.Discrete, "env": Lights()}
    )
    ALGORITHMS["dqn"].check_spaces(VECTOR, env.action_space)
    assert {env.step(action) for action in range(6)} == {(i, j) for i in range(3) for j in range(2)}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_the_network_for_images_that_is_asked_for(name):
    space = BOX if name in ("ddpg", "td3", "sac") else DISCRETE
    options = ALGORITHMS[name].options_class(image_network="data_efficient")
    algorithm = ALGORITHMS[name](IMAGE, space, options)
    windows = [
        layer.kernel_size
        for minimizer in algorithm.minimizers.values()
        for module in minimizer.modules
        for layer in module.modules()
        if hasattr(layer, "kernel_size")
    ]
    assert set(windows) == {(5, 5)}
