"""The supervisor alone, with handles that stand in for workers: answers, deaths, checkpoints."""

import errno
import os
import threading
import time

import numpy as np
import pytest
from runs import config, hosted

from kary_replay import PrioritizedReplayBuffer
from kary_replay.runner.backends import ProcessBackend, Supervisor
from kary_replay.runner.backends import supervisor as supervisor_module
from kary_replay.runner.backends.backend import save_worker
from kary_replay.runner.failures import WorkerFailedError
from kary_replay.runner.messages import Evaluated, Evaluation, Finished, Problem, Saved, Started
from kary_replay.runner.records.run_directory import RunDirectory


class Worker:
    """Stands in for a worker and its handle."""

    answers_at_once = False

    def __init__(self, *, saves=True, is_ready=True):
        self.silent_since = None
        self.answers, self.death = [Started()] if is_ready else [], None
        self.saves, self.orders = saves, []

    def order(self, order, argument=None):
        self.orders.append(order)
        if order == "save" and self.saves:
            self.answers.append(Saved(argument))

    def reports(self):
        answers, self.answers = self.answers, []
        return answers

    @property
    def heard_at(self):
        return self.silent_since or time.monotonic()

    def cause_of_death(self):
        return self.death

    def kill(self):
        pass

    @property
    def has_ended(self):
        return "stop" in self.orders


@pytest.fixture
def supervisor_of(tmp_path):
    """Makes supervisors with two actors, whose workers have not been started."""
    made = []

    def make(**settings):
        settings = {"actors": 2, "backend": "process", **settings}
        settings = config("dqn", "CartPole-v1", tmp_path / "run", **settings)
        backend, flow = ProcessBackend(settings, lambda: False), hosted(settings, 2)
        supervisor = Supervisor(flow, backend, print, lambda: False)
        made.append((supervisor, backend, flow))
        return supervisor

    yield make
    for supervisor, backend, flow in made:
        supervisor.stop()
        backend.close()
        flow.close()


@pytest.fixture
def supervisor(supervisor_of):
    return supervisor_of()


@pytest.fixture
def begun(supervisor):
    """A supervisor of a learner and two actors that are at work."""
    supervisor._has_begun = True
    for member in supervisor._members:
        member.handle, member.beat_at = Worker(), time.monotonic()
    return supervisor


def of_kind(supervisor, kind):
    return next(member for member in supervisor._members if member.role.kind == kind)


