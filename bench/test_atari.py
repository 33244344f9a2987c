"""Whole buffers of Atari's rows, two stacks of four frames each: sample, sample and update priorities, add."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bench.rivals.cast import Cast, cast
from bench.rivals.rows import ATARI

SLOTS = 10_000  # 0.6 GB for each


@pytest.fixture(scope="module")
def buffers(smoke: bool, short: bool) -> Iterator[Cast]:
    with cast(100 if smoke else SLOTS, kind=ATARI, short=short) as made:
        yield made
    gc.collect()


@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize(("method", "scenario"), [("sample", "sample"), ("cycle", "sample + update_priorities")])
def test_batch(compare, buffers, method, scenario, size):
    parameters = {"slots": SLOTS, "batch": size}
    compare.times(f"Atari rows: {scenario}", parameters, *buffers.contenders(method, size), notes=buffers.notes)


def test_add(compare, buffers):
    compare.times("Atari rows: add", {"slots": SLOTS, "rows": 1}, *buffers.contenders("add"), notes=buffers.notes)
