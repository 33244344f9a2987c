"""Whole buffers of HalfCheetah-shaped rows: sample, update priorities, and both in turn."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from bench.harness import grid
from bench.harness.timing import Bar
from bench.rivals import cpprb_buffer, sb3_buffer, tianshou_buffer
from bench.rivals.cast import Cast, cast

BATCH = grid.MIDDLE[1]
PRIORITIZED = (tianshou_buffer.NAME, cpprb_buffer.NAME)
SAMPLE_BARS = (Bar(PRIORITIZED, 4.0), Bar((sb3_buffer.NAME,), 2.5))


@pytest.fixture(scope="module")
def buffers(slots: int, short: bool) -> Iterator[Cast]:
    """All of them, filled: more than 12 GB at 1e7 slots."""
    with cast(slots, short=short) as made:
        yield made
    gc.collect()


def test_sample_cold(compare, buffers, slots):
    """One call at a time, with other work's memory passing through the caches in between."""
    parameters = {"slots": slots, "batch": BATCH}
    compare.times(
        "buffer sample, cold",
        parameters,
        *buffers.contenders("sample", BATCH),
        notes=buffers.notes,
        cold=True,
    )


def test_sample(compare, buffers, slots, batch):
    bars = SAMPLE_BARS if (slots, batch) == grid.MIDDLE else ()
    parameters = {"slots": slots, "batch": batch}
    compare.times(
        "buffer sample", parameters, *buffers.contenders("sample", batch), bars, buffers.notes
    )


def test_update_priorities(compare, buffers, slots, batch):
    parameters = {"slots": slots, "batch": batch}
    notes = {
        **buffers.notes,
        "RLlib": "left out: it sets priorities of the rows drawn last, of no others",
    }
    compare.times(
        "buffer update_priorities", parameters, *buffers.contenders("update", batch), notes=notes
    )


def test_cycle(compare, buffers, slots, batch):
    parameters = {"slots": slots, "batch": batch}
    scenario = "buffer sample + update_priorities"
    compare.times(scenario, parameters, *buffers.contenders("cycle", batch), notes=buffers.notes)
