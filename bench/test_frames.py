"""Stacks of four Atari frames: what a transition costs in memory, and a batch in time, against rows with both whole stacks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import kary_replay as kr
from bench import resident
from bench.rivals.frames import ONCE, PIXELS, TWICE, Once, Twice
from bench.timing import Record

SLOTS = 100_000  # 6 GB of whole stacks
BAR = 7_600  # bytes per transition


@pytest.fixture(scope="module")
def buffers() -> Iterator[SimpleNamespace]:
    built = SimpleNamespace(once=Once(SLOTS), three=Once(SLOTS, n_step=3), twice=Twice(SLOTS))
    yield built
    vars(built).clear()
    gc.collect()


@pytest.mark.parametrize("size", [32, 256])
def test_sample(compare, buffers, size):
    rivals = [buffers.three.sample(size), buffers.twice.sample(size)]
    compare.times("frames: sample", {"slots": SLOTS, "batch": size}, buffers.once.sample(size), rivals)


def test_add(compare, buffers):
    rivals = [buffers.three.add(), buffers.twice.add()]
    compare.times("frames: add", {"slots": SLOTS, "environments": 8}, buffers.once.add(), rivals)


RIVALS = {  # with their thriftiest settings, which the classes name
    "SB3 ReplayBuffer, optimize_memory_usage": "sb3 frames",
    "Tianshou PrioritizedReplayBuffer, frames once": "tianshou frames",
    "cpprb PrioritizedReplayBuffer, frames once": "cpprb frames",
}


def test_memory(compare, benchmark):
    """`nbytes` per row against the bar, at 1e5 and, computed from it, at 1e6; and how much a process really grows."""

    def nbytes(slots: int) -> int:
        return kr.FrameReplayBuffer(slots, kr.Field(PIXELS, "uint8"), {"action": kr.Field((), "int64")}, n_step=3).nbytes

    tree = {slots: kr.SumTree(slots).nbytes for slots in (SLOTS, 2 * SLOTS, 10 * SLOTS)}
    declared = benchmark.pedantic(nbytes, args=(SLOTS,), rounds=1)
    row = (nbytes(2 * SLOTS) - declared - tree[2 * SLOTS] + tree[SLOTS]) / SLOTS
    million = (declared + 9 * SLOTS * row + tree[10 * SLOTS] - tree[SLOTS]) / (10 * SLOTS)
    repetitions = {
        ONCE: [declared / SLOTS],
        f"{ONCE}, 1e6 computed": [million],
        f"{ONCE}, resident": [resident.growth("frames", SLOTS) / SLOTS],
        f"{TWICE}, resident": [resident.growth("stacks", SLOTS) / SLOTS],
        **{f"{name}, resident": [resident.growth(key, SLOTS) / SLOTS] for name, key in RIVALS.items()},
    }
    record = Record("frames: memory", {"slots": SLOTS, "n_step": 3}, "bytes per slot", ONCE, repetitions)
    reached = max(value for name, (value,) in repetitions.items() if name.startswith(ONCE))
    record.bars.append({"text": f"≤ {BAR} bytes", "minimum": None, "reached": reached, "met": reached <= BAR})
    compare.keep(record)
