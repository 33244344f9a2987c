"""Atari games, which need only their name."""

import functools
import sys

import numpy as np
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("cv2")
import gymnasium
from runs import config, hosted, run, worker

from kary_replay import FrameReplayBuffer
from kary_replay.runner import ConfigError, Runner, RunnerConfig
from kary_replay.runner.environments.atari import is_game, make_game
from kary_replay.runner.environments.env_factory import env_factory
from kary_replay.runner.environments.vector import Environments

PONG = "ALE/Pong-v5"


def test_a_game_needs_only_its_name(tmp_path):
    made = config("dqn", PONG, tmp_path / "run", buffer_capacity=400)
    factory = env_factory(made)
    assert factory.stacking == (4, "repeat")
    assert factory.observation_space == gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    for env, clips in ((factory(), True), (factory.evaluation(), False)):
        wrappers = str(env)
        assert ("TransformReward" in wrappers) == clips
        assert env.unwrapped._frameskip == 1 and env.get_wrapper_attr("frame_skip") == 4
        env.close()


@pytest.mark.parametrize("algorithm", ["dqn", "rainbow", "ppo"])
def test_presets_are_for_games_that_are_prepared(algorithm):
    """What the game shows by itself has no convolutions, whose last layer is the preset's only."""
    prepared, bare, other = (
        RunnerConfig(algorithm, env, env_options)
        for env, env_options in ((PONG, {}), (PONG, {"obs_type": "ram"}), ("Nowhere-v0", {}))
    )
    assert bare.options == other.options != prepared.options
    assert bare.total_env_steps == other.total_env_steps != prepared.total_env_steps
    assert RunnerConfig(algorithm, f"ale_py:{PONG}").options == prepared.options


@pytest.mark.parametrize(
    "env_options", [{"obs_type": "ram"}, {"obs_type": "grayscale", "frameskip": 5}]
)
def test_who_wants_the_screen_as_it_is_says_so(env_options, tmp_path):
    made = config("dqn", PONG, tmp_path / "run", env_options=env_options, buffer_capacity=400)
    factory = env_factory(made)
    assert factory.stacking is None
    assert factory.observation_space == gymnasium.make(PONG, **env_options).observation_space


def test_without_ale_py_it_is_said_what_to_install(tmp_path, monkeypatch):
    others = {name: spec for name, spec in gymnasium.registry.items() if "ALE/" not in name}
    monkeypatch.setattr(gymnasium, "registry", others)
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(ConfigError, match=r"ale_py registers it. pip install \"kary-replay\[atari"):
        env_factory(config("dqn", PONG, tmp_path / "run"))


def test_without_opencv_it_is_said_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(ConfigError, match=r"need OpenCV: pip install \"kary-replay\[atari"):
        env_factory(config("dqn", PONG, tmp_path / "run"))


