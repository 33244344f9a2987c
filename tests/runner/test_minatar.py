"""Games of MinAtar, which need only their name."""

import sys

import numpy as np
import pytest

pytest.importorskip("minatar")
import gymnasium
import torch
from PIL import Image
from runs import config, copied_checkpoints, parameters, run, same

from kary_replay.algorithms import Encoder, UnsuitableSpaceError
from kary_replay.algorithms.networks import BoardCNN
from kary_replay.algorithms.spaces import check_observations
from kary_replay.runner import ConfigError, Runner, play
from kary_replay.runner.environments.env_factory import env_factory
from kary_replay.runner.environments.minatar import BoardGame, is_board_game, make_board_game
from kary_replay.runner.policies.export import export
from kary_replay.runner.presets import preset

BREAKOUT = "MinAtar/Breakout-v1"
SMALL = {"dqn": {}, "rainbow": {"n_quantiles": 11}, "ppo": {}}


def test_a_game_needs_only_its_name(tmp_path):
    factory = env_factory(config("dqn", BREAKOUT, tmp_path / "run"))
    assert factory.observation_space == gymnasium.spaces.Box(0, 1, (4, 10, 10), np.bool_)
    env = factory()
    plain = gymnasium.make(BREAKOUT)
    for made in (env, plain):
        made.unwrapped.game.seed(3)
    seen, board = env.reset()[0], plain.reset()[0]
    for action in (0, 1, 2, 0, 1):
        assert seen.dtype == np.bool_ and (seen == np.moveaxis(board, -1, 0)).all()
        seen, board = env.step(action)[0], plain.step(action)[0]


def played(env, n_episodes, begin=0):
    """Return all observations of episodes whose seeds and actions are given."""
    seen = []
    for number in range(begin, begin + n_episodes):
        rng = np.random.default_rng(number)
        seen.append([env.reset(seed=number)[0]])
        is_over = False
        while not is_over:
            observation, _, is_over, *_ = env.step(int(rng.integers(env.action_space.n)))
            seen[-1].append(observation)
    return seen


def differ(one, other):
    """Return which episodes are not the same."""
    pairs = zip(one, other, strict=True)
    return [len(a) != len(b) or (np.array(a) != np.array(b)).any() for a, b in pairs]


def test_a_seed_decides_an_episode_whatever_was_before(monkeypatch):
    """Games themselves remember the last action of the episode before."""
    asterix = "MinAtar/Asterix-v1"
    used = played(make_board_game(asterix), 30)
    fresh = [played(make_board_game(asterix), 1, number)[0] for number in range(30)]
    assert not any(differ(used, fresh))
    monkeypatch.delattr(BoardGame, "reset")
    assert any(differ(played(make_board_game(asterix), 30), fresh))


@pytest.mark.parametrize("name", SMALL)
def test_going_on_from_a_checkpoint_changes_nothing(name, tmp_path):
    how = {"total_env_steps": 600, "checkpoint_interval_env_steps": 200}
    with copied_checkpoints(tmp_path, before=600) as copied:
        run(name, "MinAtar/Asterix-v1", tmp_path / "whole", SMALL[name], **how)
    assert len(copied) == 2
    for copy in copied:
        Runner.resume(copy).run()
        assert same(parameters(copy), parameters(tmp_path / "whole"))


def test_a_run_is_filmed(tmp_path):
    how = {"total_env_steps": 200, "evaluate": "after", "evaluation_episodes": 1}
    run("dqn", BREAKOUT, tmp_path / "run", **how)
    film = tmp_path / "film.gif"
    assert len(play.play(tmp_path / "run", episodes=1, output=film)) == 1
    with Image.open(film) as pictures:
        assert pictures.size == (160, 160) and pictures.n_frames > 3


def test_a_module_may_come_before_the_name(tmp_path):
    factory = env_factory(config("dqn", f"minatar:{BREAKOUT}", tmp_path / "run"))
    assert factory.observation_space.shape == (4, 10, 10)


def test_boards_are_not_normalized_and_have_no_export(tmp_path):
    pytest.importorskip("stable_baselines3")
    with pytest.raises(ConfigError, match="normalize_observations=True needs observations with a"):
        run("dqn", BREAKOUT, tmp_path / "run", normalize_observations=True)
    run("dqn", BREAKOUT, tmp_path / "run", total_env_steps=200)
    with pytest.raises(ConfigError, match="no convolution for boards such as"):
        export(tmp_path / "run")


def test_channels_that_come_last_are_refused():
    space = gymnasium.spaces.Box(0, 1, (10, 10, 4), bool)
    with pytest.raises(UnsuitableSpaceError, match="wants the channels of boards first"):
        check_observations("dqn", space)
    check_observations("dqn", gymnasium.spaces.Box(0, 1, (4, 10, 10), bool))


def test_boards_go_through_a_small_cnn():
    torch.manual_seed(0)
    encoder = Encoder(gymnasium.spaces.Box(0, 1, (4, 10, 10), np.bool_))
    (cnn,) = encoder.parts
    assert isinstance(cnn, BoardCNN) and encoder.n_features == 128
    board = np.random.default_rng(0).integers(2, size=(3, 4, 10, 10)).astype(bool)
    weight, bias = cnn.cnn[0].weight.detach().numpy(), cnn.cnn[0].bias.detach().numpy()
    layer = np.zeros((3, 16, 8, 8))
    for y in range(8):
        for x in range(8):
            part = board[:, None, :, y : y + 3, x : x + 3]
            layer[..., y, x] = (part * weight).sum((2, 3, 4)) + bias
    flat = np.maximum(layer, 0).reshape(3, -1)
    linear = cnn.linear[0]
    expected = np.maximum(flat @ linear.weight.detach().numpy().T + linear.bias.detach().numpy(), 0)
    np.testing.assert_allclose(encoder.numpy(board), expected, rtol=1e-4, atol=1e-5)
    in_a_dict = Encoder(
        gymnasium.spaces.Dict({"board": gymnasium.spaces.Box(0, 1, (4, 10, 10), bool)})
    )
    assert isinstance(in_a_dict.parts[0], BoardCNN)
    flat = Encoder(gymnasium.spaces.Box(0, 1, (10, 10), bool))
    assert flat.n_features == 100


def test_without_minatar_it_is_said_what_to_install(tmp_path, monkeypatch):
    others = {name: spec for name, spec in gymnasium.registry.items() if "MinAtar/" not in name}
    monkeypatch.setattr(gymnasium, "registry", others)
    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(
        ConfigError, match=r"minatar registers it. pip install \"kary-replay\[minat"
    ):
        env_factory(config("dqn", BREAKOUT, tmp_path / "run"))


@pytest.mark.parametrize("name", ["dqn", "rainbow", "ppo"])
@pytest.mark.parametrize("family", ["ALE/Pong-v5", "ale_py:ALE/Pong-v5", "MinAtar/Asterix-v1"])
def test_families_have_presets(name, family):
    found, other = (preset(name, env, {}, None) for env in (family, "CartPole-v1"))
    assert found["options"] != other["options"] and found["total_env_steps"] >= 1_000_000
    assert found["options"].learning_rate < 1e-3


def test_other_ids_are_no_board_games():
    assert is_board_game("minatar.gym:MinAtar/Freeway-v0") and is_board_game(BREAKOUT)
    assert not is_board_game("CartPole-v1") and not is_board_game(object())
