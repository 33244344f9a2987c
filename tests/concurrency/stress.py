"""Two writers, samplers and updaters on one buffer, and one who saves; every batch is verified.

    python tests/concurrency/stress.py --operations 1e7

Operations are calls of ``add``, ``sample``, ``take`` and ``update_priorities``, and of what looks
at the whole buffer. Rows, and what must hold, are in rows.py. Each scenario is a buffer of its own;
most are tiny, so that slots are reused all the time, writers lap each other, and nearly every
handle is stale when it is used. Ends with status 1 on the first violation.
"""

import argparse
import collections
import contextlib
import pickle
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import kary_replay as kr

# run as a program
sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import test_frames_stress as frames  # noqa: E402
from rows import (  # noqa: E402
    EPSILON,
    MAX_EXPONENT,
    Rows,
    SeenSlots,
    check_at_rest,
    check_batch,
    priority,
    require,
    td_error,
)
from threads import run_threaded  # noqa: E402

N_EACH = 2  # threads per role


@dataclass(frozen=True)
class Scenario:
    """One buffer and the size of what is done to it."""

    name: str
    capacity: int
    n_words: int
    max_batch: int
    share: float  # of all operations
    prioritized: bool = True
    image: bool = False
    ranked: bool = False
    # somebody pickles, saves and checks it meanwhile, ranks it and sets alpha
    watched: bool = False
    changing: bool = False  # alpha: the watcher sets it


SCENARIOS = [
    Scenario("one slot", capacity=1, n_words=4, max_batch=3, share=0.05),
    Scenario("tiny", capacity=7, n_words=6, max_batch=8, share=0.15),
    Scenario("small", capacity=200, n_words=20, max_batch=32, share=0.3),
    Scenario("large rows", capacity=24, n_words=500, max_batch=8, share=0.08),
    Scenario("images", capacity=40, n_words=3528, max_batch=4, share=0.02, image=True),
    Scenario("many slots", capacity=20_000, n_words=9, max_batch=32, share=0.25),
    Scenario("uniform", capacity=50, n_words=20, max_batch=16, share=0.13, prioritized=False),
    Scenario("watched", capacity=60, n_words=9, max_batch=16, share=0.05, watched=True),
    Scenario(
        "uniform, watched",
        capacity=60,
        n_words=9,
        max_batch=16,
        share=0.03,
        prioritized=False,
        watched=True,
    ),
    Scenario(
        "changing", capacity=90, n_words=9, max_batch=16, share=0.05, watched=True, changing=True
    ),
    Scenario(
        "ranked", capacity=100, n_words=9, max_batch=16, share=0.05, ranked=True, watched=True
    ),
    Scenario(
        "uniform images",
        capacity=12,
        n_words=3528,
        max_batch=4,
        share=0.02,
        prioritized=False,
        image=True,
    ),
]

FRAMES = Scenario("frames", capacity=60, n_words=40, max_batch=16, share=0.05)
SCENARIOS.append(FRAMES)


@dataclass
class Counts:
    """What one thread did."""

    calls: collections.Counter = field(default_factory=collections.Counter)
    rows: collections.Counter = field(default_factory=collections.Counter)