@pytest.mark.parametrize("module", ["ale_py", "cv2"])
def test_what_is_installed_and_cannot_be_imported_says_why(module, tmp_path, monkeypatch):
    """As OpenCV on a machine without a screen."""
    (tmp_path / f"{module}.py").write_text("raise ImportError('libGL.so.1 is not there')")
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"libGL.so.1 is not there"):
        env_factory(config("dqn", PONG, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("content", [None, b"another game"], ids=["missing", "another"])
def test_a_rom_that_is_not_there_says_where_it_was_looked_for(content, tmp_path, monkeypatch):
    if content:
        (tmp_path / "pong.bin").write_bytes(content)
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match=f"pong.bin.*in ALE_ROMS_DIR={tmp_path}: unset it"):
        env_factory(config("dqn", PONG, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["no", 0, None])
def test_clipped_rewards_are_a_switch(value, tmp_path):
    with pytest.raises(ConfigError, match="clip_rewards must be True or False, got"):
        env_factory(config("dqn", PONG, tmp_path / "run", env_options={"clip_rewards": value}))


def test_episodes_are_cut_off_after_so_many_steps(tmp_path):
    how = {"env_options": {"max_episode_steps": 10}, "buffer_capacity": 400}
    env = env_factory(config("dqn", PONG, tmp_path / "run", **how))()
    env.reset(seed=0)
    ends = [env.step(0)[3] for _ in range(10)]
    assert ends == [False] * 9 + [True]


@pytest.mark.parametrize("clip_rewards", [True, False])
def test_episodes_return_what_they_do_in_the_game(clip_rewards):
    """Dots of Ms. Pac-Man are worth 10 each."""
    make = functools.partial(make_game, "ALE/MsPacman-v5", max_episode_steps=100)
    envs = Environments(
        functools.partial(make, clip_rewards=clip_rewards), 2, np.random.default_rng(0), "games"
    )
    envs.reset()
    summed, rng = np.zeros(2), np.random.default_rng(0)
    while not envs.ended:
        summed += envs.step(rng.integers(9, size=2)).reward
    assert [episode.length for episode in envs.ended] == [100, 100]
    returns = np.array([episode.episode_return for episode in envs.ended])
    assert summed.min() > 0
    if clip_rewards:
        assert (returns >= 10 * summed).all() and summed.max() < 100
    else:
        assert (returns == summed).all() and (returns % 10 == 0).all()
    played, n_cut = envs.play(lambda observation: np.ones(2, np.int64), [0, 1], 30)
    assert n_cut == 2 and all(map(float.is_integer, played))
    envs.close()


def test_films_run_at_the_speed_of_the_game():
    env = make_game(PONG)
    assert env.metadata["render_fps"] == 15
    env.close()


def test_who_gets_no_prepared_game_is_told_why(tmp_path):
    own = config("dqn", PONG, tmp_path / "run", env_options={"frameskip": 4}, buffer_capacity=400)
    with pytest.raises(ConfigError, match=r"channels of images first.*Without 'frameskip' in env"):
        Runner(own).run()
    with pytest.raises(ConfigError, match=r"needs continuous actions(?!.*Without)"):
        Runner(config("sac", PONG, tmp_path / "run", buffer_capacity=400)).run()
    assert not list(tmp_path.iterdir())


def test_a_function_of_ones_own_is_left_alone(tmp_path):
    make = functools.partial(gymnasium.make, PONG, obs_type="ram", frameskip=4)
    factory = env_factory(config("dqn", make, tmp_path / "run", buffer_capacity=400))
    assert factory.stacking is None
    assert factory.evaluation().observation_space == factory.observation_space


def test_which_ids_are_games():
    assert is_game(PONG, {}) and is_game(f"ale_py:{PONG}", {"repeat_action_probability": 0.0})
    assert is_game(gymnasium.spec(PONG), {})
    assert not is_game("CartPole-v1", {}) and not is_game(PONG, {"frameskip": 1})


def test_a_row_takes_little_more_than_a_frame(tmp_path):
    how = {"buffer_capacity": 500, "learning_starts": 400}
    flow = hosted(config("dqn", PONG, tmp_path / "run", {"n_step": 3}, **how))
    buffer = flow.streams["experience"]._buffer
    assert isinstance(buffer, FrameReplayBuffer) and buffer.nbytes / 500 < 7_600
    actor = worker(flow, "actor")
    for _ in range(30):
        actor.work(0.0)
    batch = buffer.sample(32)
    assert batch.observation.shape == batch.next_observation.shape == (32, 4, 84, 84)
    assert (batch.observation[:, 1:] != 0).any()
    actor.close()
    flow.close()


def test_a_run_learns_goes_on_and_is_the_same_again(tmp_path):
    how = {"total_env_steps": 96, "learning_starts": 32, "buffer_capacity": 300}
    settings = {"samples_per_insert": 4, "envs_per_actor": 2, **how}
    results = [run("dqn", PONG, tmp_path / name, **settings) for name in ("one", "two")]
    assert results[0].updates == results[1].updates > 0
    again = Runner.resume(tmp_path / "one", total_env_steps=128).run()
    assert again.env_steps >= 128 and again.updates > results[0].updates
