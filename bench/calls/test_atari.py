"""Sample, update and add where a row is two stacks of four frames, as Atari's are."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bench.rivals.cast import Cast, cast
from bench.rivals.rows import ATARI

SLOTS, SHORT_SLOTS, SMOKE_SLOTS = 10_000, 2_000, 100  # 0.6 GB for each, 0.1 GB, 6 MB


@pytest.fixture(scope="module")
def n_rows(short: bool, smoke: bool) -> int:
    return SMOKE_SLOTS if smoke else SHORT_SLOTS if short else SLOTS


@pytest.fixture(scope="module")
def buffers(n_rows: int, short: bool) -> Iterator[Cast]:
    with cast(n_rows, kind=ATARI, short=short) as made:
        yield made
    gc.collect()


@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize(
    ("method", "scenario"), [("sample", "sample"), ("cycle", "sample + update_priorities")]
)
def test_batch(compare, buffers, n_rows, method, scenario, size):
    parameters = {"slots": n_rows, "batch": size}
    compare.times(
        f"Atari rows: {scenario}",
        parameters,
        *buffers.contenders(method, size),
        notes=buffers.notes,
    )


def test_add(compare, buffers, n_rows):
    compare.times(
        "Atari rows: add",
        {"slots": n_rows, "rows": 1},
        *buffers.contenders("add"),
        notes=buffers.notes,
    )
