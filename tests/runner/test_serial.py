"""The serial backend: the same bit for bit, also after going on from a checkpoint."""

import json
import math
import re
import shutil

import pytest
import torch
from runs import SMALL, config, copied_checkpoints, parameters, run, same

from kary_replay.algorithms import ALGORITHMS
from kary_replay.runner import ConfigError, RunFailedError, Runner, RunnerConfig
from kary_replay.runner.messages import Trained
from kary_replay.runner.records.monitor import Monitor
from kary_replay.runner.records.run_directory import load_state
from kary_replay.runner.workers import learner

REPLAY = [name for name, cls in ALGORITHMS.items() if cls.learns_from == "replay"]
ROLLOUTS = [name for name in ALGORITHMS if name not in REPLAY]
ENVS = dict.fromkeys(("dqn", "rainbow", "r2d2", *ROLLOUTS), "CartPole-v1")
FIGURES = {
    "dqn": {"epsilon"},
    "rainbow": {"epsilon", "noise/advantage", "noise/value"},
    "r2d2": {"epsilon"},
    "sac": {"entropy_coefficient"},
}
LOSSES = {
    **dict.fromkeys(("dqn", "rainbow", "r2d2"), ("q",)),
    "sac": ("critic", "actor", "alpha"),
}
SETTINGS = [
    {},
    {
        "options": {"n_step": 3},
        "initial_priority": "td_error",
        "publish_interval": 7,
        "actors": 2,
        "samples_per_insert": 8,
    },
    {
        "options": {"learning_rate_final_share": 0.1},
        "actors": 2,
        "normalize_observations": True,
        "normalize_rewards": True,
    },
]
SETTINGS_OF_ROLLOUTS = [
    {},
    {"options": {"learning_rate_final_share": 0.1, "rollout_length": 15}},
    {"actors": 2, "max_staleness": 3, "options": {"envs_per_update": 2}},
    {"actors": 2, "groups": 1, "max_staleness": 1, "env_options": {"max_episode_steps": 7}},
    {"actors": 2, "normalize_observations": True, "normalize_rewards": True},
    {"options": {"lstm_hidden_size": 6}, "actors": 2, "max_staleness": 1},
    {
        "options": {"lstm_hidden_size": 6},
        "groups": 1,
        "inference": "worker",
        "env_options": {"max_episode_steps": 7},
    },
]
RAINBOW = {"noisy": True, "dueling": True, "n_atoms": 11, "n_step": 3}
SETTINGS_OF_DQN = {
    "rainbow": {"options": RAINBOW, "actors": 2, "publish_interval": 7},
    "rainbow by a policy worker": {"options": RAINBOW, "inference": "worker"},
    "quantiles": {"options": {"n_quantiles": 5, "noisy": True}},
    **{
        f"frames, {n_step} steps": {
            "env": "stacked_envs:make",
            "env_options": {"padding": padding},
            "options": {"n_step": n_step},
            "actors": 2,
        }
        for n_step, padding in ((1, "reset"), (3, "zero"))
    },
    "frames in dicts": {"env": "stacked_envs:make_watched", "options": {"n_step": 3}},
}
CASES = {
    **{f"dqn: {name}": ("dqn", settings) for name, settings in SETTINGS_OF_DQN.items()},
    **{f"{name}: {i}": (name, s) for name in REPLAY for i, s in enumerate(SETTINGS)},
    **{f"{name}: {i}": (name, s) for name in ROLLOUTS for i, s in enumerate(SETTINGS_OF_ROLLOUTS)},
}


def env_of(algorithm):
    return ENVS.get(algorithm, "Pendulum-v1")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_seed_twice_ends_with_the_same_bits(algorithm, tmp_path):
    for name in "one", "two":
        run(algorithm, env_of(algorithm), tmp_path / name, total_env_steps=400, seed=5)
    run(algorithm, env_of(algorithm), tmp_path / "other", total_env_steps=400, seed=6)
    assert same(parameters(tmp_path / "one"), parameters(tmp_path / "two"))
    assert not same(parameters(tmp_path / "one"), parameters(tmp_path / "other"))


