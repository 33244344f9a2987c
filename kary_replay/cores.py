"""How many cores this process may keep busy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from .control_groups import control_groups

__all__ = ["n_cores"]

# of either version, which have a quota and the period that it is for
FILES = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}


def n_cores() -> int:
    """Return the cores that this process may keep busy, at least 1.

    They are those that its affinity names, and no more than the time of a container is worth, such
    as 4 in one that Docker began with ``--cpus=3.5`` or Kubernetes with a limit like that.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    named = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, min([named, *map(math.ceil, _quotas())]))


def _quotas() -> Iterator[float]:
    """Yield how many cores' time each group of this process may use, where that is limited."""
    for folder, version in control_groups("cpu", "cpu", "cpu,cpuacct"):
        try:
            words = " ".join((folder / name).read_text() for name in FILES[version]).split()
            quota, period = float(words[0]), float(words[1])
        except (OSError, ValueError, IndexError):  # "max": as much as there is
            continue
        if quota > 0 and period > 0:
            yield quota / period
