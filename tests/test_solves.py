"""Whether presets end well: what the benchmark judges, and how it goes on."""

import pytest
from pages import ROOT


@pytest.fixture
def solves(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(ROOT)
    from bench.runs import solves

    monkeypatch.setattr(solves, "OUTPUT", tmp_path / "solves.json")
    return solves


def run_of(task, seed, last_five):
    return {
        "task": task,
        "seed": seed,
        "solved": True,
        "mean_return": 490.0,
        "env_steps": 1_000,
        "updates": 100,
        "ends_well": last_five >= 475,
        "last_five": last_five,
        "samples_per_insert": 8.0,
        "asked_samples_per_insert": 8.0,
        "cores_used_by_others": 0.0,
    }


def test_a_run_that_forgot_its_task_does_not_end_well(solves, tmp_path):
    from bench.harness import machine

    records = [run_of("dqn_cartpole", seed, end) for seed, end in enumerate((500.0, 120.0, 480.0))]
    former = run_of("sac_pendulum", 0, 0.0)
    del former["ends_well"], former["last_five"]
    page = tmp_path / "presets.md"
    page.write_text((ROOT / "docs" / "presets.md").read_text())
    described = {**machine.describe(), "results": "solves.json", "cores_used_by_others": 0.0}
    solves.report([*records, former], described, tmp_path)
    rows = {line.split(" | ")[0]: line.split(" | ") for line in page.read_text().splitlines()}
    assert rows["| DQN"][3:6] == ["3/3", "2/3", "120"]
    assert rows["| SAC"][3:6] == ["1/1", "–", "–"]


def test_a_campaign_that_is_cut_off_goes_on(solves, monkeypatch):
    trained, tasks = [], ["dqn_cartpole", "sac_pendulum"]

    def train(task, seed):
        trained.append((task, seed))
        if len(trained) == 3:
            raise KeyboardInterrupt
        return run_of(task, seed, 500.0)

    monkeypatch.setattr(solves, "train", train)
    assert not solves.measure(tasks, 2, False, -1.0) and not trained
    with pytest.raises(KeyboardInterrupt):
        solves.measure(tasks, 2, False, 60.0)
    assert solves.measure(tasks, 2, True, 60.0)
    assert trained[2:] == [("dqn_cartpole", 1), ("dqn_cartpole", 1), ("sac_pendulum", 1)]
    assert solves.OUTPUT.exists() and not solves.campaign.partial_of(solves.OUTPUT).exists()


def test_runs_of_another_machine_stay_and_say_so(solves, monkeypatch):
    from bench.harness import machine

    monkeypatch.setattr(solves, "train", lambda task, seed: run_of(task, seed, 500.0))
    there = {**machine.describe()["processor"], "model": "Another"}
    elsewhere = {**machine.describe(), "processor": there, "cores_used_by_others": 0.0}
    own = {"began": "2026-11-01T00:00:00", "commit": "0"}
    solves.campaign.write(solves.OUTPUT, elsewhere, [{**run_of("sac_pendulum", 0, 500.0), **own}])
    assert solves.measure(["dqn_cartpole"], 2, True, 60.0)
    found = [record["processor"] for record in solves.campaign.read(solves.OUTPUT)[1]]
    assert found[0] == there and found[1] == found[2] == machine.describe()["processor"]
