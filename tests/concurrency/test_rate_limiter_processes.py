"""Processes that race: the band holds, and a killed partner is named, not waited for."""

import contextlib
import multiprocessing
import os
import re
import signal
import time

import numpy as np
import pytest

import kary_replay as kr
from kary_replay.errors import RateLimiterTimeoutError

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="sharing needs Linux")

FIELDS = {"reward": kr.Field((), "float32")}
RATIO, ERROR, MIN_SIZE, ADD, DRAW = 4.0, 64.0, 50, 5, 16
PATIENCE, HANG_SECONDS = 0.1, 300.0
LEARNER, ACTOR = "has the learner stopped", "has every actor stopped"


def take_part(limiter, buffer, role, unlimited, hurry, parent):
    """Add or draw until killed, or until a wait takes PATIENCE seconds after ``hurry``; say why.

    ``unlimited`` is None, or the role that never asks; the other one is slow then.
    """

    def wait(call, n):
        call(n, should_stop=lambda: hurry.value) or call(n, timeout_seconds=PATIENCE)

    if isinstance(limiter, tuple):  # attached by descriptor
        buffer = kr.PrioritizedReplayBuffer.attach(buffer)
        limiter = kr.RateLimiter(buffer, RATIO, MIN_SIZE, ERROR, origin=limiter)
    parent.send("ready")
    parent.recv()
    try:
        while True:
            if unlimited not in (None, role):
                time.sleep(1e-3)
            if role == "adder":
                unlimited == role or wait(limiter.await_add, ADD)
                buffer.add(reward=np.zeros(ADD))
            else:
                unlimited == role or wait(limiter.await_sample, DRAW)
                buffer.sample(DRAW)
    except RateLimiterTimeoutError as error:
        parent.send(str(error))


class Race:
    """A buffer, its limiter, and processes."""

    def __init__(self):
        self.buffer = kr.PrioritizedReplayBuffer(200, FIELDS, seed=0, shared=True)
        self.limiter = kr.RateLimiter(self.buffer, RATIO, MIN_SIZE, ERROR)
        self.context = multiprocessing.get_context("spawn")
        self.hurry = self.context.RawValue("b", False)
        self.processes = []

    def start(self, *roles, attached=(), unlimited=None):
        """Start processes of these roles, then some ``attached`` by descriptor, together."""
        started = [self.spawn(role, False, unlimited) for role in roles]
        started += [self.spawn(role, True, unlimited) for role in attached]
        for process in started:
            assert process.pipe.poll(HANG_SECONDS) and process.pipe.recv() == "ready"
        for process in started:
            process.pipe.send("go")
        return started

    def spawn(self, role, by_descriptor, unlimited):
        ours, theirs = self.context.Pipe()
        # In one pickle, the limiter's buffer and the buffer are one in the child, too.
        how = (
            (self.limiter.origin, self.buffer.descriptor)
            if by_descriptor
            else (self.limiter, self.buffer)
        )
        process = self.context.Process(
            target=take_part, args=(*how, role, unlimited, self.hurry, theirs), daemon=True
        )
        process.start()
        theirs.close()
        self.processes.append(process)
        process.pipe = ours
        return process

    def watch(self, n_adders, n_samplers, n_drawn):
        """Follow the balance until so many more rows are drawn; return its extremes."""
        buffer, (added, sampled) = self.buffer, self.limiter.origin
        n_looks, lowest, highest = 0, np.inf, -np.inf
        until, enough = time.monotonic() + HANG_SECONDS, buffer.n_sampled + n_drawn
        while (buffer.n_sampled < enough or n_looks < 1000) and time.monotonic() < until:
            # No two counts are read at one moment. Both only grow: so with the earlier count of the
            # rows drawn the balance was not more than what comes out, with the later one not less.
            earlier, n_added, later = (
                buffer.n_sampled - sampled,
                buffer.n_added - added,
                buffer.n_sampled - sampled,
            )
            if earlier > 0:
                n_looks += 1
                lowest, highest = (
                    min(lowest, n_added * RATIO - earlier),
                    max(highest, n_added * RATIO - later),
                )
        assert buffer.n_sampled >= enough, f"only {buffer.n_sampled} rows were drawn"
        above, below = ERROR + (n_adders - 1) * ADD * RATIO, -ERROR - (n_samplers - 1) * DRAW
        assert highest <= above, f"the balance reached {highest}, above {above}"
        assert lowest >= below, f"the balance reached {lowest}, below {below}"
        return lowest, highest

    def kill(self, process):
        os.kill(process.pid, signal.SIGKILL)
        process.join(HANG_SECONDS)
        assert process.exitcode == -signal.SIGKILL

    def last_words(self, process):
        self.hurry.value = True
        assert process.pipe.poll(HANG_SECONDS), "waits for ever"
        said = process.pipe.recv()
        process.join(HANG_SECONDS)
        assert process.exitcode == 0
        self.hurry.value = False
        return said


@pytest.fixture
def race():
    one = Race()
    yield one
    for process in one.processes:
        process.kill()
        process.join()


def test_one_adder_and_one_sampler_stay_within_the_band(race):
    race.start("adder", "sampler")
    lowest, highest = race.watch(1, 1, 50_000)
    assert highest > 0 > lowest or highest - lowest > DRAW, "they did not race"
    assert race.limiter.ratio == pytest.approx(RATIO, rel=0.02)


def test_several_overshoot_by_at_most_one_call_each(race):
    race.start("adder", "sampler", attached=("adder", "sampler"))
    race.watch(2, 2, 50_000)


@pytest.mark.parametrize(("unlimited", "n_drawn"), [("adder", 5_000), ("sampler", 500_000)])
def test_the_watch_sees_who_does_not_ask(race, unlimited, n_drawn):
    race.buffer.add(reward=np.zeros(MIN_SIZE))
    race.start("adder", "sampler", unlimited=unlimited)
    with pytest.raises(AssertionError, match="the balance reached"):
        race.watch(1, 1, n_drawn)


def assert_says(said, side, drive, culprit):
    found = re.match(
        rf"the {side} has waited ([\d.]+) s, .* no row was {drive} for ([\d.]+) s: {culprit}", said
    )
    assert found and all(float(seconds) >= PATIENCE for seconds in found.groups()), said


def test_a_killed_partner_is_named(race):
    """And nothing is left locked: a new one takes over."""
    adder, sampler = race.start("adder", "sampler")
    race.watch(1, 1, 2_000)
    race.kill(sampler)
    said = race.last_words(adder)
    assert_says(said, "adder", "drawn", LEARNER)
    adder, sampler = race.start("adder", "sampler")
    race.watch(1, 1, 2_000)
    race.kill(adder)
    said = race.last_words(sampler)
    assert_says(said, "sampler", "added", ACTOR)


def test_killed_while_it_waits(race):
    """A waiting process holds nothing that the others need."""
    (waits,) = race.start("adder")
    deadline = time.monotonic() + HANG_SECONDS
    while race.limiter.allowed_adds() >= ADD and time.monotonic() < deadline:
        time.sleep(0.01)
    race.kill(waits)
    race.start("sampler", "adder")
    race.watch(1, 1, 2_000)
    with contextlib.suppress(RateLimiterTimeoutError):
        race.limiter.await_sample(1, timeout_seconds=0)
    race.buffer.check_invariants()
