"""Environments alone: their faults are named, and running episodes come back."""

import itertools

import gymnasium
import numpy as np
import pytest
from faulty_envs import Faulty
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.wrappers import RecordEpisodeStatistics

from kary_replay.runner.environments import vector as environments
from kary_replay.runner.environments.vector import (
    EnvironmentFaultError,
    Environments,
    action_scale,
    random_actions,
)

FAULTS = {
    "raises": (
        r"step raised RuntimeError: the bottle is empty "
        r".environment 0, .*, step 6; .*faulty_envs.py, line \d"
    ),
    "nan": r"step returned the observation \[.* nan .*\]",
    "nan reward": "step returned reward=nan",
    "large reward": r"step returned reward=1e\+39, which is beyond float32: scale it",
    "shape": r"step returned an observation of shape \(2,\), the space has \(3,\)",
    "words": r"step returned \['one', 'two', 'three'\], which is no float32",
    "nan at reset": (
        r"reset returned the observation \[.* nan\] .environment 0, episode of seed \d+, step 0"
    ),
}


def faulty(**options):
    return Environments(lambda: Faulty(**options), 2, np.random.default_rng(0), "Faulty (actor 0)")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_the_environment_the_episode_and_the_step(fault):
    envs = faulty(fault=fault, at=7, length=20)
    envs.reset()

    def play():
        for _ in range(100):
            envs.step(np.zeros(2, np.int64))

    with pytest.raises(EnvironmentFaultError, match=FAULTS[fault]) as caught:
        play()
    assert str(caught.value).startswith("Faulty (actor 0): ")


class Ends(Faulty):
    """Ends, or not, by what it is given."""

    def __init__(self, terminated=False, truncated=False):
        super().__init__()
        self.flags = terminated, truncated

    def step(self, action):
        observation, reward, *_ = super().step(action)
        return observation, reward, *self.flags, {}


@pytest.mark.parametrize("name", ["terminated", "truncated"])
@pytest.mark.parametrize("flag", ["no", None, 2, np.nan, [], [True, False], {}], ids=repr)
def test_ends_that_are_neither_true_nor_false_are_refused(flag, name):
    envs = Environments(lambda: Ends(**{name: flag}), 1, np.random.default_rng(0), "Ends")
    envs.reset()
    with pytest.raises(EnvironmentFaultError, match=f"step returned {name}=.*neither True nor Fal"):
        envs.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    "flag", [True, np.True_, 1, 1.0, np.float32(1), np.array(True), np.array([1])], ids=repr
)
def test_ends_of_any_numeric_type_count(flag):
    envs = Environments(lambda: Ends(flag, not flag), 1, np.random.default_rng(0), "Ends")
    envs.reset()
    assert envs.step(np.zeros(1, np.int64)).terminated.tolist() == [True]


@pytest.mark.parametrize(
    ("space", "bad", "message"),
    [
        (Box(0, 255, (2, 2), np.uint8), np.full((2, 2), 0.5), "float64 from 0.5 to 0.5, .* uint8"),
        (Box(0, 255, (2,), np.uint8), np.array([0, 256]), "int64 from 0 to 256, .* from 0 to 255"),
        (Box(0, 9, (2,), np.int16), np.array([0, -40_000]), "int64 from -40000 to 0"),
        (
            Box(0, 1, (2,), np.bool_),
            np.array([0, 2]),
            "int64 from 0 to 2, the space has bool from 0 to 1",
        ),
        (Discrete(5), 5, "int64 from 5 to 5, the space has int64 from 0 to 4"),
        (Discrete(5, start=2), np.int64(1), "int64 from 1 to 1, .* from 2 to 6"),
        (MultiDiscrete([2, 3]), np.array([1, 3]), r"int64 from 1 to 3, .* from \[0 0\] to \[1 2\]"),
        (Dict({"eye": Box(0, 255, (2,), np.uint8)}), {"eye": np.ones(2)}, "float64 from 1.0"),
    ],
)
@pytest.mark.parametrize("where", ["reset", "step"])
def test_numbers_that_the_space_does_not_have_are_refused(space, bad, message, where):
    good = space.sample()

    class Shows(Faulty):
        observation_space = space

        def reset(self, **how):
            super().reset(**how)
            return bad if where == "reset" else good, {}

        def step(self, action):
            return bad if where == "step" else good, *super().step(action)[1:]

    envs = Environments(Shows, 1, np.random.default_rng(0), "Shows")

    def play():
        envs.reset()
        envs.step(np.zeros(1, np.int64))

    expected = f"{where} returned an observation of {message}"
    with pytest.raises(EnvironmentFaultError, match=expected):
        play()


