"""Runs on a cluster of three nodes: they solve tasks, and survive what happens to nodes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from ray_runs import (
    ANSWERS,
    N_REPETITIONS,
    RUNNING,
    Running,
    await_start,
    config,
    counters_of_killed_driver,
    kill_one,
    named,
    site_processes,
    started,
    stopped,
    wait_until,
)
from rich.console import Console

from kary_replay.runner import Runner, RunnerConfig
from kary_replay.runner.backends import ray as ray_backend
from kary_replay.runner.records.run_directory import RunDirectory
from kary_replay.shards import RemoteShard, SocketTransport

REPEATED = pytest.mark.parametrize("repetition", range(N_REPETITIONS))


@pytest.fixture(autouse=True)
def nothing_is_left(cluster):
    """Workers, servers and folders of a run go away with it."""
    yield
    while RUNNING:
        RUNNING.pop().end()
    wait_until(lambda: not named(ANSWERS) and not named("actor-") and not named("learner-"), 30)
    wait_until(lambda: not list(Path(os.environ["TMPDIR"]).glob("kary-replay-*")), 30)


def n_rows(running) -> int:
    return int(running.flow.figures["size"])


@pytest.mark.parametrize("algorithm", ["dqn", "r2d2"])
def test_actors_are_on_all_nodes_and_learners_draw_from_all(
    algorithm, cluster, monkeypatch, tmp_path
):
    running = started(monkeypatch, tmp_path / "run", algorithm=algorithm)
    assert len(running.backend._sites) == 2
    counts = [running.backend._count(place) for place in (None, *running.backend._sites)]
    assert counts == [1, 3, 2] or counts == [1, 2, 3] or counts == [2, 2, 2]
    running.await_updates(200)
    steps = running.flow.board.column("actor", "env_steps")
    wait_until(lambda: (steps > 0).all())
    versions = running.flow.board.column("actor", "parameter_version")
    wait_until(lambda: (versions > 0).all())
    figures = running.flow.figures
    assert figures["shards"] == 3
    wait_until(lambda: running.flow.figures["shards_lost"] == 0, 60)
    assert 0 <= figures["distance"] < 0.5
    result = running.stop()
    assert result.interrupted
    assert result.env_steps > 0
    per_insert = running.runner.config.samples_per_insert
    assert result.samples_per_insert == pytest.approx(per_insert, rel=0.5)


@pytest.mark.parametrize("env", ["CartPole-v1", "stacked_envs:make"])
def test_a_checkpoint_goes_on_with_another_number_of_nodes(env, cluster, monkeypatch, tmp_path):
    running = started(monkeypatch, tmp_path / "run", env=env)
    running.await_updates(100)
    running.stop()
    _, saved = RunDirectory(tmp_path / "run").checkpoint(running.runner.config)
    cluster.have(1)
    again = Running(Runner.resume(tmp_path / "run"), monkeypatch, tmp_path / "run")
    await_start(again)
    assert len(again.backend._sites) == 1
    counters = again.flow.counters()
    assert counters["env_steps"] >= saved["env_steps"] > 0
    assert counters["updates"] >= saved["updates"] > 0
    assert counters["n_added"] >= saved["n_added"] > 0
    assert counters["n_sampled"] >= saved["n_sampled"] > 0
    assert n_rows(again) >= saved["n_added"]  # the buffer was not full
    again.await_updates(100)
    again.stop()


def check_within(bar, seconds, of_what):
    """The bar is for a machine that does nothing else, as in `make test-ray`."""
    print(f"{seconds:.2f} s {of_what}")
    assert seconds <= bar or N_REPETITIONS == 1


def answers(address, token):
    """Whether somebody answers there: a process that has just begun may not yet do so."""
    try:
        SocketTransport(address, token).close()
    except ConnectionError:
        return False
    return True


@REPEATED
def test_the_process_that_answers_is_killed(cluster, monkeypatch, tmp_path, repetition):
    """Its rows stay where they are, and the learner draws on from them."""
    running = started(monkeypatch, tmp_path / "run")
    hosted = running.flow.streams["experience"]
    before = dict(hosted._addresses)
    victim = kill_one(ANSWERS)
    wait_until(lambda: victim not in named(ANSWERS) and len(named(ANSWERS)) == 2, 60)
    running.await_updates(200)
    assert hosted._addresses == before
    wait_until(lambda: running.flow.figures["shards_lost"] == 0, 60)  # it draws from there again
    assert len(running.backend._sites) == 2
    # What is there is what was added: nothing was lost, and nothing was doubled.
    for address in hosted._addresses.values():
        wait_until(lambda address=address: answers(address, running.backend._token), 60)
        shard = RemoteShard(SocketTransport(address, running.backend._token))
        shard.look()
        assert shard.vitals["size"] == min(shard.vitals["n_added"], shard.vitals["capacity"])
        assert shard.vitals["size"] > 0
        shard.check_invariants()
        shard.close()
    running.stop()


def test_a_process_that_answers_nobody_is_replaced(cluster, monkeypatch, tmp_path):
    """It is stopped, so that connections to it are made, and nothing comes from there."""
    running = started(monkeypatch, tmp_path / "run")
    victim = min(named(ANSWERS))
    os.kill(victim, signal.SIGSTOP)
    pause = running.longest_pause(10.0)
    check_within(5.0, pause, "without an update")
    running.await_updates(100)
    wait_until(lambda: victim not in named(ANSWERS) and len(named(ANSWERS)) == 2, 60)
    wait_until(lambda: running.flow.figures["shards_lost"] == 0, 60)  # it draws from there again
    assert len(running.backend._sites) == 2
    running.await_updates(100)
    running.stop()


@REPEATED
def test_a_node_that_is_silent_for_a_while_loses_nothing(
    cluster, monkeypatch, tmp_path, repetition
):
    """Learning goes on without it, and with it once it is back."""
    monkeypatch.setattr(ray_backend, "LOST_SECONDS", 300.0)  # this machine may be slow
    running = started(monkeypatch, tmp_path / "run", checkpoint_interval_seconds=1.0)
    sites, known = list(running.backend._sites), running.flow.streams["experience"]._known
    before = {number: count.n_added for number, count in known.items()}
    with stopped(site_processes()):
        time.sleep(5.0)
        running.await_updates(50)
    wait_until(lambda: running.flow.figures["shards_lost"] == 0)
    assert running.backend._sites == sites
    wait_until(lambda: all(known[number].n_added > n for number, n in before.items()))
    steps = running.flow.board.column("actor", "env_steps").copy()
    wait_until(lambda: (running.flow.board.column("actor", "env_steps") > steps).all())
    running.stop()
    assert "is gone" not in running.text.getvalue()
    assert "is started anew" not in running.text.getvalue()


@REPEATED
def test_a_node_that_hangs_is_given_up(cluster, monkeypatch, tmp_path, repetition):
    monkeypatch.setattr(ray_backend, "LOST_SECONDS", 4.0)
    running = started(monkeypatch, tmp_path / "run")
    with stopped(site_processes()):
        wait_until(lambda: len(running.backend._sites) == 1, 60)
        wait_until(lambda: running.flow.figures["shards"] == 2, 60)
        steps = running.flow.board.column("actor", "env_steps").copy()
        wait_until(lambda: (running.flow.board.column("actor", "env_steps") > steps).all())
    running.stop()
    assert "is gone: it has not answered" in running.text.getvalue()


@REPEATED
def test_a_node_is_removed_without_grace(cluster, monkeypatch, tmp_path, repetition):
    running = started(monkeypatch, tmp_path / "run")
    running.await_updates(100)
    doomed = cluster.others[-1].node_id
    site = next(site for site in running.backend._sites if site.node == doomed)
    added = running.flow.counters()["n_added"]
    cluster.kill()
    pause = running.longest_pause(15.0)
    check_within(5.0, pause, "without an update")
    running.await_updates(100)
    wait_until(lambda: site not in running.backend._sites, 60)
    wait_until(lambda: running.flow.figures["shards"] == 2, 60)
    places = running.backend._places
    wait_until(lambda: len(places) == 6 and site not in places.values(), 60)
    steps = running.flow.board.column("actor", "env_steps").copy()
    wait_until(lambda: (running.flow.board.column("actor", "env_steps") > steps).all(), 120)
    assert running.flow.counters()["n_added"] >= added
    running.await_updates(100)
    running.stop()
    assert "is gone" in running.text.getvalue()


@REPEATED
def test_a_node_is_added(cluster, monkeypatch, tmp_path, repetition):
    cluster.have(1)
    running = started(monkeypatch, tmp_path / "run", max_restarts=0)  # a move is no failure
    assert len(running.backend._sites) == 1
    cluster.have(2)
    wait_until(lambda: len(running.backend._sites) == 2, 120)
    site = running.backend._sites[-1]
    wait_until(lambda: running.backend._count(site) >= 1, 60)
    shard = RemoteShard(
        SocketTransport(
            running.flow.streams["experience"]._addresses[site.number], running.backend._token
        )
    )

    def has_rows():
        shard.look()
        return shard.vitals["size"] > 0 and shard.vitals["n_sampled"] > 0

    wait_until(has_rows, 120)  # actors add there, and the learner draws there
    shard.close()
    running.await_updates(100)
    assert running.flow.figures["shards"] == 3
    running.stop()


@REPEATED
def test_the_driver_is_killed_and_the_run_goes_on(cluster, monkeypatch, tmp_path, repetition):
    run = tmp_path / "run"
    counters = counters_of_killed_driver("dqn", cluster.cluster.address, run)
    running = Running(Runner.resume(run), monkeypatch, run)
    await_start(running)
    assert running.flow.board.env_steps >= counters["env_steps"]
    running.await_updates(50)
    running.stop()


@pytest.mark.parametrize(
    ("algorithm", "env", "target", "settings"),
    [
        ("dqn", "CartPole-v1", 475.0, {}),
        ("sac", "Pendulum-v1", -160.0, {}),
    ],
    ids=["cartpole", "pendulum"],
)
@pytest.mark.skipif(N_REPETITIONS == 1, reason="takes minutes: make test-ray")
def test_it_is_solved(cluster, tmp_path, algorithm, env, target, settings):
    settings = RunnerConfig(
        algorithm,
        env,
        backend="ray",
        actors=3,
        target_return=target,
        directory=str(tmp_path / "run"),
        **settings,
    )
    result = Runner(settings, console=Console(quiet=True)).run()
    assert result.best_return >= target
    assert np.isfinite(result.samples_per_insert)


def test_a_run_on_one_node_needs_no_other(cluster, monkeypatch, tmp_path):
    cluster.have(0)
    running = started(monkeypatch, tmp_path / "run", actors=1)
    assert running.backend._sites == []
    running.stop()


def test_an_actor_that_fails_for_good_ends_the_run_with_the_reason(cluster, tmp_path):
    from kary_replay.runner import RunFailedError

    settings = config(
        tmp_path / "run",
        env="faulty_envs:make",
        env_options={"fault": "raises", "at": 5},
        max_restarts=1,
    )
    with pytest.raises(RunFailedError, match="the bottle is empty"):
        Runner(settings, console=Console(quiet=True)).run()


def test_workers_end_within_seconds_of_ctrl_c(cluster, monkeypatch, tmp_path):
    running = started(monkeypatch, tmp_path / "run")
    begun = time.monotonic()
    running.stop()
    check_within(60.0, time.monotonic() - begun, "until the end")


def test_each_node_has_policy_workers_of_its_own(cluster, monkeypatch, tmp_path):
    running = started(monkeypatch, tmp_path / "run", inference="worker")
    assert len(running.backend._sites) == 2
    assert len(named("policy_worker")) == 3
    steps = running.flow.board.column("actor", "env_steps")
    versions = running.flow.board.column("actor", "parameter_version")
    wait_until(lambda: (steps > 0).all() and (versions > 0).all())
    running.stop()
    wait_until(lambda: not named("policy_worker"), 30)
