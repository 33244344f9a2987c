"""What cannot be run is refused before anything is made, in a paragraph that says what to do."""

import dataclasses
import functools
import json
import os
import pickle
import subprocess
import sys
from collections import ChainMap
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType

import faulty_envs
import gymnasium
import numpy as np
import pytest
from runs import HANG_SECONDS, config, run

from kary_replay import PrioritizedReplayBuffer, cli, fork_server
from kary_replay.algorithms import (
    ALGORITHMS,
    DQNOptions,
    PPOOptions,
    SACOptions,
    TD3Options,
)
from kary_replay.runner import ConfigError, Runner, RunnerConfig
from kary_replay.runner.config import as_json, from_json
from kary_replay.runner.environments.env_factory import env_factory, trouble_with_name
from kary_replay.runner.presets import PRESETS
from kary_replay.runner.records.run_directory import RunDirectory


def make():
    return gymnasium.make("CartPole-v1")


def several():
    return gymnasium.make_vec("CartPole-v1", num_envs=2)


def forget():
    make()


class Clumsy(gymnasium.Wrapper):
    def close(self):
        raise RuntimeError("the door is stuck")


gymnasium.register("Session-v0", entry_point=faulty_envs.make)


def normalized():
    return gymnasium.wrappers.TransformReward(
        gymnasium.wrappers.NormalizeObservation(make()), float
    )


def normalized_rewards():
    return gymnasium.wrappers.NormalizeReward(make())


def normalized_vector():
    return gymnasium.wrappers.vector.NormalizeObservation(gymnasium.make_vec("CartPole-v1", 2))


class RunningMeanStd:
    """What other libraries, too, call the class."""


