"""Exported policies act in stock Stable-Baselines3 as they do here."""

import errno
import itertools
import json
import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from runs import config

from kary_replay.algorithms import ALGORITHMS
from kary_replay.runner import ConfigError
from kary_replay.runner.policies import export as export_module
from kary_replay.runner.policies.checkpoint_policy import checkpoint_policy
from kary_replay.runner.policies.export import MODELS, export
from kary_replay.runner.records.run_directory import RunDirectory, save_state
from kary_replay.runner.streams.inference import as_tensors

sb3 = pytest.importorskip("stable_baselines3")

BOX = spaces.Box(-1, 1, (3,), np.float32)
WIDE = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
IMAGE = spaces.Box(0, 255, (4, 40, 44), np.uint8)
DICT = spaces.Dict(
    {"b": BOX, "a": spaces.Discrete(3), "image": spaces.Box(0, 255, (3, 36, 36), np.uint8)}
)
OBSERVATIONS = {
    "vector": BOX,
    "float64": spaces.Box(-1, 1, (3,), np.float64),
    "matrix": spaces.Box(-1, 1, (2, 2), np.float32),
    "bytes": spaces.Box(0, 255, (5,), np.uint8),
    "small image": spaces.Box(0, 255, (3, 8, 8), np.uint8),
    "number": spaces.Discrete(5),
    "bits": spaces.MultiBinary(4),
}

CONTINUOUS = "ddpg", "td3", "sac"

IMAGES = {
    ("dqn", "image"): IMAGE,
    ("td3", "image"): IMAGE,
    ("dqn", "dict"): DICT,
    ("sac", "dict"): DICT,
}


class Spaces(gymnasium.Env):
    """Only its spaces count; they are those of the test."""

    observation_space, action_space = BOX, spaces.Discrete(3)

    def __init__(self):
        self.observation_space, self.action_space = Spaces.observation_space, Spaces.action_space


def untrained(path, algorithm, monkeypatch, observation_space=BOX, action_space=None, **options):
    """The directory of a run whose networks, targets included, have random weights."""
    action_space = action_space or (WIDE if algorithm in CONTINUOUS else spaces.Discrete(3))
    monkeypatch.setattr(Spaces, "observation_space", observation_space)
    monkeypatch.setattr(Spaces, "action_space", action_space)
    settings = config(algorithm, "test_export_sb3:Spaces", path, options)
    made = ALGORITHMS[algorithm](observation_space, action_space, settings.options)
    with torch.no_grad():
        targets = getattr(made, "targets", {}).values()
        for vector in [*(minimizer.flat for minimizer in made.minimizers.values()), *targets]:
            vector += 0.1 * torch.randn_like(vector)
    directory = RunDirectory.new(settings)
    folder = directory.begin_checkpoint(0)
    save_state(folder / "learner-0.pt", {"algorithm": made.state_dict()})
    directory.commit(folder, {"env_steps": 0, "updates": 0, "seconds": 0.0})
    return made


def samples(space, n):
    space.seed(1)
    drawn = [space.sample() for _ in range(n)]
    return (
        {key: np.stack([one[key] for one in drawn]) for key in space}
        if isinstance(space, spaces.Dict)
        else np.stack(drawn)
    )


def exported(path, algorithm):
    """Our policy, and the model that stock Stable-Baselines3 loads."""
    export(path, output=path / "model.zip")
    return checkpoint_policy(path), getattr(sb3, MODELS[algorithm]).load(path / "model.zip")


def assert_same_actions(policy, model, n):
    observation = samples(policy.algorithm.observation_space, n)
    theirs, _ = model.predict(observation, deterministic=True)
    ours = policy.act(observation)
    assert ours.shape == theirs.shape
    if isinstance(policy.algorithm.action_space, spaces.Discrete):
        assert np.array_equal(ours, theirs)
    if hasattr(policy.algorithm, "q"):
        tensors, _ = model.policy.obs_to_tensor(observation)
        with torch.no_grad():  # on large observations one action may always be the best
            assert torch.equal(policy.algorithm.q(as_tensors(observation)), model.q_net(tensors))
    if not isinstance(policy.algorithm.action_space, spaces.Discrete):
        # so is rounding then
        large = (
            max(1.0, np.abs(observation).max() / 10) if isinstance(observation, np.ndarray) else 1.0
        )
        # 1e-6 of the widest range, 10
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * large)


