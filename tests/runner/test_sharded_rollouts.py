"""Rollouts of actors on several machines, which are all in this process, with real sockets."""

from __future__ import annotations

import contextlib
import secrets

import gymnasium
import numpy as np
import pytest
import runs
import torch
from shards import reserved_port

from kary_replay.algorithms import PPO, PPOOptions, Share
from kary_replay.runner.backends.memory import SharedMemory
from kary_replay.runner.streams import (
    BoardStream,
    Checkpoint,
    ParameterStream,
    Part,
    Peer,
    RolloutStream,
    rollout_link,
)
from kary_replay.runner.streams.rollout_messages import answer_of
from kary_replay.runner.streams.rollout_shard import RolloutService
from kary_replay.shards.messages import Kind, pack
from kary_replay.types import Field

TOKEN = secrets.token_bytes(32)
LENGTH, N_ENVS, N_ACTORS, N_PARAMETERS = 3, 2, 3, 5
SPACE = gymnasium.spaces.Dict(
    {
        "camera": gymnasium.spaces.Box(0, 255, (2, 2), np.uint8),
        "place": gymnasium.spaces.Box(-9, 9, (1,), np.float32),
    }
)
NEW = Checkpoint()
ALGORITHM = PPO(SPACE, gymnasium.spaces.Discrete(2), PPOOptions(hidden=(4,)))


class Actor:
    """One group of environments; by what it sees, every step can be told from all others."""

    def __init__(self, machine, index, look):
        self.machine, self.index, self.updates = machine, index, 0
        self.look = look  # of the learner
        self.row = machine.streams["board"].source().row("actor", index)
        self.sink = machine.streams["experience"].sink()
        self.parameters = machine.streams["parameters"].source()
        self.writer = self.sink.writer(ALGORITHM, N_ENVS, index, self)

    def may_step(self):
        return self.sink.next_group([self.index], N_ENVS, 0.0) == self.index

    def step(self, truncated=(False, False)):
        newest = self.parameters.newest()
        self.updates = 0 if newest is None else newest[1]
        number = float(self.row.env_steps) + 1000 * self.index + np.arange(N_ENVS)
        self.writer.add(
            observation=seen(number),
            action=np.arange(N_ENVS),
            reward=number,
            next_observation=seen(-number),
            terminated=np.zeros(N_ENVS, bool),
            truncated=np.array(truncated),
            log_prob=np.full(N_ENVS, -0.5, np.float32),
            state=carried(number),
        )
        self.row.env_steps += N_ENVS

    def wait(self):
        """Wait until the group may step; the learner looks for rollouts meanwhile."""
        runs.wait_until(lambda: self.may_step() or self.look() or self.may_step())

    def fill(self):
        """Write the rest of a rollout, or a whole one."""
        self.wait()
        rollouts = self.sink._rollouts
        complete, _ = rollouts.position(self.index)
        while rollouts.position(self.index)[0] == complete:
            self.step()


def seen(numbers):
    camera = np.zeros((len(numbers), 2, 2), np.uint8)
    return {"camera": camera, "place": np.float32(numbers)[:, None]}


def carried(numbers):
    return np.float32(numbers)[:, None] + np.float32([0.25, 0.5])


class Machine:
    """What one machine has of a run, and who answers there."""

    def __init__(self, number, checkpoint=NEW, max_staleness=0, n_together=N_ACTORS):
        columns = ALGORITHM.columns()
        described = {
            "experience": RolloutStream(
                columns,
                LENGTH,
                N_ENVS,
                N_ACTORS,
                n_together,
                max_staleness,
                first_columns={"state": Field((2,), np.float32)},
            ),
            "parameters": ParameterStream(N_PARAMETERS),
            "board": BoardStream({"learner": 1, "actor": N_ACTORS}),
        }
        self.number, self.medium = number, SharedMemory(Part(number, 1.0, TOKEN))
        self.streams = {name: one.host(self.medium, checkpoint) for name, one in described.items()}
        for stream in self.streams.values():
            stream.meet(self.streams)
        self.answerer = self.address = None
        self._kept = contextlib.ExitStack()
        self.port = self._kept.enter_context(reserved_port())
        self.workers = []

    def serve(self):
        self.answerer = self.streams["experience"].answerer()
        self.address = self.answerer.serve("127.0.0.1", self.port)
        self.port = self.address[1]  # where none could be reserved

    def close(self):
        self._kept.close()
        if self.answerer is not None:
            self.answerer._server.close()
        for stream in self.streams.values():
            stream.close()
        self.medium.close()


