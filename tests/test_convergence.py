"""Time until solved: who takes part, how SBX does, and the page."""

import importlib
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("stable_baselines3")
pytest.importorskip("torch")

import stable_baselines3
import torch
from invented_runs import invented, written
from pages import ROOT

from bench.harness import campaign
from bench.rivals import remote
from bench.runs.convergence import __main__ as convergence
from bench.runs.convergence import protocol, report, runner_rival, sb3_rival
from bench.runs.convergence.tasks import (
    OFF_POLICY_TASKS,
    ON_POLICY_RIVALS,
    ON_POLICY_TASKS,
    RIVALS,
    TASKS,
    takes_part,
)


def test_every_rival_takes_part_in_a_task():
    for rival in RIVALS:
        assert any(takes_part(rival, name) for name in TASKS)
        assert rival in report.NAMES and rival in report.COLOURS
        assert (ROOT / f"bench/runs/convergence/{rival}_rival.py").exists()


def test_a_snapshot_of_another_network():
    """Where the network that learns is not one of torch's, its parameters are copied into one."""
    task = replace(TASKS["pendulum_ddpg"], budget=100, snapshot_every=100)
    network, learned = torch.nn.Linear(3, 1), [torch.zeros(1, 3), torch.full((1,), 0.25)]
    acted = []

    def act(module, observations):
        acted.append(module(observations).detach())
        return acted[-1]

    course = protocol.Course(task, network, act, {}, lambda: [each.clone() for each in learned])
    course.start()
    assert not course.step(100, 1)
    assert len(course.outcome.curve) == 1 and not course.outcome.solved
    assert all((action == 0.25).all() for action in acted)


def test_what_is_not_installed_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(remote, "installed", lambda environment: False)
    monkeypatch.setattr(convergence, "execute", lambda job: invented(job, 2.0))
    output = tmp_path / "results.json"
    options = ["--tasks", "pendulum_ddpg", "--units", "64", "--seeds", "1"]
    command = ["convergence", *options, "--output", str(output)]
    monkeypatch.setattr(sys, "argv", command)
    convergence.main()
    assert "sbx is left out, not installed: make rivals" in capsys.readouterr().out
    records = campaign.read(output)[1]
    assert records and all(record["rival"] != "sbx" for record in records)
    # Once more, and there is nothing left to do.
    monkeypatch.setattr(convergence, "execute", None)
    monkeypatch.setattr(sys, "argv", [*command, "--resume"])
    convergence.main()
    assert campaign.read(output)[1] == records


@pytest.mark.parametrize("rivals", [RIVALS, ("sb3", "runner")])
def test_the_page_names_who_is_missing_and_what_compiles(rivals, tmp_path):
    planned = convergence.jobs(OFF_POLICY_TASKS, rivals, [64], 2, None)

    def execute(job):
        compiling = {"compile_seconds": 2.5} if job["rival"] == "sbx" else {}
        return {**invented(job, 3.0), **compiling}

    output = written(tmp_path / "convergence.json", planned, execute)
    page = "\n".join(report.page(*campaign.read(output), tmp_path))
    missing = "Not among these results: SBX, Tianshou, RLlib."
    assert (missing in page) == ("sbx" not in rivals)
    assert ("| SBX |" in page and "3.0 (2.5 compiling)" in page) == ("sbx" in rivals)


def test_the_page_of_rollouts_is_of_those_who_have_ppo(tmp_path):
    planned = convergence.jobs(ON_POLICY_TASKS, ON_POLICY_RIVALS["ppo"], [64], 2, None)
    output = written(tmp_path / "ppo.json", planned, lambda job: invented(job, 3.0))
    page = "\n".join(report.page(*campaign.read(output), tmp_path, "convergence_ppo"))
    assert (tmp_path / "convergence_ppo_64.png").exists()
    assert "| PPO, CartPole-v1 | CleanRL's way |" in page
    assert (
        "| A2C, CartPole-v1 | Stable-Baselines3 |" in page
        and "| A2C, CartPole-v1 | SBX |" not in page
    )
    assert "Not among these results" not in page and "The same settings" not in page


@pytest.mark.parametrize(
    ("name", "rival"),
    [
        (name, rival)
        for name in ON_POLICY_TASKS
        for rival in ("sb3", "cleanrl")
        if takes_part(rival, name)
    ],
)
def test_rivals_learn_from_rollouts(name, rival):
    """A few updates: the clock runs, and greedy actions are in their bounds."""
    module = importlib.import_module(f"bench.runs.convergence.{rival}_rival")
    small = {"n_envs": 2, "n_steps": 32}
    if TASKS[name].algorithm == "ppo":
        small |= {"batch_size": 32, "n_epochs": 2}
    chosen = {**module.settings(name, 8), **small}
    task = replace(TASKS[name], budget=200, snapshot_every=100)
    outcome = module.train(name, task, 0, chosen)
    assert [evaluation.env_steps for evaluation in outcome.curve] == [128, 256]
    assert outcome.trained_seconds > 0 and outcome.settings == chosen


def test_both_have_the_same_settings_of_a2c():
    theirs = sb3_rival.settings("cartpole_a2c", 64)
    config = runner_rival.configured(
        TASKS["cartpole_a2c"], runner_rival.settings("cartpole_a2c", 64)
    )
    options = config.options
    assert theirs["n_envs"] == options.n_envs and theirs["n_steps"] == options.rollout_length
    for key in ("learning_rate", "learning_rate_final_share", "gamma", "gae_lambda"):
        assert theirs[key] == getattr(options, key)
    assert theirs["learning_rate_steps"] == config.total_env_steps
    model = sb3_rival.build(stable_baselines3, TASKS["cartpole_a2c"], theirs, 0)
    optimizer = model.policy.optimizer
    assert type(optimizer) is torch.optim.Adam
    assert optimizer.defaults["eps"] == options.adam_epsilon and model.ent_coef == options.ent_coef
    assert (model.vf_coef, model.max_grad_norm) == (options.vf_coef, options.max_gradient_norm)
    assert config.max_staleness == 1  # the page says what it is without


