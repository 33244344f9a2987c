"""Python threads on one buffer: what two, or as many as there are cores, do in fixed windows."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from bench.ablation.build import load
from bench.harness import grid
from bench.harness.timing import Bar, Contender
from bench.rivals.cpprb_buffer import CpprbBuffer
from bench.rivals.ours import OurBuffer
from bench.rivals.rows import rows, td_errors
from bench.rivals.sb3_buffer import Sb3Buffer
from bench.rivals.tianshou_buffer import TianshouBuffer

SLOTS, BATCH = grid.MIDDLE
SCALING_BAR = 1.8
PER_ADD = 16  # rows, one per environment
N_INPUTS = 512
Work = Callable[[], int]  # does one piece of work, returns how much that was


def rates(works: Sequence[Work], seconds: float) -> list[float]:
    """Run one thread per entry of `works` for `seconds`; return what each does per second."""
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
    return [n / span for n, span in zip(counts, spans, strict=True)]


def rate(works: Sequence[Work], seconds: float) -> float:
    """Return what they get done together."""
    return sum(rates(works, seconds))


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
def ours(smoke: bool) -> Iterator[OurBuffer]:
    yield OurBuffer(10_000 if smoke else SLOTS)
    gc.collect()


@pytest.fixture
def window(request: pytest.FixtureRequest) -> float:
    return request.config.getoption("--window")


def test_two_samplers(compare, ours, window):
    """The bar: two threads sampling at once against one.

    What the interpreter shares between threads travels from core to core, so the result hangs on
    how far apart these are.
    """
    work = sampling(ours.buffer.sample)
    round_trips = []

    def two_threads() -> float:
        round_trips.append(load().line_round_trip() * 1e9)
        return rate([work, work], window)

    windows = {"two threads": two_threads, "one thread": lambda: rate([work], window)}
    parameters = {"slots": SLOTS, "batch": BATCH, "buffer": ours.name}
    record = compare.rates(
        "threads: sample",
        parameters,
        "two threads",
        windows,
        [Bar(("one thread",), SCALING_BAR)],
        unit="rows/s",
    )
    low, middle, high = min(round_trips), median(round_trips), max(round_trips)
    record.notes["two threads"] = (
        f"a cache line took {low:.0f} … {high:.0f} ns to the other core and back "
        f"(median {middle:.0f})"
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
    """Learners sample and update, actors add 16 rows at a time; against one thread for both."""
    first = _learner(ours, td_errors(BATCH))
    second = (
        _learner(ours, td_errors(BATCH, 9)) if mix == "learner + learner" else _actor(ours, PER_ADD)
    )

    def in_turn() -> float:
        """Return what one thread gets done that gives each kind of work half of the time."""
        return (rate([first], window / 2) + rate([second], window / 2)) / 2

    windows = {"two threads": lambda: rate([first, second], window), "one thread": in_turn}
    parameters = {"slots": SLOTS, "batch": BATCH, "load": mix}
    compare.rates("threads: mixed loads", parameters, "two threads", windows, unit="rows/s")


@pytest.fixture(scope="module")
def everybody(smoke: bool) -> Iterator[dict[int, list[Any]]]:
    """Full buffers, by how many environments' rows they are given at a time."""
    slots, builders = (
        10_000 if smoke else SLOTS,
        (OurBuffer, TianshouBuffer, CpprbBuffer, Sb3Buffer),
    )
    yield {
        rows_per_add: [build(slots, rows_per_add) for build in builders]
        for rows_per_add in (1, PER_ADD)
    }
    gc.collect()


def calls(contender: Contender, lock: threading.Lock | None) -> Work:
    """Call by call, with inputs that repeat after some hundred; under `lock` where there is one."""
    turns = itertools.cycle(contender.inputs(N_INPUTS))

    def unlocked() -> int:
        contender.call(*next(turns))
        return 1

    def locked() -> int:
        arguments = next(turns)
        with lock:
            contender.call(*arguments)
        return 1

    return locked if lock else unlocked


ALONE = {
    "sample": "sample",
    "update_priorities": "update",
    "sample + update_priorities": "cycle",
    "add": "add",
}
BESIDE = {"learner, beside actors": ("cycle", "add"), "actor, beside learners": ("add", "cycle")}
ADDING = {"add", *BESIDE}
TEAMS = [(role, n) for role in ALONE for n in grid.counts()] + [
    (role, n) for role in BESIDE for n in grid.counts() if n > 1
]


def team(buffer: Any, role: str, n: int, lock: threading.Lock | None) -> list[Work] | None:
    """Return the work of n threads, those that count first; None if a buffer lacks the call."""
    methods = (
        [ALONE[role]] * n if role in ALONE else [BESIDE[role][0], *[BESIDE[role][1]] * (n - 1)]
    )
    if not all(hasattr(buffer, method) for method in methods):
        return None
    made = {method: getattr(buffer, method) for method in methods}
    return [
        calls(made[method]() if method == "add" else made[method](BATCH), lock)
        for method in methods
    ]


@pytest.mark.parametrize(("role", "n_threads"), TEAMS)
def test_operations(compare, everybody, window, role, n_threads):
    """Calls per second of a role; each rival is behind a lock, for none allows two threads."""
    windows = {}
    for buffer in everybody[PER_ADD if role in ADDING else 1]:
        is_ours = isinstance(buffer, OurBuffer)
        works = team(buffer, role, n_threads, None if is_ours else threading.Lock())
        if works:
            n_counted = len(works) if role in ALONE else 1
            name = buffer.name if is_ours else f"{buffer.name} behind one lock"
            windows[name] = lambda works=works, n=n_counted: sum(rates(works, window)[:n])
    parameters = {
        "role": role,
        "threads": n_threads,
        "batch": BATCH,
        **({"rows per add": PER_ADD} if role in ADDING else {}),
    }
    compare.rates("threads: calls by role", parameters, OurBuffer.name, windows, unit="calls/s")
