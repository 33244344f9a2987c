"""Campaigns of learning curves: what is recorded, what is run, and what a kill costs."""

import json
import multiprocessing
import os
import signal
import sys
from concurrent.futures import Future
from dataclasses import replace

import pytest

curves = pytest.importorskip("bench.runs.learning.curves")
results = pytest.importorskip("bench.runs.learning.results")

VERSIONS = {"numpy": "2.4.6"}


def run_of(buffer, seed, **others):
    run = {"buffer": buffer, "seed": seed, "steps": [1000], "returns": [1.0], "seconds": 1.0}
    return {**run, "values": [], "versions": VERSIONS, "replay": {}, **others}


@pytest.fixture
def campaign(tmp_path, monkeypatch):
    """A function that makes a campaign of CartPole, and returns its runs; `ran` says which."""

    class Pool:
        def __init__(self, *_, **__):
            pass

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda *_: None  # noqa: E731

        def submit(self, function, *job):
            ended = Future()
            try:
                ended.set_result(function(*job))
            except RuntimeError as error:
                ended.set_exception(error)
            return ended

    def record(*arguments):
        record.ran.clear()
        command = ["curves", "cartpole", "--output", str(tmp_path), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        curves.main()
        runs = json.loads(record.path.read_text())["runs"]
        return {(run["buffer"], run["seed"]): run["returns"] for run in runs}

    def train(_name, _steps, buffer, seed):
        record.ran.append((buffer, seed))
        record.before_it_ends(buffer, seed)
        record.n_trained += 1
        return run_of(buffer, seed, returns=[float(record.n_trained)])

    record.ran, record.n_trained = [], 0
    record.path, record.before_it_ends = tmp_path / "cartpole.json", lambda *_: None
    monkeypatch.setattr(curves, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(curves, "train", train)
    return record


def test_learning_curves_are_recorded_in_parts(campaign):
    """What is there stays, and only what is missing is run."""
    first = campaign("--seeds", "2", "--buffers", "uniform")
    more = campaign("--seeds", "3", "--buffers", "uniform", "prioritized")
    missing = [("prioritized", 0), ("prioritized", 1), ("uniform", 2), ("prioritized", 2)]
    assert campaign.ran == missing
    assert more.items() >= first.items() and len(more) == 6
    again = campaign("--seeds", "1", "--buffers", "uniform", "--anew")
    assert campaign.ran == [("uniform", 0)] and len(again) == 6
    assert again["uniform", 0] != more["uniform", 0]
    campaign("--seeds", "4", "--minutes", "1e-9")
    assert campaign.ran == []


def test_two_campaigns_may_write_to_one_file(campaign):
    def other_campaign(buffer, seed):
        results.add(campaign.path, "cartpole", 50_000, run_of("beta = 1", seed))

    campaign.before_it_ends = other_campaign
    found = campaign("--seeds", "2", "--buffers", "uniform")
    assert found.keys() == {(kind, seed) for kind in ("uniform", "beta = 1") for seed in (0, 1)}


def test_a_run_that_fails_costs_no_other(campaign):
    def fail(buffer, seed):
        if seed == 1:
            raise RuntimeError("out of memory")

    campaign.before_it_ends = fail
    with pytest.raises(SystemExit, match="1 runs failed"):
        campaign("--seeds", "3", "--buffers", "uniform")
    assert results.recorded(campaign.path) == {("uniform", 0), ("uniform", 2)}


def test_runs_with_other_settings_of_the_task_are_not_mixed(campaign, monkeypatch):
    campaign("--seeds", "1", "--buffers", "uniform")
    before = campaign.path.read_text()
    task = curves.TASKS["cartpole"]
    other = replace(task, settings={**task.settings, "learning_rate": 1e-4})
    monkeypatch.setitem(curves.TASKS, "cartpole", other)
    with pytest.raises(SystemExit, match=r"settings .* name another folder"):
        campaign("--seeds", "2", "--buffers", "uniform")
    assert campaign.path.read_text() == before


def test_hindsight_replay_without_n_steps_is_reported(tmp_path, monkeypatch, capsys):
    command = ["curves", "bits", "--output", str(tmp_path), "--buffers", "uniform, n = 3"]
    monkeypatch.setattr(sys, "argv", command)
    curves.main()
    assert "bits: there is no buffer 'uniform, n = 3'" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def wait_for_ever(pids):
    curves.end_with_the_campaign()
    pids.send(os.getpid())
    signal.pause()


def begin_one(pids):
    multiprocessing.get_context("spawn").Process(target=wait_for_ever, args=(pids,)).start()
    signal.pause()


def test_runs_end_with_a_campaign_that_is_killed():
    """Otherwise they take the cores from the campaign that goes on."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    campaign = context.Process(target=begin_one, args=(theirs,))
    campaign.start()
    theirs.close()
    run = ours.recv()
    campaign.kill()
    campaign.join()
    try:
        # the run has the last other end of the pipe, which it closes as it ends
        assert ours.poll(60), "the run goes on"
        with pytest.raises(EOFError):
            ours.recv()
    finally:
        if not ours.poll(0):
            os.kill(run, signal.SIGKILL)


def test_the_first_files_say_once_what_replayed(tmp_path):
    path = tmp_path / "cartpole.json"
    runs = [{"buffer": buffer, "seed": 0} for buffer in ("uniform", "prioritized")]
    head = {"prioritized": {"alpha": 0.6, "beta": 0.4}, "versions": VERSIONS}
    path.write_text(json.dumps({**head, "runs": runs}))
    uniform, prioritized = results.read(path)["runs"]
    assert uniform["replay"] == {"n_steps": 1} and uniform["versions"] == VERSIONS
    ours = {"n_steps": 1, "priority_epsilon": 1e-6, "alpha": 0.6, "beta": 0.4}
    assert prioritized["replay"] == ours


def test_runs_with_other_versions_or_settings_of_replay_are_found():
    usual = {"alpha": 0.6, "share": 0.0}
    runs = [run_of("prioritized", seed, replay=usual) for seed in range(4)]
    runs[1]["versions"] = {"numpy": "2.3"}
    runs[2]["replay"] = {"alpha": 0.5, "share": 0.0}
    runs[3]["replay"] = {"alpha": 0.6}  # the share did not exist yet
    found = results.deviations({"cartpole": {"runs": [*runs, run_of("uniform", 0)]}})
    assert found == {
        ("cartpole", "prioritized", 1): "numpy 2.3 instead of 2.4.6",
        ("cartpole", "prioritized", 2): "alpha 0.5 instead of 0.6",
    }


@pytest.mark.parametrize("buffer", curves.BUFFERS)
def test_every_buffer_replays_what_its_name_says(buffer):
    pytest.importorskip("stable_baselines3")
    task = curves.TASKS["cartpole"]
    replay = curves.BUFFERS[buffer]
    native = curves.built(task, buffer, 0).replay_buffer
    assert getattr(native, "n_steps", 1) == replay.n_steps
    if replay.n_steps > 1:
        assert native.gamma == task.settings["gamma"]
    if buffer != curves.PLAIN:
        assert hasattr(native, "alpha") == (replay.options is not None)
        recorded = curves.settings_of_replay(task, buffer)
        assert recorded["n_steps"] == replay.n_steps
        for name in ("alpha", "beta"):
            assert recorded.get(name) == getattr(native, name, None)


@pytest.mark.parametrize("name", ["cartpole", "pendulum", "pendulum_td3"])
def test_values_are_recorded_and_change_nothing(name, monkeypatch):
    pytest.importorskip("stable_baselines3")
    task = replace(curves.TASKS[name], evaluate_every=150, episodes=1)
    early = {"learning_starts": 50, "train_freq": 1, "gradient_steps": 1}
    task = replace(task, settings={**task.settings, **early})
    built = curves.built
    # no values are recorded under the name of another policy
    monkeypatch.setattr(
        curves, "built", lambda task, *rest: built(replace(task, policy="MlpPolicy"), *rest)
    )
    runs = []
    for policy in ("MlpPolicy", "of another name"):
        monkeypatch.setitem(curves.TASKS, name, replace(task, policy=policy))
        runs.append(curves.train(name, 300, curves.UNIFORM, 0))
    assert [len(run["values"]) for run in runs] == [2, 0]
    assert runs[0]["returns"] == runs[1]["returns"]
