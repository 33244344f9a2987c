"""Streams of which several machines have parts, here all in this process."""

from __future__ import annotations

import secrets
import socket
import threading

import numpy as np
import pytest
import runs
import torch
from stacked_envs import check_stacks

from kary_replay import FrameReplayBuffer, PrioritizedReplayBuffer
from kary_replay.algorithms import Share
from kary_replay.errors import CheckpointError, ShardError
from kary_replay.runner.backends.memory import SharedMemory
from kary_replay.runner.environments.env_factory import env_factory
from kary_replay.runner.flow import HostedFlow
from kary_replay.runner.streams import Checkpoint, Part, Peer, sharded_replay
from kary_replay.runner.streams import members as members_module
from kary_replay.shards import RemoteShard
from kary_replay.shards.checkpoint import saved_shards
from kary_replay.shards.layout import Layout
from kary_replay.shards.service import ShardService
from kary_replay.shards.transport import LocalTransport

TOKEN = secrets.token_bytes(32)
N_ACTORS = 4
HERE = frozenset({("learner", 0), ("actor", 0), ("actor", 1), ("evaluator", 0)})
THERE = frozenset({("actor", 2), ("actor", 3)})
DRIVER, SITE = Peer(0, HERE), Peer(1, THERE)


NEW = Checkpoint()


def flow_of(part, tmp_path, checkpoint=NEW, env="CartPole-v1", **settings):
    config = runs.config("dqn", env, tmp_path, backend="process", **settings)
    factory = env_factory(config)
    return HostedFlow(config, factory, N_ACTORS, SharedMemory(part), checkpoint)


class Pair:
    """A driver and a site, and the server that answers for the site's shard."""

    def __init__(self, tmp_path, checkpoint=NEW, **settings):
        self.driver = flow_of(Part(0, 0.5, TOKEN), tmp_path, checkpoint, **settings)
        counters = Checkpoint(None, self.driver.counters())
        self.site = flow_of(Part(1, 0.5, TOKEN), tmp_path, counters, **settings)
        self.answerer = self.site.streams["experience"].answerer()
        address = self.answerer.serve("127.0.0.1", 0)
        for name, stream in self.driver.streams.items():
            stream.joined(1, address if name == "experience" else None)
            stream.begin()

    def exchange(self):
        """Let both tell each other what they know."""
        for name, stream in self.driver.streams.items():
            told, other = stream.told(SITE), self.site.streams[name]
            if told is not None:
                other.heard(DRIVER, told)
            newer = stream.broadcast(0)
            if newer is not None:
                other.receive(newer[1])
            told = other.told(DRIVER._replace(followed=tuple(THERE)))
            if told is not None:
                stream.heard(SITE, told)

    def close(self):
        self.driver.close()
        self.answerer._server.close()
        self.site.close()


@pytest.fixture
def pair(tmp_path):
    made = Pair(tmp_path, uniform_share=0.0)
    yield made
    made.close()


def experience(flow):
    return flow.streams["experience"]


def step(flow, n=64, value=0.0):
    """Add rows as an actor does, through the sink of its own machine."""
    sink = experience(flow).sink()
    algorithm = flow.config.new_algorithm(flow.env_factory)
    writer = sink.writer(algorithm, n, 0, None)
    writer.add(
        observation=np.full((n, 4), value, np.float32),
        action=np.zeros(n, np.int64),
        reward=np.zeros(n),
        next_observation=np.zeros((n, 4), np.float32),
        terminated=np.zeros(n, bool),
        truncated=np.ones(n, bool),
    )


def source_of(flow, batch_size=32):
    """The end of a learner, which has reached all shards."""
    source = experience(flow).source()
    source.prepare(batch_size, torch.device("cpu"), 0, Share(), 0)
    reach_all(source)
    return source


def reach_all(source):
    """Wait until the thread that reaches shards has reached those that are there."""
    connections = source._connections
    runs.wait_until(lambda: source._look_around(source._shards) or not connections.n_missing)


