"""Processes that share a buffer are killed at random; every batch is verified, nobody may hang.

    python tests/concurrency/stress_processes.py --transitions 1e7 --kills 1000

Four writers, two samplers, two updaters. Rows, and what must hold, are in rows.py. A victim of
SIGKILL is replaced; all others have to go on. Ends with status 1 on the first violation, and when
anybody makes no progress for HANG_SECONDS.
"""

import argparse
import collections
import contextlib
import faulthandler
import itertools
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import kary_replay as kr
from kary_replay.core import snapshots

# run as a program
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from rows import (  # noqa: E402
    EPSILON,
    MAX_EXPONENT,
    Rows,
    SeenSlots,
    check_batch,
    check_masses,
    priority,
    require,
    td_error,
)

ROLES = ["writer"] * 4 + ["sampler"] * 2 + ["updater"] * 2
CHANGING_ROLES = ["writer"] * 2 + ["sampler"] + ["updater"] * 2 + ["changer"] * 3
HANG_SECONDS = 300.0
NUMBERS_EACH = 1 << 36  # insertion numbers of one incarnation of a writer


@dataclass(frozen=True)
class Scenario:
    """One buffer, and the size of what is done to it."""

    name: str
    capacity: int
    n_words: int
    max_batch: int
    share: float  # of the transitions and of the kills
    changing: bool = False  # alpha: somebody sets it, again and again
    ranked: bool = False


SCENARIOS = [
    Scenario("one slot", capacity=1, n_words=4, max_batch=2, share=0.05),
    Scenario("tiny", capacity=7, n_words=6, max_batch=8, share=0.15),
    Scenario("small", capacity=300, n_words=20, max_batch=64, share=0.3),
    Scenario("large rows", capacity=40, n_words=2000, max_batch=8, share=0.1),
    Scenario("many slots", capacity=50_000, n_words=9, max_batch=64, share=0.2),
    Scenario("changing", capacity=3000, n_words=6, max_batch=32, share=0.1, changing=True),
    Scenario("ranked", capacity=3000, n_words=6, max_batch=32, share=0.1, ranked=True),
]


class Participant:
    """What one process does until it is told to stop, or killed."""

    def __init__(self, scenario, descriptor, incarnation):
        self.scenario = scenario
        self.buffer = kr.PrioritizedReplayBuffer.attach(descriptor)
        self.buffer._slots.swept = 16  # new masses for all rows come in many pieces
        self.rows = Rows(scenario.n_words, max(scenario.max_batch, 64))
        self.seen = SeenSlots(scenario.capacity)
        self.random = random.Random(incarnation)
        self.number = incarnation * NUMBERS_EACH
        self.old = collections.deque(maxlen=50)

    def writer(self):
        """Add rows with numbers that nobody else has."""
        number = np.arange(
            self.number, self.number + self.random.randint(1, self.scenario.max_batch)
        )
        self.number += len(number)
        row = self.rows.make(number)
        index = self.buffer.add(
            priority=priority(number, self.random.randint(0, MAX_EXPONENT)), **row
        )
        row["body"][:] = 0  # the buffer must have its own copy by now
        require((index >= 0) & (index < self.scenario.capacity), "slot out of range", index)

    def sampler(self):
        """Draw and verify."""
        batch = self.buffer.sample(self.random.randint(1, self.scenario.max_batch))
        if self.random.random() < 0.2:  # the rows that are in these slots by now
            with contextlib.suppress(kr.errors.IndexRangeError):  # a writer may have died over one
                batch = self.buffer.take(batch.index)
        if self.scenario.changing or self.scenario.ranked:  # masses are not of one alpha, or ranks
            self.rows.check_whole(batch)
        else:
            check_batch(self.rows, self.seen, batch)
        return batch

    def changer(self):
        """Set alpha, so that all masses are others, or rank all rows anew."""
        if self.scenario.ranked and self.random.random() < 0.5:
            self.buffer.rank()
        else:
            self.buffer.alpha = self.random.choice([0.25, 0.5, 1.0])

    def updater(self):
        """Update rows drawn just now or a while ago."""
        batch = self.sampler()
        self.old.append((batch.handle, batch.number))
        handle, number = (
            self.old[-1] if self.random.random() < 0.7 else self.random.choice(self.old)
        )
        applied = self.buffer.update_priorities(
            handle, td_error(number, self.random.randint(0, MAX_EXPONENT))
        )
        require(0 <= applied <= len(handle), "updates applied", [applied])


