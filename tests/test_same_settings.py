"""The same settings for all: what is translated, and what the page makes of the runs."""

import json
import math
import sys
from dataclasses import replace

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("stable_baselines3")
pytest.importorskip("torch")

import stable_baselines3
from invented_runs import invented, written

from bench.harness import campaign
from bench.rivals import remote
from bench.runs.convergence import __main__ as convergence
from bench.runs.convergence import runner_rival, same, same_report, sb3_rival, translation
from bench.runs.convergence.tasks import (
    IN_TURN,
    MACHINES,
    OFF_POLICY_TASKS,
    OURS,
    PARALLEL,
    SB3,
    TASKS,
    THEIRS,
)

SECONDS = {
    (SB3, THEIRS): 16.0,
    (IN_TURN, THEIRS): 8.0,
    (IN_TURN, OURS): 4.0,
    (PARALLEL, OURS): 1.0,
}


def test_everybody_has_both_settings_once_a_seed():
    made = list(same.jobs(list(OFF_POLICY_TASKS), MACHINES, [64, 256], 2, None))
    assert len({tuple(job[key] for key in same.IDENTITY) for job in made}) == len(made)
    assert len(made) == len(OFF_POLICY_TASKS) * 2 * 2 * 8
    assert json.loads(json.dumps(made)) == made
    first = [(job["machine"], job["settings_of"]) for job in made[:16]]
    assert set(first[:8]) == set(first[8:]) and first[:8] != first[8:], "the order rotates"


@pytest.mark.parametrize("name", OFF_POLICY_TASKS)
def test_the_runner_takes_the_settings_of_sb3(name):
    """And means by them what SB3 does."""
    task, given = TASKS[name], sb3_rival.settings(name, 64)
    chosen = same.settings(IN_TURN, THEIRS, name, 64)
    config = runner_rival.configured(task, {**runner_rival.settings(name, 64), **chosen})
    options = config.options
    assert (config.backend, config.actors, config.alpha) == ("serial", 1, 0.0)
    assert (config.envs_per_actor, options.n_step, options.hidden) == (1, 1, (64, 64))
    assert options.learning_rate == given["learning_rate"]
    assert options.learning_rate_final_share == 1.0
    assert options.gamma == given.get("gamma", 0.99)
    updates_per_step = config.samples_per_insert / options.batch_size
    assert updates_per_step == (0.5 if name == "cartpole_dqn" else 1.0)
    if task.algorithm == "dqn":
        assert not options.double and options.huber_delta == 1.0 and options.tau == 1.0
        steps = options.exploration_fraction * config.total_env_steps
        assert steps == pytest.approx(given["exploration_steps"])
        # CartPole's target moves in every step between trainings, and so once for each training.
        assert options.target_interval == {"cartpole_dqn": 128, "lunarlander_dqn": 250}[name]
    else:
        assert (options.batch_size, options.tau) == (256, 0.005)


@pytest.mark.parametrize("name", OFF_POLICY_TASKS)
def test_sb3_takes_the_settings_of_the_preset(name):
    task = TASKS[name]
    if task.env_id.startswith("LunarLander"):
        pytest.importorskip("Box2D")
    config = runner_rival.configured(task, runner_rival.settings(name, 64))
    chosen = {**sb3_rival.settings(name, 64), **same.settings(SB3, OURS, name, 64)}
    model = sb3_rival.build(stable_baselines3, task, chosen, 0)
    options = config.options
    assert (model.n_envs, model.batch_size) == (config.envs_per_actor, options.batch_size)
    assert (model.n_steps, model.gamma) == (options.n_step, options.gamma)
    updates = model.gradient_steps / (model.train_freq.frequency * model.n_envs)
    assert updates == pytest.approx(config.samples_per_insert / options.batch_size)
    rates = [model.lr_schedule(1.0), model.lr_schedule(0.0)]
    last = options.learning_rate_final_share * options.learning_rate
    assert rates == pytest.approx([options.learning_rate, last])
    if task.algorithm == "dqn":
        done = options.exploration_fraction * config.total_env_steps / sb3_rival.total(task)
        assert model.exploration_schedule(1.0) == options.exploration_initial
        assert model.exploration_schedule(1.0 - done) == pytest.approx(options.exploration_final)
        assert model.max_grad_norm == options.max_gradient_norm


@pytest.mark.parametrize("rival", ["sb3", "sbx"])
@pytest.mark.parametrize("name", OFF_POLICY_TASKS)
def test_targets_follow_as_fast(rival, name):
    """The share of the way that targets have gone after the updates of many environment steps."""
    config = runner_rival.configured(TASKS[name], runner_rival.settings(name, 64))
    options, found = config.options, translation.preset_for(rival, name, 64)
    per_step = found["gradient_steps"] / (found["train_freq"] * found["n_envs"])
    steps = 64
    moves = steps * per_step  # those of TD3 and others in SBX, and of all but DQN and TD3 in SB3
    if TASKS[name].algorithm == "dqn":
        moves = steps / found["target_update_interval"]
    elif (rival, TASKS[name].algorithm) == ("sb3", "td3"):
        moves /= 2  # its policy_delay
    ours = (1 - options.tau) ** (steps * per_step / options.target_interval)
    assert (1 - found["tau"]) ** moves == pytest.approx(ours)