@pytest.mark.parametrize("case", CASES)
def test_going_on_from_a_checkpoint_changes_nothing(case, tmp_path):
    algorithm, settings = CASES[case][0], dict(CASES[case][1])
    env = settings.pop("env", env_of(algorithm))
    whole = config(
        algorithm,
        env,
        tmp_path / "whole",
        total_env_steps=600,
        checkpoint_interval_env_steps=200,
        **settings,
    )
    with copied_checkpoints(tmp_path, before=600) as copied:
        result = Runner(whole).run()
    assert len(copied) == 2
    for copy in copied:
        resumed = Runner.resume(copy).run()
        assert (resumed.env_steps, resumed.updates) == (result.env_steps, result.updates)
        assert same(parameters(copy), parameters(tmp_path / "whole"))


@pytest.mark.parametrize("algorithm", REPLAY)
def test_looking_at_how_training_goes_changes_nothing(algorithm, tmp_path, monkeypatch):
    asked = []
    for name, seconds in (("once", 1e9), ("always", 0.0)):
        monkeypatch.setattr(learner, "FIGURES_SECONDS", seconds)
        per_insert = 320.0 if algorithm == "r2d2" else 32.0  # a row of it has several steps
        settings = {"total_env_steps": 600, "samples_per_insert": per_insert}
        reports = messages_of(algorithm, tmp_path / name, monkeypatch, **settings)
        asked.append([report for report in reports if isinstance(report, Trained)])
    assert len(asked[0]) == 1 and len(asked[1]) >= 4
    assert same(parameters(tmp_path / "once"), parameters(tmp_path / "always"))
    own, losses = FIGURES.get(algorithm, set()), LOSSES.get(algorithm, ("critic", "actor"))
    for report in asked[1]:
        figures = report.figures
        assert figures.keys() == {"td_error", "q", "learning_rate"} | own | {
            f"{what}/{name}" for what in ("loss", "gradient_norm") for name in losses
        }
        assert all(math.isfinite(value) for value in figures.values())
        assert figures["td_error"] > 0 and figures[f"gradient_norm/{losses[0]}"] > 0
        assert 0 < report.env_steps <= 600
    if "epsilon" in own:
        last = {"rainbow": 0.0, "r2d2": 0.4}.get(algorithm, 0.05)
        assert figures["epsilon"] == pytest.approx(last)


def messages_of(algorithm, path, monkeypatch, **settings):
    """What the monitor of a run is told."""
    taken, take = [], Monitor.take
    monkeypatch.setattr(
        Monitor, "take", lambda self, report: (taken.append(report), take(self, report))
    )
    run(algorithm, env_of(algorithm), path, **settings)
    monkeypatch.setattr(Monitor, "take", take)
    return taken


DAMAGES = {
    "learner cut off": lambda folder: (folder / "learner-0.pt").write_bytes(b"PK"),
    "learner missing": lambda folder: (folder / "learner-0.pt").unlink(),
    "actor empty": lambda folder: (folder / "actor-0.pt").write_bytes(b""),
    "replay gone": lambda folder: shutil.rmtree(folder / "replay"),
    "rows changed": lambda folder: flip(next((folder / "replay").rglob("rows.bin"))),
    "no folder named": lambda folder: (folder.parent / "checkpoint.json").write_text("{}"),
}


