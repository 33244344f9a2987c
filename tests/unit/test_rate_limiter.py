"""Who may pass and who waits, what a time-out says, and which settings are refused."""

import _thread
import copy
import pickle
import re
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import kary_replay as kr
from kary_replay.buffers import rate_limiter
from kary_replay.errors import ClosedError, KaryReplayError, RateLimiterTimeoutError

FIELDS = {"reward": kr.Field((), "float32")}


def make(capacity=1000, **options):
    return kr.PrioritizedReplayBuffer(capacity, FIELDS, seed=0, **options)


def add(buffer, n):
    buffer.add(reward=np.zeros(n))


class Counter:
    """All that a limiter needs of a buffer."""

    def __init__(self, capacity=1000, size=0):
        self.n_added, self.n_sampled, self.capacity, self.size = 0, 0, capacity, size

    def __len__(self):
        return self.size

    def add(self, n):
        self.n_added += n
        self.size = min(self.capacity, self.size + n)


def may(wait, n):
    try:
        return wait(n, timeout_seconds=0)
    except RateLimiterTimeoutError:
        return False


@pytest.mark.parametrize(
    ("ratio", "min_size", "error", "added", "drawn", "may_add", "may_draw"),
    [
        # a band of ±64 around 8 drawn per added
        (8, 1, 64, 0, 0, 9, 0),  # one row is free
        (8, 1, 64, 1, 0, 8, 64),
        (8, 1, 64, 9, 0, 0, 128),
        (8, 1, 64, 9, 7, 0, 121),
        (8, 1, 64, 9, 8, 1, 120),
        (8, 1, 64, 9, 128, 16, 0),
        (8, 100, 64, 0, 0, 108, 0),
        (8, 100, 64, 99, 0, 9, 0),
        (8, 100, 64, 100, 0, 8, 64),
        (8, 100, 64, 108, 0, 0, 128),
        # less than one drawn per added
        (0.25, 1, 2, 1, 0, 8, 2),
        (0.25, 1, 2, 9, 0, 0, 4),
        (0.25, 1, 2, 9, 1, 4, 3),
        (0.3, 1, 2, 1, 2, 13, 0),
    ],
)
def test_who_may_pass(ratio, min_size, error, added, drawn, may_add, may_draw):
    counter = Counter()
    limiter = kr.RateLimiter(counter, ratio, min_size, error)
    counter.add(added)
    counter.n_sampled = drawn
    assert limiter.allowed_adds() == may_add and limiter.allowed_samples() == may_draw
    assert limiter.balance == pytest.approx((added - min_size) * ratio - drawn)
    most = int(error / ratio)
    for n in {1, min(max(may_add, 1), most), min(may_add + 1, most)}:
        assert may(limiter.await_add, n) == (n <= may_add)
    for n in {1, min(max(may_draw, 1), int(error)), min(may_draw + 1, int(error))}:
        assert may(limiter.await_sample, n) == (n <= may_draw)


def test_asking_counts_nothing():
    buffer = make()
    limiter = kr.RateLimiter(buffer, 1, error=4)
    for _ in range(100):
        assert limiter.await_add(4)
    add(buffer, 5)
    assert not may(limiter.await_add, 1) and may(limiter.await_sample, 4)
    buffer.sample(4)
    assert limiter.balance == 0.0 and limiter.ratio == 1.0


def test_counting_starts_at_construction():
    buffer = make()
    add(buffer, 300)
    buffer.sample(77)
    limiter = kr.RateLimiter(buffer, 4, min_size=100, error=8)
    assert limiter.origin == (300, 77) and limiter.balance == 0 and np.isnan(limiter.ratio)
    later = kr.RateLimiter(buffer, 4, min_size=400, error=8)
    assert later.origin == (400, 77)  # a hundred are still free
    add(buffer, 100)
    assert limiter.balance == 400 and later.balance == 0
    assert kr.RateLimiter(buffer, 4, min_size=100, error=8, origin=limiter.origin).balance == 400


def test_a_reset_does_not_lock_everybody_out():
    """Nobody can sample then, so rows up to min_size pass whatever the balance."""
    buffer = make()
    limiter = kr.RateLimiter(buffer, 8, min_size=10, error=16)
    add(buffer, 12)
    assert not may(limiter.await_add, 1)
    buffer.reset()
    assert not may(limiter.await_sample, 1) and limiter.allowed_adds() == 10
    for _ in range(5):
        assert may(limiter.await_add, 2)
        add(buffer, 2)
    assert not may(limiter.await_add, 1) and may(limiter.await_sample, 16)


