"""The report of ``python -m kary_replay``: versions, the machine, whether memory can be shared."""

from __future__ import annotations

import os
import pickle
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from .buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from .core.block import BUILD, INSTRUCTIONS
from .cores import n_cores
from .native.program import SETS, in_use
from .types import Field
from .version import VERSION

__all__ = ["BUILD", "about"]

PACKAGES = ("numpy", "torch", "gymnasium", "stable-baselines3", "sb3-contrib", "tianshou", "ray")
# the vector extensions as /proc/cpuinfo names them
X86_FEATURES = ["sse4_2", "avx", "avx2", "fma", "avx512f", "avx512dq", "avx512bw", "avx512vl"]
ARM_FEATURES = ["asimd", "atomics", "sve", "sve2"]
# what the second process runs: it adds two rows to the buffer whose descriptor it reads
SECOND_PROCESS = (
    "import pickle, sys; from kary_replay import PrioritizedReplayBuffer as Buffer; "
    "Buffer.attach(pickle.load(sys.stdin.buffer)).add(number=[1, 2])"
)


def about() -> str:
    """Return what to quote when something does not work, one line for each fact.

    The call makes a small shared buffer and starts a second process that adds to it, so it takes
    about as long as importing NumPy twice.
    """
    model, features = _processor()
    versions = {name: _version(name) for name in PACKAGES}
    absent = ", ".join(name for name, version in versions.items() if not version)
    implementation = f"{platform.python_implementation()} {platform.python_version()}"
    lines = {
        "kary-replay": f"{VERSION}, in {Path(__file__).parent}",
        "Python": f"{implementation}, {sys.executable}",
        **{name: version for name, version in versions.items() if version},
        "not installed": absent or "–",
        "compiled with": " ".join(BUILD.values()),
        "system": platform.platform(),
        "processor": model,
        "features": features,
        "powers": f"with {INSTRUCTIONS} instructions",
        "native programs": f"with {in_use()} instructions, of {', '.join(SETS)}",
        "cores": f"{n_cores()} of {os.cpu_count()} usable",
        "shared memory": _shared_memory(),
    }
    width = max(map(len, lines)) + 2
    return "".join(f"{name:{width}}{value}\n" for name, value in lines.items())


def _version(name: str) -> str | None:
    """Return the version of a package without importing it, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> tuple[str, str]:
    """Return the name of the first processor and the vector extensions that it has."""
    described: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            described.setdefault(name.strip(), value.strip())
    except OSError:
        pass  # only Linux has this file
    flags = (described.get("flags") or described.get("Features") or "").split()
    model = described.get("model name") or platform.processor() or platform.machine()
    features = [name for name in X86_FEATURES + ARM_FEATURES if name in flags]
    return model, " ".join(features) or "unknown"


def _shared_memory() -> str:
    """Draw from a buffer to which a second process has added; return "works" or the reason."""
    fields = {"number": Field((), "int64")}
    try:
        with PrioritizedReplayBuffer(4, fields, seed=0, shared=True) as buffer:
            second = subprocess.run(
                [sys.executable, "-c", SECOND_PROCESS],
                input=pickle.dumps(buffer.descriptor),
                capture_output=True,
                timeout=60,
            )
            if second.returncode:
                *_, complaint = second.stderr.decode(errors="replace").strip().split("\n")
                raise RuntimeError(f"another process could not add: {complaint}")
            batch = buffer.sample(4)
            buffer.update_priorities(batch.handle, batch.number)
            buffer.check_invariants()
            if set(batch.number) != {1, 2}:
                raise RuntimeError(f"another process added 1 and 2, and {batch.number} was drawn")
    except Exception as error:  # the report shows any failure: it must not become one itself
        return f"does not work: {type(error).__name__}: {error}".rstrip()
    return "works"