def test_both_count_what_is_added_anywhere(pair):
    step(pair.driver, 60)
    step(pair.site, 70)
    for _ in range(2):
        pair.exchange()
    for flow in (pair.driver, pair.site):
        assert experience(flow)._counts.n_added == 130
        assert len(experience(flow)._counts) == 130
        assert experience(flow).sink().has_begun  # learning starts with 100 rows
    assert experience(pair.driver).figures()["size"] == 130
    assert experience(pair.driver).figures()["shards"] == 2


def test_draws_come_from_both_and_priorities_go_back(pair):
    step(pair.driver, value=1.0)
    step(pair.site, value=2.0)
    pair.exchange()
    source = source_of(pair.driver)
    seen = set()
    for _ in range(20):
        batch = source.draw()
        assert batch.observation.shape == (32, 4)
        seen |= set(batch.observation[:, 0].tolist())
        source.learned(batch, np.where(batch.observation[:, 0] == 1.0, 0.0, 3.0))
    assert seen == {1.0, 2.0}
    source._shards.settle()
    shares = [float((source.draw().observation[:, 0] == 2.0).mean()) for _ in range(50)]
    assert np.mean(shares[10:]) > 0.55  # rows over there have the larger priorities
    pair.exchange()
    assert experience(pair.driver)._counts.n_sampled == 32 * 70
    assert experience(pair.site)._counts.n_sampled == 32 * 70
    source.advance(0.5)
    figures = experience(pair.driver).figures()
    assert figures["beta"] == pytest.approx(0.5 * (1 + pair.driver.config.beta))
    assert figures["shards_lost"] == 0
    source.close()


def test_a_part_that_leaves_is_not_drawn_from_and_its_rows_stay_counted(pair):
    step(pair.driver, value=1.0)
    step(pair.site, value=2.0)
    pair.exchange()
    source = source_of(pair.driver)
    source.draw()
    before = source.draw()
    experience(pair.driver).left(1)
    assert experience(pair.driver)._counts.n_added == 128
    assert experience(pair.driver).figures()["size"] == 64
    for _ in range(20):
        assert (source.draw().observation[:, 0] == 1.0).all()
    source.learned(before, np.ones(32))  # some rows of which are gone
    source.advance(1.0)
    figures = experience(pair.driver).figures()
    assert figures["shards_lost"] == 1
    there = (before.observation[:, 0] == 2.0).sum()
    assert figures["updates_refused"] == there
    experience(pair.driver).joined(2, pair.answerer._server.address)  # as if it had come anew
    source._look_around(source._shards)
    reach_all(source)
    seen = {value for _ in range(20) for value in source.draw().observation[:, 0].tolist()}
    assert seen == {1.0, 2.0}
    source.close()


def test_batches_are_asked_for_ahead_once_there_are_many_rows(pair):
    for _ in range(20):
        step(pair.driver, 100, value=1.0)
        step(pair.site, 100, value=2.0)
    pair.exchange()
    source = source_of(pair.driver)
    for _ in range(30):
        batch = source.draw()
        source.learned(batch, np.ones(32))
    assert source._ahead is not None
    assert {1.0, 2.0} == set(batch.observation[:, 0].tolist())
    pair.answerer._server.close()  # as it dies with its machine
    experience(pair.driver).left(1)
    for _ in range(30):
        batch = source.draw()
    assert set(batch.observation[:, 0].tolist()) == {1.0}
    source.close()


def test_learning_that_has_begun_goes_on_when_too_few_rows_are_left(pair):
    step(pair.driver, 50)
    step(pair.site, 100)
    pair.exchange()
    source = source_of(pair.driver)
    assert source.may_draw(32, 0.0)
    source.draw()
    experience(pair.driver).left(1)
    assert experience(pair.driver).figures()["size"] == 50
    assert source.may_draw(32, 0.0)
    source.draw()
    source.close()


def test_a_part_that_is_lost_before_learning_begins_does_not_keep_it_from_beginning(tmp_path):
    pair = Pair(tmp_path, buffer_capacity=200, learning_starts=150)
    try:
        step(pair.driver, 80)
        step(pair.site, 80)
        pair.exchange()
        experience(pair.driver).left(1)
        assert experience(pair.driver).figures()["size"] == 80
        assert source_of(pair.driver).may_draw(32, 0.0)
    finally:
        pair.close()