def test_pickled_with_its_buffer():
    """Outside the start of a process, both become copies."""
    buffer = make()
    limiter = kr.RateLimiter(buffer, 4, min_size=10, error=8)
    add(buffer, 11)
    for twin in (pickle.loads(pickle.dumps(limiter)), copy.deepcopy(limiter)):
        assert repr(twin) == repr(limiter) and twin.balance == 4
    assert (
        repr(limiter) == "RateLimiter(samples_per_insert=4, min_size=10, error=8, origin=(10, 0))"
    )
    assert (limiter.samples_per_insert, limiter.min_size, limiter.error) == (4, 10, 8)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (
            {"samples_per_insert": 0},
            ValueError,
            "samples_per_insert must be finite and above 0, got 0",
        ),
        ({"samples_per_insert": float("inf")}, ValueError, "samples_per_insert"),
        ({"samples_per_insert": float("nan")}, ValueError, "samples_per_insert"),
        ({"samples_per_insert": "8"}, TypeError, "samples_per_insert must be a real number"),
        ({"min_size": 0}, ValueError, "min_size must be at least 1"),
        ({"min_size": 2.5}, TypeError, "min_size must be an integer"),
        ({"min_size": 1001}, ValueError, "min_size must be at most the capacity, 1000, got 1001"),
        (
            {"error": 7.5},
            ValueError,
            r"error must be at least 8, .* samples_per_insert=8, got 7.5: nobody",
        ),
        ({"samples_per_insert": 0.5, "error": 0.9}, ValueError, "error must be at least 1,"),
        ({"error": -1}, ValueError, "error must be finite and above 0"),
        ({"error": None, "origin": (-1, 0)}, ValueError, r"origin\[0\]"),
        (
            {"buffer": SimpleNamespace(n_added=0)},
            TypeError,
            "got SimpleNamespace without n_sampled",
        ),
    ],
)
def test_refused(arguments, error, says):
    with pytest.raises(error, match=says):
        kr.RateLimiter(**{"buffer": Counter(), "samples_per_insert": 8, **arguments})


def test_calls_that_could_wait_for_ever_are_refused():
    limiter = kr.RateLimiter(Counter(), 8, error=64)
    with pytest.raises(
        ValueError, match=r"n must be at most 8 rows .* error is 64; got 9: .* at least 72"
    ):
        limiter.await_add(9)
    with pytest.raises(
        ValueError,
        match="n must be at most error, 64, got 65: draw fewer, or make error at least 65",
    ):
        limiter.await_sample(65)
    for wait in (limiter.await_add, limiter.await_sample):
        with pytest.raises(ValueError, match="n must be at least 1"):
            wait(0)
        with pytest.raises(ValueError, match="timeout_seconds must be at least 0, got -1"):
            wait(1, -1)
        with pytest.raises(ValueError, match="timeout_seconds"):
            wait(1, float("nan"))
    by_default = kr.RateLimiter(Counter(), 256)
    assert by_default.await_add(64) and kr.RateLimiter(Counter(), 0.25).error == 1024


@pytest.mark.parametrize("ratio", [0.25, 1.0, 3.7, 256.0])
def test_never_both_wait(ratio, rng):
    """Whatever the size of calls, one side can always go on, and the balance stays in its band."""
    error = 2 * max(1.0, ratio)
    for _ in range(50):
        counter = Counter()
        n_add, n_draw = rng.integers(1, int(error / ratio) + 1), rng.integers(1, int(error) + 1)
        limiter = kr.RateLimiter(counter, ratio, min_size=int(rng.integers(1, 20)), error=error)
        for _ in range(100):
            adds, draws = may(limiter.await_add, n_add), may(limiter.await_sample, n_draw)
            assert adds or draws
            if adds and (not draws or rng.random() < 0.5):
                counter.add(n_add)
            else:
                counter.n_sampled += n_draw
            assert limiter.balance <= error * 1.000002
            assert limiter.balance >= -error * 1.000002 or counter.size < limiter.min_size


def test_overshoot_is_one_call_per_participant():
    """The worst case: all pass before the first is counted."""
    counter = Counter()
    limiter = kr.RateLimiter(counter, 2, error=20)
    counter.add(1)
    for n_callers in (1, 3):
        counter.n_added, counter.n_sampled = 6, 0
        assert [may(limiter.await_add, 5) for _ in range(n_callers)] == [True] * n_callers
        counter.add(5 * n_callers)
        assert limiter.balance == limiter.error + (n_callers - 1) * 5 * 2
        assert not may(limiter.await_add, 1)
        counter.n_added, counter.n_sampled = 6, 20
        assert [may(limiter.await_sample, 10) for _ in range(n_callers)] == [True] * n_callers
        counter.n_sampled += 10 * n_callers
        assert limiter.balance == -limiter.error - (n_callers - 1) * 10
        assert not may(limiter.await_sample, 1)