class Run:
    """A machine with a learner, and others that have come to it."""

    def __init__(self, n_others=1, **settings):
        self.settings = settings
        self.here = Machine(0, **settings)
        self.machines = {0: self.here}
        self.experience = self.here.streams["experience"]
        self.board = self.here.streams["board"].source()
        self.publish = self.here.streams["parameters"].sink().publish
        self.publish(np.zeros(N_PARAMETERS, np.float32), 0)
        self.source = self.experience.source()
        self.source.blank(0)
        self.source.prepare(0, torch.device("cpu"), 0, Share(), 0)
        self.rollouts = self.experience._rollouts
        self.actors = {}
        self.n_learned = 0
        self.learned = []  # numbers of steps
        for _ in range(n_others):
            self.join()

    def join(self):
        machine = Machine(len(self.machines), **{**self.settings, "checkpoint": NEW})
        self.machines[machine.number] = machine
        machine.serve()
        self.experience.joined(machine.number, machine.address)
        return machine

    def start(self, actor, number):
        """Start an actor on a machine, where it may have been before."""
        for machine in self.machines.values():
            if actor in machine.workers:
                machine.workers.remove(actor)
        machine, worker = self.machines[number], ("actor", actor)
        self.experience.placed(worker, number)
        if number:
            for name in ("experience", "board"):
                told = self.here.streams[name].told(self.peer(machine, followed=(worker,)))
                machine.streams[name].heard(Peer(0, frozenset({worker})), told)
        machine.workers.append(actor)
        self.actors[actor] = Actor(machine, actor, self.look)
        return self.actors[actor]

    def peer(self, machine, followed=()):
        return Peer(machine.number, frozenset(("actor", i) for i in machine.workers), followed)

    def exchange(self):
        """Have the other machines tell what has happened there."""
        for number, machine in list(self.machines.items()):
            if not number:
                continue
            for name in ("board", "experience"):
                told = machine.streams[name].told(self.peer(self.here))
                if told is not None:
                    self.here.streams[name].heard(self.peer(machine), told)

    def kill(self, number):
        """End a machine without warning."""
        machine = self.machines.pop(number)
        machine.close()
        self.experience.left(number)

    def look(self):
        """Take in what has come, as the learner does while it waits."""
        self.source.may_draw(0, 0.0)

    def update(self):
        """Learn once, as the learner does; return the rewards, which are numbers of steps."""
        runs.wait_until(lambda: self.source.may_draw(0, 0.0))
        batch = self.source.draw()
        rewards = batch.reward.copy()
        assert (batch["state"] == [carried(rewards[0])]).all()
        self.n_learned += 1
        self.publish(np.full(N_PARAMETERS, self.n_learned, np.float32), self.n_learned)
        self.source.release(self.n_learned)
        self.learned += rewards.reshape(-1).tolist()
        return rewards

    def check(self):
        """No step was learned from twice, and all are accounted for."""
        self.exchange()
        assert len(set(self.learned)) == len(self.learned)
        rollouts, n_steps = self.rollouts, LENGTH * N_ENVS
        waiting = sum(map(rollouts.waiting, range(N_ACTORS))) * n_steps
        in_hand = sum(
            self.experience._n_missing(actor)
            + (rollouts.position(actor)[1] * N_ENVS if actor in self.here.workers else 0)
            for actor in range(N_ACTORS)
        )
        figures = self.experience.figures()
        taken = len(self.learned) + figures["dropped_steps"] + waiting + in_hand
        assert taken == self.board.env_steps
        return in_hand

    def close(self):
        self.source.close()
        for machine in self.machines.values():
            machine.close()


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr(rollout_link, "TAKE_SECONDS", 0.05)  # nobody waits long for the end
    made = []

    def new(*args, **settings):
        made.append(Run(*args, **settings))
        return made[-1]

    yield new
    for one in made:
        one.close()


def test_rollouts_of_all_machines_are_learned_from_once_and_in_order(run):
    one = run(2)
    actors = [one.start(actor, actor) for actor in range(N_ACTORS)]
    for _ in range(5):
        for actor in actors:
            actor.fill()
        rewards = one.update()
        assert rewards.shape == (LENGTH, N_ACTORS * N_ENVS)
        assert (np.diff(rewards, axis=0) == N_ENVS).all()  # step after step
    assert one.check() == 0
    assert len(one.learned) == one.board.env_steps == 5 * N_ACTORS * LENGTH * N_ENVS
    figures = one.experience.figures()
    assert figures["dropped_steps"] == figures["max_staleness"] == figures["machines_lost"] == 0
    assert figures["machines"] == 3


