"""Tasks of EnvPool by their names: of the library itself where it is, and of its like."""

import sys
import types

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from runs import config, copied_checkpoints, parameters, run, same

from kary_replay.runner import ConfigError, Runner, RunnerConfig
from kary_replay.runner.environments import pools
from kary_replay.runner.environments.env_factory import env_factory
from kary_replay.runner.environments.stacking import Stacking
from kary_replay.runner.policies.play import play

GAME, VECTOR = "EnvPool/Pong-v5", "EnvPool/CartPole-v1"


class Pool:
    """Of one environment, whose seed it is given when it is made; episodes are of 20 steps."""

    render_mode = "rgb_array"

    def __init__(self, task, seed, stack_num=4, **options):
        allowed = {"num_threads", "render_mode", "repeat_action_probability", "use_fire_reset"}
        if set(options) - allowed:
            raise TypeError(f"unexpected {options}")
        is_game = task == "Pong-v5"
        self.observation_space = (
            spaces.Box(0, 255, (stack_num, 84, 84), np.uint8)
            if is_game
            else spaces.Box(-1, 1, (4,), np.float32)
        )
        self.action_space = spaces.Discrete(2)
        self.rng = np.random.default_rng(seed)

    def observed(self):
        space = self.observation_space
        drawn = self.rng.uniform(0, 1, space.shape) * np.minimum(space.high, 200)
        return drawn[None].astype(space.dtype)

    def reset(self):
        self.steps = 0
        return self.observed(), {"env_id": np.array([0])}

    def step(self, action):
        assert action.shape == (1,) and action.dtype.kind == "i"
        self.steps += 1
        ends = np.array([self.steps == 20]), np.array([False])
        return self.observed(), np.array([3.0]), *ends, {}

    def render(self):
        return np.zeros((1, 32, 32, 3), np.uint8)

    def close(self):
        pass


def likeness():
    """Return what `pools` uses of EnvPool."""
    settings = {"Pong-v5": {"noop_max": 30, "stack_num": 4}, "CartPole-v1": {}}

    def make_gymnasium(task, *, num_envs, **options):
        assert num_envs == 1
        return Pool(task, **options)

    def make_spec(task):
        return types.SimpleNamespace(config=types.SimpleNamespace(_asdict=lambda: settings[task]))

    return types.SimpleNamespace(
        __spec__=None,
        list_all_envs=lambda: list(settings),
        make_gymnasium=make_gymnasium,
        make_spec=make_spec,
    )


@pytest.fixture(params=["likeness", "envpool"])
def library(request, monkeypatch):
    if request.param == "likeness":
        monkeypatch.setitem(sys.modules, "envpool", likeness())
    else:
        pytest.importorskip("envpool", reason="EnvPool is not installed: pip install envpool")
    pools._is_atari.cache_clear()
    before = dict(gymnasium.registry)
    yield request.param
    gymnasium.registry.clear()
    gymnasium.registry.update(before)
    pools._is_atari.cache_clear()


def episode(env, seed):
    """Return the observations and rewards of 20 steps."""
    observations, rewards = [env.reset(seed=seed)[0]], []
    for step in range(20):
        observation, reward, terminated, truncated, _ = env.step(step % env.action_space.n)
        observations.append(observation)
        rewards.append(reward)
        if terminated or truncated:
            break
    return np.stack(observations), rewards


@pytest.mark.parametrize("name", [GAME, VECTOR])
def test_a_seed_decides_an_episode(name, library, tmp_path):
    make = env_factory(config("dqn", name, tmp_path / "run"))
    one, other = make(), make()
    first = episode(one, 3)
    episode(one, 4)
    for env in one, other:
        again = episode(env, 3)
        assert np.array_equal(again[0], first[0]) and again[1] == first[1]
    assert not np.array_equal(episode(one, 4)[0], first[0])
    one.close(), other.close()


def test_a_game_is_prepared_as_those_of_ale_py(library):
    settings = RunnerConfig("dqn", GAME)
    make = env_factory(settings)
    assert make.stacking == Stacking(4, "repeat")
    assert make.observation_space == spaces.Box(0, 255, (4, 84, 84), np.uint8)
    games = RunnerConfig("dqn", "ALE/Pong-v5")
    assert settings.options == games.options
    assert settings.checkpoint_interval_seconds == games.checkpoint_interval_seconds
    observations, _ = episode(make(), 0)
    assert np.array_equal(observations[5][:3], observations[4][1:])


@pytest.mark.parametrize("library", ["likeness"], indirect=True)
def test_rewards_of_a_game_are_clipped_in_training_alone(library, tmp_path):
    make = env_factory(config("dqn", GAME, tmp_path / "run"))
    assert set(episode(make(), 0)[1]) == {1.0}
    assert set(episode(make.evaluation(), 0)[1]) == {3.0}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("EnvPool/Pongg-v5", {}, "must be a task of EnvPool, .* did you mean EnvPool/Pong-v5"),
        (VECTOR, {"clip_rewards": True}, "clip_rewards=True is for Atari games"),
        (GAME, {"clip_rewards": "no"}, "clip_rewards must be True or False, got 'no'"),
        (GAME, {"no_such_option": 1}, "could not be made: TypeError: .*no_such_option"),
    ],
    ids=["task", "vector", "text", "option"],
)
def test_what_cannot_be_made_says_why(name, options, message, library, tmp_path):
    with pytest.raises(ConfigError, match=message):
        env_factory(config("dqn", name, tmp_path / "run", env_options=options))
    assert not (tmp_path / "run").exists()


def test_own_stacks_come_as_they_are(library, tmp_path):
    make = env_factory(config("dqn", GAME, tmp_path / "run", env_options={"stack_num": 3}))
    assert make.stacking is None and make.observation_space.shape == (3, 84, 84)


def test_without_envpool_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(ConfigError, match=r"envpool registers it\. pip install envpool"):
        env_factory(config("dqn", GAME, tmp_path / "run"))


@pytest.mark.parametrize("name", [GAME, VECTOR])
def test_a_run_goes_on_with_the_same_bits_and_is_played(name, library, tmp_path):
    how = {"total_env_steps": 180, "buffer_capacity": 400, "checkpoint_interval_env_steps": 70}
    with copied_checkpoints(tmp_path, before=180) as copies:
        result = run("dqn", name, tmp_path / "run", **how)
    assert len(copies) == 2 and result.updates > 0
    for copy in copies:
        Runner.resume(copy).run()
        assert same(parameters(copy), parameters(tmp_path / "run"))
    assert len(play(tmp_path / "run", episodes=1)) == 1
    assert (tmp_path / "run" / "play.gif").exists()
