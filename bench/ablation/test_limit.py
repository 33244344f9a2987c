"""How far is each call from the fastest loop that moves the same memory? See limit.hpp."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import kary_replay as kr
from bench.ablation.build import load
from bench.harness import grid
from bench.harness.timing import Bar, Contender
from bench.rivals.ours import FIELDS, NAME, OurBuffer
from bench.rivals.rows import ALPHA, Updates, chunks, rows, td_errors

SCENARIO = "distance to the limit"
LOOP = "loop in C++"
BATCH = grid.MIDDLE[1]
CALLS = 20  # in a row, without Python in between
# A draw may take 1.6 times as long as the loop does.
BAR = Bar((LOOP,), 1 / 1.6)


@pytest.fixture(scope="module")
def pair(slots: int) -> Iterator[tuple[OurBuffer, Any]]:
    """Our buffer, and the loops on rows and masses of their own."""
    ours, limit = OurBuffer(slots), load("limit").Limit(np.float64(td_errors(slots)) ** ALPHA)
    _check(limit, slots)
    yield ours, limit
    gc.collect()


def _check(limit: Any, slots: int) -> None:
    """Make sure that the loops do what they are there for."""
    for uniform in (False, True):
        limit.sample(3, BATCH, uniform)
        assert uniform or limit.is_right(BATCH)
    updates = Updates(slots, BATCH)
    index, mass = updates.indices(CALLS), np.ones((CALLS, BATCH))
    limit.update(index, mass)
    total, masses = limit.masses()
    assert total == masses.sum()
    assert (masses[index] == 1).all()
    limit.sample(3, BATCH, False)
    assert limit.is_right(BATCH)


def _check_adds(limit: Any, slots: int, arrays: list[np.ndarray]) -> None:
    """Make sure that added rows have the mass they are given."""
    n = len(arrays[0])
    limit.add(2, arrays, 3.0)
    total, masses = limit.masses()
    assert total == masses.sum() == slots + 4.0 * n
    assert (masses[: 2 * n] == 3.0).all()


def _loop(call: Any, inputs: Any) -> Contender:
    return Contender(LOOP, call, inputs, CALLS)


def _compare(compare: Any, slots: int, call: str, ours: Contender, loop: Contender) -> None:
    bars = (BAR,) if (slots, call) == (grid.MIDDLE[0], f"sample {BATCH}") else ()
    compare.times(SCENARIO, {"slots": slots, "call": call}, ours, [loop], bars)


def test_sample(compare, pair, slots):
    ours, limit = pair
    loop = _loop(limit.sample, lambda n: [(CALLS, BATCH, False)] * n)
    _compare(compare, slots, f"sample {BATCH}", ours.sample(BATCH), loop)


def test_sample_uniform(compare, pair, slots):
    """Without priorities."""
    _, limit = pair
    uniform = kr.ReplayBuffer(slots, FIELDS, seed=0)
    for _, block, _ in chunks(slots):
        uniform.add(**block)
    mine = Contender(NAME, uniform.sample, lambda n: [(BATCH,)] * n)
    loop = _loop(limit.sample, lambda n: [(CALLS, BATCH, True)] * n)
    _compare(compare, slots, f"sample {BATCH}, uniform", mine, loop)


def test_sample_out(compare, pair, slots):
    """The same into arrays that are there already."""
    ours, limit = pair
    out = ours.buffer.sample(BATCH)
    into = partial(ours.buffer.sample, out=out)
    loop = _loop(limit.sample, lambda n: [(CALLS, BATCH, False)] * n)
    mine = Contender(NAME, into, lambda n: [(BATCH,)] * n)
    _compare(compare, slots, f"sample {BATCH}, out=", mine, loop)


def test_update_priorities(compare, pair, slots):
    ours, limit = pair
    updates = Updates(slots, BATCH)

    def inputs(n: int) -> list[tuple[Any, ...]]:
        masses = np.float64(td_errors(n * CALLS * BATCH)) ** ALPHA
        in_units = np.maximum(np.round(masses * 2**20), 1) / 2**20
        shape = (n, CALLS, BATCH)
        return list(
            zip(updates.indices(n * CALLS).reshape(shape), in_units.reshape(shape), strict=True)
        )

    loop = _loop(limit.update, inputs)
    _compare(compare, slots, f"update_priorities {BATCH}", ours.update(BATCH), loop)


@pytest.mark.parametrize("n_rows", [1, BATCH])
def test_add(compare, slots, n_rows):
    ours, limit = OurBuffer(slots, n_rows), load("limit").Limit(np.ones(slots))
    arrays = list(rows(n_rows).values())
    _check_adds(limit, slots, arrays)
    loop = _loop(limit.add, lambda n: [(CALLS, arrays, 1.0)] * n)
    _compare(compare, slots, f"add {n_rows}", ours.add(), loop)