@pytest.mark.parametrize(("algorithm", "kind"), [*itertools.product(MODELS, OBSERVATIONS), *IMAGES])
def test_the_same_greedy_actions(algorithm, kind, tmp_path, monkeypatch):
    space, n = (
        IMAGES.get((algorithm, kind), OBSERVATIONS.get(kind)),
        50 if (algorithm, kind) in IMAGES else 2000,
    )
    untrained(tmp_path / "run", algorithm, monkeypatch, space)
    assert_same_actions(*exported(tmp_path / "run", algorithm), n)


@pytest.mark.parametrize("hidden", [(), (7,), (32, 16, 8)], ids=str)
@pytest.mark.parametrize("algorithm", MODELS)
def test_any_hidden_layers(algorithm, hidden, tmp_path, monkeypatch):
    untrained(tmp_path / "run", algorithm, monkeypatch, hidden=hidden)
    assert_same_actions(*exported(tmp_path / "run", algorithm), 2000)


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac"])
def test_actions_of_any_shape(algorithm, tmp_path, monkeypatch):
    untrained(
        tmp_path / "run", algorithm, monkeypatch, action_space=spaces.Box(-3, 3, (2, 2), np.float32)
    )
    assert_same_actions(*exported(tmp_path / "run", algorithm), 2000)


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac"])
def test_critics_and_targets_come_along(algorithm, tmp_path, monkeypatch):
    untrained(tmp_path / "run", algorithm, monkeypatch)
    policy, model = exported(tmp_path / "run", algorithm)
    observation = torch.from_numpy(samples(BOX, 50))
    action = torch.rand(50, 2) * 2 - 1
    for suffix in ("", "_target"):
        with torch.no_grad():
            ours = getattr(policy.algorithm, f"critic{suffix}")(observation, action)
            theirs = torch.cat(getattr(model.policy, f"critic{suffix}")(observation, action), 1)
        torch.testing.assert_close(theirs, ours)
    if algorithm == "sac":
        assert model.log_ent_coef.item() == policy.algorithm.alpha.log_alpha.item()