class Stress:
    """One scenario's buffer, its six threads' work, and the checks at the end."""

    def __init__(self, scenario, seed):
        self.scenario = scenario
        self.seed = seed
        kind = kr.PrioritizedReplayBuffer if scenario.prioritized else kr.ReplayBuffer
        options = (
            {"alpha": 1.0, "beta": 1.0, "priority_epsilon": EPSILON} if scenario.prioritized else {}
        )
        options |= {"prioritization": "rank"} if scenario.ranked else {}
        self.buffer = kind(scenario.capacity, self.new_rows().fields(), seed=seed, **options)
        self.buffer._slots.swept = 7  # new masses for all rows come in many pieces
        self.last_written = np.full((N_EACH, scenario.capacity), -1, np.int64)
        self.mailbox = collections.deque(maxlen=64)  # (handles, numbers), from samplers to updaters
        self.counts = []
        self.stopped = False
        # Fill it, so that samplers find rows from the start.
        rows, random_numbers = self.new_rows(), random.Random(seed)
        for first in range(0, scenario.capacity, scenario.max_batch):
            number = np.arange(first, min(first + scenario.max_batch, scenario.capacity))
            self.write(0, rows, number * N_EACH, random_numbers)
        self.next_number = N_EACH * scenario.capacity

    def new_rows(self):
        n_rows = max(self.scenario.max_batch, 64 if self.scenario.n_words < 100 else 1)
        return Rows(self.scenario.n_words, n_rows, self.scenario.image)

    def write(self, writer, rows, number, random_numbers):
        row = rows.make(number)
        if self.scenario.prioritized:
            row["priority"] = priority(number, random_numbers.randint(0, MAX_EXPONENT))
        index = self.buffer.add(**row)
        row["body"][:] = 0  # the buffer must have its own copy by now
        require((index >= 0) & (index < self.scenario.capacity), "slot out of range", index)
        self.last_written[writer, index] = number  # for a slot that comes twice, the last one stays

    def writer(self, which, counts, random_numbers):
        """Add numbers that are this writer's own, in batches of all sizes."""
        rows = self.new_rows()
        number = self.next_number + which
        while True:
            n_rows = random_numbers.randint(1, self.scenario.max_batch)
            self.write(
                which, rows, np.arange(number, number + N_EACH * n_rows, N_EACH), random_numbers
            )
            number += N_EACH * n_rows
            counts.rows["added"] += n_rows
            yield "add"

    def draw(self, rows, seen, counts, random_numbers):
        """Draw a batch and verify it. A buffer that once held rows is never empty again."""
        unique = self.scenario.watched and random_numbers.random() < 0.3
        batch = self.buffer.sample(
            random_numbers.randint(1, self.scenario.max_batch), unique=unique
        )
        if random_numbers.random() < 0.2:  # the rows that are in these slots by now
            batch = self.buffer.take(batch.index)
        # masses of ranks, or of any alpha, tell nothing of their rows
        if self.scenario.ranked or self.scenario.changing:
            seen.check(batch)
            rows.check_whole(batch)
        else:
            check_batch(rows, seen, batch)
        counts.rows["drawn"] += len(batch.index)
        return batch

    def sampler(self, which, counts, random_numbers):
        """Draw and verify, pass handles on, and look at what else can be read."""
        rows, seen = self.new_rows(), SeenSlots(self.scenario.capacity)
        while True:
            batch = self.draw(rows, seen, counts, random_numbers)
            if self.scenario.prioritized:
                self.mailbox.append((batch.handle, batch.number))
            require(0 <= len(self.buffer) <= self.scenario.capacity, "length", [len(self.buffer)])
            yield "sample"

    def updater(self, which, counts, random_numbers):
        """Update rows of batches that samplers drew: fresh ones, old ones, the same ones again."""
        rows, seen = self.new_rows(), SeenSlots(self.scenario.capacity)
        old = collections.deque(maxlen=200)
        while True:
            with contextlib.suppress(IndexError):
                old.append(self.mailbox.popleft())
            if not old:
                batch = self.draw(rows, seen, counts, random_numbers)
                old.append((batch.handle, batch.number))
                yield "sample"
                continue
            handle, number = (
                old[-1] if random_numbers.random() < 0.7 else random_numbers.choice(old)
            )
            applied = self.buffer.update_priorities(
                handle, td_error(number, random_numbers.randint(0, MAX_EXPONENT))
            )
            require(0 <= applied <= len(handle), "updates applied", [applied])
            counts.rows["applied"] += applied
            counts.rows["stale"] += len(handle) - applied
            yield "update_priorities"

    def watcher(self, which, counts, random_numbers):
        """Look at the whole buffer, in every way there is, and change what holds for all of it."""
        with tempfile.TemporaryDirectory() as directory:
            while True:
                pickle.loads(pickle.dumps(self.buffer)).check_invariants()
                yield "pickle"
                self.buffer.save(directory)
                yield "save"
                self.buffer.check_invariants()
                yield "check_invariants"
                if self.scenario.prioritized:
                    self.buffer.beta = random_numbers.choice([1.0, self.buffer.beta])
                    self.buffer.alpha = self.buffer.alpha
                    self.buffer.rank()
                    yield "rank"
                for _ in range(20 if self.scenario.changing else 0):
                    self.buffer.alpha = random_numbers.choice([0.25, 0.5, 1.0])
                    yield "alpha"
                if self.scenario.ranked:
                    self.buffer.alpha = random_numbers.random()
                    self.buffer.uniform_share = random_numbers.choice([0.0, 0.5, 1.0, "auto"])
                    yield "alpha and uniform share"

    def run_role(self, role, which, deadline, quota):
        counts = Counts()
        self.counts.append(counts)
        calls = role(which, counts, random.Random(f"{self.seed} {role.__name__} {which}"))
        try:
            for n_calls, call in enumerate(calls, 1):
                counts.calls[call] += 1
                if (n_calls % 32 == 0 or role == self.watcher) and (
                    self.stopped or self.n_calls() >= quota or time.monotonic() > deadline
                ):
                    break
        finally:
            # all threads run until the last moment, and none beyond another's failure
            self.stopped = True

    def n_calls(self):
        return sum(sum(counts.calls.values()) for counts in list(self.counts))

    def run(self, operations, seconds_limit):
        """Run all roles at once, check at rest, return the totals."""
        started = time.monotonic()
        roles = [
            self.writer,
            self.sampler,
            self.updater if self.scenario.prioritized else self.sampler,
        ]
        work = [
            lambda role=role, which=which: self.run_role(
                role, which, started + seconds_limit, operations
            )
            for role in roles
            for which in range(N_EACH)
        ]
        if self.scenario.watched:
            work.append(lambda: self.run_role(self.watcher, 0, started + seconds_limit, operations))
        run_threaded(work, timeout_seconds=seconds_limit + 120.0)
        if self.scenario.changing:
            self.buffer.alpha = 1.0
        check_at_rest(self.new_rows(), self.buffer, self.last_written, not self.scenario.ranked)
        total = Counts()
        for counts in self.counts:
            total.calls.update(counts.calls)
            total.rows.update(counts.rows)
        return total, time.monotonic() - started