def test_the_share_of_several_moves():
    assert translation.taus_share(0.01, 4) == pytest.approx(1 - 0.99**4)
    assert translation.taus_share(0.01, 1) == pytest.approx(0.01) != translation.taus_share(0.01, 2)


def test_nothing_of_sb3s_own_settings_is_left_in_those_of_the_preset():
    """What one of both has must be said for the other, or it would keep its own."""
    for name in OFF_POLICY_TASKS:
        own = set(sb3_rival.settings(name, 64)) - {"threads", "units"}
        assert own <= set(translation.preset_for("sb3", name, 64))
        assert own <= set(translation.preset_for("sbx", name, 64))


def test_with_our_settings_nobody_has_more_steps_than_the_runner():
    for job in same.jobs(["cartpole_dqn"], MACHINES, [64], 1, None):
        ours = job["settings_of"] == OURS
        assert job["budget"] == (100_000 if ours else None)
    for job in same.jobs(["cartpole_dqn"], MACHINES, [64], 1, 600):
        assert job["budget"] == 600 and job["settings"].get("total_env_steps", 0) <= 600


def test_a_learning_rate_falls_to_its_share_and_stays_there():
    task = replace(TASKS["cartpole_dqn"], budget=9_000)
    rate = sb3_rival.falling(0.01, 0.5, 5_000, task)
    progress = [1 - steps / sb3_rival.total(task) for steps in (0, 2_500, 5_000, 10_000)]
    assert [rate(each) for each in progress] == pytest.approx([0.01, 0.0075, 0.005, 0.005])


def test_the_factors_are_those_of_the_medians(tmp_path):
    def execute(job):
        seconds = SECONDS.get((job["machine"], job["settings_of"]), 5.0)
        return invented(job, seconds * (1 + 0.1 * job["seed"]))

    planned = same.jobs(["pendulum_ddpg", "cartpole_dqn"], MACHINES, [64], 3, None)
    output = written(tmp_path / "same.json", planned, execute)
    page = "\n".join(same_report.section(tmp_path, output))
    assert "| DDPG, Pendulum-v1 | 17.6 s | 2.00× | 2.00× | 4.00× | **16.00×** [" in page
    # their settings and ours, in one process
    assert "kary-replay, in turn | 8.8 [8.4–9.2], 3/3 | 4.4 [4.2–4.6], 3/3 | 2.00× |" in page
    assert (tmp_path / "convergence_factors.png").exists() and "Not among" not in page


@pytest.mark.parametrize("kept", [1, 3, 8])
def test_the_page_of_runs_that_are_not_complete(kept, tmp_path):
    """Of the first run alone; of three, and of all, where nobody solved the task."""
    planned = list(same.jobs(["pendulum_ddpg"], MACHINES, [64], 1, None))[:kept]
    output = written(tmp_path / "same.json", planned, lambda job: invented(job, 2.0, False))
    page = "\n".join(same_report.section(tmp_path, output))
    assert "∞" in page and ("Not among these results" in page) == (kept < 4)
    assert ("Where the factor comes from" in page) == (kept == 8)


def test_what_was_not_measured_has_no_section(tmp_path):
    assert same_report.section(tmp_path, tmp_path / "nothing.json") == []


def test_what_is_not_installed_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(remote, "installed", lambda environment: False)
    monkeypatch.setattr(convergence, "execute", lambda job: invented(job, 2.0))
    output = tmp_path / "results.json"
    options = ["--tasks", "pendulum_ddpg", "--units", "64", "--seeds", "1"]
    command = ["same", *options, "--output", str(output)]
    monkeypatch.setattr(sys, "argv", command)
    same.main()
    assert "sbx is left out, not installed: make rivals" in capsys.readouterr().out
    records = campaign.read(output)[1]
    assert records and all(record["rival"] != "sbx" for record in records)
    # Once more, and there is nothing left to do.
    monkeypatch.setattr(convergence, "execute", None)
    monkeypatch.setattr(sys, "argv", [*command, "--resume"])
    same.main()
    assert campaign.read(output)[1] == records


@pytest.mark.parametrize(("machine", "settings_of"), [(SB3, OURS), (IN_TURN, THEIRS)])
def test_a_short_run_with_the_settings_of_the_other(machine, settings_of):
    (job,) = (
        job
        for job in same.jobs(["pendulum_ddpg"], [machine], [64], 1, 600)
        if job["settings_of"] == settings_of
    )
    record = convergence.execute({**job, "settings": {**job["settings"], "learning_starts": 100}})
    assert "error" not in record, record["error"]
    assert not record["solved"] and record["curve"] and record["curve"][-1]["updates"] > 0
    assert record["trained_seconds"] > 0 and math.isfinite(record["curve"][-1]["mean_return"])
