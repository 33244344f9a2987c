"""Processes on one shared buffer: rows per second over fixed windows, against one process and against cpprb."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import pytest

import kary_replay as kr
from bench import grid
from bench.ablation.build import load
from bench.rivals.cpprb_buffer import FIELDS as CPPRB_FIELDS
from bench.rivals.cpprb_buffer import named
from bench.rivals.ours import FIELDS
from bench.rivals.rows import ALPHA, BETA, chunks, rows
from bench.timing import Bar
from bench.workers import CONTEXT, Worker, rates

SLOTS, BATCH = grid.MIDDLE
PER_ADD = 16  # rows: one per environment of an actor
SCALING_BAR, UNDISTURBED_BAR = 1.8, 0.9
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
def ours() -> Iterator[kr.PrioritizedReplayBuffer]:
    with kr.PrioritizedReplayBuffer(SLOTS, FIELDS, alpha=ALPHA, beta=BETA, shared=True) as buffer:
        for _, block, errors in chunks(SLOTS):
            buffer.add(priority=np.abs(errors) + 1e-6, **block)
        yield buffer


@pytest.fixture(scope="module")
def cpprb() -> Any:
    from cpprb import MPPrioritizedReplayBuffer

    buffer = MPPrioritizedReplayBuffer(SLOTS, CPPRB_FIELDS, alpha=ALPHA, ctx=CONTEXT)
    for _, block, errors in chunks(SLOTS):
        buffer.add(priorities=np.abs(errors), **named(block))
    return buffer


@pytest.fixture(scope="module")
def workers(ours, cpprb) -> Iterator[dict[str, list[Worker]]]:
    made = {}
    for name, buffer in ((OURS, ours), (CPPRB, cpprb)):
        made[name, "sampler"] = [Worker(sampler, buffer) for _ in range(2 if name == OURS else 1)]
        made[name, "adder"] = [Worker(adder, buffer, seed) for seed in range(2)]
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
        return sum(rates(samplers, window))

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
    record.notes["two processes"] = f"a cache line went between the two cores and back in {median(round_trips):.0f} ns (median)"


def test_a_sampler_beside_an_adder(compare, workers, window):
    """The bar: an actor in another process costs a learner no more than a tenth."""
    samplers, adders = workers[OURS, "sampler"], workers[OURS, "adder"]
    windows = {
        "beside an adder": lambda: rates([samplers[0], adders[0]], window)[0],
        "alone": lambda: rates(samplers[:1], window)[0],
    }
    bars = [Bar(("alone",), UNDISTURBED_BAR)]
    parameters = {"slots": SLOTS, "batch": BATCH, "rows per add": PER_ADD}
    compare.rates("processes: a sampler's rows", parameters, "beside an adder", windows, bars, watch=False)


@pytest.mark.parametrize("n_writers", [1, 2])
def test_adding(compare, workers, window, n_writers):
    windows = {name: lambda name=name: sum(rates(workers[name, "adder"][:n_writers], window)) for name in (OURS, CPPRB)}
    compare.rates("processes: add", {"writers": n_writers, "rows per add": PER_ADD}, OURS, windows, watch=False)


@pytest.mark.parametrize("n_writers", [0, 1])
def test_sampling(compare, workers, window, n_writers):
    """With as many writers at work; two cores."""
    windows = {
        name: lambda name=name: rates([workers[name, "sampler"][0], *workers[name, "adder"][:n_writers]], window)[0]
        for name in (OURS, CPPRB)
    }
    compare.rates("processes: sample beside writers", {"writers": n_writers, "batch": BATCH}, OURS, windows, watch=False)