class FrameStress:
    """Two actors write rows that refer to others and lose them; two draw, check and update."""

    def __init__(self, scenario, seed):
        self.buffer = frames.make(2)
        self.seed = seed

    def run(self, operations, seconds_limit):
        """Run all roles at once, check at rest, return the totals."""
        started, total = time.monotonic(), Counts()
        stopped = []

        def repeat(step, name):
            n_calls = 0
            try:
                while (
                    not stopped
                    and n_calls < operations / 4
                    and time.monotonic() < started + seconds_limit
                ):
                    step()
                    n_calls += 1
            finally:
                stopped.append(True)
                total.calls[name] += n_calls

        def draw():
            with contextlib.suppress(kr.errors.EmptyBufferError):
                batch = self.buffer.sample(16)
                frames.check_batch(batch, 2)
                self.buffer.update_priorities(batch.handle, np.linspace(0.1, 2.0, 16))

        actors = [frames.Actor(self.buffer, self.seed + which) for which in range(N_EACH)]
        work = [lambda actor=actor: repeat(actor.step, "step") for actor in actors]
        run_threaded(
            [*work, *[lambda: repeat(draw, "draw")] * N_EACH], timeout_seconds=seconds_limit + 120.0
        )
        self.buffer.check_invariants()
        return total, time.monotonic() - started


def run_stress(operations, seconds_limit, seed=0, scenarios=SCENARIOS, log=print):
    """Run all scenarios, each with its share of operations and time; return the operations done."""
    n_done = 0
    share = sum(scenario.share for scenario in scenarios)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # threads change places more often than usual, also within Python
    try:
        for number, scenario in enumerate(scenarios):
            run = FrameStress if scenario is FRAMES else Stress
            part = scenario.share / share
            seconds = max(seconds_limit * part, seconds_limit / 20)
            total, wall_seconds = run(scenario, seed + number).run(operations * part, seconds)
            n_done += sum(total.calls.values())
            calls = ", ".join(f"{name} {n:,}" for name, n in sorted(total.calls.items()))
            rows = ", ".join(f"{name} {n:,}" for name, n in sorted(total.rows.items()))
            log(f"{scenario.name:>14}: calls: {calls}; rows: {rows}; {wall_seconds:.1f} s")
    finally:
        sys.setswitchinterval(interval)
    return n_done


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=float, default=1e7, help="calls in all (default 1e7)")
    parser.add_argument(
        "--seconds-limit", type=float, default=3600.0, help="stop earlier after about this long"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenario", choices=[one.name for one in SCENARIOS], help="only this one")
    options = parser.parse_args(arguments)
    scenarios = [one for one in SCENARIOS if options.scenario in (None, one.name)]
    started = time.monotonic()
    try:
        n_done = run_stress(options.operations, options.seconds_limit, options.seed, scenarios)
    except AssertionError as violation:
        print(f"VIOLATION: {violation}", file=sys.stderr)
        return 1
    early = (
        ""
        if n_done >= options.operations
        else f" (of {options.operations:,.0f}: stopped by --seconds-limit)"
    )
    print(f"{n_done:,} operations{early} in {time.monotonic() - started:.1f} s, no violation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
