"""Adding to a full buffer: one transition, and one from each of 16 or 256 environments at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bench.rivals.cast import cast


@pytest.fixture(scope="module", params=[1, 16, 256])
def rows(request: pytest.FixtureRequest) -> Iterator[int]:
    yield request.param
    gc.collect()


def test_add(compare, slots, rows, short):
    with cast(slots, rows, short=short) as buffers:
        compare.times(
            "buffer add",
            {"slots": slots, "rows": rows},
            *buffers.contenders("add"),
            notes=buffers.notes,
        )
