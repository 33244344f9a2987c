"""How many cores this process may keep busy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["n_cores"]

GROUPS, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


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
    for folder, names in _groups():
        try:
            words = " ".join((folder / name).read_text() for name in names).split()
            quota, period = float(words[0]), float(words[1])
        except (OSError, ValueError, IndexError):  # "max": as much as there is
            continue
        if quota > 0 and period > 0:
            yield quota / period


def _groups() -> Iterator[tuple[Path, list[str]]]:
    """Yield where the groups of this process may be, and the files that limit their time."""
    try:
        lines = GROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:  # version 2, alone or with others beside it
            places, names = (MOUNTED, MOUNTED / "unified"), ["cpu.max"]
        elif "cpu" in controllers.split(","):
            places = MOUNTED / "cpu", MOUNTED / "cpu,cpuacct"
            names = ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        # A container may see its group as the root, under the name that it has outside.
        path = PurePosixPath(name.lstrip("/"))
        for place in places:
            for group in (path, *path.parents):
                yield place / group, names