@pytest.mark.parametrize("kind", ["discrete", "box"])
@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_values_and_densities_come_along(algorithm, kind, tmp_path, monkeypatch):
    """Densities of the environment's own actions, whose range is another one."""
    space = {"discrete": spaces.Discrete(3), "box": WIDE}[kind]
    untrained(tmp_path / "run", algorithm, monkeypatch, action_space=space)
    policy, model = exported(tmp_path / "run", algorithm)
    assert_same_actions(policy, model, 2000)
    observation, rng = samples(BOX, 50), np.random.default_rng(0)
    ours = policy.algorithm.choose(torch.from_numpy(observation), np.ones(50, np.float32), rng)
    action, per_unit = ours["action"], 0.0
    if kind == "box":
        half = (WIDE.high - WIDE.low) / 2
        action, per_unit = WIDE.low + half * (action + 1), np.log(half).sum()
    with torch.no_grad():
        value, log_prob, _ = model.policy.evaluate_actions(
            *map(torch.tensor, (observation, action))
        )
        expected = policy.algorithm.network.value(torch.from_numpy(observation))
    torch.testing.assert_close(value.squeeze(1), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(log_prob, ours["log_prob"] - per_unit, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_a_model_of_rollouts_goes_on_learning(algorithm, tmp_path, monkeypatch):
    observations = spaces.Box(-10, 10, (4,), np.float32)
    untrained(tmp_path / "run", algorithm, monkeypatch, observations, spaces.Discrete(2))
    _, model = exported(tmp_path / "run", algorithm)
    clipped = gymnasium.wrappers.TransformObservation(
        gymnasium.make("CartPole-v1"), lambda x: x.clip(-10, 10), observations
    )
    model.set_env(clipped)
    before = model.policy.state_dict()["action_net.weight"].clone()
    model.learn(80)
    assert model.num_timesteps == 80 and model.n_steps == 40
    assert not torch.equal(before, model.policy.state_dict()["action_net.weight"])


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
def test_adams_epsilon_comes_along(algorithm, tmp_path, monkeypatch):
    """And a choice of the network for images does not stand in the way, where there are none."""
    options = {"adam_epsilon": 3e-4, "image_network": "data_efficient"}
    untrained(tmp_path / "run", algorithm, monkeypatch, **options)
    _, model = exported(tmp_path / "run", algorithm)
    assert model.policy.optimizer.defaults["eps"] == 3e-4


@pytest.mark.parametrize(
    ("algorithm", "options", "theirs"),
    [
        (
            "dqn",
            {"exploration_fraction": 0.3, "exploration_initial": 0.7, "n_step": 5},
            {"exploration_fraction": 0.3, "exploration_initial_eps": 0.7},
        ),
        (
            "td3",
            {"policy_delay": 4, "target_noise": 0.1, "target_noise_clip": 0.2, "n_step": 3},
            {"policy_delay": 4, "target_policy_noise": 0.1, "target_noise_clip": 0.2},
        ),
        (
            "sac",
            {"target_entropy": -3.0, "target_interval": 7, "n_step": 3},
            {"target_entropy": -3.0, "target_update_interval": 7},
        ),
        ("ddpg", {"n_step": 2}, {}),
    ],
)
def test_what_the_targets_are_made_of_comes_along(
    algorithm, options, theirs, tmp_path, monkeypatch
):
    noise = {"exploration_noise": 0.3} if algorithm in ("ddpg", "td3") else {}
    untrained(tmp_path / "run", algorithm, monkeypatch, **options, **noise)
    _, model = exported(tmp_path / "run", algorithm)
    assert {name: getattr(model, name) for name in theirs} == theirs
    assert model.replay_buffer.n_steps == options["n_step"]
    if noise:
        np.testing.assert_allclose(model.action_noise._sigma, np.full(WIDE.shape, 0.3))


def test_q_targets_come_along(tmp_path, monkeypatch):
    untrained(tmp_path / "run", "dqn", monkeypatch)
    policy, model = exported(tmp_path / "run", "dqn")
    observation = torch.from_numpy(samples(BOX, 50))
    with torch.no_grad():
        assert torch.equal(
            policy.algorithm.q_target(observation), model.policy.q_net_target(observation)
        )


def test_the_model_goes_on_learning(tmp_path, monkeypatch):
    untrained(
        tmp_path / "run",
        "sac",
        monkeypatch,
        spaces.Box(-1, 1, (3,), np.float32),
        spaces.Box(-2, 2, (1,), np.float32),
    )
    _, model = exported(tmp_path / "run", "sac")
    model.set_env(
        gymnasium.wrappers.TransformObservation(
            gymnasium.make("Pendulum-v1"), lambda x: x.clip(-1, 1), BOX
        )
    )
    model.learning_starts = 10
    model.learn(20)
    assert model.buffer_size == 5_000


def test_loading_needs_no_kary_replay(tmp_path, monkeypatch):
    untrained(tmp_path / "run", "dqn", monkeypatch)
    export(tmp_path / "run")
    code = (
        "import sys, numpy, stable_baselines3; sys.modules['kary_replay'] = None;"
        "model = stable_baselines3.DQN.load(sys.argv[1]); "
        "print(model.predict(numpy.zeros(3, 'f4'), deterministic=True)[0])"
    )
    path = str(tmp_path / "run" / "sb3.zip")
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() in "012"


NO_PLACE = [
    ({"dueling": True}, {}, "dueling=True"),
    ({"n_atoms": 11}, {}, "n_atoms=11"),
    ({"n_quantiles": 5}, {}, "n_quantiles=5"),
    ({"noisy": True}, {}, "noisy=True"),
    (
        {"image_network": "data_efficient"},
        {"observation_space": spaces.Box(0, 255, (3, 40, 40), np.uint8)},
        "image_network=data_efficient",
    ),
    ({}, {"observation_space": spaces.Discrete(3, start=1)}, "counts from 0"),
    ({}, {"action_space": spaces.Discrete(3, start=1)}, "counts from 0"),
    ({}, {"observation_space": spaces.MultiDiscrete([2, 3])}, "one-hot"),
    ({}, {"observation_space": spaces.Box(0, 255, (40, 44), np.uint8)}, "an axis of channels"),
    ({}, {"observation_space": spaces.Box(0, 200, (3, 40, 40), np.uint8)}, "0 to 255"),
    (
        {},
        {"observation_space": spaces.Dict({"x": spaces.Box(0, 255, (3, 8, 8), np.uint8)})},
        "too small",
    ),
    ({}, {"observation_space": spaces.Box(0, 255, (7, 7, 3), np.uint8)}, "axis .* to the front"),
    ({}, {"observation_space": spaces.Box(0, 255, (20, 3, 20), np.uint8)}, r"\(20, 3, 20\).*front"),
]


@pytest.mark.parametrize(
    ("options", "where", "message"), NO_PLACE, ids=[message for _, _, message in NO_PLACE]
)
def test_what_sb3_has_no_place_for_is_refused(options, where, message, tmp_path, monkeypatch):
    untrained(tmp_path / "run", "dqn", monkeypatch, **where, **options)
    with pytest.raises(ConfigError, match=message):
        export(tmp_path / "run")
    assert not list(tmp_path.rglob("*.zip"))


def test_a_model_that_acts_otherwise_is_not_written(tmp_path, monkeypatch):
    untrained(tmp_path / "run", "td3", monkeypatch)
    monkeypatch.setattr(
        "kary_replay.runner.policies.export.COPY", {"td3": lambda algorithm, model: None}
    )
    with pytest.raises(ConfigError, match="act otherwise"):
        export(tmp_path / "run")
    assert not list(tmp_path.rglob("*.zip"))


@pytest.mark.parametrize("algorithm", ["dqn", "ppo"])
@pytest.mark.parametrize("loss", [1e-6, 1e-2])
def test_actions_equally_good_may_be_taken_for_each_other(algorithm, loss, tmp_path, monkeypatch):
    untrained(tmp_path / "run", algorithm, monkeypatch)
    original = export_module._values

    def tied(model, samples):
        best = original(model, samples).argmax(1)
        values = np.full((len(best), 3), 100.0)
        values[np.arange(len(best)), (best + 1) % 3] *= 1 + loss
        return values

    monkeypatch.setattr(export_module, "_values", tied)
    if loss < export_module.VALUE_TOLERANCE:
        assert export(tmp_path / "run").exists()
    else:
        with pytest.raises(ConfigError, match="act otherwise"):
            export(tmp_path / "run")


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_values_that_are_not_finite_are_not_equally_good(value, tmp_path, monkeypatch):
    untrained(tmp_path / "run", "dqn", monkeypatch)
    original = export_module._values

    def broken(model, samples):
        values = original(model, samples)
        values[0, values[0].argmin()] = value
        return values

    monkeypatch.setattr(export_module, "_values", broken)
    with pytest.raises(ConfigError, match="act otherwise"):
        export(tmp_path / "run")


def test_a_model_that_cannot_be_written_leaves_the_former_one(tmp_path, monkeypatch):
    def half(model, path):
        path.write_bytes(b"PK")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    untrained(tmp_path / "run", "dqn", monkeypatch)
    former = export(tmp_path / "run").read_bytes()
    monkeypatch.setattr(sb3.DQN, "save", half)
    with pytest.raises(ConfigError, match=r"sb3\.zip cannot be written: .*No space left"):
        export(tmp_path / "run")
    (left,) = tmp_path.rglob("*.zip")
    assert left.name == "sb3.zip" and left.read_bytes() == former


def test_the_format_of_the_run_is_checked(tmp_path, monkeypatch):
    untrained(tmp_path / "run", "dqn", monkeypatch)
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(ConfigError, match="another version"):
        export(tmp_path / "run")
