"""What ``python -m kary_replay`` shows: versions, the machine, and whether buffers can be shared here."""

from __future__ import annotations

import os
import pickle
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from .buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from .core.block import BUILD
from .types import Field
from .version import VERSION

__all__ = ["BUILD", "about"]

PACKAGES = ("numpy", "torch", "gymnasium", "stable-baselines3", "sb3-contrib", "tianshou")
FEATURES = (  # as /proc/cpuinfo names them: x86, then ARM
    "sse4_2", "avx", "avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl", "asimd", "atomics", "sve", "sve2",
)  # fmt: skip
OTHER = (
    "import pickle, sys; from kary_replay import PrioritizedReplayBuffer as Buffer; "
    "Buffer.attach(pickle.load(sys.stdin.buffer)).add(number=[1, 2])"
)


def about() -> str:
    """Return what to say when something does not work, a line for each thing; takes about as long as two starts of NumPy."""
    model, features = _processor()
    versions = {name: _version(name) for name in PACKAGES}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines = {
        "kary-replay": f"{VERSION}, in {Path(__file__).parent}",
        "Python": f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}",
        **{name: version for name, version in versions.items() if version},
        "not installed": ", ".join(name for name, version in versions.items() if not version)
        or "–",
        "compiled with": " ".join(BUILD.values()),
        "system": platform.platform(),
        "processor": model,
        "features": features,
        "cores": f"{cores} of {os.cpu_count()} usable",
        "shared memory": _shared_memory(),
    }
    width = max(map(len, lines)) + 2
    return "".join(f"{name:{width}}{value}\n" for name, value in lines.items())


def _version(name: str) -> str | None:
    """Return the version of a package without importing it; None if it is not there."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> tuple[str, str]:
    """Return the name of the first processor, and which of the vector extensions it has."""
    described: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            described.setdefault(name.strip(), value.strip())
    except OSError:  # not Linux
        pass
    flags = (described.get("flags") or described.get("Features") or "").split()
    model = described.get("model name") or platform.processor() or platform.machine()
    return model, " ".join(name for name in FEATURES if name in flags) or "unknown"


def _shared_memory() -> str:
    """Make a small shared buffer, have another process add to it, and draw from it: return "works", or why it does not."""
    try:
        with PrioritizedReplayBuffer(
            4, {"number": Field((), "int64")}, seed=0, shared=True
        ) as buffer:
            descriptor = pickle.dumps(buffer.descriptor)
            other = subprocess.run(
                [sys.executable, "-c", OTHER], input=descriptor, capture_output=True, timeout=60
            )
            if other.returncode:
                *_, complaint = other.stderr.decode(errors="replace").strip().split("\n")
                raise RuntimeError(f"another process could not add: {complaint}")
            batch = buffer.sample(4)
            buffer.update_priorities(batch.handle, batch.number)
            buffer.check_invariants()
            if set(batch.number) != {1, 2}:
                raise RuntimeError(f"another process added 1 and 2, and {batch.number} was drawn")
    except Exception as error:  # whatever it is, it is what the user wants to know
        return f"does not work: {type(error).__name__}: {error}".rstrip()
    return "works"
