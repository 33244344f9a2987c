"""Saving and loading against pickle, and how long writers wait meanwhile.

Pickle checks nothing, writes over the file before, waits for no disk, and holds a second copy of
all rows in memory: it is a yardstick, not a rival. `synced` does for its file what `save` does for
its own: waits until it is on the disk.
"""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import kary_replay as kr
from bench.harness.timing import Record, collector_off, rotated
from bench.rivals.ours import FIELDS
from bench.rivals.rows import chunks

ROUNDS = 5
IMAGES = {"image": kr.Field((84, 84), "uint8"), "reward": kr.Field((), "float32")}


def images(slots: int) -> kr.PrioritizedReplayBuffer:
    buffer = kr.PrioritizedReplayBuffer(slots, IMAGES, seed=0)
    block = np.random.default_rng(0).integers(0, 256, (1000, 84, 84), np.uint8)
    for start in range(0, slots, 1000):
        buffer.add(image=block, reward=np.arange(start, start + 1000, dtype=np.float32))
    return buffer


def half_cheetah(slots: int) -> kr.PrioritizedReplayBuffer:
    buffer = kr.PrioritizedReplayBuffer(slots, FIELDS, seed=0)
    for _, block, errors in chunks(slots):
        buffer.add(priority=errors + 1e-6, **block)
    return buffer


def dump(buffer: Any, path: Path, sync: bool) -> None:
    with open(path, "wb") as file:
        pickle.dump(buffer, file, protocol=5)
        if sync:
            file.flush()
            os.fsync(file.fileno())


def restore(path: Path) -> Any:
    with open(path, "rb") as file:
        return pickle.load(file)


def rounds_of(contenders: dict[str, Callable[[], Any]], n_rounds: int) -> dict[str, list[float]]:
    """Seconds of each contender in every round, one after the other; none is always first."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    gc.collect()
    with collector_off():
        for number in range(n_rounds):
            for name in rotated(names, number):
                os.sync()  # the one before must not leave its writing to this one
                start = perf_counter()
                result = contenders[name]()
                seconds[name].append(perf_counter() - start)
                del result
    return seconds


@pytest.fixture(
    params=[(images, 100_000), (half_cheetah, 1_000_000)], ids=["images", "half_cheetah"]
)
def made(
    request: pytest.FixtureRequest, short: bool, smoke: bool
) -> tuple[str, kr.PrioritizedReplayBuffer]:
    """A name and a full buffer; a tenth of it in the short form, a hundredth for a smoke test."""
    make, n_rows = request.param
    return make.__name__, make(n_rows // (100 if smoke else 10 if short else 1))


@pytest.fixture(scope="module")
def n_rounds(short: bool, smoke: bool) -> int:
    return 1 if smoke else 3 if short else ROUNDS


def test_save_and_load(compare, benchmark, made, n_rounds, tmp_path):
    name, buffer = made
    parameters = {"slots": buffer.capacity, "bytes": buffer.nbytes}
    saves = {
        "save": lambda: buffer.save(tmp_path / "saved"),
        "pickle.dump": lambda: dump(buffer, tmp_path / "pickle", False),
        "pickle.dump, synced": lambda: dump(buffer, tmp_path / "pickle", True),
    }
    loads = {
        "load": lambda: kr.PrioritizedReplayBuffer.load(tmp_path / "saved"),
        "pickle.load": lambda: restore(tmp_path / "pickle"),
    }
    benchmark.pedantic(saves["save"], rounds=1)
    dump(buffer, tmp_path / "pickle", False)
    compare.keep(Record(f"save: {name}", parameters, "s", "save", rounds_of(saves, n_rounds)))
    compare.keep(Record(f"load: {name}", parameters, "s", "load", rounds_of(loads, n_rounds)))


def test_pause(compare, benchmark, made, n_rounds, tmp_path):
    """The longest `add` of a thread that adds 1000 rows a second, one by one, beside a save."""
    name, buffer = made
    row = {key: np.zeros(field.shape, field.dtype) for key, field in buffer.fields.items()}

    def longest(call: Callable[[], object]) -> float:
        stop, seconds = threading.Event(), [0.0]

        def write() -> None:
            while not stop.wait(0.001):
                start = perf_counter()
                buffer.add(**row)
                seconds[0] = max(seconds[0], perf_counter() - start)

        thread = threading.Thread(target=write)
        thread.start()
        call()
        stop.set()
        thread.join()
        return seconds[0]

    calls = {
        "save": lambda: buffer.save(tmp_path / "saved"),
        "pickle.dump": lambda: dump(buffer, tmp_path / "pickle", False),
    }
    repetitions: dict[str, list[float]] = {caller: [] for caller in calls}
    benchmark.pedantic(calls["save"], rounds=1)
    gc.collect()
    with collector_off():
        for number in range(n_rounds):
            for caller in rotated(list(calls), number):
                repetitions[caller].append(longest(calls[caller]))
    compare.keep(
        Record(
            f"longest add beside a save: {name}",
            {"slots": buffer.capacity},
            "s",
            "save",
            repetitions,
        )
    )
