"""Processes on one shared buffer: rows per second, against one process and against cpprb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import pytest

import kary_replay as kr
from bench.ablation.build import load
from bench.harness import grid
from bench.harness.timing import Bar
from bench.harness.workers import CONTEXT, Worker, rates
from bench.rivals.cpprb_buffer import FIELDS as CPPRB_FIELDS
from bench.rivals.cpprb_buffer import named
from bench.rivals.ours import FIELDS
from bench.rivals.rows import ALPHA, BETA, chunks, rows, td_errors

SLOTS, BATCH = grid.MIDDLE
PER_ADD = 16  # rows: one per environment of an actor
SCALING_BAR, UNDISTURBED_BAR = 1.8, 0.9
MOST = max(2, *grid.counts())
OURS, CPPRB = "kary-replay", "cpprb MPPrioritizedReplayBuffer"


def sampler(buffer: Any) -> Callable[[], int]:
    """A learner that draws."""
    if isinstance(buffer, kr.PrioritizedReplayBuffer):
        draw = lambda: buffer.sample(BATCH)  # noqa: E731
    else:
        draw = lambda: buffer.sample(BATCH, BETA)  # noqa: E731

    def work() -> int:
        draw()
        return BATCH

    return work


def learner(buffer: Any) -> Callable[[], int]:
    """A learner that draws, and sets the priorities of what it drew."""
    errors = td_errors(BATCH)
    ours = isinstance(buffer, kr.PrioritizedReplayBuffer)

    def our_work() -> int:
        buffer.update_priorities(buffer.sample(BATCH).handle, errors)
        return BATCH

    def their_work() -> int:
        drawn = buffer.sample(BATCH, BETA)
        buffer.update_priorities(drawn["indexes"], errors)
        return BATCH

    return our_work if ours else their_work


def adder(buffer: Any, seed: int) -> Callable[[], int]:
    """An actor that adds one row per environment at a time, with priorities."""
    ours = isinstance(buffer, kr.PrioritizedReplayBuffer)
    pool = [rows(PER_ADD, seed + i) for i in range(64)]
    pool = pool if ours else [named(block) for block in pool]
    priority = np.random.default_rng(seed).lognormal(size=PER_ADD)
    name = "priority" if ours else "priorities"
    turn = 0

    def work() -> int:
        nonlocal turn
        turn += 1
        buffer.add(**pool[turn % 64], **{name: priority})
        return PER_ADD

    return work


@pytest.fixture(scope="module")
def slots_here(smoke: bool) -> int:
    return 10_000 if smoke else SLOTS


@pytest.fixture(scope="module")
def ours(slots_here: int) -> Iterator[kr.PrioritizedReplayBuffer]:
    with kr.PrioritizedReplayBuffer(
        slots_here, FIELDS, alpha=ALPHA, beta=BETA, shared=True
    ) as buffer:
        for _, block, errors in chunks(slots_here):
            buffer.add(priority=np.abs(errors) + 1e-6, **block)
        yield buffer


@pytest.fixture(scope="module")
def cpprb(slots_here: int) -> Any:
    from cpprb import MPPrioritizedReplayBuffer

    buffer = MPPrioritizedReplayBuffer(slots_here, CPPRB_FIELDS, alpha=ALPHA, ctx=CONTEXT)
    for _, block, errors in chunks(slots_here):
        buffer.add(priorities=np.abs(errors), **named(block))
    return buffer


@pytest.fixture(scope="module")
def workers(ours, cpprb) -> Iterator[dict[str, list[Worker]]]:
    made = {}
    for name, buffer in ((OURS, ours), (CPPRB, cpprb)):
        n_readers = MOST if name == OURS else 1  # cpprb's has one reader and many writers
        made[name, "sampler"] = [Worker(sampler, buffer) for _ in range(n_readers)]
        made[name, "learner"] = [Worker(learner, buffer) for _ in range(n_readers)]
        made[name, "adder"] = [Worker(adder, buffer, seed) for seed in range(MOST)]
    yield made
    for group in made.values():
        for worker in group:
            worker.close()


@pytest.fixture
def window(request: pytest.FixtureRequest) -> float:
    return request.config.getoption("--window")


def test_two_samplers(compare, workers, window):
    """The bar: two processes that sample at once against one."""
    samplers = workers[OURS, "sampler"]
    round_trips = []

    def two() -> float:
        round_trips.append(load().line_round_trip() * 1e9)
        return sum(rates(samplers[:2], window))

    windows = {"two processes": two, "one process": lambda: sum(rates(samplers[:1], window))}
    record = compare.rates(
        "processes: sample",
        {"slots": SLOTS, "batch": BATCH},
        "two processes",
        windows,
        [Bar(("one process",), SCALING_BAR)],
        rounds=21,
        watch=False,
    )
    record.notes["two processes"] = (
        f"a cache line went between the two cores and back in {median(round_trips):.0f} ns (median)"
    )


def test_a_sampler_beside_an_adder(compare, workers, window):
    """The bar: an actor in another process costs a learner no more than a tenth."""
    samplers, adders = workers[OURS, "sampler"], workers[OURS, "adder"]
    windows = {
        "beside an adder": lambda: rates([samplers[0], adders[0]], window)[0],
        "alone": lambda: rates(samplers[:1], window)[0],
    }
    bars = [Bar(("alone",), UNDISTURBED_BAR)]
    parameters = {"slots": SLOTS, "batch": BATCH, "rows per add": PER_ADD}
    compare.rates(
        "processes: a sampler's rows",
        parameters,
        "beside an adder",
        windows,
        bars,
        rounds=21,
        watch=False,
    )


@pytest.mark.parametrize("n_processes", [n for n in grid.counts(MOST) if n > 2])
def test_more_samplers(compare, workers, window, n_processes):
    samplers = workers[OURS, "sampler"]
    name = f"{n_processes} processes"
    windows = {
        name: lambda: sum(rates(samplers[:n_processes], window)),
        "one process": lambda: sum(rates(samplers[:1], window)),
    }
    compare.rates(
        "processes: sample",
        {"slots": SLOTS, "batch": BATCH, "processes": n_processes},
        name,
        windows,
        watch=False,
    )


@pytest.mark.parametrize("n_learners", grid.counts(MOST))
def test_learning(compare, workers, window, n_learners):
    """Learners that draw and update priorities; cpprb's buffer has one."""
    names = (OURS, CPPRB) if n_learners == 1 else (OURS,)
    windows = {
        name: lambda name=name: sum(rates(workers[name, "learner"][:n_learners], window))
        for name in names
    }
    parameters = {"learners": n_learners, "batch": BATCH}
    compare.rates("processes: sample + update_priorities", parameters, OURS, windows, watch=False)


@pytest.mark.parametrize("n_writers", grid.counts(MOST))
def test_adding(compare, workers, window, n_writers):
    windows = {
        name: lambda name=name: sum(rates(workers[name, "adder"][:n_writers], window))
        for name in (OURS, CPPRB)
    }
    compare.rates(
        "processes: add",
        {"writers": n_writers, "rows per add": PER_ADD},
        OURS,
        windows,
        watch=False,
    )


@pytest.mark.parametrize("n_writers", [0, *grid.counts(MOST - 1)])
def test_sampling(compare, workers, window, n_writers):
    """With as many writers at work."""
    windows = {
        name: lambda name=name: rates(
            [workers[name, "sampler"][0], *workers[name, "adder"][:n_writers]], window
        )[0]
        for name in (OURS, CPPRB)
    }
    compare.rates(
        "processes: sample beside writers",
        {"writers": n_writers, "batch": BATCH},
        OURS,
        windows,
        watch=False,
    )
