"""How many actors are chosen, by measurements made up and by real ones."""

import io
import json

import pytest
from rich.console import Console
from runs import config

from kary_replay.runner import RunFailedError, Runner, runner
from kary_replay.runner.allocation import allocate, n_cores

CASES = {  # steps per actor, updates, steps per update, cores, learners -> actors, and why
    "one actor is enough": ((1000.0, 500.0, 2.0, 8, 1), 1, "1 actor keeps the learner busy"),
    "as many as it takes": ((1000.0, 500.0, 5.0, 8, 1), 3, "3 actors keep the learner busy"),
    "a hundredth less is enough": ((1000.0, 302.0, 10.0, 8, 1), 3, "3 actors keep"),
    "two hundredths are not": ((1000.0, 306.0, 10.0, 8, 1), 4, "4 actors keep"),
    "not enough cores": ((1000.0, 5000.0, 10.0, 8, 1), 7, "so they get all the other cores (7 of 8)"),
    "several learners": ((1000.0, 5000.0, 10.0, 8, 4), 4, "(4 of 8)"),
    "one core": ((1000.0, 5000.0, 10.0, 1, 1), 1, "(1 of 1)"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_fewest_actors_that_keep_learners_busy(case):
    measured, actors, reason = CASES[case]
    allocation = allocate(*measured)
    assert allocation.chosen.actors == actors and reason in allocation.reason
    assert [option.actors for option in allocation.options] == list(range(1, max(1, measured[3] - measured[4]) + 1))


def test_a_run_measures_prints_and_takes_what_it_chose(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "MEASURE_SECONDS", 0.2)
    console = Console(file=io.StringIO(), width=100, record=True)
    settings = config("dqn", "CartPole-v1", tmp_path / "run", backend="process", actors="auto", total_env_steps=600)
    result = Runner(settings, console=console).run()
    allocation, text = result.allocation, " ".join(console.export_text().split())
    assert allocation.steps_per_actor > 0 and allocation.updates_per_second > 0
    assert 1 <= allocation.chosen.actors <= max(1, n_cores() - 1)
    assert f"→ {allocation.chosen.actors}" in text and allocation.reason in text
    assert result.env_steps >= 600
    assert json.loads((tmp_path / "run" / "checkpoint.json").read_text())["n_actors"] == allocation.chosen.actors


def test_measuring_does_not_collect_what_learning_starts_with(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "MEASURE_SECONDS", 0.0)
    work, worked = runner.Actor.work, []
    monkeypatch.setattr(runner.Actor, "work", lambda self, patience: worked.append(1) or work(self, patience))
    settings = {"backend": "process", "actors": "auto", "learning_starts": 4_000}
    assert Runner(config("dqn", "CartPole-v1", tmp_path / "run", **settings))._measured_actors() >= 1
    assert len(worked) < 10


def test_an_environment_that_breaks_while_it_is_measured_is_named(tmp_path):
    settings = {"backend": "process", "actors": "auto", "env_options": {"fault": "raises", "at": 1}}
    with pytest.raises(RunFailedError, match=r"(?s)the bottle is empty.*\nNothing has been created"):
        Runner(config("dqn", "faulty_envs:make", tmp_path / "run", **settings)).run()
    assert not list(tmp_path.iterdir())
