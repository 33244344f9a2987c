"""Going on with a run: what may change, and that a finished run stays as it is."""

import json

import numpy as np
import pytest
from runs import config, hosted, parameters, run, same, stopped

from kary_replay.algorithms import ALGORITHMS, PPO
from kary_replay.runner import ConfigError, Runner

EVALUATED = {"evaluate": "during", "evaluation_interval": 200, "evaluation_episodes": 2}


def files(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def same_result(first, second):
    names = (
        "best_return",
        "last_return",
        "env_steps",
        "updates",
        "wall_seconds",
        "evaluations",
        "directory",
        "interrupted",
    )
    return [getattr(first, name) for name in names] == [getattr(second, name) for name in names]


@pytest.mark.parametrize("evaluate", ["during", "after"])
@pytest.mark.parametrize("backend", ["serial", "process"])
def test_a_run_whose_steps_are_done_stays_as_it_is_until_it_is_given_more(
    backend, evaluate, tmp_path, capsys
):
    settings = {**EVALUATED, "evaluate": evaluate, "total_env_steps": 600, "backend": backend}
    first = run("dqn", "CartPole-v1", tmp_path / "run", **settings)
    before = files(tmp_path / "run")
    capsys.readouterr()
    assert same_result(Runner.resume(tmp_path / "run").run(), first)
    out = " ".join(capsys.readouterr().out.split())
    assert "is finished: all of its total_env_steps=600 are done. Give more of them" in out
    assert files(tmp_path / "run") == before
    result = Runner.resume(tmp_path / "run", total_env_steps=1_000).run()
    assert result.env_steps >= 1_000 and result.updates > first.updates
    assert json.loads((tmp_path / "run" / "config.json").read_text())["total_env_steps"] == 1_000


def test_tensorboard_keeps_what_a_finished_run_showed(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=400, **EVALUATED)
    result = Runner.resume(tmp_path / "run", total_env_steps=600).run()
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    # files of one second may be read in any order
    shown = sorted(point.step for point in events.Scalars("return/evaluation"))
    assert shown == [evaluation.env_steps for evaluation in result.evaluations]
    assert shown.count(400) >= 1 and shown[-1] == 600


def test_a_run_that_reached_its_target_stays_as_it_is_until_it_is_given_another(tmp_path, capsys):
    settings = {**EVALUATED, "total_env_steps": 1_000, "target_return": 1.0}
    first = run("dqn", "CartPole-v1", tmp_path / "run", **settings)
    assert first.env_steps < 300
    before = files(tmp_path / "run")
    for changes in ({}, {"total_env_steps": 2_000}, {"target_return": first.best_return}):
        assert same_result(Runner.resume(tmp_path / "run", **changes).run(), first)
        assert "is finished: its target_return=" in " ".join(capsys.readouterr().out.split())
    assert files(tmp_path / "run") == before
    second = Runner.resume(tmp_path / "run", target_return=1e6).run()
    assert (
        second.env_steps == 1_000
        and second.evaluations[0] == first.evaluations[0]
        and len(second.evaluations) > 2
    )
    assert second.best_return == max(found.mean_return for found in second.evaluations)
    assert second.last_return == second.evaluations[-1].mean_return
    assert second.evaluations[-1].updates == second.updates
    third = Runner.resume(tmp_path / "run", target_return=None, total_env_steps=1_200).run()
    assert third.env_steps == 1_200


def test_going_on_for_longer_is_as_good_as_having_begun_for_longer(tmp_path):
    """But for what depends on the length of the run: there, with these settings, nothing does."""
    constant = {"exploration_initial": 0.1, "exploration_final": 0.1}
    settings = {"beta": 1.0, "samples_per_insert": 8.0, "samples_per_insert_error": 64.0}
    run("dqn", "CartPole-v1", tmp_path / "short", constant, total_env_steps=400, **settings)
    run("dqn", "CartPole-v1", tmp_path / "long", constant, total_env_steps=800, **settings)
    Runner.resume(tmp_path / "short", total_env_steps=800).run()
    assert same(parameters(tmp_path / "short"), parameters(tmp_path / "long"))


def test_schedules_are_those_of_the_longer_run_from_its_first_update_on(tmp_path, monkeypatch):
    seen, update = [], PPO.update
    monkeypatch.setattr(
        PPO, "update", lambda self, batch: seen.append(self.progress) or update(self, batch)
    )
    run("ppo", "CartPole-v1", tmp_path / "run", total_env_steps=400)
    seen.clear()
    Runner.resume(tmp_path / "run", total_env_steps=4_000).run()
    assert seen[:2] == pytest.approx([0.1, 0.11])


@pytest.mark.parametrize("evaluate", ["during", "after"])
def test_a_run_that_goes_on_is_evaluated_as_often_as_it_is_told_now(evaluate, tmp_path):
    settings = {**EVALUATED, "evaluate": evaluate, "evaluation_interval": 100_000}
    directory = tmp_path / "run"
    first = run("dqn", "CartPole-v1", directory, total_env_steps=600, **settings)
    assert len(first.evaluations) == 1
    again = Runner.resume(directory, total_env_steps=1_600, evaluation_interval=250).run()
    at = [evaluation.env_steps for evaluation in again.evaluations]
    assert all(any(due <= one < due + 50 for one in at) for due in (750, 1_000, 1_250, 1_500)), at


def test_numbers_of_numpy_are_settings_as_others_are(tmp_path):
    directory, alpha = tmp_path / "run", np.float64(0.5)
    settings = {**EVALUATED, "target_return": np.float32(475), "alpha": alpha}
    run("dqn", "CartPole-v1", directory, total_env_steps=300, **settings)
    Runner.resume(directory, total_env_steps=400, target_return=np.float32(480)).run()
    content = json.loads((directory / "config.json").read_text())
    assert (content["target_return"], content["alpha"]) == (480.0, 0.5)


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_run_that_is_given_fewer_steps_than_it_has_ends(algorithm, tmp_path, monkeypatch):
    """Schedules stay at their ends."""
    cls, seen, env_steps = ALGORITHMS[algorithm], [], 900
    advance = cls.advance
    monkeypatch.setattr(
        cls, "advance", lambda self, progress: seen.append(progress) or advance(self, progress)
    )
    directory = tmp_path / "run"
    options = {"learning_rate_final_share": 0.0} if algorithm == "ppo" else {}
    settings = {"total_env_steps": 4_000, "checkpoint_interval_env_steps": 100}
    runner = Runner(config(algorithm, "CartPole-v1", directory, options, **settings))
    stopped(runner, lambda: checkpointed(directory) >= env_steps)
    again = Runner.resume(directory, total_env_steps=500)
    result = again.run()
    assert not result.interrupted and result.env_steps >= env_steps
    assert max(seen) == 1.0
    again = Runner.resume(directory, total_env_steps=result.env_steps + 400).run()
    assert again.env_steps >= result.env_steps + 400


def checkpointed(directory):
    """Return how many steps the last checkpoint has."""
    path = directory / "checkpoint.json"
    return json.loads(path.read_text())["env_steps"] if path.exists() else 0


def test_an_interrupted_run_is_not_finished(tmp_path):
    directory = tmp_path / "run"
    runner = Runner(config("dqn", "CartPole-v1", directory, total_env_steps=100_000, **EVALUATED))
    first = stopped(runner, lambda: (directory / "best_policy.pt").exists())
    assert first.interrupted
    second = Runner.resume(
        directory, total_env_steps=first.env_steps + 400, checkpoint_interval_env_steps=100
    ).run()
    assert not second.interrupted and second.env_steps >= first.env_steps + 400
    assert second.evaluations[-1].updates == second.updates


REFUSED = {
    "seed": (
        3,
        "seed cannot change when a run goes on, only total_env_steps, target_return, .*: "
        "leave it out, or begin",
    ),
    "evaluation_episodes": (3, "evaluation_episodes cannot change"),
    "total_env_steps": (0, "total_env_steps must be an integer of at least 1, got 0"),
    "target": (3.0, "a run has no setting target; when it goes on, total_env_steps"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_change_is_refused_by_name_and_nothing_is_changed(name, tmp_path):
    run("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=120)
    before = files(tmp_path / "run")
    value, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        Runner.resume(tmp_path / "run", **{name: value})
    assert files(tmp_path / "run") == before


def test_a_run_that_is_complete_stays_so(tmp_path, monkeypatch):
    """An actor's last steps may allow updates for which nobody is there any more."""
    flow = hosted(config("dqn", "CartPole-v1", tmp_path / "run", total_env_steps=100))
    is_used_up = [False]
    monkeypatch.setattr(flow.streams["experience"], "is_used_up", lambda: is_used_up[0])
    flow.board.row("actor", 0).env_steps = 100
    assert not flow.is_complete
    is_used_up[0] = True
    assert flow.is_complete
    is_used_up[0] = False
    assert flow.is_complete
    flow.close()
