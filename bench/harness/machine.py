"""What a figure depends on besides the code: processor, memory, compiler, versions, commit.

No name of a machine and no path is recorded.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

from kary_replay.about import BUILD

LIBRARIES = (
    "numpy",
    "kary-replay",
    "tianshou",
    "numba",
    "cpprb",
    "stable-baselines3",
    "gymnasium",
    "mujoco",
    "minatar",
    "torch",
    "ray",
    "sbx-rl",
    "jax",
    "jaxlib",
    "pytest-benchmark",
    "cython",
)


def _first_line(*command: str) -> str | None:
    try:
        output = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=10
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return output.splitlines()[0].strip() if output else ""


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _processor() -> dict[str, Any]:
    result: dict[str, Any] = {"model": platform.processor() or platform.machine()}
    for line in (_text("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        key = key.strip()
        if key == "model name":
            result["model"] = value.strip()
        elif key in ("cpu family", "model"):
            result["family" if key == "cpu family" else "model_number"] = value.strip()
        elif not key:
            break  # the first processor is enough
    caches = {}
    for index in range(8):
        folder = f"/sys/devices/system/cpu/cpu0/cache/index{index}"
        level, kind, size = (_text(f"{folder}/{name}") for name in ("level", "type", "size"))
        if level and kind != "Instruction":
            caches[f"L{level}"] = size
    result["caches_per_instance"] = caches
    result["cores"] = n_cores()
    return result


def n_cores() -> int:
    """Return the cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _memory_gib() -> float | None:
    for line in (_text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) / 2**20, 1)
    return None


def versions() -> dict[str, str]:
    result = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
    }
    for name in LIBRARIES:
        try:
            result[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return result


def commit() -> str | None:
    """Return the commit, and whether anything but results and their pages differs from it."""
    commit = _first_line("git", "rev-parse", "--short=12", "HEAD")
    others = ("--", ":/", ":/!bench/results", ":/!docs", ":/!README.md")
    if commit and _first_line("git", "status", "--porcelain", "--untracked-files=no", *others):
        commit += " with uncommitted changes"
    return commit


def without_folders(text: str) -> str:
    """Return a message with the names of files, but not where they are."""
    return re.sub(r"(?:/[^\s/:]+)+/", "", text)


def _busy_seconds() -> float:
    """Return the processor seconds used since the machine started, by other guests, too.

    It is 0 where the system does not tell.
    """
    line = (_text("/proc/stat") or "").partition("\n")[0].split()
    if not line:
        return 0.0
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen, *_ = map(
        int, line[1:]
    )
    return (user + nice + system + interrupts + soft_interrupts + stolen) / os.sysconf("SC_CLK_TCK")


class Neighbours:
    """How many cores other processes have used since this was made."""

    def __init__(self) -> None:
        self._start, self._others = perf_counter(), self._used()

    @staticmethod
    def _used() -> float:
        times = os.times()
        return _busy_seconds() - (
            times.user + times.system + times.children_user + times.children_system
        )

    def cores_used(self) -> float:
        """Return their average number of cores since then."""
        return max(0.0, (self._used() - self._others) / max(perf_counter() - self._start, 1e-9))


def describe() -> dict[str, Any]:
    """Describe the machine and the software, for the head of a results file."""
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "processor": _processor(),
        "memory_gib": _memory_gib(),
        "gpu": _first_line("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
        "system": platform.system(),
        "transparent_huge_pages": _text("/sys/kernel/mm/transparent_hugepage/enabled"),
        "compiler": BUILD,
        "versions": versions(),
        "commit": commit(),
    }


def resident_bytes() -> int | None:
    """Resident memory of this process, where the system tells."""
    statm = _text("/proc/self/statm")
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm else None