class OwnNormalization(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.statistics = {"observation": RunningMeanStd()}


def own_normalization():
    return OwnNormalization(make())


def frozen():
    env = gymnasium.wrappers.NormalizeObservation(make())
    env.update_running_mean = False
    return env


REFUSED = [  # settings of a process run with a batch of 32, and what the message has
    ({"learners": 64}, "learners must divide batch_size=32"),
    (
        {"learners": 3},
        "learners must divide batch_size=32.*"
        "choose another number of learners or another batch size",
    ),
    ({"learners": 2, "backend": "serial"}, "learners must be 1 with backend='serial'"),
    ({"actors": 0}, "actors must be 'auto' or an integer of at least 1, got 0"),
    ({"groups": 3}, "groups must divide envs_per_actor=4"),
    ({"learning_starts": 6_000}, "learning_starts must be at most buffer_capacity=5000"),
    ({"samples_per_insert": float("nan")}, "samples_per_insert must be a finite number above 0"),
    (
        {"samples_per_insert_error": "8"},
        "samples_per_insert_error must be None or a finite number above 0",
    ),
    ({"samples_per_insert_error": 8.0}, "samples_per_insert_error must be at least 32"),
    ({"prefetch": -1}, "prefetch must be None or an integer from 0 to 64"),
    ({"prefetch": 10**9}, "prefetch must be None or an integer from 0 to 64"),
    ({"seed": 2**64}, r"seed must be below 2\*\*63"),
    (
        {"learners": 2, "samples_per_insert_error": 20.0},
        "samples_per_insert_error must be at least 32",
    ),
    ({"device": "gpu"}, "device must be one of torch's"),
    ({"device": "meta"}, "device must be there, got 'meta': .*; use device='cpu'"),
    ({"device": "cuda:99"}, "device must be there, got 'cuda:99' with learners=1: torch finds"),
    (
        {"device": "cuda:0", "learners": 2},
        "each of learners=2 needs a GPU of its own: give device='cuda', not 'cuda:0'",
    ),
    (
        {"target_return": float("nan"), "evaluate": "during"},
        "target_return must be None or a finite number",
    ),
    ({"target_return": 475.0}, "target_return needs evaluate='during'"),
    ({"env_options": {"space": object()}}, "env_options must be a dict of what JSON has"),
    ({"env_options": {"size": (3, 4)}}, "env_options must be a dict.*write tuples as lists"),
    ({"eval_env_options": {3: "x"}}, "eval_env_options must be a dict.*keys as text"),
    ({"eval_env_options": [1]}, r"eval_env_options must be a dict of what JSON has.*got \[1\]"),
    (
        {"env_options": 5, "env": functools.partial(make)},
        "env_options must be a dict of what JSON has",
    ),
    ({"backend": "moon"}, "backend must be one of process, serial, ray, got 'moon'"),
    ({"ray_address": "auto"}, "ray_address is for backend='ray', got backend='process'"),
    ({"backend": "ray", "ray_address": ""}, "ray_address must be text, got ''"),
    ({"backend": "ray", "prefetch": 2}, "prefetch must be None or 0 with backend='ray', got 2"),
    ({"env": lambda: make()}, r"cannot be sent to other processes.*at the top level of a module"),
    (
        {"env": forget},
        "made no environment, which has an observation_space and an action_space, but None",
    ),
    ({"env": several}, "made several environments at once, a CartPoleVectorEnv: make one"),
    ({"env": 5}, "env must be a gymnasium id, module:function, or a function"),
    ({"total_env_steps": "1000"}, "total_env_steps must be an integer"),
    ({"total_env_steps": 2**60}, "total_env_steps must be at most 9007199254740992"),
    ({"env": functools.partial(make, size=3)}, "could not be made: TypeError"),
    ({"env": "CartPol-v1"}, "did you mean CartPole-v1"),
    (
        {"env": normalized, "total_env_steps": 120},
        "test_config:normalized' must not keep running statistics, "
        "and its wrapper NormalizeObservation does",
    ),
    (
        {"env": normalized_rewards, "total_env_steps": 120},
        "its wrapper NormalizeReward does: .*Take it off, and set normalize_observations or",
    ),
    ({"env": normalized_vector}, "its wrapper NormalizeObservation does"),
    ({"env": own_normalization, "total_env_steps": 120}, "its wrapper OwnNormalization does"),
    (
        {"env": "MiniGrid-Empty-5x5-v0"},
        "minigrid registers it. .* write minigrid:MiniGrid-Empty-5x5-v0",
    ),
    (
        {"env": "Mine/Task-v0"},
        "no package that registers Mine/ has been imported. .*module:Mine/Task-v0",
    ),
    ({"env": "tabular/Blackjak-v0"}, "did you mean tabular/Blackjack-v0"),
    (
        {"buffer_capacity": 10**14},
        "buffer_capacity=100000000000000 is more than memory has room for",
    ),
]


@pytest.mark.parametrize(
    ("settings", "message"), REFUSED, ids=[" ".join(settings) for settings, _ in REFUSED]
)
def test_what_cannot_be_run_is_refused_and_nothing_is_created(settings, message, tmp_path):
    env = settings.pop("env", "CartPole-v1")
    with pytest.raises(ConfigError, match=message) as caught:
        Runner(config("dqn", env, tmp_path / "run", **{"backend": "process", **settings})).run()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_statistics_that_do_not_change_are_no_obstacle(tmp_path):
    assert run("dqn", frozen, tmp_path / "run", total_env_steps=120).env_steps >= 120


def test_a_function_of_an_interactive_session_is_refused(tmp_path, monkeypatch):
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None, raising=False)
    monkeypatch.delattr(main, "__file__", raising=False)
    monkeypatch.setattr(main, "make", make, raising=False)
    monkeypatch.setattr(make, "__module__", "__main__")
    with pytest.raises(
        ConfigError, match=r'interactive session.*Put it into a module, and pass "module:function"'
    ):
        Runner(config("dqn", make, tmp_path / "run", backend="process"))
    Runner(config("dqn", make, tmp_path / "run"))  # serial: nobody has to import it
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "env",
    ["faulty_envs:make", "faulty_envs:Faulty-v0", functools.partial(faulty_envs.make, length=3)],
)
def test_ways_to_name_an_environment(env, tmp_path):
    assert Runner(config("dqn", env, tmp_path / "run", total_env_steps=120)).run().env_steps >= 120


def test_processes_make_what_was_registered_in_this_session_alone(tmp_path):
    result = Runner(
        config("dqn", "Session-v0", tmp_path / "run", backend="process", total_env_steps=120)
    ).run()
    assert result.env_steps >= 120


def test_what_a_partial_holds_is_kept_in_config_json(tmp_path):
    settings = config(
        "dqn", functools.partial(faulty_envs.make, length=3), tmp_path / "run", total_env_steps=120
    )
    assert (settings.env, settings.env_options) == (faulty_envs.make, {"length": 3})
    Runner(settings).run()
    _, again = RunDirectory.existing(tmp_path / "run")
    assert (again.env, again.env_options) == ("faulty_envs:make", {"length": 3})


