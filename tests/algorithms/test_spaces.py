"""Spaces that an algorithm cannot handle are refused by name, with what to do instead."""

import numpy as np
import pytest

gym = pytest.importorskip("gymnasium")
pytest.importorskip("torch")
from algorithm_runs import BOX, DISCRETE, NAMES, VECTOR, make  # noqa: E402
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
    assert algorithm.act(observation, np.zeros(6, np.float32), np.random.default_rng(0)).shape == (6,)


def test_images_have_their_channels_first():
    image = spaces.Box(0, 255, (84, 84, 3), np.uint8)
    for space in (image, spaces.Dict({"camera": image})):
        with pytest.raises(UnsuitableSpaceError, match="channels of images first, got shape \\(84, 84, 3\\)"):
            make("sac", space)


@pytest.mark.parametrize("space", [BOX, spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(3)], ids=str)
def test_dqn_needs_one_discrete_action(space):
    with pytest.raises(UnsuitableSpaceError, match=r"dqn needs discrete actions.*use ddpg, td3 or sac"):
        make("dqn", action_space=space)


UNBOUNDED = spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, 1], np.float32))
BAD_ACTIONS = {
    "use dqn": DISCRETE,
    "are one Box": spaces.Dict({"left": BOX, "right": BOX}),
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