def test_actors_add_without_waiting_when_all_rows_are_gone(pair):
    for _ in range(30):  # the learner lags behind: actors have to wait for it
        step(pair.site, 100)
        pair.exchange()
    source, sink = source_of(pair.driver), experience(pair.driver).sink()
    assert source.may_draw(32, 0.0)
    assert sink.next_group([3], 16, 0.0) is None
    experience(pair.driver).left(1)
    assert not source.may_draw(32, 0.0)
    assert sink.next_group([3], 16, 0.0) == 3
    step(pair.driver, 100, value=1.0)
    assert source.may_draw(32, 0.0)
    assert (source.draw().observation[:, 0] == 1.0).all()


def test_the_learner_does_not_wait_for_a_shard_that_says_nothing(pair):
    step(pair.driver, value=1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(OSError, match=r"cannot be reached: .* are ports open"):
            experience(pair.driver).joined(2, silent.getsockname())
        assert 2 not in experience(pair.driver)._addresses
        experience(pair.driver)._members.write({2: silent.getsockname()})  # it falls silent later
        source = experience(pair.driver).source()
        source.prepare(32, torch.device("cpu"), 0, Share(), 0)
        begun = threading.active_count()
        for _ in range(200):
            assert (source.draw().observation[:, 0] == 1.0).all()
        assert source._connections.n_missing
        assert threading.active_count() <= begun + 1
        connections = source._connections
        runs.wait_until(lambda: source.draw() is not None and 2 not in connections._coming)
        assert connections._not_before[2] > 0  # when it is tried again


def test_a_shard_that_could_not_be_reached_is_tried_again(pair, monkeypatch):
    monkeypatch.setattr(sharded_replay, "RETRY_SECONDS", 0.01)
    step(pair.driver, value=1.0)
    step(pair.site, value=2.0)
    source = experience(pair.driver).source()
    source.prepare(32, torch.device("cpu"), 0, Share(), 0)
    reach, failures = source._connections._reach, []

    def fails_twice(address):
        if len(failures) < 2:
            failures.append(address)
            raise ConnectionError("not yet")
        return reach(address)

    monkeypatch.setattr(source._connections, "_reach", fails_twice)
    reach_all(source)
    assert len(failures) == 2
    seen = {value for _ in range(20) for value in source.draw().observation[:, 0].tolist()}
    assert seen == {1.0, 2.0}
    source.close()


def test_two_shards_that_come_as_one_is_lost_have_places_of_their_own(pair, monkeypatch):
    step(pair.driver)
    step(pair.site)
    source = source_of(pair.driver)
    shards = source._shards
    assert source._places == {1: 1}
    new = [
        PrioritizedReplayBuffer(100, source._shard.fields, alpha=source._shard.alpha)
        for _ in range(2)
    ]
    come = {n: RemoteShard(LocalTransport(ShardService(one))) for n, one in enumerate(new, 2)}

    def changes():
        shards._shards[1].is_lost = True
        return come, []

    monkeypatch.setattr(source._connections, "changes", changes)
    source._look_around(shards)
    assert source._places == {2: 1, 3: 2}
    assert not shards.lost
    source.close()


def test_the_board_shows_who_works_where(pair):
    for flow, kind, index in ((pair.driver, "actor", 0), (pair.site, "actor", 3)):
        row = flow.board.row(kind, index)
        row.env_steps, row.beat = 100.0 * (index + 1), 7.0
    pair.driver.board.row("actor", 3).env_steps = 1.0  # what the driver knew before
    pair.site.board.row("actor", 0).env_steps = 1.0
    pair.exchange()
    for flow in (pair.driver, pair.site):
        assert flow.board.env_steps == 500
        assert flow.board.row("actor", 3).beat == 7.0


def test_a_row_of_who_does_not_work_there_is_not_taken_over(pair):
    pair.site.board.row("actor", 1).env_steps = 50.0
    told = pair.site.streams["board"].told(Peer(0, frozenset()))
    pair.driver.streams["board"].heard(SITE, told)
    assert pair.driver.board.row("actor", 1).env_steps == 0


def test_parameters_are_broadcast(pair):
    n = pair.driver.streams["parameters"].source()._row.field_view("parameters").shape[1]
    assert pair.driver.streams["parameters"].broadcast(0) is None
    pair.driver.streams["parameters"].sink().publish(np.arange(n, dtype=np.float32), 5)
    pair.exchange()
    vector, updates = pair.site.streams["parameters"].source().newest()
    assert updates == 5
    assert vector.tolist() == list(range(n))
    assert pair.driver.streams["parameters"].broadcast(1) is None


def test_statistics_follow_an_actor(tmp_path):
    pair = Pair(tmp_path, normalize_observations=True)
    try:
        driver, site = (flow.streams["statistics"] for flow in (pair.driver, pair.site))
        n = driver.source().moments.shape[2]
        site.sink().add(2, np.ones((8, n)))
        pair.exchange()
        np.testing.assert_array_equal(driver.source().moments[2], site.source().moments[2])
        driver.sink().add(3, np.full((4, n), 2.0))
        told = driver.told(Peer(1, frozenset(), followed=(("actor", 3),)))
        site.heard(Peer(0, HERE | {("actor", 3)}), told)
        np.testing.assert_array_equal(driver.source().moments[3], site.source().moments[3])
        assert not site.source().moments[0].any()
    finally:
        pair.close()


def test_a_checkpoint_has_all_parts_and_goes_on_with_other_parts(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    pair = Pair(tmp_path / "a")
    try:
        step(pair.driver, 50, value=1.0)
        step(pair.site, 70, value=2.0)
        for _ in range(2):
            pair.exchange()
        source = source_of(pair.driver)
        source.draw()
        source.close()
        experience(pair.driver).save(folder)
        counters = experience(pair.driver).counters()
    finally:
        pair.close()
    assert counters == {"origin": [100, 0], "n_added": 120, "n_sampled": 32}
    alone = flow_of(Part(0, 1.0, TOKEN), tmp_path / "b", Checkpoint(folder, counters))
    try:
        experience(alone).begin()
        assert len(experience(alone)._shard) == 120
        assert experience(alone).counters() == counters
        source = source_of(alone)
        seen = {value for _ in range(9) for value in source.draw().observation[:, 0].tolist()}
        assert seen == {1.0, 2.0}
        source.close()
    finally:
        alone.close()


@pytest.mark.parametrize("error", [ConnectionError("cut"), ShardError("no such file")])
def test_a_checkpoint_waits_for_a_shard_that_does_not_answer(pair, tmp_path, monkeypatch, error):
    """Until it does, or has left."""
    monkeypatch.setattr(sharded_replay, "AGAIN_SECONDS", 0.0)
    step(pair.driver, 50, value=1.0)
    step(pair.site, 70, value=2.0)
    stream, reach, tries = experience(pair.driver), experience(pair.driver)._members.reach, []

    def fails_at_first(address):
        tries.append(address)
        if len(tries) < 5:
            raise error
        return reach(address)

    monkeypatch.setattr(stream._members, "reach", fails_at_first)
    stream.save(tmp_path)
    assert rows_in(tmp_path) == [50, 70]

    def leaves_in_the_end(address):
        tries.append(address)
        if len(tries) == 9:
            stream.left(1)
        raise error

    monkeypatch.setattr(stream._members, "reach", leaves_in_the_end)
    stream.save(tmp_path)
    assert rows_in(tmp_path) == [50] and len(tries) == 9


def test_a_shard_that_is_lost_while_it_is_asked_for_its_state_is_not_left_out(
    pair, tmp_path, monkeypatch
):
    monkeypatch.setattr(sharded_replay, "AGAIN_SECONDS", 0.0)
    step(pair.driver, 50, value=1.0)
    step(pair.site, 70, value=2.0)
    settle, tries = RemoteShard.settle, []

    def falls_silent(shard):
        tries.append(shard)
        if len(tries) == 2:  # the first was when it was reached
            shard.lose("it has not answered")
        settle(shard)

    monkeypatch.setattr(RemoteShard, "settle", falls_silent)
    experience(pair.driver).save(tmp_path)
    assert rows_in(tmp_path) == [50, 70] and tries[0] is tries[1] is not tries[-1]


def test_a_checkpoint_does_not_wait_for_ever(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(sharded_replay, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(sharded_replay, "SAVE_SECONDS", 0.05)
    step(pair.driver, 50)

    def fails(address):
        raise ConnectionError("cut")

    monkeypatch.setattr(experience(pair.driver)._members, "reach", fails)
    with pytest.raises(OSError, match="the shards could not be saved: cut"):
        experience(pair.driver).save(tmp_path)


def rows_in(folder):
    """How many rows each shard of a checkpoint has."""
    layout = Layout.of(PrioritizedReplayBuffer.load(next(folder.glob("replay/data-*/shard-0000"))))
    with saved_shards(folder / "replay", layout) as saved:
        return [len(shard) for shard in saved.shards]


def test_who_is_lost_again_and_again_is_tried_less_often(pair, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(members_module.time, "monotonic", lambda: now[0])
    connections = members_module.Connections(experience(pair.driver)._members, None, 5.0, "shard")
    waits = []
    for _ in range(7):
        connections.lost(1)
        waits.append(connections._not_before[1] - now[0])
        now[0] = connections._not_before[1] + 4.0  # it is reached, and falls silent
    assert waits == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0, 60.0]
    now[0] += 100.0
    connections.lost(1)
    assert connections._not_before[1] - now[0] == 5.0


STACKED = "stacked_envs:make"


def play(flow, index, n=150):
    """Let an actor take steps beside the shard of its machine; return its state."""
    actor = runs.worker(flow, "actor", index)
    for _ in range(n):
        actor.work(0.0)
    state = actor.state_dict()
    actor.close()
    return state


@pytest.mark.parametrize("n_step", [1, 3])
def test_frames_are_stored_once_on_every_machine(n_step, tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    how = {"env": STACKED, "learning_starts": 3_000, "options": {"n_step": n_step}}
    pair = Pair(tmp_path / "a", **how)
    try:
        for flow, index in ((pair.driver, 0), (pair.driver, 1), (pair.site, 2)):
            shard = experience(flow)._shard
            assert isinstance(shard, FrameReplayBuffer) and shard.n_step == n_step
            state = play(flow, index)
        pair.exchange()
        source = source_of(pair.driver)
        for _ in range(2):
            n_from = np.zeros(2)
            for _ in range(20):
                batch = source.draw()
                assert batch.observation.flags.c_contiguous and "frames" not in batch
                check_stacks(batch, n_step, "reset")
                n_from += np.bincount(batch.handle["shard"], minlength=2)
                source.learned(batch, np.ones(32))
            assert (n_from > 100).all()
            source._ahead = source._shards.batches(32)
        n_rows = len(transitions(pair.driver)) + len(transitions(pair.site))
        source.close()
        experience(pair.driver).save(folder)
        counters = experience(pair.driver).counters()
        everything = transitions(pair.driver) | transitions(pair.site)
    finally:
        pair.close()
    alone = flow_of(Part(0, 1.0, TOKEN), tmp_path / "b", Checkpoint(folder, counters), **how)
    try:
        experience(alone).begin()
        assert experience(alone).counters() == counters
        assert transitions(alone) == everything
        actor = runs.worker(alone, "actor")
        actor.load_state_dict(state)  # whose frames are elsewhere now
        for _ in range(100):
            actor.work(0.0)
        actor.close()
        assert len(transitions(alone)) > n_rows
        source = source_of(alone)
        for _ in range(20):
            check_stacks(source.draw(), n_step, "reset")
        source.close()
    finally:
        alone.close()


def transitions(flow):
    """Return the stacks of all transitions of a machine."""
    shard = experience(flow)._shard
    drawn = shard._reader.take(shard._slots.by_age()[0])
    return {
        (row.tobytes(), float(r)) for row, r in zip(drawn["frame"], drawn["reward"], strict=True)
    }


def test_a_damaged_checkpoint_is_named_before_any_worker_starts(tmp_path):
    folder = tmp_path / "checkpoint"
    (folder / "replay").mkdir(parents=True)
    (folder / "replay" / "checkpoint.json").write_text("{")
    alone = flow_of(Part(0, 1.0, TOKEN), tmp_path / "b", Checkpoint(folder, {}))
    try:
        with pytest.raises(CheckpointError, match=r"checkpoint\.json"):
            experience(alone).begin()
    finally:
        alone.close()
