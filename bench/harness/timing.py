"""Interleaved repetitions: every round times ours and each rival, one after the other.

Two runs made minutes apart differ by more than some of the ratios here (clock speed, neighbours,
page placement). So the rivals are timed in the `setup` and `teardown` callbacks of the very round
in which pytest-benchmark times ours, in an order that rotates, and a slow spell of the machine hits
both sides of a ratio.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from statistics import median, quantiles
from time import perf_counter, process_time, thread_time
from typing import Any, TypeVar

import numpy as np

from bench.harness.machine import Neighbours

# one repetition: thousands of timer ticks, yet shorter than a scheduler's time slice
TARGET_SECONDS = 0.0015
# before the clock starts, so that each finds the caches as its own calls leave them
WARM_SECONDS = 0.010
MAX_CALLS = 4_000
SCRUB_BYTES = 8 << 20
# cores that other processes may use while a window of the thread scenarios lasts
MAX_NEIGHBOURS = 0.1
WINDOW_ATTEMPTS = 3  # a disturbed window is measured again
ATTEMPTS = 3  # a rival that fails, as some do by rounding, does not cost the whole run
MIN_UNDISTURBED = 5  # rounds; with fewer, every round counts
Inputs = Sequence[tuple[Any, ...]]
T = TypeVar("T")


@dataclass(frozen=True)
class Contender:
    """One side of a comparison: a call, and how to make the arguments of n calls beforehand."""

    name: str
    call: Callable[..., object]
    inputs: Callable[[int], Inputs]
    operations: int = 1  # what one call does; times are reported per operation
    # whether other threads of this process work for the call, which waits for them
    has_threads: bool = False

    def timed(self, n_calls: int, before: Before) -> tuple[float, bool]:
        """Seconds of one repetition, and whether another process got in between.

        Its inputs are made, and `before` has run, before the clock starts.
        """
        inputs = self.inputs(n_calls)
        before(self)
        watch = Watch(self.has_threads)
        start = perf_counter()
        run(self.call, inputs)
        seconds = perf_counter() - start
        return seconds, watch.disturbed()


# picklable, for contenders of other processes (rivals/remote.py)
Before = Callable[[Contender], object]


@dataclass(frozen=True)
class Bar:
    """A promise: ours is at least `minimum` times faster than each of `rivals`."""

    rivals: tuple[str, ...]
    minimum: float

    def verdict(self, ratios: dict[str, float]) -> bool:
        return all(ratios[name] >= self.minimum for name in self.rivals)

    def __str__(self) -> str:
        return f"≥ {self.minimum:g}× {' and '.join(self.rivals)}"


@dataclass
class Record:
    """One comparison, as it is written to the JSON file."""

    scenario: str
    parameters: dict[str, Any]
    unit: str  # of every number in `repetitions`; lower is better, unless it ends in "/s"
    ours: str
    repetitions: dict[str, list[float]]
    calls: dict[str, int] = field(default_factory=dict)
    # rounds in which another process took the core
    disturbed: dict[str, list[int]] = field(default_factory=dict)
    bars: list[dict[str, Any]] = field(default_factory=list)
    # contender -> why it is missing, or what to know about it
    notes: dict[str, str] = field(default_factory=dict)

    def disturbed_rounds(self) -> set[int]:
        """Return the rounds in which another process took somebody's core."""
        return {number for numbers in self.disturbed.values() for number in numbers}

    def counted(self) -> list[int]:
        """Return the rounds that count for all: the undisturbed ones, if they are enough."""
        rounds = range(len(self.repetitions[self.ours]))
        undisturbed = sorted(set(rounds) - self.disturbed_rounds())
        return undisturbed if len(undisturbed) >= MIN_UNDISTURBED else list(rounds)

    def doubtful(self) -> bool:
        """Return whether disturbed rounds count, because there are too few others."""
        return not self.disturbed_rounds().isdisjoint(self.counted())

    def medians(self) -> dict[str, float]:
        """Each contender's median over the rounds that count."""
        rounds = self.counted()
        return {
            name: median(values[number] for number in rounds)
            for name, values in self.repetitions.items()
            if values
        }

    def ratios(self) -> dict[str, float]:
        """How many times better ours is than each of the others, from the medians."""
        medians = self.medians()
        mine = medians[self.ours]
        return {
            name: (mine / value if self.unit.endswith("/s") else value / mine)
            for name, value in medians.items()
            if name != self.ours
        }

    def ratio_quartiles(self) -> dict[str, list[float]]:
        """Quartiles of the same ratio taken round by round: its scatter."""
        result: dict[str, list[float]] = {}
        mine, rounds = self.repetitions[self.ours], self.counted()
        if len(rounds) < 2:
            return result
        for name, values in self.repetitions.items():
            if name == self.ours:
                continue
            pairs = [(values[number], mine[number]) for number in rounds]
            result[name] = quantiles(
                [m / v if self.unit.endswith("/s") else v / m for v, m in pairs], n=4
            )
        return result

    def add_bars(self, bars: Sequence[Bar]) -> None:
        """Judges the promises and keeps the verdicts beside the figures."""
        ratios = self.ratios()
        for bar in bars:
            worst = min(ratios[name] for name in bar.rivals)
            self.bars.append(
                {
                    "text": str(bar),
                    "minimum": bar.minimum,
                    "reached": worst,
                    "met": bar.verdict(ratios),
                }
            )


