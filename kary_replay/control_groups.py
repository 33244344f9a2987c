"""The control groups of this process, by which a container or a job has part of a machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["control_groups"]

GROUPS, MOUNTED = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def control_groups(controller: str, *places: str) -> Iterator[tuple[Path, int]]:
    """Yield the folders that may have limits of this process, and the version of their files.

    Parameters
    ----------
    controller : str
        What is limited, such as cpu or memory.
    *places : str
        Where version 1 mounts that, beside the other controllers.
    """
    try:
        lines = GROUPS.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if not controllers:  # version 2, alone or with others beside it
            found, version = [MOUNTED, MOUNTED / "unified"], 2
        elif controller in controllers.split(","):
            found, version = [MOUNTED / place for place in places], 1
        else:
            continue
        # A container may see its group as the root, under the name that it has outside.
        path = PurePosixPath(name.lstrip("/"))
        for place in found:
            for group in (path, *path.parents):
                yield place / group, version
