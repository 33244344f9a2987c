"""Runs as trials of Ray Tune."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest

tune = pytest.importorskip(
    "ray.tune", reason="Ray Tune is not installed: make test-ray", exc_type=ImportError
)


@pytest.fixture(autouse=True)
def results(monkeypatch, tmp_path_factory):
    """Trials that a test takes by hand have their folders there, not in the user's."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


SPACE = {
    "algorithm": "dqn",
    "env": "CartPole-v1",
    "backend": "serial",
    "options": {"hidden": (16, 16), "batch_size": 32, "learning_rate": 1e-3},
    "learning_starts": 200,
    "total_env_steps": 3000,
    "evaluation_interval": 1000,
    "evaluation_episodes": 2,
    "buffer_capacity": 2000,
}


def made(sizes):
    return gymnasium.make("CartPole-v1")


def fitted(space, storage, name, **run):
    from kary_replay.runner.tune import RunTrainable

    settings = tune.TuneConfig(metric="mean_return", mode="max", num_samples=1)
    where = tune.RunConfig(name=name, storage_path=str(storage), verbose=0, **run)
    return tune.Tuner(RunTrainable, param_space=space, tune_config=settings, run_config=where).fit()


def test_a_tuner_finds_the_better_of_two(cluster, tmp_path):
    rates = tune.grid_search([1e-3, 1e-7])
    space = {**SPACE, "options": {**SPACE["options"], "learning_rate": rates}}
    checkpoints = tune.CheckpointConfig(checkpoint_at_end=True)
    results = fitted(space, tmp_path, "two", checkpoint_config=checkpoints)
    assert not results.errors
    assert len(results) == 2
    for result in results:
        assert result.metrics["done"]
        assert result.metrics["env_steps"] >= 3000
        assert result.metrics["updates"] > 0
        assert result.metrics["training_iteration"] == 3
        assert result.metrics["best_return"] >= result.metrics["mean_return"]
        assert result.checkpoint is not None
    best = results.get_best_result()
    assert best.metrics["mean_return"] == max(one.metrics["mean_return"] for one in results)


def test_a_trial_goes_on_from_its_checkpoint_as_if_it_had_not_ended(tmp_path):
    """No Ray is needed to take the steps of a trial one by one."""
    from kary_replay.runner.tune import RunTrainable

    whole = RunTrainable(dict(SPACE))
    expected = [whole.train() for _ in range(3)]
    first = RunTrainable(dict(SPACE))
    one = first.train()
    first.save_checkpoint(str(tmp_path))
    second = RunTrainable(dict(SPACE))
    second.load_checkpoint(str(tmp_path))
    others = [second.train() for _ in range(2)]
    for found, wanted in zip([one, *others], expected, strict=True):
        for name in ("mean_return", "env_steps", "updates", "done"):
            assert found[name] == wanted[name], name


def test_a_clone_goes_on_with_its_own_hyperparameters(tmp_path):
    from kary_replay.runner.records.run_directory import RunDirectory
    from kary_replay.runner.tune import RunTrainable

    parent = RunTrainable(dict(SPACE))
    parent.train()
    parent.save_checkpoint(str(tmp_path))
    clone = RunTrainable({**SPACE, "options": {**SPACE["options"], "learning_rate": 5e-4}})
    clone.load_checkpoint(str(tmp_path))
    clone.train()
    assert RunDirectory.existing(clone._path)[1].options.learning_rate == 5e-4


def test_a_clone_whose_rows_or_networks_would_be_others_is_refused_by_name(tmp_path):
    from kary_replay.runner.config import ConfigError
    from kary_replay.runner.tune import RunTrainable

    parent = RunTrainable(dict(SPACE))
    parent.train()
    parent.save_checkpoint(str(tmp_path))
    rows = {"n_step": 7, "gamma": 0.5}
    networks = {"hidden": [7], "dueling": True, "n_atoms": 51, "noisy": True, "n_quantiles": 5}
    for name, value in {**rows, **networks}.items():
        clone = RunTrainable({**SPACE, "options": {**SPACE["options"], name: value}})
        message = f"options.{name} is {value}, and the {'rows' if name in rows else 'networks'}"
        with pytest.raises(ConfigError, match=re.escape(message)):
            clone.load_checkpoint(str(tmp_path))
        assert not clone._path.exists()


def test_a_clone_that_adjusts_a_coefficient_which_was_given_is_refused_by_name(tmp_path):
    from kary_replay.runner.config import ConfigError
    from kary_replay.runner.tune import RunTrainable

    options = {**SPACE["options"], "ent_coef": 0.2}
    space = {**SPACE, "algorithm": "sac", "env": "Pendulum-v1", "total_env_steps": 2000}
    parent = RunTrainable({**space, "options": options})
    parent.train()
    parent.save_checkpoint(str(tmp_path))
    clone = RunTrainable(space)
    with pytest.raises(ConfigError, match=r"options\.ent_coef is None, and the networks that"):
        clone.load_checkpoint(str(tmp_path))
    assert not clone._path.exists()
    other = RunTrainable({**space, "options": {**options, "ent_coef": 0.1}})
    other.load_checkpoint(str(tmp_path))
    other.train()