@pytest.mark.parametrize("env", [lambda: make(), functools.partial(faulty_envs.Faulty, "none")])
def test_a_run_whose_environment_has_no_name_says_that_it_cannot_go_on(env, tmp_path, capsys):
    assert Runner(config("dqn", env, tmp_path / "run", total_env_steps=120)).run().env_steps >= 120
    assert "so this run cannot be resumed, played or exported later" in " ".join(
        capsys.readouterr().out.split()
    )


def test_an_environment_that_cannot_be_closed_can_be_used(tmp_path):
    assert (
        Runner(config("dqn", lambda: Clumsy(make()), tmp_path / "run", total_env_steps=120))
        .run()
        .env_steps
        >= 120
    )


def test_what_json_would_change_stays_in_the_partial():
    env = functools.partial(faulty_envs.make, length=(3, 4))
    assert RunnerConfig("dqn", env).env is env


def test_ids_that_cannot_be_pickled_are_left_to_who_registers_them():
    gymnasium.register("Lambda-v0", entry_point=lambda: make())
    try:
        make_it = env_factory(RunnerConfig("dqn", "Lambda-v0", backend="process"))
        assert make_it.env == "Lambda-v0" and pickle.loads(pickle.dumps(make_it)).env == "Lambda-v0"
    finally:
        del gymnasium.registry["Lambda-v0"]


def test_too_little_memory_to_go_on_is_no_damage(tmp_path, monkeypatch):
    run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=120)

    def load(*args, **kwargs):
        raise MemoryError("500 GB are needed; or storage_directory=… for a file on disk")

    monkeypatch.setattr(PrioritizedReplayBuffer, "load", load)
    with pytest.raises(
        ConfigError,
        match=r"^buffer_capacity=5000 is .* room for: 500 GB are needed; choose a smaller one$",
    ):
        Runner.resume(tmp_path / "run", total_env_steps=240).run()


def test_where_processes_cannot_share_memory_all_workers_are_in_one(monkeypatch):
    assert RunnerConfig("dqn", "CartPole-v1").backend == (
        "process" if sys.platform.startswith("linux") else "serial"
    )
    monkeypatch.setattr(sys, "platform", "darwin")
    assert RunnerConfig("dqn", "CartPole-v1").backend == "serial"
    with pytest.raises(
        ConfigError,
        match="backend='process' needs the shared memory of Linux: use backend='serial' here",
    ):
        RunnerConfig("dqn", "CartPole-v1", backend="process")


