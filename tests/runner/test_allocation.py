"""How many actors are chosen, by measurements made up and by real ones."""

import io
import json
import math

import pytest
from rich.console import Console
from runs import HANG_SECONDS, config

from kary_replay.algorithms import PPOOptions
from kary_replay.cores import n_cores
from kary_replay.runner import RunFailedError, Runner, RunnerConfig
from kary_replay.runner.allocation import measurement
from kary_replay.runner.allocation.cores import allocate
from kary_replay.runner.backends import supervisor
from kary_replay.runner.environments.env_factory import env_factory

CASES = {  # steps per actor, updates, steps per update, cores, learners -> actors, and why
    "one actor is enough": ((1000.0, 500.0, 2.0, 8, 1), 1, "1 actor keeps the learner busy"),
    "as many as it takes": ((1000.0, 500.0, 5.0, 8, 1), 3, "3 actors keep the learner busy"),
    "a hundredth less is enough": ((1000.0, 302.0, 10.0, 8, 1), 3, "3 actors keep"),
    "two hundredths are not": ((1000.0, 306.0, 10.0, 8, 1), 4, "4 actors keep"),
    "not enough cores": (
        (1000.0, 5000.0, 10.0, 8, 1),
        7,
        "so they get all the other cores (7 of 8)",
    ),
    "several learners": ((1000.0, 5000.0, 10.0, 8, 4), 4, "(4 of 8)"),
    "threads of learners": ((1000.0, 5000.0, 10.0, 8, 2, 3), 2, "(2 of 8)"),
    "one core": ((1000.0, 5000.0, 10.0, 1, 1), 1, "(1 of 1)"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_fewest_actors_that_keep_learners_busy(case):
    measured, actors, reason = CASES[case]
    allocation = allocate(*measured)
    assert allocation.chosen.actors == actors and reason in allocation.reason
    assert [split.actors for split in allocation.splits] == list(
        range(1, max(1, measured[3] - math.prod(measured[4:])) + 1)
    )


def test_a_run_measures_prints_and_takes_what_it_chose(tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "MEASURE_SECONDS", 0.2)
    console = Console(file=io.StringIO(), width=100, record=True)
    settings = config(
        "dqn",
        "CartPole-v1",
        tmp_path / "run",
        backend="process",
        actors="auto",
        total_env_steps=600,
    )
    result = Runner(settings, console=console).run()
    allocation, text = result.allocation, " ".join(console.export_text().split())
    assert allocation.steps_per_actor > 0 and allocation.updates_per_second > 0
    assert 1 <= allocation.chosen.actors <= max(1, n_cores() - 1)
    assert f"→ {allocation.chosen.actors}" in text and allocation.reason in text
    assert result.env_steps >= 600
    assert (
        json.loads((tmp_path / "run" / "checkpoint.json").read_text())["n_actors"]
        == allocation.chosen.actors
    )


def test_measuring_does_not_collect_what_learning_starts_with(tmp_path, monkeypatch):
    """Of an environment that takes 50 ms for a step; 4000 steps of it would take minutes."""
    rates, n_steps = measurement._rates, []

    def counted(flow, *others):
        found = rates(flow, *others)
        n_steps.append(flow.board.env_steps)
        return found

    monkeypatch.setattr(measurement, "MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(measurement, "_rates", counted)
    settings = {"backend": "process", "actors": "auto", "learning_starts": 4_000}
    settings |= {"env_options": {"seconds": 0.05}}
    runner = Runner(config("dqn", "slow_envs:slow", tmp_path / "run", **settings))
    assert runner._suitable_actors() >= 1
    assert 0 < n_steps[0] < 4_000


def test_a_learner_is_measured_with_its_share_of_a_batch_and_its_threads(tmp_path, monkeypatch):
    seen = []

    def rates(flow, supervisor, interrupted):
        learner = next(role for role in flow.roles if role.kind == "learner")
        seen.append((flow.config.options.batch_size, learner.count, learner.threads))
        return 100.0, 100.0

    monkeypatch.setattr(measurement, "_rates", rates)
    settings = {"backend": "process", "actors": "auto", "learners": 4, "learner_threads": 2}
    runner = Runner(config("dqn", "CartPole-v1", tmp_path / "run", **settings))
    assert runner._suitable_actors() >= 1 and seen == [(8, 1, 2)]


def test_learners_that_do_not_wait_for_each_other_are_measured_with_whole_batches(
    tmp_path, monkeypatch
):
    seen = []

    def measured(config, env_factory, n_actors, interrupted):
        seen.append(config.options.batch_size)
        return 1_000.0, 50.0

    monkeypatch.setattr(measurement, "_measured", measured)
    found = {}
    for optimization in ("synchronous", "asynchronous"):
        settings = config(
            "dqn",
            "CartPole-v1",
            tmp_path / "run",
            {"batch_size": 64},
            backend="process",
            learners=2,
            optimization=optimization,
        )
        factory = env_factory(settings)
        found[optimization] = measurement.measured_allocation(settings, factory, lambda: False)
    assert seen == [32, 64]
    rates = [found[name].updates_per_second for name in ("synchronous", "asynchronous")]
    assert rates == [50.0, 100.0]


def test_an_environment_that_hangs_while_it_is_measured_is_named(tmp_path, monkeypatch):
    """It may hang for so long as a step may take, and not for so long as a start may."""
    monkeypatch.setattr(supervisor, "START_SECONDS", 10 * HANG_SECONDS)
    settings = {"backend": "process", "actors": "auto", "environment_timeout_seconds": 1.0}
    with pytest.raises(
        RunFailedError,
        match=r"environment faulty_envs:make hung: .* for \d+ s.*\nNothing has been created",
    ):
        Runner(
            config(
                "dqn",
                "faulty_envs:make",
                tmp_path / "run",
                env_options={"fault": "hangs", "at": 1},
                **settings,
            )
        ).run()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("policy", ["restart", "stop"])
def test_an_environment_that_breaks_now_and_then_is_measured_all_the_same(policy, tmp_path):
    """The sixth step of each raises, after an episode of four: its actor is started anew."""
    fault = {"fault": "raises", "at": 6, "length": 4}
    settings = {
        "backend": "process",
        "actors": "auto",
        "on_environment_error": policy,
        "max_restarts": 1,
    }
    runner = Runner(
        config("dqn", "faulty_envs:make", tmp_path / "run", env_options=fault, **settings)
    )
    if policy == "restart":
        assert runner._suitable_actors() >= 1
    else:
        with pytest.raises(RunFailedError, match="the bottle is empty"):
            runner._suitable_actors()


def test_a_learner_that_fails_while_it_is_measured_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "MEASURE_SECONDS", HANG_SECONDS)  # that is, until it fails
    settings = RunnerConfig(
        "failing_algorithms:Failing",
        "CartPole-v1",
        directory=str(tmp_path / "run"),
        backend="process",
    )
    with pytest.raises(
        RunFailedError,
        match=r"(?s)learner-0 failed: Traceback.*diverged.*\nNothing has been created",
    ):
        Runner(settings).run()


def test_an_environment_that_breaks_while_it_is_measured_is_named(tmp_path):
    settings = {"backend": "process", "actors": "auto", "env_options": {"fault": "raises", "at": 1}}
    with pytest.raises(
        RunFailedError, match=r"(?s)the bottle is empty.*\nNothing has been created"
    ):
        Runner(config("dqn", "faulty_envs:make", tmp_path / "run", **settings)).run()
    assert not list(tmp_path.iterdir())


NUMBERS = {  # environments, cores, other settings -> what is tried
    "one environment": (1, 16, {}, [1]),
    "one core": (8, 1, {}, [1]),
    "two cores": (8, 2, {}, [1, 2]),
    "groups": (8, 16, {"groups": 2}, [1, 2, 4]),
    "twelve": (12, 16, {}, [1, 2, 4, 12]),
    "not all cores": (12, 11, {}, [1, 2, 4, 6]),
    "many": (16, 16, {}, [1, 2, 4, 8, 16]),
    "odd": (35, 40, {}, [1, 5, 35]),
    "a core for the policy worker": (8, 2, {"inference": "worker", "policy_workers": 1}, [1]),
    "as many groups as policy workers": (8, 2, {"inference": "worker", "policy_workers": 2}, [2]),
    "learners with groups of their own": (
        12,
        4,
        {"learners": 3, "optimization": "asynchronous", "max_staleness": 3},
        [3],
    ),
    "actors do not wait": (12, 5, {"max_staleness": 1}, [4]),
    "nor do they for two learners": (8, 4, {"max_staleness": 1, "learners": 2}, [2]),
    "nor on two cores": (8, 2, {"max_staleness": 1}, [1]),
    "few updates": (8, 4, {"total_env_steps": 10_000}, [4]),
    "no number has a flow": (8, 4, {"inference": "worker", "policy_workers": 9}, [1]),
}


def of_rollouts(directory, n_envs=8, **settings):
    """Return settings of a run that measures; its rollouts are of 6 steps."""
    settings = {"backend": "process", "actors": "auto", "total_env_steps": 10**6, **settings}
    options = PPOOptions(n_envs=n_envs, rollout_length=6, batch_size=6)
    return RunnerConfig("ppo", "CartPole-v1", options=options, directory=str(directory), **settings)


@pytest.mark.parametrize("case", NUMBERS)
def test_actors_of_rollouts_have_a_core_and_a_flow(case, monkeypatch, tmp_path):
    n_envs, cores, settings, numbers = NUMBERS[case]
    monkeypatch.setattr(measurement, "n_cores", lambda: cores)
    runner = Runner(of_rollouts(tmp_path / "run", n_envs, **settings))
    assert measurement.numbers_to_try(runner.config, runner._env_factory) == numbers
    if len(numbers) == 1:
        monkeypatch.setattr(measurement, "_measured", None)
        assert runner._suitable_actors() == numbers[0]


IN_TURNS = {  # environment steps per second by the number of actors -> chosen, tried
    "more gain nothing": ({1: 900.0, 2: 800.0, 4: 2000.0}, 1, [1, 2]),
    "they gain too little": ({1: 900.0, 2: 920.0, 4: 940.0}, 1, [1, 2, 4]),
    "little by little": ({1: 900.0, 2: 940.0, 4: 980.0}, 2, [1, 2, 4]),
    "two are best": ({1: 900.0, 2: 1600.0, 4: 1500.0}, 2, [1, 2, 4]),
    "the run would be over sooner": ({1: 1e15, 2: 2e15}, 1, [1]),
    "the more the better": ({1: 900.0, 2: 1600.0, 4: 2500.0}, 4, [1, 2, 4]),
}


@pytest.mark.parametrize("case", IN_TURNS)
def test_actors_of_rollouts_are_tried_as_long_as_more_gain(case, monkeypatch, tmp_path):
    speeds, chosen, tried = IN_TURNS[case]
    seen = []

    def measured(config, env_factory, n_actors, interrupted):
        assert config.options.n_epochs == 1 and config.options.batch_size == 6
        seen.append(n_actors)
        return speeds[n_actors], 10.0

    monkeypatch.setattr(measurement, "n_cores", lambda: 4)
    monkeypatch.setattr(measurement, "_measured", measured)
    runner = Runner(of_rollouts(tmp_path / "run"))
    assert runner._suitable_actors() == chosen and seen == tried
    assert runner._allocation.steps_per_actor == speeds[chosen] / chosen


def test_a_run_of_rollouts_measures_prints_and_takes_what_it_chose(tmp_path, monkeypatch):
    monkeypatch.setattr(measurement, "MEASURE_SECONDS", 0.2)
    monkeypatch.setattr(measurement, "n_cores", lambda: 2)
    console = Console(file=io.StringIO(), width=100, record=True)
    monkeypatch.setattr(measurement, "ENOUGH_UPDATES", 1)
    monkeypatch.setattr(measurement, "WORTH_TRIES", 0)
    result = Runner(of_rollouts(tmp_path / "run", total_env_steps=600), console=console).run()
    allocation, text = result.allocation, " ".join(console.export_text().split())
    assert [split.actors for split in allocation.splits] == [1, 2]
    assert f"→ {allocation.chosen.actors}" in text and allocation.reason in text
    saved = json.loads((tmp_path / "run" / "checkpoint.json").read_text())
    assert saved["n_actors"] == allocation.chosen.actors