@pytest.mark.parametrize(
    ("space", "shown", "kept"),
    [
        (Box(-1, 1, (2,), np.float32), [0.1, 1], np.array([0.1, 1], np.float32)),
        (Box(0, 255, (2,), np.uint8), [0, 255], np.array([0, 255], np.uint8)),
        (Box(0, 255, (2,), np.uint8), np.array([True, False]), np.array([1, 0], np.uint8)),
        (Box(0, 1, (2,), np.bool_), np.array([1, 0]), np.array([True, False])),
        (Discrete(5, start=2), 6, np.int64(6)),
    ],
)
def test_numbers_of_another_dtype_are_taken_as_the_space_has_them(space, shown, kept):
    class Shows(Faulty):
        observation_space = space

        def reset(self, **how):
            super().reset(**how)
            return shown, {}

    envs = Environments(Shows, 1, np.random.default_rng(0), "Shows")
    envs.reset()
    np.testing.assert_array_equal(envs.observation[0], kept)
    assert envs.observation.dtype == space.dtype


def test_what_a_step_returns_is_what_it_led_to_also_at_the_end_of_an_episode():
    envs = faulty(length=3)
    envs.reset()
    for number in range(1, 8):
        before = envs.observation.copy()
        steps = envs.step(np.array([1, 0]))
        assert np.array_equal(steps.observation, before) and steps.truncated.all() == (
            number % 3 == 0
        )
        assert np.array_equal(steps.next_observation, envs.observation) == (number % 3 != 0)
    assert [(ended.episode_return, ended.length) for ended in envs.ended] == [
        (3.0, 3),
        (0.0, 3),
    ] * 2


class Scaled(gymnasium.Wrapper):
    """What normalizing or clipping rewards does, with a report at each end of an episode."""

    def __init__(self, env, report):
        super().__init__(env)
        self.report = report

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            info = self.report(info)
        return observation, reward / 10, terminated, truncated, info


@pytest.mark.parametrize(
    ("report", "is_reported"),
    [
        (lambda info: info, True),
        (lambda info: {"episode": {"r": np.array([info["episode"]["r"]], np.float32)}}, True),
        (lambda info: {"episode": {"r": np.array([1.0, 2.0])}}, False),
        (lambda info: {"episode": {"r": "five"}}, False),
        (lambda info: {"episode": {"r": float("nan")}}, False),
        (lambda info: {"episode": 5}, False),
        (lambda info: {"final_info": info}, False),
        (lambda info: None, False),
    ],
)
def test_an_episode_returns_what_its_environment_reports(report, is_reported):
    def make():
        return Scaled(RecordEpisodeStatistics(gymnasium.make("CartPole-v1")), report)

    envs = Environments(make, 2, np.random.default_rng(0), "CartPole")
    envs.reset()
    while len(envs.ended) < 5:
        envs.step(np.ones(2, np.int64))
    scale = 1 if is_reported else 10
    for episode in envs.ended:
        assert episode.episode_return == pytest.approx(episode.length / scale)
    played, n_cut = envs.play(lambda observation: np.ones(2, np.int64), [0, 1], 500)
    assert n_cut == 0 and min(played) * scale == pytest.approx(round(min(played) * scale))
    assert min(played) >= 5 / scale
    played, n_cut = envs.play(lambda observation: np.ones(2, np.int64), [0, 1], 4)
    assert n_cut == 2 and played == pytest.approx([0.4, 0.4]), "no report, so far"


def test_environments_may_be_slow_one_by_one():
    """Each shows when it is done, so that they are not stuck as long as one of them is not."""
    done = []

    class Noted(Faulty):
        def step(self, action):
            done.append("step")
            return super().step(action)

        def reset(self, **options):
            done.append("reset")
            return super().reset(**options)

    rng, beat = np.random.default_rng(0), lambda: done.append("beat")
    envs = Environments(lambda: Noted(length=2), 2, rng, "Noted", beat)
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    envs.step(np.zeros(2, np.int64))
    calls = [one for one in done if one != "beat"]
    assert calls == ["reset"] * 2 + ["step"] * 4 + ["reset"] * 2
    assert all("beat" in pair for pair in itertools.pairwise(done))


