"""Games of MinAtar, which need only their name."""

import sys

import numpy as np
import pytest

pytest.importorskip("minatar")
import gymnasium
import torch
from runs import config, parameters, run, same

from kary_replay.algorithms import Encoder
from kary_replay.algorithms.networks import BoardCNN
from kary_replay.runner import ConfigError, Runner
from kary_replay.runner.environments.env_factory import env_factory
from kary_replay.runner.environments.minatar import is_board_game
from kary_replay.runner.presets import preset

BREAKOUT = "MinAtar/Breakout-v1"
SMALL = {"dqn": {}, "rainbow": {"n_atoms": 11}, "ppo": {}}


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


@pytest.mark.parametrize("name", SMALL)
def test_runs_resume_to_the_bit(name, tmp_path):
    how = {"total_env_steps": 600, "checkpoint_interval_env_steps": 200}
    if name != "ppo":
        how["initial_priority"] = "max"
    run(name, BREAKOUT, tmp_path / "whole", SMALL[name], **how)
    run(name, BREAKOUT, tmp_path / "part", SMALL[name], **{**how, "total_env_steps": 600})
    assert same(parameters(tmp_path / "whole"), parameters(tmp_path / "part"))
    resumed = Runner.resume(tmp_path / "part", total_env_steps=800).run()
    again = Runner.resume(tmp_path / "whole", total_env_steps=800).run()
    assert resumed.env_steps == again.env_steps == 800
    assert same(parameters(tmp_path / "whole"), parameters(tmp_path / "part"))


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
    found, other = preset(name, family, None), preset(name, "CartPole-v1", None)
    assert found["options"] != other["options"] and found["total_env_steps"] >= 1_000_000
    assert found["options"].learning_rate < 1e-3


def test_other_ids_are_no_board_games():
    assert is_board_game("minatar.gym:MinAtar/Freeway-v0") and is_board_game(BREAKOUT)
    assert not is_board_game("CartPole-v1") and not is_board_game(object())