def test_a_start_may_take_long_while_episodes_are_played_again(supervisor, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(supervisor._backend, "run", lambda seconds: None)
    monkeypatch.setattr(supervisor_module.time, "monotonic", lambda: now[0])
    actors = [member for member in supervisor._members if member.role.kind == "actor"]
    for actor in actors:
        actor.handle, actor.beat_at = Worker(is_ready=False), now[0]
    now[0] += supervisor_module.START_SECONDS + 1
    supervisor._flow.board.row("actor", 0).beat += 1
    supervisor._receive(0)
    supervisor._check_starting(actors[:1])
    with pytest.raises(WorkerFailedError, match="actor-1 did not start within 120 s"):
        supervisor._check_starting(actors)


def test_who_was_ready_first_does_not_seem_to_hang_when_all_go(supervisor, monkeypatch):
    """It does not beat while others play long episodes again."""
    now, ready = [1000.0], iter([1.0] * 200)
    learner, first, second = (Worker(is_ready=False) for _ in range(3))
    workers = iter([learner, first, second])
    learner.answers.append(Started())
    monkeypatch.setattr(supervisor._backend, "start", lambda *arguments: next(workers))
    monkeypatch.setattr(supervisor_module.time, "monotonic", lambda: now[0])

    def run(seconds):
        now[0] += next(ready)
        supervisor._flow.board.row("actor", 0).beat += 1
        supervisor._flow.board.row("actor", 1).beat += 1
        if now[0] == 1150.0:
            first.answers.append(Started())
            second.answers.append(Started())

    monkeypatch.setattr(supervisor._backend, "run", run)
    supervisor.start()
    assert "go" in learner.orders
    supervisor.poll(0.1)
    assert all(member.handle is not None for member in supervisor._members)


def test_a_worker_is_not_taken_for_hung_while_its_machine_is_silent(begun, capsys):
    limit = begun._flow.config.environment_timeout_seconds
    actor, now = of_kind(begun, "actor"), time.monotonic()
    handle = actor.handle
    actor.has_beaten, actor.beat_at = True, now
    for at in (now, now + limit / 2, now + limit / 2):  # heard, and then not
        handle.silent_since = at
        begun._poll(0)
    handle.silent_since = now + 3 * limit  # an answer, with what had been before
    begun._poll(0)
    assert actor.handle is handle
    for passed in np.arange(0.0, limit + 4.0, 2.0):
        assert actor.handle is handle
        handle.silent_since = now + 3 * limit + passed  # it answers, and the worker does nothing
        begun._poll(0)
    assert actor.handle is None
    assert "hung: no step or reset ended" in capsys.readouterr().out


def test_an_evaluator_that_never_is_ready_is_done_without(supervisor_of, monkeypatch, capsys):
    supervisor = supervisor_of(evaluate="during", max_restarts=2)
    started = []

    def start(role, *arguments):
        started.append(role.kind)
        worker = Worker(is_ready=role.kind != "evaluator")
        if role.kind == "evaluator":
            worker.death = Problem("the bottle is empty", is_environment=True)
        return worker

    monkeypatch.setattr(supervisor._backend, "start", start)
    supervisor.start()
    assert started.count("evaluator") == 3
    assert "go" in of_kind(supervisor, "actor").handle.orders
    assert "The run goes on without evaluations." in capsys.readouterr().out


def test_an_evaluator_that_is_to_be_started_anew_at_the_end_is_missed(
    supervisor_of, monkeypatch, capsys
):
    supervisor = supervisor_of(evaluate="during")
    monkeypatch.setattr(supervisor._backend, "start", lambda *arguments: Worker())
    supervisor.start()
    of_kind(supervisor, "evaluator").handle.death = Problem("killed", was_killed=True)
    supervisor.poll(0)
    list(supervisor.finish_optional())
    missing = "evaluator-0 had failed: the run ends without its last evaluations"
    assert missing in capsys.readouterr().out


class LateEvaluator(Worker):
    """Reports an evaluation, and the next one, or that it has finished, when that one was taken."""

    def __init__(self, found):
        super().__init__()
        self.found, self.given, self.looks = found, 0, 0

    def reports(self):
        self.looks += "finish" in self.orders
        assert self.looks < 200, "nothing was taken before the end"
        if self.looks and self.given == len(self.found):
            self.given += 1
            self.answers.append(_evaluated(self.given) if self.given < 4 else Finished())
        return super().reports()


def _evaluated(updates):
    return Evaluated(Evaluation(100, updates, 1.0, 9.0, (9.0,), 0), np.zeros(1, np.float32))


@pytest.mark.parametrize("enough", [1, 9])
def test_late_evaluations_are_given_as_they_come_and_end_when_interrupted(
    supervisor_of, monkeypatch, enough
):
    found = []
    supervisor, workers = supervisor_of(evaluate="after"), {"evaluator": LateEvaluator(found)}
    monkeypatch.setattr(
        supervisor._backend, "start", lambda role, *arguments: workers.get(role.kind, Worker())
    )
    supervisor.start()
    supervisor._interrupted = lambda: len(found) >= enough
    for reports in supervisor.finish_optional():
        found += [report.evaluation.updates for report in reports]
    assert found == [1, 2, 3][:enough]


def test_an_actor_that_others_kill_before_it_is_ready_is_started_again(supervisor, monkeypatch):
    started = []

    def start(role, index, *arguments):
        started.append(f"{role.kind}-{index}")
        worker = Worker()
        if started.count("actor-1") == 1 and index == 1:
            worker.answers, worker.death = [], Problem("killed by SIGKILL", was_killed=True)
        return worker

    monkeypatch.setattr(supervisor._backend, "start", start)
    supervisor.start()
    assert started == ["learner-0", "actor-0", "actor-1", "actor-1"]
    assert supervisor._members[-1].handle.orders == ["go"]


def test_an_actor_that_cannot_be_made_ends_the_start(supervisor, monkeypatch):
    def start(role, *arguments):
        worker = Worker(is_ready=role.kind != "actor")
        worker.death = Problem("no room", is_environment=True) if role.kind == "actor" else None
        return worker

    monkeypatch.setattr(supervisor._backend, "start", start)
    with pytest.raises(
        WorkerFailedError, match=r"actor-0 failed: no room\nactor-1 failed: no room"
    ):
        supervisor.start()


def test_a_process_that_cannot_be_started_anew_is_tried_again(supervisor, monkeypatch, capsys):
    def full(*arguments):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(supervisor._backend, "start", full)
    supervisor._has_begun = True
    actor = of_kind(supervisor, "actor")
    actor.restart_at = before = time.monotonic()
    supervisor._watch(actor)
    assert actor.restart_at > before and actor.failures == 1
    assert "actor-0 is started anew, in 0.1 s: it could not be started" in capsys.readouterr().out


def test_policies_that_are_lost_are_told_of(supervisor_of, capsys):
    supervisor = supervisor_of(evaluate="after")
    supervisor._has_begun = True
    supervisor._failed(supervisor._members[-1], Problem("killed by SIGKILL"))
    assert (
        "the policies that wait for their evaluation are lost: killed by SIGKILL"
        in capsys.readouterr().out
    )


def test_what_has_nothing_to_do_with_an_actor_does_not_count(supervisor_of, capsys):
    """It moves, or its machine is gone: as often as that happens."""
    supervisor = supervisor_of(max_restarts=0)
    supervisor._has_begun = True
    actor = of_kind(supervisor, "actor")
    for _ in range(3):
        supervisor._failed(actor, Problem("it moves", was_killed=True, is_blameless=True))
        assert actor.restart_at <= time.monotonic()
    assert actor.failures == 0
    assert "actor-0 is started anew: it moves" in capsys.readouterr().out
    with pytest.raises(WorkerFailedError, match="failed 1 times in a row"):
        supervisor._failed(actor, Problem("killed by SIGKILL", was_killed=True))


@pytest.mark.parametrize(
    ("cause", "is_forgiven"),
    [
        (Problem("killed by SIGTERM", was_killed=True), True),
        (Problem("TypeError: an error of an algorithm's own"), False),
        (Problem("the bottle is empty", is_environment=True), False),
    ],
)
def test_steps_alone_are_progress_only_where_others_have_killed_an_actor(
    supervisor_of, cause, is_forgiven
):
    """What raises or crashes does so again, at the same step of the next episode."""
    supervisor = supervisor_of(max_restarts=2)
    supervisor._has_begun = True
    actor, row = of_kind(supervisor, "actor"), supervisor._flow.board.row("actor", 0)
    for expected in (1, 1, 1, 1) if is_forgiven else (1, 2):
        row.env_steps += 10
        supervisor._failed(actor, cause)
        assert actor.failures == expected
    row.episodes += 1
    supervisor._failed(actor, cause)
    assert actor.failures == 1


def test_a_learner_that_saves_slowly_costs_a_checkpoint(begun, monkeypatch, tmp_path):
    """And not the run: the error is one after which it goes on."""
    monkeypatch.setattr(supervisor_module, "SAVE_SECONDS", 0.0)
    of_kind(begun, "learner").handle.saves = False
    with pytest.raises(TimeoutError, match="learner-0 did not save its state within 0 s"):
        begun.save(tmp_path)
    assert of_kind(begun, "learner").handle is not None


def test_the_last_checkpoint_waits_for_a_learner_that_beats(begun, monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor_module, "SAVE_SECONDS", 0.0)
    learner, n_looks = of_kind(begun, "learner").handle, iter(range(100))
    learner.saves = False

    def run(seconds):
        if next(n_looks) == 20:
            learner.answers.append(Saved(str(tmp_path)))

    monkeypatch.setattr(begun._backend, "run", run)
    begun.save(tmp_path, is_last=True)
    assert (tmp_path / "replay").is_dir()


def test_the_last_checkpoint_does_not_wait_for_an_actor_for_ever(begun, monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor_module, "SAVE_SECONDS", 0.0)
    of_kind(begun, "actor").handle.saves = False
    begun.save(tmp_path, is_last=True)
    assert (tmp_path / "replay").is_dir()


def test_a_learner_that_dies_while_others_save_is_named(begun, tmp_path):
    for member in begun._members:
        member.handle.saves = False
    of_kind(begun, "learner").handle.death = Problem("killed by SIGKILL", was_killed=True)
    with pytest.raises(WorkerFailedError, match="learner-0 failed: killed by SIGKILL"):
        begun.save(tmp_path, is_last=True)


def test_actors_that_fail_do_not_keep_a_run_from_its_last_checkpoint(begun, tmp_path, capsys):
    """One of them may be why the run ends, and the others fail for the same reason."""
    for member in begun._members[1:]:
        member.handle.death, member.failures = Problem("the bottle is empty"), 100
    begun.save(tmp_path, is_last=True)
    assert (tmp_path / "replay").is_dir()
    assert "actor-1 failed: the bottle is empty" in capsys.readouterr().out


@pytest.mark.parametrize("when", ["states", "streams"])
def test_workers_are_watched_while_a_checkpoint_is_written(when, begun, monkeypatch, tmp_path):
    """One that dies is started anew before the checkpoint is whole, however long that takes."""
    actor, anew = of_kind(begun, "actor"), threading.Event()
    learner, save = of_kind(begun, "learner").handle, PrioritizedReplayBuffer.save
    learner.saves = when == "streams"

    def start(*arguments):
        anew.set()
        learner.answers.append(Saved(str(tmp_path)))
        return Worker()

    def save_slowly(self, path):
        actor.handle.death = None if anew.is_set() else Problem("killed", was_killed=True)
        assert anew.wait(60)
        save(self, path)

    monkeypatch.setattr(begun._backend, "start", start)
    monkeypatch.setattr(PrioritizedReplayBuffer, "save", save_slowly)
    if when == "states":
        actor.handle.death = Problem("killed", was_killed=True)
    begun.save(tmp_path)
    assert anew.is_set() and actor.handle.orders == ["go"]
    assert (tmp_path / "replay").is_dir()


def test_a_failure_waits_for_the_checkpoint_that_is_being_written(begun, monkeypatch, tmp_path):
    """All states are in: what the run has learned must not go with the worker."""
    learner, is_done = of_kind(begun, "learner").handle, threading.Event()

    def save(self, path):
        learner.death = Problem("killed by SIGKILL", was_killed=True)
        time.sleep(1.0)
        is_done.set()

    monkeypatch.setattr(PrioritizedReplayBuffer, "save", save)
    begun.save(tmp_path)
    assert is_done.is_set()
    with pytest.raises(WorkerFailedError, match="killed by SIGKILL"):
        begun.poll(0)


def test_a_checkpoint_that_ctrl_c_interrupts_is_no_failure_of_the_learner(
    begun, monkeypatch, tmp_path
):
    monkeypatch.setattr(supervisor_module, "SAVE_SECONDS", 0.0)
    pressed = iter([False, False])
    monkeypatch.setattr(begun, "_interrupted", lambda: next(pressed, True))
    of_kind(begun, "learner").handle.saves = False
    with pytest.raises(TimeoutError, match="did not save its state"):
        begun.save(tmp_path)


def test_a_second_ctrl_c_does_not_wait_for_a_large_buffer(begun, monkeypatch, tmp_path):
    """While a buffer is saved, here for ever, KeyboardInterrupt gets through at once."""
    written, done = threading.Event(), threading.Event()

    def press_again(seconds):
        if written.is_set():
            raise KeyboardInterrupt

    monkeypatch.setattr(
        PrioritizedReplayBuffer, "save", lambda self, path: (written.set(), done.wait(60))
    )
    monkeypatch.setattr(begun._backend, "run", press_again)
    with pytest.raises(KeyboardInterrupt):
        begun.save(tmp_path)
    assert not done.is_set()
    done.set()


def test_an_answer_that_comes_too_late_for_its_checkpoint_does_not_count(begun, tmp_path):
    learner = of_kind(begun, "learner")
    begun._order([learner], "save", "checkpoint-2")
    begun._receive(0)
    learner.owes, learner.saved = Saved, None
    learner.handle.answers = [Saved("checkpoint-1")]
    begun._receive(0)
    assert learner.owes is Saved and learner.saved is None
    learner.handle.answers = [Saved("checkpoint-2")]
    begun._receive(0)
    assert learner.owes is None and learner.saved == Saved("checkpoint-2")


class Blocked(Worker):
    """Reports into a full pipe: it obeys when its reports have been taken three times."""

    @property
    def has_ended(self):
        return self.n_taken >= 3

    def order(self, order, argument=None):
        super().order(order, argument)
        self.n_taken = 0

    def reports(self):
        self.n_taken += 1
        return super().reports()


def test_a_worker_whose_pipe_is_full_can_stop(begun, monkeypatch):
    monkeypatch.setattr(supervisor_module, "GRACE_SECONDS", 3_000.0)
    actor = of_kind(begun, "actor")
    actor.handle = blocked = Blocked()
    begun.stop()
    assert blocked.has_ended and actor.handle is None


class Late:
    """A worker that has a state."""

    def state_dict(self):
        return {"updates": 3}


@pytest.mark.parametrize("fate", ["committed", "given up"])
def test_a_state_that_is_late_goes_nowhere(fate, tmp_path):
    """Not even into the next checkpoint of the same step."""
    directory = RunDirectory(tmp_path)
    begun = directory.begin_checkpoint(300)
    if fate == "committed":
        directory.commit(begun, {"env_steps": 300, "updates": 0, "seconds": 0.0})
    directory.sweep()
    following = directory.begin_checkpoint(300)
    before = sorted(tmp_path.rglob("*"))
    assert save_worker(Late(), "actor-0", str(begun)).refusal
    assert sorted(tmp_path.rglob("*")) == before
    assert not save_worker(Late(), "actor-0", str(following)).refusal
    directory.commit(following, {"env_steps": 300, "updates": 0, "seconds": 0.0})
    directory.sweep()
    [folder] = tmp_path.glob("checkpoint-*/")
    assert [path.name for path in folder.iterdir()] == ["actor-0.pt"]