def test_a_clone_with_other_settings_than_the_run_is_refused_by_name(tmp_path):
    from kary_replay.runner.config import ConfigError
    from kary_replay.runner.tune import RunTrainable

    parent = RunTrainable(dict(SPACE))
    parent.train()
    parent.save_checkpoint(str(tmp_path))
    clone = RunTrainable({**SPACE, "samples_per_insert": 64.0})
    with pytest.raises(ConfigError, match=r"samples_per_insert is 64\.0, and .* has 16\.0"):
        clone.load_checkpoint(str(tmp_path))
    assert not clone._path.exists()
    larger = {**SPACE["options"], "batch_size": 64}  # by which the default would be another
    clone = RunTrainable({**SPACE, "options": larger})
    clone.load_checkpoint(str(tmp_path))
    clone.train()


def test_settings_that_json_keeps_otherwise_are_the_same(tmp_path):
    from kary_replay.runner.tune import RunTrainable

    options = {"env": "test_tune:made", "env_options": {"sizes": [1, 2]}}
    space = {**SPACE, **options, "beta": np.float32(0.6)}
    trial = RunTrainable(space)
    trial.train()
    trial.save_checkpoint(str(tmp_path))
    trial.load_checkpoint(str(tmp_path))
    assert trial.train()["training_iteration"] == 2


def test_a_trial_is_done_when_its_last_policy_is_evaluated(tmp_path):
    """Also where actors have taken all steps while an earlier policy was evaluated."""
    from kary_replay.runner.records.run_directory import RunDirectory
    from kary_replay.runner.tune import RunTrainable

    options = {"env": "slow_envs:slow", "eval_env_options": {"seconds": 0.01}}
    trial = RunTrainable({**SPACE, **options, "backend": "process", "evaluation_interval": 500})
    while not trial.train()["done"]:
        assert trial.iteration < 20
    directory, config = RunDirectory.existing(trial._path)
    _, counters = directory.checkpoint(config)
    assert directory.policy("last").evaluation.updates == counters["updates"]
    assert counters["env_steps"] >= config.total_env_steps


def test_a_trial_that_is_given_more_steps_goes_on(tmp_path):
    from kary_replay.runner.tune import RunTrainable

    first = RunTrainable({**SPACE, "total_env_steps": 1000})
    assert first.train()["done"]
    first.save_checkpoint(str(tmp_path))
    second = RunTrainable({**SPACE, "total_env_steps": 2000})
    second.load_checkpoint(str(tmp_path))
    result = second.train()
    assert result["env_steps"] >= 2000
    assert result["done"]


def test_a_process_that_is_used_again_leaves_the_former_trial_alone(tmp_path):
    from kary_replay.runner.tune import RunTrainable

    trial = RunTrainable(dict(SPACE))
    trial.train()
    former = trial._path
    trial._logdir = str(tmp_path)
    assert trial.reset_config(dict(SPACE))
    trial.train()
    assert trial._path == tmp_path / "run"
    assert (former / "checkpoint.json").exists()


def test_before_its_first_step_a_trial_has_nothing_to_save(tmp_path):
    from kary_replay.runner.tune import RunTrainable

    trial = RunTrainable(dict(SPACE))
    trial.save_checkpoint(str(tmp_path))
    again = RunTrainable(dict(SPACE))
    again.load_checkpoint(str(tmp_path))
    assert again.train()["env_steps"] >= 1000


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"env": None}, "env must be"),
        ({"backend": "ray"}, "backend='process' or 'serial'"),
        ({"actors": "auto"}, "a number of actors"),
        ({"directory": "runs/one"}, "must not have directory"),
        ({"evaluate": "never"}, "needs evaluate='during'"),
        ({"options": {"learning_rat": 1.0}}, "got learning_rat"),
        ({"alpah": 1.0}, "alpah"),
        ({"alpha": 2.0}, "alpha must be"),
    ],
)
def test_settings_that_cannot_be(change, complaint):
    from kary_replay.runner.config import ConfigError
    from kary_replay.runner.tune import settings_of

    with pytest.raises(ConfigError, match=complaint):
        settings_of({**SPACE, **change})


def test_a_trial_asks_for_what_it_needs():
    from kary_replay.runner.tune import RunTrainable

    ask = RunTrainable.default_resource_request
    assert ask({**SPACE, "actors": 3, "learner_threads": 2}).bundles == [{"CPU": 5.0}]
    assert ask({**SPACE, "actors": 1, "device": "cuda"}).bundles == [{"CPU": 2.0, "GPU": 1.0}]