class Clock:
    """Stands in for the module ``time``: only sleeping takes time; ``moves`` is called after it."""

    def __init__(self, moves=lambda: None):
        self.now, self.sleeps, self.moves = 1000.0, [], moves
        self.time, self.strftime, self.localtime = time.time, time.strftime, time.localtime

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.now += seconds
        self.moves()


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(rate_limiter, "time", clock)
    return clock


def time_out(call, n):
    """Let a call time out after 0.05 s; return what it raised and said."""
    with pytest.raises(RateLimiterTimeoutError) as raised:
        call(n, timeout_seconds=0.05)
    return raised.value, str(raised.value)


def test_time_outs_say_who_waits_for_whom(clock):
    buffer = make()
    limiter = kr.RateLimiter(buffer, 2, min_size=10, error=20)
    add(buffer, 4)
    error, said = time_out(limiter.await_sample, 16)
    assert isinstance(error, TimeoutError) and isinstance(error, KaryReplayError)
    assert re.match(
        r"the sampler has waited 0\.05 s, since [\d:]{8}, to draw 16 rows: "
        r"the buffer has 4 of min_size=10 rows; "
        r"no row was added for 0\.05 s: has every actor stopped\? ",
        said,
    )
    add(buffer, 16)
    error, said = time_out(limiter.await_add, 3)
    assert re.match(
        r"the adder has waited 0\.05 s, since [\d:]{8}, to add 3 rows: "
        r"no row was drawn for 0\.05 s: has the learner stopped\? ",
        said,
    )
    assert "10 rows beyond min_size were added and 0 drawn, 0 per row instead of 2" in said
    assert said.endswith("the balance is 20, and may be -20 … 20")
    assert str(pickle.loads(pickle.dumps(error))) == said


def test_a_time_out_beside_a_slow_learner_does_not_call_it_stopped(clock):
    counter = Counter()
    limiter = kr.RateLimiter(counter, 1, error=4)
    counter.add(105)

    def learn():
        """Draw a row every 30 ms, too few to let the actor go on."""
        counter.n_sampled = int((clock.now - 1000.0) / 0.03)

    clock.moves = learn
    with pytest.raises(
        RateLimiterTimeoutError,
        match=r"waited 1 s, .* rows are being drawn, the last 0\.0\d+ s ago, but too slowly",
    ):
        limiter.await_add(1, timeout_seconds=1.0)


def test_waiting_ends_when_the_other_side_moves(run_threaded):
    buffer = make()
    limiter = kr.RateLimiter(buffer, 1, error=8)

    def act():
        for _ in range(50):
            assert limiter.await_add(8)
            add(buffer, 8)

    def learn():
        for _ in range(50):
            assert limiter.await_sample(8)
            buffer.sample(8)
            assert -8 <= limiter.balance <= 8 + 8

    run_threaded([act, learn])


def test_a_wait_looks_every_two_milliseconds_and_ends_with_the_look_that_may_pass(clock):
    """The first looks follow each other faster, for waits that are short."""
    counter = Counter()
    limiter = kr.RateLimiter(counter, 1)
    clock.moves = lambda: counter.add(len(clock.sleeps) == 100)
    assert limiter.await_sample(1) and len(clock.sleeps) == 100
    assert clock.sleeps == sorted(clock.sleeps)
    assert clock.sleeps[0] == 20e-6 and clock.sleeps[-1] == 2e-3


def test_should_stop_ends_a_wait(clock):
    limiter = kr.RateLimiter(Counter(), 1)
    answers = iter([False, False, True])
    assert limiter.await_sample(1, 10, should_stop=lambda: next(answers)) is False
    with pytest.raises(RateLimiterTimeoutError):
        limiter.await_sample(1, 0.01, should_stop=lambda: False)


def test_closing_the_buffer_ends_a_wait(run_threaded):
    buffer = make()
    limiter = kr.RateLimiter(buffer, 1)
    waits = threading.Event()

    def learn():
        with pytest.raises(ClosedError):
            limiter.await_sample(1, should_stop=waits.set)

    run_threaded([learn, lambda: waits.wait() and buffer.close()])


def test_ctrl_c_ends_a_wait():
    limiter = kr.RateLimiter(Counter(), 1)
    press = threading.Thread(target=_thread.interrupt_main)
    waits = iter([press.start])
    # a shell's background jobs ignore it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            limiter.await_sample(1, should_stop=lambda: next(waits, bool)())
        press.join()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_call_that_may_pass_neither_sleeps_nor_asks_for_the_time(monkeypatch):
    buffer = make()
    add(buffer, 100)
    limiter = kr.RateLimiter(buffer, 1)
    monkeypatch.setattr(rate_limiter, "time", None)
    assert limiter.await_sample(1) and limiter.await_add(1, timeout_seconds=1.0)
