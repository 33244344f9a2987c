"""By how much a process grows that fills a buffer: `python -m bench.harness.resident ours 1000`.

Each buffer gets a process of its own, so that no memory freed before hides part of the growth.
"""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys

from bench.harness.machine import resident_bytes
from bench.rivals.rows import CHUNK

BUFFERS = {
    "ours": ("bench.rivals.ours", "OurBuffer"),
    "tianshou": ("bench.rivals.tianshou_buffer", "TianshouBuffer"),
    "cpprb": ("bench.rivals.cpprb_buffer", "CpprbBuffer"),
    "sb3": ("bench.rivals.sb3_buffer", "Sb3Buffer"),
    "frames": ("bench.rivals.frames", "Once"),
    "stacks": ("bench.rivals.frames", "Twice"),
    "sb3 frames": ("bench.rivals.frames_elsewhere", "Sb3"),
    "tianshou frames": ("bench.rivals.frames_elsewhere", "Tianshou"),
    "cpprb frames": ("bench.rivals.frames_elsewhere", "Cpprb"),
}


def growth(key: str, slots: int) -> int:
    """Bytes by which a fresh process grows for this buffer."""
    command = [sys.executable, "-m", "bench.harness.resident", key, str(slots)]
    # A fixed threshold makes the C library give large freed arrays back at once instead of counting
    # them as growth.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    return int(
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    )


def _measure(key: str, slots: int) -> int:
    module, name = BUFFERS[key]
    build = getattr(importlib.import_module(module), name)
    chunk: int = getattr(importlib.import_module(module), "CHUNK", CHUNK)
    build(2 * chunk)  # imports, compiles and touches what is not the buffer itself
    gc.collect()
    before = resident_bytes()
    buffer = build(slots)
    gc.collect()
    after = resident_bytes()
    assert buffer is not None
    return (after or 0) - (before or 0)


if __name__ == "__main__":
    print(_measure(sys.argv[1], int(sys.argv[2])))
