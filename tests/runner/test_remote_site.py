"""When a site counts as gone: letters to one that stands in for it, by a clock that is set."""

import types

import pytest

from kary_replay.runner.backends import ray as ray_backend
from kary_replay.runner.backends.ray import RemoteSite
from kary_replay.runner.backends.site import Answer
from kary_replay.runner.failures import START_SECONDS

BOARD = types.SimpleNamespace(told=lambda peer: None, heard=lambda peer, told: None)
FLOW = types.SimpleNamespace(streams={"board": BOARD})


class UnavailableError(Exception):
    pass


class Ray:
    """Answers what `answer` is, or raises it; None: not yet."""

    exceptions = types.SimpleNamespace(ActorUnavailableError=UnavailableError)

    def __init__(self):
        self.answer = None
        self.letters = []
        method = types.SimpleNamespace(remote=self.send)
        self.actor = types.SimpleNamespace(exchange=method, addresses=method)

    def send(self, *letter):
        self.letters.append(letter)
        return len(self.letters)

    def wait(self, pending, timeout):
        return ([], pending) if self.answer is None else (pending, [])

    def get(self, pending):
        answer, self.answer = self.answer, None
        if isinstance(answer, Exception):
            raise answer
        return answer


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(ray_backend.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def ray(clock):
    return Ray()


@pytest.fixture
def site(ray):
    """A site to which a letter is on the way."""
    site = RemoteSite(ray, ray.actor, 1, "node", "a node", 2)
    ray.answer = {}
    assert site.result() == {}
    site.send(FLOW, {})
    return site


def passes(clock, site, seconds):
    """Look at the site all the time."""
    for _ in range(round(seconds * 10)):
        clock.now += 0.1
        answer = site.result()
        if answer is not None:
            return answer
    return None


def test_a_silent_site_is_given_up_after_half_a_minute(site, clock):
    assert passes(clock, site, 29.9) is None
    with pytest.raises(TimeoutError, match=r"it has not answered for 30\.1 s"):
        passes(clock, site, 0.3)


def test_one_that_answers_in_time_is_as_before(site, clock, ray):
    assert passes(clock, site, 29.0) is None
    ray.answer = Answer({}, [])
    site.take(passes(clock, site, 1.0), FLOW)
    assert site.heard_at == clock.now
    site.send(FLOW, {})
    assert passes(clock, site, 29.0) is None


@pytest.mark.parametrize("megabytes", [0.5, 200.0])
def test_parameters_and_starts_take_their_time(site, clock, ray, megabytes):
    n_bytes = int(megabytes * 1e6)
    ray.answer = Answer({}, [])
    passes(clock, site, 1.0)
    site.send(FLOW, {"parameters": (1, "a reference", n_bytes)})
    assert passes(clock, site, 29.9 + megabytes) is None
    with pytest.raises(TimeoutError):
        passes(clock, site, 0.3)
    other = RemoteSite(ray, ray.actor, 2, "node", "a node", 2)
    ray.answer = {}
    other.result()
    other.start(("actor", 0, 0), None)
    other.send(FLOW, {"parameters": (1, "a reference", n_bytes)})
    assert passes(clock, other, max(START_SECONDS, 30.0 + megabytes) - 0.1) is None


def test_a_broken_connection_is_given_up_after_three_seconds(site, clock, ray):
    for _ in range(30):
        ray.answer = UnavailableError("no connection")
        assert passes(clock, site, 0.1) is None
    assert ray.letters[1:] == [ray.letters[1]] * 31  # the same letter again and again
    clock.now += 0.1
    ray.answer = UnavailableError("no connection")
    with pytest.raises(UnavailableError):
        passes(clock, site, 0.1)


def test_one_that_breaks_now_and_then_is_not(site, clock, ray):
    for _ in range(4):
        ray.answer = UnavailableError("no connection")
        assert passes(clock, site, 5.0) is None
    ray.answer = Answer({}, [])
    assert passes(clock, site, 0.1) is not None
    assert len({id(letter[0]) for letter in ray.letters[1:]}) == 1


def test_a_broken_one_is_not_resent_for_ever(site, clock, ray):
    for _ in range(7):
        ray.answer = UnavailableError("no connection")
        assert passes(clock, site, 4.0) is None
    with pytest.raises(TimeoutError):
        passes(clock, site, 4.0)


def test_nobody_listened(site, clock, ray):
    passes(clock, site, 20.0)
    clock.now += 500.0
    site.forgive(500.0)
    assert passes(clock, site, 9.9) is None
    with pytest.raises(TimeoutError):
        passes(clock, site, 0.3)