def check_masses_due(buffer):
    """All masses are of one alpha; those of ranks exactly so when all rows are ranked."""
    buffer.rank()
    state = snapshots.snapshot(buffer._slots)
    has_mass = state["mass"] > 0
    mass, priorities = state["mass"][has_mass], state["priority"][has_mass]
    base = priorities
    if buffer.prioritization == "rank":
        base = np.empty(len(mass))
        base[np.argsort(-priorities, kind="stable")] = 1 / np.arange(1, len(mass) + 1)
    require(np.isclose(mass, base**buffer.alpha, rtol=1e-12), "masses of another alpha", mass)


def take_part(scenario, descriptor, role, incarnation, progress, which, stop):
    """Run a role, counting its calls in ``progress[which]``, until ``stop`` is set."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        participant = Participant(scenario, descriptor, incarnation)
        call = getattr(participant, role)
        while not stop.value:
            call()
            progress[which] += 1
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


class Stress:
    """One scenario: the buffer, its participants, their killer, and the checks."""

    def __init__(self, scenario, seed):
        self.scenario = scenario
        self.random = random.Random(seed)
        # A server that has everything imported forks each participant, in milliseconds.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["stress_processes"])
        self.rows = Rows(scenario.n_words, 64)
        options = {
            "alpha": 1.0,
            "beta": 1.0,
            "priority_epsilon": EPSILON,
            "seed": seed,
            "shared": True,
        }
        options |= {"prioritization": "rank"} if scenario.ranked else {}
        self.roles = CHANGING_ROLES if scenario.changing or scenario.ranked else ROLES
        self.buffer = kr.PrioritizedReplayBuffer(scenario.capacity, self.rows.fields(), **options)
        self.incarnations = itertools.count(1)
        self.progress = self.context.RawArray("q", len(self.roles))
        self.stop = self.context.RawValue("b", 0)
        self.participants = [None] * len(self.roles)

    def start(self, which):
        arguments = (
            self.scenario,
            self.buffer.descriptor,
            self.roles[which],
            next(self.incarnations),
            self.progress,
            which,
            self.stop,
        )
        self.participants[which] = self.context.Process(
            target=take_part, args=arguments, daemon=True
        )
        self.participants[which].start()

    def fill(self):
        """Samplers find rows from the start."""
        for first in range(0, self.scenario.capacity, 64):
            number = np.arange(first, min(first + 64, self.scenario.capacity))
            self.buffer.add(priority=priority(number, 0), **self.rows.make(number))

    def watch(self, moved):
        """Fail if anybody failed, or has not moved for long.

        ``moved`` has for each participant its count, and since when it has that.
        """
        now = time.monotonic()
        for which, process in enumerate(self.participants):
            require(
                [process.exitcode is None], f"a {self.roles[which]} ended with {process.exitcode}"
            )
            if self.progress[which] != moved[which][0]:
                moved[which] = (self.progress[which], now)
            require([now - moved[which][1] < HANG_SECONDS], f"a {self.roles[which]} hangs")

    def kill(self, which):
        process = self.participants[which]
        process.kill()
        process.join(HANG_SECONDS)
        require([process.exitcode == -signal.SIGKILL], f"exit code {process.exitcode}")
        process.close()
        self.start(which)

    def run(self, transitions, n_kills, seconds_limit):
        """Run to the end; return how many transitions and kills there were, and the seconds."""
        started, killed = time.monotonic(), 0
        self.fill()
        try:
            for which in range(len(self.roles)):
                self.start(which)
            moved = [(-1, started)] * len(self.roles)
            while self.buffer.n_added < transitions or killed < n_kills:
                if time.monotonic() - started > seconds_limit:
                    break
                time.sleep(self.random.uniform(0, 0.02) if n_kills else 0.2)
                self.watch(moved)
                if killed < n_kills:
                    which = self.random.randrange(len(self.roles))
                    self.kill(which)
                    moved[which] = (self.progress[which], time.monotonic())
                    killed += 1
                    if killed % 16 == 0:
                        self.buffer.check_invariants()
            self.stop.value = 1
            deadline = time.monotonic() + HANG_SECONDS
            for which, process in enumerate(self.participants):
                process.join(max(0.0, deadline - time.monotonic()))
                require(
                    [process.exitcode == 0],
                    f"a {self.roles[which]} did not stop: {process.exitcode}",
                )
        finally:
            for process in self.participants:
                if process is not None:
                    process.kill()
        self.check_at_rest()
        return (
            self.buffer.n_added,
            killed,
            self.buffer._slots.n_repaired,
            time.monotonic() - started,
        )

    def check_at_rest(self):
        """Every row is whole and has a mass of its own; the slots of the dead can be used again."""
        buffer, capacity = self.buffer, self.scenario.capacity
        buffer.check_invariants()
        while not buffer._slots.is_settled:  # somebody died over it, who lives looks every 5 ms
            buffer.sample(1)
        if self.scenario.changing or self.scenario.ranked:
            check_masses_due(buffer)  # of what was set last; then of what the rest expects
            buffer.alpha = 1.0
            check_masses_due(buffer)
        require([0 <= len(buffer) <= capacity], "length", [len(buffer)])
        seen = SeenSlots(capacity)
        n_rows = len(buffer)
        for _ in range(-(-4 * n_rows // 64)):
            batch = buffer.sample(min(64, n_rows), unique=True)
            if self.scenario.ranked:
                self.rows.check_whole(batch)
            else:
                check_batch(self.rows, seen, batch)
        mass = buffer.tree.get(np.arange(capacity))
        require(
            [np.count_nonzero(mass) == n_rows],
            "rows without mass",
            [np.count_nonzero(mass), n_rows],
        )
        if not self.scenario.ranked:
            known = seen.number >= 0
            check_masses(seen.number[known], mass[known])
        before = buffer.n_added
        number = np.arange(NUMBERS_EACH - capacity, NUMBERS_EACH)
        for first in range(0, capacity, 64):
            part = number[first : first + 64]
            buffer.add(priority=priority(part, 0), **self.rows.make(part))
        require(
            [len(buffer) == capacity and buffer.n_added == before + capacity],
            "slots were lost",
            [len(buffer)],
        )
        buffer.check_invariants()


def run_stress(transitions, n_kills, seconds_limit, seed=0, scenarios=SCENARIOS, log=print):
    """Run all scenarios, each with its share; return the transitions and the kills done."""
    total, killed = 0, 0
    share = sum(scenario.share for scenario in scenarios)
    for number, scenario in enumerate(scenarios):
        part = scenario.share / share
        n, k, repaired, seconds = Stress(scenario, seed + number).run(
            transitions * part, round(n_kills * part), seconds_limit * part
        )
        log(
            f"{scenario.name:>14}: {n:,} transitions, {k} killed, "
            f"{repaired} of them holding the lock, {seconds:.1f} s"
        )
        total, killed = total + n, killed + k
    return total, killed


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--transitions", type=float, default=1e7, help="added in all (default 1e7)")
    parser.add_argument(
        "--kills", type=int, default=1000, help="participants killed (default 1000)"
    )
    parser.add_argument(
        "--seconds-limit", type=float, default=3600.0, help="stop earlier after about this long"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenario", choices=[one.name for one in SCENARIOS])
    options = parser.parse_args(arguments)
    scenarios = [one for one in SCENARIOS if options.scenario in (None, one.name)]
    started = time.monotonic()
    # if this process hangs itself
    faulthandler.dump_traceback_later(options.seconds_limit + 600, exit=True)
    try:
        total, killed = run_stress(
            options.transitions, options.kills, options.seconds_limit, options.seed, scenarios
        )
    except AssertionError as violation:
        print(f"VIOLATION: {violation}", file=sys.stderr)
        return 1
    finally:
        faulthandler.cancel_dump_traceback_later()
        with contextlib.suppress(Exception):
            multiprocessing.forkserver._forkserver._stop()
    print(
        f"{total:,} transitions, {killed} processes killed in {time.monotonic() - started:.1f} s, "
        "no violation"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
