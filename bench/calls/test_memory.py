"""What a slot costs beyond its 165 bytes of data, by the buffer's word and by measurement."""

from __future__ import annotations

import pytest

from bench.harness import resident
from bench.harness.grid import MIDDLE
from bench.harness.timing import Record
from bench.rivals import cpprb_buffer, ours, sb3_buffer, tianshou_buffer
from bench.rivals.rows import PAYLOAD_BYTES

BAR = 24  # bytes per slot
NAMES = {
    "ours": ours.NAME,
    "tianshou": tianshou_buffer.NAME,
    "cpprb": cpprb_buffer.NAME,
    "sb3": sb3_buffer.NAME,
}


def test_memory(compare, benchmark, slots, short):
    """`nbytes_overhead / capacity` against the bar, beside the growth of a process, for all."""
    if short and slots != MIDDLE[0]:
        pytest.skip(
            "the short form measures one size: every buffer's process imports its library first"
        )
    declared = (
        benchmark.pedantic(
            lambda buffer: buffer.nbytes_overhead, args=(ours.OurBuffer(slots).buffer,), rounds=1
        )
        / slots
    )
    repetitions = {ours.NAME: [declared]}
    for key, name in NAMES.items():
        repetitions[f"{name}, resident"] = [resident.growth(key, slots) / slots - PAYLOAD_BYTES]
    record = Record(
        "memory beyond the payload", {"slots": slots}, "bytes per slot", ours.NAME, repetitions
    )
    record.bars.append(
        {"text": f"≤ {BAR} bytes", "minimum": None, "reached": declared, "met": declared <= BAR}
    )
    compare.keep(record)
