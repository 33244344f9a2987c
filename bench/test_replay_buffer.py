"""Whole buffers of HalfCheetah-shaped rows: sample, update priorities, and both in turn."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from bench import grid
from bench.rivals import cpprb_buffer, sb3_buffer, tianshou_buffer
from bench.rivals.ours import OurBuffer
from bench.timing import Bar

BATCH = grid.MIDDLE[1]
PRIORITIZED = (tianshou_buffer.NAME, cpprb_buffer.NAME)
SAMPLE_BARS = (Bar(PRIORITIZED, 4.0), Bar((sb3_buffer.NAME,), 2.5))


@pytest.fixture(scope="module")
def buffers(slots: int) -> Iterator[SimpleNamespace]:
    """All four, filled: about 8 GB at 1e7 slots."""
    built = SimpleNamespace(
        ours=OurBuffer(slots),
        tianshou=tianshou_buffer.TianshouBuffer(slots),
        cpprb=cpprb_buffer.CpprbBuffer(slots),
        sb3=sb3_buffer.Sb3Buffer(slots),
    )
    yield built
    vars(built).clear()
    gc.collect()


def test_sample_cold(compare, buffers, slots):
    """One call at a time, with other work's memory passing through the caches in between."""
    rivals = [buffers.tianshou.sample(BATCH), buffers.cpprb.sample(BATCH), buffers.sb3.sample(BATCH)]
    parameters = {"slots": slots, "batch": BATCH}
    compare.times("buffer sample, cold", parameters, buffers.ours.sample(BATCH), rivals, cold=True)


def test_sample(compare, buffers, slots, batch):
    bars = SAMPLE_BARS if (slots, batch) == grid.MIDDLE else ()
    rivals = [buffers.tianshou.sample(batch), buffers.cpprb.sample(batch), buffers.sb3.sample(batch)]
    compare.times("buffer sample", {"slots": slots, "batch": batch}, buffers.ours.sample(batch), rivals, bars)


def test_update_priorities(compare, buffers, slots, batch):
    rivals = [buffers.tianshou.update(batch), buffers.cpprb.update(batch)]
    parameters = {"slots": slots, "batch": batch}
    compare.times("buffer update_priorities", parameters, buffers.ours.update(batch), rivals)


def test_cycle(compare, buffers, slots, batch):
    rivals = [buffers.tianshou.cycle(batch), buffers.cpprb.cycle(batch)]
    parameters = {"slots": slots, "batch": batch}
    compare.times("buffer sample + update_priorities", parameters, buffers.ours.cycle(batch), rivals)