def test_all_columns_come_along_and_what_follows_where_it_is_needed(run):
    one = run(1, n_together=1)
    actor = one.start(0, 1)
    actor.wait()
    for cut in [(False, False), (False, True), (False, False)]:
        actor.step(cut)
    runs.wait_until(lambda: one.source.may_draw(0, 0.0))
    batch = one.source.draw()
    place = batch.observation["place"][:, :, 0]
    np.testing.assert_array_equal(place, batch.reward)
    np.testing.assert_array_equal(batch.truncated, [[0, 0], [0, 1], [0, 0]])
    np.testing.assert_array_equal(batch.action, [[0, 1]] * LENGTH)
    after = batch.next_observation["place"][:, :, 0]
    np.testing.assert_array_equal(after[1:], -place[1:])
    assert (after[0] == 0).all()


def test_an_actor_waits_until_newer_parameters_are_there(run):
    """They come with the news that its rollout is used, and never after it."""
    one = run(1, n_together=1)
    actor = one.start(0, 1)
    assert not actor.may_step()  # the learner has not been heard of
    for update in range(20):
        actor.fill()
        assert actor.updates == update
        assert not actor.may_step()
        runs.wait_until(lambda: one.source.may_draw(0, 0.0))
        one.source.draw()
        assert not actor.may_step()
        one.publish(np.full(N_PARAMETERS, update + 1.0, np.float32), update + 1)
        one.source.release(update + 1)
        actor.wait()
        parameters, updates = actor.parameters.newest()
        assert updates == update + 1 and (parameters == updates).all()
    assert one.experience.figures()["max_staleness"] == 0


def test_what_is_too_old_is_dropped_and_counted_and_its_place_is_given_back(run):
    one = run(1, n_together=1, max_staleness=1)
    far, near = one.start(0, 1), one.start(1, 0)
    far.wait()
    far.step()
    for _ in range(3):
        near.fill()
        one.update()
    far.fill()
    runs.wait_until(lambda: one.look() or one.rollouts.number(0, "expired"))
    assert one.experience.figures()["dropped_steps"] == LENGTH * N_ENVS
    runs.wait_until(lambda: one.look() or far.parameters.newest()[1] == 3)
    far.fill()
    one.update()
    assert one.check() == 0
    assert one.experience.figures()["max_staleness"] <= 1


def test_an_actor_that_is_killed_and_comes_back_at_the_same_place(run):
    one = run(1, n_together=1)
    actor = one.start(0, 1)
    for _ in range(3):
        actor.fill()
        one.update()
        actor.wait()
        actor.step()
        one.exchange()  # with which its death is told
        actor = one.start(0, 1)  # its successor, which begins the rollout anew
    actor.fill()
    one.update()
    one.exchange()
    assert one.check() == 0
    assert one.experience.figures()["dropped_steps"] == 3 * N_ENVS


@pytest.mark.parametrize("to", [0, 2])
def test_the_machine_of_an_actor_is_lost(run, to):
    """Its unfinished rollout is dropped and counted, and the actor comes back elsewhere."""
    one = run(2, n_together=1)
    actor = one.start(0, 1)
    actor.fill()
    one.update()
    actor.wait()
    actor.step()
    one.exchange()
    one.kill(1)
    actor = one.start(0, to)
    for _ in range(3):
        actor.fill()
        one.update()
    assert one.check() == 0
    assert one.experience.figures()["dropped_steps"] == N_ENVS
    assert one.experience.figures()["machines"] == 2


def test_what_came_of_a_lost_machine_counts_as_done(run):
    """Its last letter may not have had what the learner had got by then."""
    one = run(1, n_together=1)
    actor = one.start(0, 1)
    actor.fill()
    one.update()
    one.kill(1)
    assert one.board.env_steps == 0
    one.start(0, 0)
    assert one.board.env_steps == LENGTH * N_ENVS
    assert one.check() == 0


def test_a_rollout_that_was_under_way_when_its_actor_moved_is_not_taken_in(run):
    """The next one of the group has its number."""
    one = run(2, n_together=1)
    actor = one.start(0, 1)
    actor.fill()
    one.update()
    actor.fill()  # nobody has taken it yet
    runs.wait_until(lambda: one.source._links[1]._taken.has_come())
    one.exchange()
    actor = one.start(0, 2)
    assert one.experience.figures()["dropped_steps"] == LENGTH * N_ENVS
    one.source.may_draw(0, 0.0)
    assert one.rollouts.waiting(0) == 0
    actor.fill()
    rewards = one.update()
    assert rewards[0, 0] == 2 * LENGTH * N_ENVS
    assert one.check() == 0