def test_all_have_the_same_settings_of_ppo():
    for name in (name for name in ON_POLICY_TASKS if TASKS[name].algorithm == "ppo"):
        theirs = sb3_rival.settings(name, 64)
        config = runner_rival.configured(TASKS[name], runner_rival.settings(name, 64))
        options = config.options
        assert theirs["n_envs"] == options.n_envs and theirs["n_steps"] == options.rollout_length
        assert config.max_staleness == (1 if name == "pendulum_ppo" else 0)  # the page says why
        for key in ("batch_size", "n_epochs", "learning_rate", "gamma", "gae_lambda", "clip_range"):
            assert theirs[key] == getattr(options, key)
        for key in ("learning_rate", "clip_range"):
            assert theirs.get(f"{key}_final_share", 1.0) == getattr(options, f"{key}_final_share")
            assert theirs.get(f"{key}_steps", config.total_env_steps) == config.total_env_steps


def test_a_budget_may_end_between_two_snapshots():
    task = replace(TASKS["pendulum_ddpg"], budget=150, snapshot_every=100)
    network = torch.nn.Linear(3, 1)
    course = protocol.Course(task, network, lambda module, seen: module(seen), {})
    course.start()
    assert [course.step(env_steps, 0) for env_steps in (90, 110, 140, 160)] == [True] * 3 + [False]
    assert [evaluation.env_steps for evaluation in course.outcome.curve] == [110, 160]


needs_sample_factory = pytest.mark.skipif(
    not remote.installed("sample_factory"), reason="Sample Factory is not installed: make rivals"
)


@needs_sample_factory
@pytest.mark.parametrize("serial_mode", [False, True])
def test_a_short_run_of_sample_factory(serial_mode):
    """Its learner keeps a policy at about every multiple of so many steps."""
    (job,) = convergence.jobs(["cartpole_ppo"], ["sample_factory"], [8], 1, 2_000)
    record = convergence.execute({**job, "settings": {"serial_mode": serial_mode}})
    assert "error" not in record, record["error"]
    first, last = record["curve"][0], record["curve"][-1]
    assert 1_000 <= first["env_steps"] < 1_256 and first["updates"] > 0
    assert last["env_steps"] >= 1_000 and last["wall_seconds"] <= record["trained_seconds"]
    assert record["startup_seconds"] > 0 and record["settings"]["serial_mode"] == serial_mode


needs_sbx = pytest.mark.skipif(
    not remote.installed("sbx"), reason="SBX is not installed: make rivals"
)
# Greedy actions are those of SBX's own networks; to compile leaves no trace, and nothing to compile
# for later.
IN_ITS_ENVIRONMENT = """
import sys
from bench.runs.convergence import sb3_rival, sbx_rival, translation
from bench.runs.convergence.tasks import TASKS
import jax, numpy as np, sbx, torch
task = TASKS[sys.argv[1]]
own = {**sb3_rival.COMMON, **sbx_rival.SETTINGS[sys.argv[1]], "units": 8, "learning_starts": 50}
model = sb3_rival.build(sbx, task, own, 0)
actor = sbx_rival.Actor(model, task.algorithm, 8)
before, random = actor.parameters(), np.random.get_state()[1]
assert sbx_rival.compile_programs(model) > 0
assert all(map(torch.equal, before, actor.parameters())) and model._n_updates == 0
assert (np.random.get_state()[1] == random).all() and model.replay_buffer.size() == 0
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compiled.append(event) if "backend_compile" in event else None
)
model.learn(600, log_interval=None)
after = actor.parameters()
assert model._n_updates > 0 and not any(map(torch.equal, before, after)) and not compiled, compiled
with torch.no_grad():
    for parameter, now in zip(actor.network.parameters(), after, strict=True):
        parameter.copy_(now)
    shape = 64, *model.observation_space.shape
    observations = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    mine = actor.act(actor.network, torch.from_numpy(observations)).numpy()
theirs = model.predict(observations, deterministic=True)[0]
if task.algorithm != "dqn":
    theirs = model.policy.scale_action(theirs)
assert np.allclose(mine, theirs, atol=1e-5)
# Nothing of what is faster for SBX is left where it has the settings of Stable-Baselines3.
both = {**sbx_rival.SETTINGS[sys.argv[1]], **translation.sb3_for_sbx(sys.argv[1])}
assert both == {"train_freq": 1, "gradient_steps": 1, **sb3_rival.SETTINGS[sys.argv[1]]}
"""


@needs_sbx
@pytest.mark.parametrize("name", ["cartpole_dqn", "pendulum_td3", "pendulum_sac"])
def test_sbx_is_compiled_before_the_clock_starts(name):
    command = [remote.python("sbx"), "-W", "ignore", "-c", IN_ITS_ENVIRONMENT, name]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


@needs_sbx
@pytest.mark.parametrize("name", ["cartpole_dqn", "pendulum_sac"])
def test_a_short_run_of_sbx(name):
    (job,) = convergence.jobs([name], ["sbx"], [64], 1, 1_000)
    record = convergence.execute({**job, "settings": {"learning_starts": 100}})
    assert "error" not in record, record["error"]
    assert record["curve"][-1]["updates"] > 0
    assert 0 < record["compile_seconds"] < record["startup_seconds"]
