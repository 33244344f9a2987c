"""Processes that race, each as fast as it may: the band holds, and a killed partner is named, not waited for."""

import contextlib
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

import kary_replay as kr
from kary_replay.errors import RateLimiterTimeoutError

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="sharing needs Linux")

FIELDS = {"reward": kr.Field((), "float32")}
RATIO, ERROR, MIN_SIZE, ADD, DRAW = 4.0, 64.0, 50, 5, 16
LEARNER, ACTOR = "has the learner stopped", "has every actor stopped"


def take_part(limiter, buffer, role, unlimited, said):
    """Add or draw until killed, or until nobody of the other side has for a while; say why."""
    if isinstance(limiter, tuple):  # attached by descriptor
        buffer = kr.PrioritizedReplayBuffer.attach(buffer)
        limiter = kr.RateLimiter(buffer, RATIO, MIN_SIZE, ERROR, origin=limiter)
    try:
        while True:
            if role == "adder":
                unlimited or limiter.await_add(ADD, timeout_seconds=1.0)
                buffer.add(reward=np.zeros(ADD))
            else:
                unlimited or limiter.await_sample(DRAW, timeout_seconds=1.0)
                buffer.sample(DRAW)
    except RateLimiterTimeoutError as error:
        said.send(str(error))


class Race:
    """A buffer, its limiter, and processes."""

    def __init__(self):
        self.buffer = kr.PrioritizedReplayBuffer(200, FIELDS, seed=0, shared=True)
        self.limiter = kr.RateLimiter(self.buffer, RATIO, MIN_SIZE, ERROR)
        self.context = multiprocessing.get_context("spawn")
        self.processes = []

    def start(self, role, by_descriptor=False, unlimited=False):
        hears, says = self.context.Pipe(duplex=False)
        # In one pickle, the limiter's buffer and the buffer are one in the child, too.
        how = (self.limiter.origin, self.buffer.descriptor) if by_descriptor else (self.limiter, self.buffer)
        process = self.context.Process(target=take_part, args=(*how, role, unlimited, says), daemon=True)
        process.start()
        says.close()
        self.processes.append(process)
        process.hears = hears
        return process

    def watch(self, n_adders, n_samplers, n_drawn, seconds=30.0):
        """Follow the balance until so many rows more are drawn; return its extremes."""
        buffer, (added, sampled) = self.buffer, self.limiter.origin
        lowest, highest = np.inf, -np.inf
        until, enough = time.monotonic() + seconds, buffer.n_sampled + n_drawn
        while buffer.n_sampled < enough and time.monotonic() < until:
            # No two counts are read at one moment. What is read last has grown: so the first is not more than the balance
            # was, the second not less, and what they exceed, it did.
            low = (buffer.n_added - added) * RATIO - (buffer.n_sampled - sampled)
            high = -(buffer.n_sampled - sampled) + (buffer.n_added - added) * RATIO
            if buffer.n_sampled > sampled:
                lowest, highest = min(lowest, high), max(highest, low)
        assert buffer.n_sampled >= enough, f"only {buffer.n_sampled} rows were drawn"
        above, below = ERROR + (n_adders - 1) * ADD * RATIO, -ERROR - (n_samplers - 1) * DRAW
        assert highest <= above, f"the balance reached {highest}, above {above}"
        assert lowest >= below, f"the balance reached {lowest}, below {below}"
        return lowest, highest

    def kill(self, process):
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        assert process.exitcode == -signal.SIGKILL

    def last_words(self, process):
        assert process.hears.poll(20), "waits for ever"
        said = process.hears.recv()
        process.join(10)
        assert process.exitcode == 0
        return said


@pytest.fixture
def race():
    one = Race()
    yield one
    for process in one.processes:
        process.kill()
        process.join(10)


def test_one_adder_and_one_sampler_stay_within_the_band(race):
    race.start("adder"), race.start("sampler")
    lowest, highest = race.watch(1, 1, 50_000)
    assert highest > 0 > lowest or highest - lowest > DRAW, "they did not race"
    assert race.limiter.ratio == pytest.approx(RATIO, rel=0.02)


def test_several_overshoot_by_at_most_one_call_each(race):
    race.start("adder"), race.start("adder", by_descriptor=True)
    race.start("sampler"), race.start("sampler", by_descriptor=True)
    race.watch(2, 2, 50_000)


@pytest.mark.parametrize("unlimited", ["adder", "sampler"])
def test_the_watch_sees_who_does_not_ask(race, unlimited):
    race.buffer.add(reward=np.zeros(MIN_SIZE))
    for role in ("adder", "sampler"):
        race.start(role, unlimited=role == unlimited)
    with pytest.raises(AssertionError, match="the balance reached"):
        race.watch(1, 1, 20_000, seconds=10.0)


def test_a_killed_partner_is_named(race):
    """And nothing is left locked: a new one takes over."""
    adder, sampler = race.start("adder"), race.start("sampler")
    race.watch(1, 1, 2_000)
    race.kill(sampler)
    said = race.last_words(adder)
    assert said.startswith("the adder has waited 1") and "no row was drawn for 1" in said and LEARNER in said
    adder, sampler = race.start("adder"), race.start("sampler")
    race.watch(1, 1, 2_000)
    race.kill(adder)
    said = race.last_words(sampler)
    assert said.startswith("the sampler has waited 1") and "no row was added for 1" in said and ACTOR in said


def test_killed_while_it_waits(race):
    """A waiting process holds nothing that the others need."""
    waits = race.start("adder")
    deadline = time.monotonic() + 20
    while race.limiter.allowed_adds() >= ADD and time.monotonic() < deadline:
        time.sleep(0.01)
    race.kill(waits)
    race.start("sampler"), race.start("adder")
    race.watch(1, 1, 2_000)
    with contextlib.suppress(RateLimiterTimeoutError):
        race.limiter.await_sample(1, timeout_seconds=0)
    race.buffer.check_invariants()
