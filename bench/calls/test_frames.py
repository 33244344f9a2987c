"""Stacks of four Atari frames stored once, against whole ones, and against other buffers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

import kary_replay as kr
from bench.harness import resident
from bench.harness.timing import Contender, Record
from bench.rivals.frames import ONCE, PIXELS, TWICE, Once, Twice
from bench.rivals.frames_elsewhere import Cpprb, Sb3, Tianshou

SLOTS, SHORT_SLOTS = 100_000, 5_000  # 6 GB of whole stacks, and a twentieth of it
MILLION = 1_000_000
BAR = 7_600  # bytes per transition
# by what bench.harness.resident calls them
ELSEWHERE = {"sb3 frames": Sb3, "tianshou frames": Tianshou, "cpprb frames": Cpprb}


@pytest.fixture(scope="module")
def n_rows(short: bool, smoke: bool) -> int:
    return SHORT_SLOTS if short or smoke else SLOTS


@pytest.fixture(scope="module")
def buffers(n_rows: int) -> Iterator[SimpleNamespace]:
    built = SimpleNamespace(once=Once(n_rows), three=Once(n_rows, n_step=3), twice=Twice(n_rows))
    built.elsewhere = [kind(n_rows) for kind in ELSEWHERE.values()]
    yield built
    vars(built).clear()
    gc.collect()


@pytest.mark.parametrize("size", [32, 256])
def test_sample(compare, buffers, size, n_rows):
    ours, *rivals = (
        Contender(one.name, one.buffer.sample, lambda n: [(size,)] * n)
        for one in (buffers.once, buffers.three, buffers.twice, *buffers.elsewhere)
    )
    compare.times("frames: sample", {"slots": n_rows, "batch": size}, ours, rivals)


def test_add(compare, buffers, n_rows):
    rivals = [buffers.three.add(), buffers.twice.add()]
    compare.times("frames: add", {"slots": n_rows, "environments": 8}, buffers.once.add(), rivals)


def test_memory(compare, benchmark, n_rows):
    """`nbytes` per row at 1e5 rows, computed for 1e6, and by how much a process grows."""

    def nbytes(slots: int) -> int:
        return kr.FrameReplayBuffer(
            slots, kr.Field(PIXELS, "uint8"), {"action": kr.Field((), "int64")}, n_step=3
        ).nbytes

    tree = {slots: kr.SumTree(slots).nbytes for slots in (n_rows, 2 * n_rows, MILLION)}
    declared = benchmark.pedantic(nbytes, args=(n_rows,), rounds=1)
    row = (nbytes(2 * n_rows) - declared - tree[2 * n_rows] + tree[n_rows]) / n_rows
    million = (declared + (MILLION - n_rows) * row + tree[MILLION] - tree[n_rows]) / MILLION
    repetitions = {
        ONCE: [declared / n_rows],
        f"{ONCE}, 1e6 computed": [million],
        f"{ONCE}, resident": [resident.growth("frames", n_rows) / n_rows],
        f"{TWICE}, resident": [resident.growth("stacks", n_rows) / n_rows],
        **{
            f"{kind.name}, resident": [resident.growth(key, n_rows) / n_rows]
            for key, kind in ELSEWHERE.items()
        },
    }
    record = Record(
        "frames: memory", {"slots": n_rows, "n_step": 3}, "bytes per slot", ONCE, repetitions
    )
    reached = max(value for name, (value,) in repetitions.items() if name.startswith(ONCE))
    record.bars.append(
        {"text": f"≤ {BAR} bytes", "minimum": None, "reached": reached, "met": reached <= BAR}
    )
    compare.keep(record)