def test_a_program_without_a_main_guard_is_told_so(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from kary_replay.runner import Runner, RunnerConfig\n"
        "settings = {'actors': 1, 'total_env_steps': 64, 'directory': 'run'}\n"
        "Runner(RunnerConfig('dqn', 'CartPole-v1', **settings)).run()\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert (
        ended.returncode == 1 and 'must do so only under if __name__ == "__main__":' in ended.stderr
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py"]


BAD_OPTIONS = {
    "huber_delta must be finite and above 0, got inf": {"huber_delta": float("inf")},
    "learning_rate must be finite and above 0, got nan": {"learning_rate": float("nan")},
    "adam_epsilon must be finite and at least 1.17549e-38, got 0": {"adam_epsilon": 0},
    "adam_epsilon must be finite and at least 1.17549e-38, got 1e-39": {"adam_epsilon": 1e-39},
    "v_max must be finite, got inf": {"n_atoms": 51, "v_max": float("inf")},
    "v_min must be below v_max, got 10.0 and 10.0": {"n_atoms": 51, "v_min": 10.0},
    "v_min must be a real number, got 'a'": {"v_min": "a"},
    "exploration_final must be from 0 to 1": {"exploration_final": 1.5},
    "exploration_fraction must be finite and at least 0": {"exploration_fraction": -1.0},
    "exploration_fraction must be finite and at least 0, got inf": {
        "exploration_fraction": float("inf")
    },
    "exploration_fraction must be a real number": {"exploration_fraction": "a"},
    "max_gradient_norm must be above 0": {"max_gradient_norm": 0.0},
    "max_gradient_norm must be a real number": {"max_gradient_norm": "a"},
    "hidden must be a tuple of widths": {"hidden": 64},
    "image_network must be one of nature, data_efficient, got 'resnet'": {
        "image_network": "resnet"
    },
    "exploration_noise must be finite and at least 0": {"exploration_noise": -0.1},
    "target_noise must be finite and at least 0": {"target_noise": float("nan")},
    "target_noise_clip must be a real number": {"target_noise_clip": "much"},
    "target_entropy must be finite, got inf": {"target_entropy": float("inf")},
    r"v_max must be from -3.4e\+38 to 3.4e\+38, which float32 holds, got 1e\+39": {"v_max": 1e39},
    "v_min=-20.0 and v_max=10.0 need n_atoms above 1, got 1": {"v_min": -20.0},
    r"v_min=-2e\+38 and v_max=2e\+38 need n_atoms above 1": {
        "n_quantiles": 5,
        "v_min": -2e38,
        "v_max": 2e38,
    },
    "noise_size=0.1 needs noisy=True": {"noise_size": 0.1},
    "target_entropy=-1.0 needs ent_coef=None, got 0.2": {"target_entropy": -1.0, "ent_coef": 0.2},
    r"v_max - v_min must be from 1.18e-38": {"n_atoms": 51, "v_min": -3e38, "v_max": 3e38},
    r"\(v_max - v_min\) / \(n_atoms - 1\) must be from 1.18e-38": {
        "n_atoms": 51,
        "v_min": 0.0,
        "v_max": 2e-38,
    },
    r"huber_delta must be from 1.18e-38 to 3.4e\+38, which float32 holds": {"huber_delta": 1e39},
    r"learning_rate must be from 1.18e-38 to 3.4e\+38": {"learning_rate": 1e-39},
    r"max_gradient_norm must be from 1.18e-38 to 3.4e\+38": {"max_gradient_norm": 1e39},
    r"noise_size must be from 1.18e-38 to 3.4e\+38, .* got 1e\+300": {"noise_size": 1e300},
    r"target_noise must be from -3.4e\+38 to 3.4e\+38": {"target_noise": 1e39},
    r"clip_range_vf must be from 1.18e-38 to 3.4e\+38": {"clip_range_vf": 1e39},
}


@pytest.mark.parametrize("message", BAD_OPTIONS)
def test_bad_hyperparameters_are_refused(message):
    options = BAD_OPTIONS[message]
    kinds = DQNOptions, TD3Options, SACOptions, PPOOptions
    options_class = next(kind for kind in kinds if set(options) <= set(kind.__dataclass_fields__))
    with pytest.raises((ValueError, TypeError), match=message):
        options_class(**options)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the name of a folder, got ''"),  # the current folder, which would be removed
        ("a\0b", r"the name of a folder, got 'a\\x00b'"),
        ("\udcff", r"text that UTF-8 can have, got '\\udcff'"),
        (b"run", "a path, got b'run'"),
        (5, "a path, got 5"),
    ],
)
def test_a_directory_that_there_cannot_be_is_refused(name, message):
    with pytest.raises(ConfigError, match=f"directory must be {message}"):
        RunnerConfig("dqn", "CartPole-v1", directory=name)


@pytest.mark.parametrize(
    ("given", "groups"),
    [({"envs_per_actor": 1}, 1), ({"envs_per_actor": 3}, 1), ({"envs_per_actor": 6}, 2), ({}, 2)],
)
def test_by_default_there_are_as_many_groups_as_environments_allow(given, groups):
    assert RunnerConfig("dqn", "CartPole-v1", **given).groups == groups


@pytest.mark.parametrize(
    ("n_envs", "actors", "groups"),
    [(1, "auto", 1), (3, 1, 1), (2, 1, 2), (2, 2, 1), (6, 2, 1), (8, 2, 2)],
)
@pytest.mark.parametrize("algorithm", ["impala", "appo"])
def test_groups_of_rollouts_divide_the_environments_of_an_actor(algorithm, n_envs, actors, groups):
    options = ALGORITHMS[algorithm].options_class(n_envs=n_envs)
    config = RunnerConfig(algorithm, "CartPole-v1", options=options, actors=actors)
    assert config.groups == groups


