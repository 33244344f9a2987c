"""Two Python threads on one buffer against one: rows per second over fixed windows."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter

import numpy as np
import pytest

from bench import grid
from bench.ablation.build import load
from bench.rivals.cpprb_buffer import CpprbBuffer
from bench.rivals.ours import OurBuffer
from bench.rivals.rows import rows, td_errors
from bench.rivals.sb3_buffer import Sb3Buffer
from bench.rivals.tianshou_buffer import TianshouBuffer
from bench.timing import Bar

SLOTS, BATCH = grid.MIDDLE
SCALING_BAR = 1.8
Work = Callable[[], int]  # does one piece of work, returns how many rows it handled


def rate(works: Sequence[Work], seconds: float) -> float:
    """Rows per second that one thread per entry of `works` reaches together in a window of `seconds`."""
    barrier = threading.Barrier(len(works) + 1)
    counts, spans = [0] * len(works), [0.0] * len(works)

    def loop(number: int, work: Work) -> None:
        work()
        barrier.wait()
        start = perf_counter()
        end, n = start + seconds, 0
        while perf_counter() < end:
            n += work()
        counts[number], spans[number] = n, perf_counter() - start

    threads = [threading.Thread(target=loop, args=item) for item in enumerate(works)]
    for thread in threads:
        thread.start()
    barrier.wait()
    for thread in threads:
        thread.join()
    return sum(n / span for n, span in zip(counts, spans, strict=True))


def sampling(sample: Callable[[int], object], lock: threading.Lock | None = None) -> Work:
    """Draws batches, under `lock` where the buffer may not be entered by two threads."""

    def unlocked() -> int:
        sample(BATCH)
        return BATCH

    def locked() -> int:
        with lock:
            sample(BATCH)
        return BATCH

    return locked if lock else unlocked


@pytest.fixture(scope="module")
def ours() -> Iterator[OurBuffer]:
    yield OurBuffer(SLOTS)
    gc.collect()


@pytest.fixture
def window(request: pytest.FixtureRequest) -> float:
    return request.config.getoption("--window")


def test_two_samplers(compare, ours, window):
    """The bar: two threads sampling at once against one.

    What the interpreter shares between threads travels from core to core, so the result hangs on how far apart these are.
    """
    work = sampling(ours.buffer.sample)
    round_trips = []

    def two_threads() -> float:
        round_trips.append(load().line_round_trip() * 1e9)
        return rate([work, work], window)

    windows = {"two threads": two_threads, "one thread": lambda: rate([work], window)}
    parameters = {"slots": SLOTS, "batch": BATCH, "buffer": ours.name}
    record = compare.rates(
        "threads: sample", parameters, "two threads", windows, [Bar(("one thread",), SCALING_BAR)], unit="rows/s"
    )
    low, middle, high = min(round_trips), median(round_trips), max(round_trips)
    record.notes["two threads"] = (
        f"a cache line took {low:.0f} … {high:.0f} ns to the other core and back (median {middle:.0f})"
    )


def test_two_samplers_behind_one_lock(compare, ours, window):
    """The same buffer behind one lock: what a user of a buffer without the contract has to do."""
    work = sampling(ours.buffer.sample, threading.Lock())
    windows = {
        "two threads": lambda: rate([work, work], window),
        "one thread": lambda: rate([work], window),
    }
    parameters = {"slots": SLOTS, "batch": BATCH, "buffer": f"{ours.name} behind one lock"}
    compare.rates("threads: sample", parameters, "two threads", windows, unit="rows/s")


@pytest.mark.parametrize("build", [TianshouBuffer, CpprbBuffer, Sb3Buffer], ids=["tianshou", "cpprb", "sb3"])
def test_rival_samplers(compare, build, window):
    """Context: the rivals behind one lock, since none says that it may be sampled by two threads at once."""
    rival = build(SLOTS)
    work = sampling(rival.buffer.sample, threading.Lock())
    windows = {
        "two threads": lambda: rate([work, work], window),
        "one thread": lambda: rate([work], window),
    }
    parameters = {"slots": SLOTS, "batch": BATCH, "buffer": f"{rival.name} behind one lock"}
    compare.rates("threads: sample", parameters, "two threads", windows, rounds=3, unit="rows/s")


def _learner(ours: OurBuffer, errors: np.ndarray) -> Work:
    buffer = ours.buffer

    def work() -> int:
        buffer.update_priorities(buffer.sample(BATCH).handle, errors)
        return BATCH

    return work


def _actor(ours: OurBuffer, n_rows: int) -> Work:
    buffer, block = ours.buffer, rows(n_rows)

    def work() -> int:
        buffer.add(**block)
        return n_rows

    return work


@pytest.mark.parametrize("mix", ["learner + learner", "learner + actor"])
def test_mixed(compare, ours, window, mix):
    """Learners sample and update, actors add 16 rows at a time; against the same two kinds of work one after the other."""
    first = _learner(ours, td_errors(BATCH))
    second = _learner(ours, td_errors(BATCH, 9)) if mix == "learner + learner" else _actor(ours, 16)

    def in_turn() -> float:
        """Return what one thread gets done that gives each kind of work half of the time."""
        return (rate([first], window / 2) + rate([second], window / 2)) / 2

    windows = {"two threads": lambda: rate([first, second], window), "one thread": in_turn}
    parameters = {"slots": SLOTS, "batch": BATCH, "load": mix}
    compare.rates("threads: mixed loads", parameters, "two threads", windows, unit="rows/s")