def test_an_actor_goes_away_and_comes_back(run):
    """To memory that has rollouts of its former stay."""
    one = run(1, n_together=1, max_staleness=9)
    for number in (1, 0, 1, 0, 1, 1):
        actor = one.start(0, number)
        for _ in range(2):
            actor.fill()
            one.update()
        actor.wait()
        actor.step()
        one.exchange()
    one.check()
    assert one.experience.figures()["dropped_steps"] == 5 * N_ENVS


def test_a_connection_that_breaks_loses_nothing(run):
    one = run(1, n_together=1, max_staleness=1)
    actor = one.start(0, 1)
    for _ in range(5):
        actor.fill()
        for transport in (one.source._links[1]._taking, one.source._links[1]._telling):
            transport.close()
        one.update()
    assert one.check() == 0
    assert len(one.learned) == 5 * LENGTH * N_ENVS


def test_who_answers_is_replaced_and_nothing_is_lost(run):
    one = run(1, n_together=1, max_staleness=1)
    machine, actor = one.machines[1], one.start(0, 1)
    for _ in range(3):
        actor.fill()
        machine.answerer._server.close()
        machine.serve()
        one.update()
    assert one.check() == 0
    assert len(one.learned) == 3 * LENGTH * N_ENVS


def test_a_rollout_that_is_complete_elsewhere_is_not_yet_used_up(run):
    one = run(1, n_together=1)
    actor = one.start(0, 1)
    actor.fill()
    assert one.experience.is_used_up()  # nobody has told
    one.exchange()
    assert not one.experience.is_used_up()
    one.update()
    one.exchange()
    assert one.experience.is_used_up()
    actor.fill()
    one.exchange()
    one.kill(1)
    assert one.experience.is_used_up()


def test_news_that_were_under_way_for_long_do_not_replace_newer_ones(run):
    one = run(1)
    there = one.machines[1].streams["experience"]
    service: RolloutService = there.answerer()._service

    def tell(serial, used):
        head = np.array([serial, serial, serial], np.int64)
        parameters = np.full(N_PARAMETERS, serial, np.float32)
        message = pack(Kind.PUBLISH, head, np.full(N_ACTORS, used), parameters)
        answer_of(memoryview(b"".join(map(bytes, service.answer(b"".join(map(bytes, message)))))))

    tell(2, 7)
    tell(1, 6)
    assert there._rollouts.number(0, "used") == 7
    assert there._rollouts.n_updates == 2
    assert one.machines[1].streams["parameters"].source().newest()[1] == 2


@pytest.mark.parametrize(
    "message", [pack(Kind.LOOK), pack(Kind.TAKE), pack(Kind.HELLO, b"0.0.1", b"other"), [b"?"]]
)
def test_what_cannot_be_answered_is_refused(run, message):
    from kary_replay.errors import ShardError

    service = run(1).machines[1].streams["experience"].answerer()._service
    answer = b"".join(map(bytes, service.answer(b"".join(map(bytes, message)))))
    with pytest.raises(ShardError):
        answer_of(memoryview(answer))


def test_a_checkpoint_goes_on_on_other_machines(run, tmp_path):
    one = run(1, max_staleness=1)
    actors = [one.start(0, 0), one.start(1, 1), one.start(2, 1)]
    for actor in actors:
        actor.fill()
    one.update()
    for actor in actors[:2]:
        actor.fill()
    runs.wait_until(lambda: one.source.may_draw(0, 0.0) or one.rollouts.waiting(1) == 1)
    for actor in actors:
        actor.wait()
        actor.step()
    one.exchange()
    one.experience.save(tmp_path)
    counters = one.here.streams["board"].counters()
    counters["updates"] = 1
    again = run(2, max_staleness=1, checkpoint=Checkpoint(tmp_path, counters))
    assert again.experience.figures()["waiting"] == 2
    assert again.experience.figures()["dropped_steps"] == 3 * N_ENVS
    assert again.board.env_steps == one.board.env_steps
    again.n_learned, again.learned = 1, list(one.learned)
    actors = [again.start(actor, actor) for actor in range(N_ACTORS)]

    def act():
        """Go on where there is room: what is of parameters that are too old by now is dropped."""
        for actor in actors:
            if actor.may_step():
                actor.step()

    for _ in range(3):
        runs.wait_until(lambda: again.source.may_draw(0, 0.0) or act())
        again.update()
    again.check()
