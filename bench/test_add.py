"""Adding to a full buffer: one transition, and one from each of 16 or 256 environments at once."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bench.rivals.cpprb_buffer import CpprbBuffer
from bench.rivals.ours import OurBuffer
from bench.rivals.sb3_buffer import Sb3Buffer
from bench.rivals.tianshou_buffer import TianshouBuffer


@pytest.fixture(scope="module", params=[1, 16, 256])
def rows(request: pytest.FixtureRequest) -> Iterator[int]:
    yield request.param
    gc.collect()


def test_add(compare, slots, rows):
    ours, *rivals = (build(slots, rows).add() for build in (OurBuffer, TianshouBuffer, CpprbBuffer, Sb3Buffer))
    compare.times("buffer add", {"slots": slots, "rows": rows}, ours, rivals)