def test_making_an_environment_is_part_of_it():
    with pytest.raises(
        EnvironmentFaultError,
        match=r"^Faulty \(actor 0\): making it raised RuntimeError: no room for the bottle",
    ):
        faulty(fault="making")


class GivesUp:
    """Stands in for a writer: the environments whose steps it gave up."""

    def __init__(self):
        self.given_up = []

    def reset(self, env):
        self.given_up.append(env)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_running_episodes_come_back(env_id):
    def make():
        return Environments(lambda: gymnasium.make(env_id), 2, np.random.default_rng(0), env_id)

    first, second, rng = make(), make(), np.random.default_rng(1)

    def actions():
        return (
            rng.integers(2, size=2)
            if env_id == "CartPole-v1"
            else rng.uniform(-1, 1, (2, 1)).astype(np.float32)
        )

    first.reset()
    for _ in range(4):
        first.step(actions())
    writer = GivesUp()
    assert second.load_state_dict(first.state_dict(), writer)
    assert np.array_equal(first.observation, second.observation) and not writer.given_up
    action = actions()
    assert np.array_equal(first.step(action).next_observation, second.step(action).next_observation)
    state = first.state_dict()
    state["actions"][1] = None  # of an episode that was too long
    assert not make().load_state_dict(state, writer)
    assert writer.given_up == [1]


@pytest.mark.parametrize(
    ("space", "action", "real"),
    [
        (gymnasium.spaces.Discrete(3, start=-1), np.array([0, 2]), [-1, 1]),
        (
            gymnasium.spaces.Box(np.array([0, -4], np.float32), np.array([10, 4], np.float32)),
            np.array([[-1, 1], [0, 0.5]]),
            [[0, 4], [5, 2]],
        ),
    ],
    ids=["discrete", "box"],
)
def test_actions_are_scaled_to_the_environment(space, action, real):
    assert action_scale(space)(action).tolist() == real


def test_random_actions_are_all_that_there_are():
    rng = np.random.default_rng(0)
    assert set(random_actions(gymnasium.spaces.Discrete(3, start=5), 200, rng)) == {0, 1, 2}
    actions = random_actions(gymnasium.spaces.Box(0, 9, (2,)), 2_000, rng)
    assert actions.shape == (2_000, 2) and actions.dtype == np.float32
    assert (actions.min(0) < -0.99).all() and (actions.max(0) > 0.99).all()
    assert abs(actions.mean()) < 6 / np.sqrt(3 * 4_000)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_never_leave_their_bounds(dtype):
    """For random bounds, rounding took the largest action above the upper one in 1 of 4 cases."""
    rng = np.random.default_rng(0)
    for _ in range(500):
        low, high = np.sort(rng.uniform(-3, 3, (2, 1)).astype(dtype), axis=0)
        space = gymnasium.spaces.Box(low, high, dtype=dtype)
        for action in action_scale(space)(np.array([[-1.0], [0.3], [1.0]], np.float32)):
            assert space.contains(action)
    wide = gymnasium.spaces.Box(np.float32(-3e38), np.float32(3e38), (1,), np.float32)
    beyond = np.array([[-9.0], [-1.0], [0.5], [1.0], [9.0]], np.float32)
    for space in (wide, Box(1e308, 1.7e308, (1,), np.float64)):
        scaled = action_scale(space)(beyond)
        assert np.isfinite(scaled).all()
        assert (scaled[[0, -1], 0] == [space.low[0], space.high[0]]).all()


def test_of_endless_episodes_only_so_much_is_kept(monkeypatch):
    monkeypatch.setattr(environments, "LONGEST_REPLAY", 10)
    played = faulty(length=1000)
    played.reset()
    for step in range(12):
        if step == 10:
            at_ten = played.state_dict()
        played.step(np.array([0, 1]))
    again = faulty(length=1000)
    again.load_state_dict(at_ten)
    assert again._lengths.tolist() == [10, 10] and again._returns.tolist() == [0.0, 10.0]
    again.load_state_dict(played.state_dict())
    assert again._lengths.tolist() == [0, 0]  # new episodes
    assert len(played._actions[0]) == 10 * 8


@pytest.mark.parametrize("fault", ["close raises", "close exits"])
def test_an_environment_that_fails_to_close_is_let_go(fault):
    faulty(fault=fault).close()