@pytest.mark.parametrize("evaluate", ["never", "after"])
def test_a_broken_environment_ends_the_run(evaluate, tmp_path):
    """In training, and in the evaluations after it."""
    at = 300 if evaluate == "never" else 50  # actors have 4 environments, the evaluator 1
    settings = {
        "total_env_steps": 400 if evaluate == "never" else 120,
        "evaluate": evaluate,
        "evaluation_episodes": 1,
    }
    env_options = {"fault": "raises", "at": at // 4 if evaluate == "never" else at, "length": 60}
    with pytest.raises(RunFailedError, match="the bottle is empty") as caught:
        run("dqn", "faulty_envs:make", tmp_path / "run", env_options=env_options, **settings)
    assert ("evaluator" in str(caught.value)) == (evaluate == "after")
    assert "go on with --resume" in str(caught.value)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_what_was_learned_is_saved_when_an_actor_fails_for_good(backend, tmp_path):
    """The environment has broken at the same step every time; it is mended, and the run goes on."""
    broken = tmp_path / "broken"
    broken.touch()
    env_options = {"fault": "raises", "at": 100, "length": 60, "only_if": str(broken)}
    settings = {
        "total_env_steps": 800,
        "backend": backend,
        "max_restarts": 0,
        "env_options": env_options,
    }
    with pytest.raises(
        RunFailedError,
        match=r"the bottle is empty.*\nThe last checkpoint is in .*: go on with --resume",
    ):
        run("dqn", "faulty_envs:make", tmp_path / "run", **settings)
    counters = json.loads((tmp_path / "run" / "checkpoint.json").read_text())
    assert 350 < counters["env_steps"] <= 400 and counters["updates"] > 0
    broken.unlink()
    result = Runner.resume(tmp_path / "run").run()
    assert result.env_steps >= 800 and result.updates > counters["updates"]


@pytest.mark.parametrize("backend", ["serial", "process"])
@pytest.mark.parametrize("fault", ["sys.exit", "os._exit", "crashes"])
def test_an_environment_that_ends_its_process_every_time_ends_the_run(fault, backend, tmp_path):
    if fault != "sys.exit" and backend == "serial":
        pytest.skip("that is this process")
    env_options = {"fault": fault, "at": 15, "length": 20}
    settings = {
        "total_env_steps": 4_000,
        "backend": backend,
        "max_restarts": 2,
        "env_options": env_options,
    }
    ended = "environment faulty_envs:make ended the process that it ran in, "
    said = {
        "sys.exit": "SystemExit: 0",
        "os._exit": ended + "with exit code 0",
        "crashes": ended + "by a crash (SIGSEGV)",
    }
    with pytest.raises(RunFailedError, match=re.escape(said[fault])) as caught:
        run("dqn", "faulty_envs:make", tmp_path / "run", **settings)
    assert "faulty_envs:make" in str(caught.value)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_run_that_diverges_says_so_in_a_paragraph(backend, tmp_path):
    """The checkpoint from before stays: none is made of networks that are not finite."""
    settings = {
        "env_options": {"reward": 1e38},
        "total_env_steps": 20_000,
        "checkpoint_interval_env_steps": 104,
        "alpha": 0.0,
        "backend": backend,
        "evaluate": "during",
        "evaluation_interval": 50,
        "evaluation_episodes": 1,
    }
    with pytest.raises(
        RunFailedError,
        match=r"^[a-z]+-0 failed: training diverged: .* no longer finite after \d+ upd",
    ) as caught:
        run(
            "ddpg",
            "faulty_envs:make_continuous",
            tmp_path / "run",
            {"learning_rate": 0.5},
            **settings,
        )
    text = str(caught.value)
    assert "Traceback" not in text and text.count("\n") == 1 and "options.learning_rate=0.5" in text
    for path in (tmp_path / "run").glob("checkpoint-*/learner-0.pt"):
        for minimizer in load_state(path)["algorithm"]["minimizers"].values():
            assert torch.isfinite(minimizer["parameters"]).all()


def test_a_learner_that_fails_ends_the_run(tmp_path):
    settings = RunnerConfig(
        "failing_algorithms:Failing", "CartPole-v1", directory=str(tmp_path / "run"), **SMALL
    )
    with pytest.raises(
        RunFailedError,
        match=r"(?s)learner-0 failed: Traceback.*ValueError: diverged.*No checkpoint yet",
    ) as caught:
        Runner(settings).run()
    assert isinstance(caught.value.__cause__, ValueError)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused_by_name(damage, tmp_path):
    result = run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=200)
    DAMAGES[damage](next(result.directory.glob("checkpoint-*")))
    with pytest.raises(ConfigError, match="damaged"):
        Runner.resume(result.directory, total_env_steps=400).run()


@pytest.mark.parametrize("publish_interval", [1, 1_000])
def test_the_last_policy_is_evaluated(publish_interval, tmp_path):
    settings = {
        "total_env_steps": 400,
        "evaluate": "during",
        "evaluation_interval": 150,
        "evaluation_episodes": 2,
    }
    result = run(
        "dqn", "CartPole-v1", tmp_path / "run", publish_interval=publish_interval, **settings
    )
    assert [found.env_steps for found in result.evaluations] == (
        [150, 300, 400] if publish_interval == 1 else [400]
    )
    assert result.evaluations[-1].updates == result.updates


@pytest.mark.parametrize("evaluate", ["during", "after", "never"])
def test_a_run_that_learned_nothing_says_so(evaluate, tmp_path, capsys):
    settings = config("dqn", "CartPole-v1", tmp_path, total_env_steps=80, evaluate=evaluate)
    result = Runner(settings).run()
    said = capsys.readouterr()
    words = " ".join((said.out + said.err).split())
    assert "nothing was learned" in words and "learning_starts=100" in words
    assert "evaluating" not in words and result.updates == 0 and result.env_steps == 80
