"""Runs on a cluster that learn from rollouts: no step is lost, none is learned from twice."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from counting import RecordedOptions, learned
from ray_runs import (
    ANSWERS,
    N_REPETITIONS,
    RUNNING,
    Running,
    await_start,
    counters_of_killed_driver,
    kill_one,
    named,
    site_processes,
    stopped,
    wait_until,
)
from rich.console import Console

from kary_replay.algorithms import ALGORITHMS
from kary_replay.runner import Runner, RunnerConfig
from kary_replay.runner.backends import ray as ray_backend
from kary_replay.runner.flow import HostedFlow

LONG = pytest.mark.skipif(N_REPETITIONS == 1, reason="takes minutes: make test-ray")
REPEATED = pytest.mark.parametrize("repetition", range(N_REPETITIONS))
N_ENVS, LENGTH = 12, 5  # of an update
SMALL = {
    "backend": "ray",
    "actors": 6,
    "groups": 1,
    "evaluate": "never",
    "total_env_steps": 10_000_000,
    "checkpoint_interval_seconds": 0.0,
    "max_restarts": 100,
}


@pytest.fixture(autouse=True)
def nothing_is_left(cluster):
    """Workers, servers and folders of a run go away with it."""
    yield
    while RUNNING:
        RUNNING.pop().end()
    wait_until(lambda: not named(ANSWERS) and not named("actor-") and not named("learner-"), 30)
    wait_until(lambda: not named("policy_worker"), 30)
    wait_until(lambda: not list(Path(os.environ["TMPDIR"]).glob("kary-replay-*")), 30)


def recorded(tmp_path, **settings):
    """The settings of a run that writes down what it learns from."""
    options = RecordedOptions(n_envs=N_ENVS, rollout_length=LENGTH, record=str(tmp_path / "record"))
    return RunnerConfig(
        "counting:Recorded",
        "counting:Counting",
        options=options,
        directory=str(tmp_path / "run"),
        **{**SMALL, **settings},
    )


def started(monkeypatch, settings):
    running = Running(Runner(settings), monkeypatch, Path(settings.directory))
    await_start(running)
    return running


class Books:
    """What became of the steps of a run, when its flow is closed."""

    def __init__(self, monkeypatch):
        self.kept = None
        close = HostedFlow.close

        def keep_and_close(flow):
            if flow.medium.part is not None and flow.medium.part.number == 0:
                self.keep(flow)
            close(flow)

        monkeypatch.setattr(HostedFlow, "close", keep_and_close)

    def keep(self, flow):
        hosted = flow.streams["experience"]
        rollouts = hosted._rollouts
        n_envs, n_groups = rollouts.stream.n_envs, rollouts.stream.n_groups
        used = int(rollouts.counts["used"].sum()) * rollouts.n_steps
        self.learned = used - int(rollouts.counts["expired"].sum())
        self.dropped = rollouts.n_dropped
        self.waiting = int(rollouts.counts["written"].sum()) * n_envs - used
        # what other machines have told of that has not come, in groups that are there now
        self.elsewhere = sum(
            (progress.written - rollouts.number(group, "written")) * n_envs
            for group, progress in hosted._progress.items()
        )
        assert set(hosted._progress) <= set(range(n_groups))
        self.env_steps, self.updates = flow.board.env_steps, flow.board.updates
        self.figures = hosted.figures()
        self.kept = True

    def check(self, slack=0):
        """All steps are accounted for, but for some that a kill may have cut off from the board."""
        assert self.learned == self.updates * N_ENVS * LENGTH
        found = self.learned + self.dropped + self.waiting + self.elsewhere
        print(
            f"{self.env_steps} = {self.learned} learned + {self.dropped} dropped + "
            f"{self.waiting} waiting + {self.elsewhere} elsewhere + {self.env_steps - found}"
        )
        assert abs(found - self.env_steps) <= slack


@pytest.fixture
def books(monkeypatch):
    return Books(monkeypatch)


def check_record(tmp_path, books):
    """The steps that were learned from are as many as the updates say, and all different."""
    steps = learned(tmp_path / "record")
    assert len(steps) == books.learned
    assert len(np.unique(steps[:, :3], axis=0)) == len(steps)


@pytest.mark.parametrize(
    ("name", "max_staleness"),
    [
        ("a2c", 0),
        pytest.param("ppo", 1, marks=LONG),
        pytest.param("impala", 4, marks=LONG),
        ("appo", 2),
    ],
)
def test_all_algorithms_learn_from_the_rollouts_of_all_nodes(
    cluster, monkeypatch, tmp_path, books, name, max_staleness
):
    cls = ALGORITHMS[name].options_class
    options = {"n_envs": N_ENVS, "rollout_length": LENGTH, "hidden": (8,)}
    if name in ("ppo", "appo"):
        options["batch_size"] = N_ENVS * LENGTH // 2
    settings = RunnerConfig(
        name,
        "CartPole-v1",
        options=cls(**options),
        directory=str(tmp_path / "run"),
        **{**SMALL, "max_staleness": max_staleness, "total_env_steps": 4_800},
    )
    running = started(monkeypatch, settings)
    assert len(running.backend._sites) == 2
    running._thread.join(120)
    running.check()
    steps = running.result.env_steps
    assert steps >= 4_800
    assert books.figures["max_staleness"] <= max_staleness
    assert books.figures["machines"] == 3 and books.figures["machines_lost"] == 0
    rows = settings.rows_per_update
    assert books.learned == books.updates * rows
    found = books.learned + books.dropped + books.waiting + books.elsewhere
    assert found == books.env_steps


@REPEATED
@pytest.mark.parametrize("max_staleness", [0, 2])
def test_actors_are_killed_again_and_again(
    cluster, monkeypatch, tmp_path, books, max_staleness, repetition
):
    """Each takes its unfinished rollout with it, which is counted, and comes back."""
    n_kills, rng = 5, random.Random(repetition)
    running = started(monkeypatch, recorded(tmp_path, max_staleness=max_staleness))
    for _ in range(n_kills):
        running.await_updates(1 + rng.randrange(20))
        wait_until(lambda: named("actor-"))
        os.kill(rng.choice(sorted(named("actor-"))), signal.SIGKILL)
    steps = running.flow.board.column("actor", "env_steps").copy()
    wait_until(lambda: (running.flow.board.column("actor", "env_steps") > steps).all())
    running.await_updates(30)
    running.stop()
    check_record(tmp_path, books)
    books.check(slack=(n_kills + 6) * N_ENVS // 6)  # a step of a group each, and of the last ones
    assert books.figures["max_staleness"] <= max_staleness
    assert books.dropped <= n_kills * 2 * LENGTH * N_ENVS // 6


def test_actions_by_policy_workers_are_those_of_actors(cluster, monkeypatch, tmp_path):
    """Each node has policy workers of its own, which answer what its actors ask."""
    seeded = {"env_options": {"is_seeded": True}}
    chosen = []
    for inference in ("local", "worker"):
        (tmp_path / inference).mkdir()
        settings = recorded(tmp_path / inference, inference=inference, **seeded)
        running = started(monkeypatch, settings)
        assert len(named("policy_worker")) == (0 if inference == "local" else 3)
        running.stop()
        steps = learned(tmp_path / inference / "record")
        chosen.append({(*who, shown): action for *who, shown, action in steps.tolist()})
    both = chosen[0].keys() & chosen[1].keys()
    assert len(both) >= 50 * N_ENVS * LENGTH  # so many updates does `started` wait for
    assert {chosen[0][step] for step in both} == {0, 1}
    assert all(chosen[0][step] == chosen[1][step] for step in both)


@REPEATED
def test_policy_workers_are_killed_again_and_again(
    cluster, monkeypatch, tmp_path, books, repetition
):
    """Their successors answer what had been asked; nothing is lost with them."""
    rng = random.Random(repetition)
    running = started(monkeypatch, recorded(tmp_path, inference="worker", max_restarts=3))
    for _ in range(8):
        # an update or two may have their rollouts already; then the successor must have answered
        running.await_updates(3 + rng.randrange(20))
        wait_until(lambda: len(named("policy_worker")) == 3)
        os.kill(rng.choice(sorted(named("policy_worker"))), signal.SIGKILL)
    running.await_updates(30)
    running.stop()
    check_record(tmp_path, books)
    books.check(slack=6 * N_ENVS // 6)
    assert books.dropped == 0


@REPEATED
def test_a_node_that_is_silent_for_a_while_loses_nothing(
    cluster, monkeypatch, tmp_path, books, repetition
):
    monkeypatch.setattr(ray_backend, "LOST_SECONDS", 300.0)  # this machine may be slow
    running = started(monkeypatch, recorded(tmp_path, inference="worker"))
    sites = list(running.backend._sites)
    with stopped(site_processes()):
        time.sleep(5.0)
    running.await_updates(100)
    assert running.backend._sites == sites
    running.stop()
    check_record(tmp_path, books)
    books.check(slack=6 * N_ENVS // 6)
    assert books.dropped == 0
    assert "is started anew" not in running.text.getvalue()


@REPEATED
def test_a_node_is_removed_without_grace(cluster, monkeypatch, tmp_path, books, repetition):
    running = started(monkeypatch, recorded(tmp_path))
    doomed = cluster.others[-1].node_id
    site = next(site for site in running.backend._sites if site.node == doomed)
    running.await_updates(20)
    cluster.kill()
    wait_until(lambda: site not in running.backend._sites, 60)
    places = running.backend._places
    wait_until(lambda: len(places) == 6 and site not in places.values(), 60)
    running.await_updates(30)
    assert running.flow.figures["machines"] == 2
    running.stop()
    check_record(tmp_path, books)
    books.check(slack=6 * N_ENVS // 6)
    assert "is gone" in running.text.getvalue()


@REPEATED
def test_a_node_is_added(cluster, monkeypatch, tmp_path, books, repetition):
    """Actors move there, with rollouts on the way."""
    cluster.have(1)
    running = started(monkeypatch, recorded(tmp_path, max_staleness=2, max_restarts=0))
    assert len(running.backend._sites) == 1
    cluster.have(2)
    wait_until(lambda: len(running.backend._sites) == 2, 120)
    site = running.backend._sites[-1]
    wait_until(lambda: running.backend._count(site) >= 1, 60)
    moved = [index for (_, index), place in running.backend._places.items() if place is site]
    steps = running.flow.board.column("actor", "env_steps")
    before = steps[moved].copy()
    wait_until(lambda: (steps[moved] > before).all())
    running.await_updates(30)
    assert running.flow.figures["machines"] == 3
    running.stop()
    check_record(tmp_path, books)
    books.check(slack=12 * N_ENVS // 6)


@REPEATED
def test_the_process_that_answers_is_killed(cluster, monkeypatch, tmp_path, books, repetition):
    """The rollouts stay where they are, and the learner gets them from its successor."""
    running = started(monkeypatch, recorded(tmp_path))
    for _ in range(3):
        victim = kill_one(ANSWERS)
        wait_until(lambda victim=victim: victim not in named(ANSWERS), 60)
        wait_until(lambda: len(named(ANSWERS)) == 2, 60)
        running.await_updates(30)
    wait_until(lambda: running.flow.figures["machines_lost"] == 0, 60)
    running.stop()
    check_record(tmp_path, books)
    books.check(slack=6 * N_ENVS // 6)
    assert books.dropped == 0


@LONG
@REPEATED
def test_a_process_that_answers_nobody_is_replaced(
    cluster, monkeypatch, tmp_path, books, repetition
):
    """It is stopped, so that connections to it are made, and nothing comes from there."""
    running = started(monkeypatch, recorded(tmp_path))
    victim = min(named(ANSWERS))
    os.kill(victim, signal.SIGSTOP)
    wait_until(lambda: victim not in named(ANSWERS) and len(named(ANSWERS)) == 2, 60)
    running.await_updates(30)
    running.stop()
    check_record(tmp_path, books)
    books.check(slack=6 * N_ENVS // 6)


@REPEATED
def test_a_run_goes_on_from_its_checkpoint(cluster, monkeypatch, tmp_path, books, repetition):
    """On other nodes, and with what waited; of what was unfinished, all steps are counted."""
    settings = recorded(tmp_path, max_staleness=2)
    running = started(monkeypatch, settings)
    running.await_updates(30)
    running.stop()
    before = books.env_steps
    cluster.have(1)
    again = Running(Runner.resume(tmp_path / "run"), monkeypatch, tmp_path / "run")
    await_start(again)
    assert len(again.backend._sites) == 1
    again.await_updates(30)
    again.stop()
    assert books.env_steps > before
    check_record(tmp_path, books)
    books.check(slack=12 * N_ENVS // 6)


def test_the_driver_is_killed_and_the_run_goes_on(cluster, monkeypatch, tmp_path):
    run = tmp_path / "run"
    counters = counters_of_killed_driver("ppo", cluster.cluster.address, run)
    running = Running(Runner.resume(run), monkeypatch, run)
    wait_until(lambda: running.updates > counters["updates"] + 3, 240)
    assert running.flow.board.env_steps >= counters["env_steps"]
    running.stop()


@LONG
@pytest.mark.parametrize("name", ["ppo", "impala"])
def test_it_is_solved(cluster, tmp_path, name):
    settings = RunnerConfig(
        name,
        "CartPole-v1",
        backend="ray",
        actors=4,
        target_return=475.0,
        directory=str(tmp_path / "run"),
    )
    result = Runner(settings, console=Console(quiet=True)).run()
    assert result.best_return >= 475.0