def test_settings_may_be_numbers_of_numpy():
    plain = {"seed": 3, "actors": 2, "envs_per_actor": 4, "samples_per_insert": 8.0}
    settings = RunnerConfig(
        "dqn",
        "CartPole-v1",
        **{name: np.asarray(value)[()] for name, value in plain.items()},
    )
    assert settings == RunnerConfig("dqn", "CartPole-v1", **plain)
    assert type(settings.seed) is int and from_json(json.loads(json.dumps(as_json(settings))))


def test_options_are_those_of_the_algorithm():
    with pytest.raises(ConfigError, match="options must be SACOptions for sac, got DQNOptions"):
        RunnerConfig("sac", "Pendulum-v1", options=DQNOptions())
    with pytest.raises(ConfigError, match="options must be DQNOptions for dqn, got dict; datacl"):
        RunnerConfig("dqn", "CartPole-v1", options={"learning_rate": 1e-3})


@pytest.mark.parametrize(("algorithm", "env"), PRESETS)
def test_config_json_has_every_setting(algorithm, env):
    settings = RunnerConfig(
        algorithm,
        env.replace("*", "CartPole-v1"),
        env_options={"x": 1.5},
        directory=Path("somewhere"),
    )
    assert settings.directory == "somewhere"
    assert from_json(json.loads(json.dumps(as_json(settings)))) == settings


@pytest.mark.parametrize(("algorithm", "env"), PRESETS)
def test_a_preset_is_what_a_run_has(algorithm, env):
    """A setting with a default of its own would keep that."""
    row = {**PRESETS[algorithm, env]}
    options = row.pop("options", {})
    settings = RunnerConfig(algorithm, env.replace("*", "Nowhere-v0"))
    assert {name: getattr(settings, name) for name in row} == row
    assert {name: getattr(settings.options, name) for name in options} == options


CHANGED = {  # what was changed in a run's directory: file, how, and what the message has
    "format": (
        "config.json",
        lambda content: content.update(format=99),
        "another version of kary-replay",
    ),
    "algorithm": (
        "config.json",
        lambda content: content.update(algorithm="td3"),
        "of algorithm ddpg, but config.json says td3",
    ),
    "env": (
        "config.json",
        lambda content: content.update(env="MountainCarContinuous-v0"),
        "is of env Pendulum-v1",
    ),
    "counters": ("checkpoint.json", lambda content: content.pop("env_steps"), "has no counters"),
    "setting": (
        "config.json",
        lambda content: content.update(no_such=1),
        "another version of kary-replay",
    ),
    "option": (
        "config.json",
        lambda content: content["options"].update(no_such=1),
        "another version of kary-replay",
    ),
    "bad option": (
        "config.json",
        lambda content: content["options"].update(gamma=2),
        "gamma must be from 0 to 1",
    ),
    "widths": (
        "config.json",
        lambda content: content["options"].update(hidden=[32, 32]),
        "is of other networks than config",
    ),
    "no options": ("config.json", lambda content: content.pop("options"), "KeyError: 'options'"),
    "folder": (
        "checkpoint.json",
        lambda content: content.update(folder="nowhere"),
        "which is gone",
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a run of DDPG, whose options are all of TD3's, too."""
    path = tmp_path_factory.mktemp("config") / "run"
    run("ddpg", "Pendulum-v1", path, total_env_steps=120)
    return path


@pytest.mark.parametrize("changed", CHANGED)
@pytest.mark.parametrize("command", ["train --resume", "play", "export --to sb3"])
def test_a_run_of_another_kind_is_not_gone_on_with(command, changed, finished, capsys):
    name, change, message = CHANGED[changed]
    path = finished / name
    before = path.read_text()
    files = sorted(finished.rglob("*"))
    content = json.loads(before)
    change(content)
    path.write_text(json.dumps(content))
    try:
        assert cli.main([*command.split(), str(finished)]) == 2
    finally:
        path.write_text(before)
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    assert sorted(finished.rglob("*")) == files


@pytest.mark.parametrize("command", ["play", "export --to sb3"])
def test_an_environment_that_has_other_spaces_by_now_is_refused(command, tmp_path, capsys):
    run("ddpg", "Pendulum-v1", tmp_path / "run", total_env_steps=120, evaluate="during")
    path = tmp_path / "run" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "env": "CartPole-v1"}))
    assert cli.main([*command.split(), str(tmp_path / "run")]) == 2
    assert "ddpg needs continuous actions" in capsys.readouterr().err