def find(records: Sequence[Record], scenario: str, **parameters: Any) -> list[Record]:
    """Return the records of a scenario that have these parameters."""
    return [
        r for r in records if r.scenario == scenario and parameters.items() <= r.parameters.items()
    ]


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep the garbage collector from running while something is timed."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def run(call: Callable[..., object], inputs: Inputs) -> None:
    """Run the timed loop, the same for every contender."""
    for arguments in inputs:
        call(*arguments)


class Watch:
    """Tell whether this thread had a core to itself: its processor time is then the wall time.

    Where a thread waits while others of its process work, theirs is counted, too.
    """

    def __init__(self, has_threads: bool = False) -> None:
        self._clock = process_time if has_threads else thread_time
        self._wall, self._processor = perf_counter(), self._clock()

    def disturbed(self) -> bool:
        wall, processor = perf_counter() - self._wall, self._clock() - self._processor
        return wall - processor > max(0.02 * wall, 20e-6)


def nothing(_: Contender) -> None:
    """No preparation."""


def warm_up(n_calls: int, contender: Contender) -> None:
    """Untimed calls with inputs of their own."""
    run(contender.call, contender.inputs(n_calls))


@cache
def _other_memory() -> np.ndarray:
    return np.ones(SCRUB_BYTES // 8)


def scrub(_: Contender) -> None:
    """Read and write 8 MiB of other memory, as a gradient step between two batches does."""
    other = _other_memory()
    other += 1.0


def calibrate(contender: Contender) -> tuple[int, Before]:
    """Return how many calls take TARGET_SECONDS, and what warms them up for WARM_SECONDS.

    First calls may take many times what later ones do: pages that were never touched, somebody
    else's caches, inputs just made. So they are only counted, until WARM_SECONDS have passed; then
    repetitions are timed after as many calls, as they will be.
    """
    n_calls, n_warm, spent = 1, 0, 0.0
    while spent < WARM_SECONDS:
        spent += contender.timed(n_calls, nothing)[0]
        n_warm += n_calls
        n_calls = min(2 * n_calls, MAX_CALLS)
    n_calls = 1
    while True:
        before = partial(warm_up, n_warm)
        each = max(min(contender.timed(n_calls, before)[0] for _ in range(3)), 1e-9) / n_calls
        wanted = max(1, min(round(TARGET_SECONDS / each), MAX_CALLS))
        n_warm = max(
            1, min(round(WARM_SECONDS / each), round(wanted * WARM_SECONDS / TARGET_SECONDS))
        )
        if wanted <= 1.25 * n_calls:
            return wanted, partial(warm_up, n_warm)
        n_calls = wanted


def interleave(
    benchmark: Any, ours: Contender, rivals: Sequence[Contender], rounds: int, cold: bool = False
) -> Record:
    """Time ours under pytest-benchmark and the rivals in the same rounds. Return every repetition.

    Warm: each contender makes untimed calls first, then as many timed ones as take about
    TARGET_SECONDS. Cold: single calls, and before each of them 8 MiB of other memory pass through
    the caches.
    """
    contenders = [ours, *rivals]
    repetitions: dict[str, list[float]] = {c.name: [] for c in contenders}
    record = Record(scenario="", parameters={}, unit="s", ours=ours.name, repetitions=repetitions)
    if not benchmark.enabled:  # --benchmark-disable: a smoke test, one call each
        for contender in contenders:
            repetitions[contender.name].append(contender.timed(1, nothing)[0])
        return record

    gc.collect()
    with collector_off():
        if cold:
            prepared: dict[str, tuple[int, Before]] = {c.name: (1, scrub) for c in contenders}
        else:
            prepared = {c.name: calibrate(c) for c in contenders}
        calls = {name: n_calls for name, (n_calls, _) in prepared.items()}
        record.calls = calls
        n_round, watch = 0, Watch()
        record.disturbed = {c.name: [] for c in contenders}

        def measure(rival: Contender) -> None:
            n_calls, before = prepared[rival.name]
            for attempts_left in reversed(range(ATTEMPTS)):
                try:
                    seconds, was_disturbed = rival.timed(n_calls, before)
                    break
                except Exception as error:
                    if not attempts_left:
                        raise
                    record.notes[rival.name] = (
                        f"failed in round {n_round}, and was timed anew: "
                        f"{type(error).__name__}: {error}"
                    )
            repetitions[rival.name].append(seconds / (n_calls * rival.operations))
            if was_disturbed:
                record.disturbed[rival.name].append(n_round)

        def setup() -> tuple[tuple[Any, ...], dict[str, Any]]:
            nonlocal watch
            for rival in turns(contenders, ours, n_round)[0]:
                measure(rival)
            # pytest-benchmark allows one iteration with a setup; ours loops inside, so tell it what
            # to divide by.
            benchmark.stats.iterations = calls[ours.name] * ours.operations
            inputs = ours.inputs(calls[ours.name])
            prepared[ours.name][1](ours)
            watch = Watch(ours.has_threads)
            return (ours.call, inputs), {}

        def teardown(*_: Any) -> None:
            nonlocal n_round
            if watch.disturbed():
                record.disturbed[ours.name].append(n_round)
            for rival in turns(contenders, ours, n_round)[1]:
                measure(rival)
            n_round += 1

        benchmark.pedantic(run, setup=setup, teardown=teardown, rounds=rounds)
        repetitions[ours.name].extend(benchmark.stats.stats.data)
    return record


def rotated(things: Sequence[T], turn: int) -> list[T]:
    """Return the things in the order of a turn: the first of one turn is the last of the next."""
    first = turn % len(things)
    return [*things[first:], *things[:first]]


def turns(contenders: Sequence[T], ours: T, n_round: int) -> tuple[list[T], list[T]]:
    """Return who comes before us in a round, and who after."""
    order = rotated(contenders, n_round)
    place = order.index(ours)
    return order[:place], order[place + 1 :]


def interleave_windows(
    benchmark: Any,
    ours: str,
    windows: dict[str, Callable[[], float]],
    rounds: int,
    watch: bool = True,
) -> Record:
    """Run each window once per round and keep its rate; pytest-benchmark sees ours.

    `watch=False` where the work is done in processes of our own, which would be taken for others.
    """
    repetitions: dict[str, list[float]] = {name: [] for name in windows}
    names, n_round = list(windows), 0
    disturbed: dict[str, list[int]] = {name: [] for name in windows}

    def measure(name: str) -> None:
        for _ in range(WINDOW_ATTEMPTS if benchmark.enabled else 1):
            neighbours = Neighbours()
            rate = windows[name]()
            was_disturbed = watch and neighbours.cores_used() > MAX_NEIGHBOURS
            if not was_disturbed:
                break
        repetitions[name].append(rate)
        if was_disturbed:
            disturbed[name].append(len(repetitions[name]) - 1)

    def setup() -> tuple[tuple[str], dict[str, Any]]:
        for name in turns(names, ours, n_round)[0]:
            measure(name)
        return (ours,), {}

    def teardown(*_: Any) -> None:
        nonlocal n_round
        for name in turns(names, ours, n_round)[1]:
            measure(name)
        n_round += 1

    record = Record(scenario="", parameters={}, unit="rows/s", ours=ours, repetitions=repetitions)
    record.disturbed = disturbed
    if not benchmark.enabled:  # a smoke test, one window each
        for name in names:
            measure(name)
        return record
    gc.collect()
    with collector_off():
        benchmark.pedantic(measure, setup=setup, teardown=teardown, rounds=rounds)
    return record
