"""The workers that each machine has of its own are started, and started anew."""

from __future__ import annotations

import pytest
import runs

from kary_replay.runner.backends import crew
from kary_replay.runner.backends.crew import Crew
from kary_replay.runner.messages import Problem, Started


class Handle:
    """Stands for a worker's process."""

    def __init__(self):
        self.reported, self.orders, self.death, self.is_killed = [Started()], [], None, False

    def reports(self):
        reported, self.reported = self.reported, []
        return reported

    def order(self, order, argument=None):
        self.orders.append(order)

    def cause_of_death(self):
        return self.death

    def kill(self):
        self.is_killed = True


class Backend:
    """Starts such workers."""

    def __init__(self):
        self.handles, self.seats, self.refuses = [], [], False

    def start(self, role, index, seat, state):
        if self.refuses:
            raise OSError("no room")
        assert role.kind == "policy_worker" and state is None
        self.seats.append(seat)
        self.handles.append(Handle())
        return self.handles[-1]


class Site:
    """A crew, whose clock a test sets."""

    def __init__(self, monkeypatch, tmp_path, n_workers):
        settings = {"inference": "worker", "policy_workers": n_workers, "max_restarts": 2}
        config = runs.config("dqn", "CartPole-v1", tmp_path / "run", **settings)
        self.now = 0.0
        monkeypatch.setattr(crew.time, "monotonic", lambda: self.now)
        self.flow, self.backend = runs.hosted(config), Backend()
        self.crew = Crew(self.flow, self.backend)

    def look(self, seconds=10.0):
        """Let some time pass, and look after the workers."""
        self.now += seconds
        return self.crew.look_after()

    @property
    def row(self):
        return self.flow.board.row("policy_worker", 0)


@pytest.fixture
def site(monkeypatch, tmp_path):
    made = []

    def new(n_workers=1):
        made.append(Site(monkeypatch, tmp_path, n_workers))
        return made[-1]

    yield new
    for one in made:
        one.flow.close()


def test_all_are_started_and_go_when_they_are_ready(site):
    one = site(2)
    assert one.crew.workers == [("policy_worker", 0), ("policy_worker", 1)]
    for _ in range(3):
        assert one.look() is None
    assert [seat.index for seat in one.backend.seats] == [0, 1]
    assert [handle.orders for handle in one.backend.handles] == [["go"], ["go"]]
    one.crew.close()
    assert all(handle.is_killed for handle in one.backend.handles)


def test_one_that_dies_is_started_anew_as_long_as_it_answers_in_between(site):
    one = site()
    for number in range(9):
        assert one.look() is None
        one.row.answers += 1
        one.backend.handles[-1].death = Problem("killed by SIGKILL", was_killed=True)
        assert one.look() is None
        assert one.backend.handles[-1].is_killed
        assert one.backend.seats[-1].incarnation == number
    assert len(one.backend.handles) == 9


def test_one_that_dies_again_and_again_says_why(site):
    one, problems = site(), []
    for _ in range(3):
        problems.append(one.look())
        one.backend.handles[-1].death = Problem("exited with code 3")
        problems.append(one.look())
    assert problems[:-1] == [None] * 5
    assert problems[-1].message == "policy_worker-0 of its machine failed: exited with code 3"


def test_what_diverges_is_not_started_anew_in_vain(site):
    one = site()
    one.look()
    one.backend.handles[-1].death = Problem("no longer finite", has_diverged=True)
    found = one.look()
    assert found.has_diverged and "no longer finite" in found.message


def test_one_that_shows_no_life_is_killed(site):
    one = site()
    one.look()
    for _ in range(30):
        one.row.beat += 1
        assert one.look() is None
    assert not one.backend.handles[-1].is_killed
    for _ in range(30):
        assert one.look() is None
    assert one.backend.handles[0].is_killed and len(one.backend.handles) > 1


def test_one_that_cannot_be_started_is_tried_again(site):
    one = site()
    one.backend.refuses = True
    assert [one.look() for _ in range(2)] == [None, None]
    assert "no room" in one.look().message
    one.backend.refuses = False
    assert one.look() is None
    assert len(one.backend.handles) == 1