def test_a_run_without_a_checkpoint_is_not_gone_on_with(tmp_path, capsys):
    again = config("dqn", "CartPole-v1", tmp_path / "run")
    RunDirectory.new(again).unlock()
    assert cli.main(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "has no checkpoint to go on from: none was written" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="another one, or remove it, if its run has ended"):
        RunDirectory.new(again)


@pytest.mark.parametrize("algorithm", [["dqn"], None, 3, {}, RunnerConfig], ids=str)
def test_an_algorithm_is_named_by_text(algorithm):
    with pytest.raises(ConfigError, match=r"algorithm must be one of dqn, .* or module:Class"):
        RunnerConfig(algorithm, "CartPole-v1")


@pytest.mark.filterwarnings("error")
def test_hyperparameters_of_any_type_of_number_are_taken():
    DQNOptions(v_min=np.float16(-60000), v_max=np.float16(60000), n_atoms=51)
    DQNOptions(learning_rate=Decimal("0.001"), v_max=Decimal(5), n_atoms=51)


def test_former_runs_may_have_hyperparameters_without_effect():
    """They go on; new runs are refused these."""
    dqn = RunnerConfig("dqn", "CartPole-v1")
    sac = RunnerConfig("sac", "Pendulum-v1", options=SACOptions(ent_coef=0.2))
    ppo = RunnerConfig("ppo", "Pendulum-v1", options=PPOOptions(log_std=-10.0))
    for settings, former, refusal in (
        (dqn, {"v_min": -20.0, "v_max": 20.0}, "need n_atoms above 1"),
        (dqn, {"noise_size": 0.1}, "needs noisy=True"),
        (sac, {"target_entropy": -1.0}, "needs ent_coef=None"),
        (ppo, {"log_std": -12.0}, "log_std must be from -10 to 20"),
    ):
        content = json.loads(json.dumps(as_json(settings)))
        content["options"] |= former
        assert from_json(content) == settings
        with pytest.raises(ValueError, match=refusal):
            dataclasses.replace(settings.options, **former)


@dataclasses.dataclass(frozen=True)
class AdjustedOptions(PPOOptions):
    target_entropy: float = 0.5
    noisy: bool = False
    noise_size: float = 0.1
    n_atoms: int = 1
    v_min: float = 0.0


@dataclasses.dataclass(frozen=True)
class LowEntropyOptions(SACOptions):
    target_entropy: float | None = -0.5


@pytest.mark.parametrize(
    "options",
    [
        AdjustedOptions(target_entropy=0.2, noise_size=0.3, v_min=-1.0),
        LowEntropyOptions(),
        LowEntropyOptions(target_entropy=None),
        LowEntropyOptions(ent_coef=0.2),
        LowEntropyOptions(ent_coef=0.2, target_entropy=None),
    ],
    ids=str,
)
def test_hyperparameters_of_ones_own_are_saved_as_they_are(options):
    """Whatever those of other algorithms mean by the same names."""
    saved = json.loads(json.dumps(dataclasses.asdict(options)))
    assert type(options).from_saved(saved) == options


def test_env_options_are_any_mapping_and_a_copy():
    """As Hydra and others have them."""
    inner = {"sutton_barto_reward": True, "list": [1]}
    settings = RunnerConfig(
        "dqn", "CartPole-v1", env_options=MappingProxyType(inner), eval_env_options=ChainMap(inner)
    )
    inner["list"].append(2)
    wanted = {"sutton_barto_reward": True, "list": [1]}
    assert settings.env_options == wanted and type(settings.env_options) is dict
    assert settings.eval_env_options == wanted and as_json(settings)["env_options"] == wanted
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_a_function_of_the_program_is_found_by_no_other(monkeypatch):
    def make():
        return faulty_envs.make()

    make.__module__, make.__qualname__ = "__main__", "make"
    settings = RunnerConfig("dqn", make, backend="serial")
    assert "__main__:make does not lead to" in trouble_with_name(settings)
    monkeypatch.setattr(sys.modules["__main__"], "make", make, raising=False)
    assert "only this program finds __main__:make" in trouble_with_name(settings)
    assert trouble_with_name(RunnerConfig("dqn", faulty_envs.make)) == ""


def test_paths_that_are_no_text_are_left_out_as_python_does(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nowhere")])
    with fork_server._inherited():
        assert "/nowhere" not in os.environ["PYTHONPATH"]
