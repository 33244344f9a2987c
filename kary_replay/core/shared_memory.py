"""Memory that several processes map, and that is gone with the last of them.

The memory is a file without a name: an anonymous one (memfd_create), or one in a directory of the
user's for buffers larger than memory. Other processes open it through ``/proc/<pid>/fd`` of one
that has it. So nothing can be left behind: the system frees the memory when the last process that
maps it has ended, in whatever way.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..control_groups import control_groups
from ..errors import AttachError
from ..validation import as_count

__all__ = ["Descriptor"]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Of control groups of either version: limit, use, and what of the use can be dropped.
_LIMITS = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


@dataclass(frozen=True)
class Descriptor:
    """Where a shared buffer is and what it holds, a small object that can be pickled.

    `buffer.descriptor` makes it, and `attach` takes it. It is good on the machine that it was made
    on, for as long as its maker keeps the buffer, and for processes that may look into the maker's:
    as a rule, those of the same user. Each process that is attached has a descriptor of its own, as
    good as the first.
    """

    kind: str
    capacity: int
    fields: Mapping[str, Any]
    nbytes: int
    token: tuple[int, int]
    pid: int
    file: int
    identity: tuple[int, int]
    """Device and inode of that file, for another file may have got its number."""
    machine: str
    """Boot and process namespace: in another one the process number means nothing."""
    options: Mapping[str, Any]
    """What else the kind of buffer needs to know."""


def is_supported() -> bool:
    """Return whether this system has what sharing needs, as Linux does."""
    return sys.platform == "linux"


def create(nbytes: int, directory: str | os.PathLike[str] | None = None) -> int:
    """Return the descriptor of a new file without a name, all zero and all reserved.

    Parameters
    ----------
    nbytes : int
        The file's size.
    directory : path, optional
        Where on disk; by default it is in memory.

    Raises
    ------
    MemoryError
        If there is not so much memory, or space in the directory.
    OSError
        If the directory is missing, nothing may be written there, or its file system has no files
        without a name.
    NotImplementedError
        On other systems than Linux.
    """
    if not is_supported():
        raise NotImplementedError(
            f"shared buffers need Linux (robust process-shared mutexes), this is {sys.platform}"
        )
    if directory is None:
        free, where = free_memory(), "memory"
    else:
        stat = os.statvfs(directory)
        free, where = stat.f_bavail * stat.f_frsize, f"space in {os.fspath(directory)!r}"
    if nbytes > free:
        raise MemoryError(
            f"capacity needs {nbytes / 2**30:.3g} GiB, and only {free / 2**30:.3g} GiB of {where} "
            "are free; choose a smaller capacity"
            + (", or storage_directory=… for a file on disk" if directory is None else "")
        )
    if directory is None:
        file = os.memfd_create("kary-replay", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        file = _open_nameless(directory)
    try:
        os.posix_fallocate(file, 0, nbytes)
        if directory is None:
            _seal(file)
    except OSError as error:
        os.close(file)
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG):
            raise MemoryError(
                f"capacity needs {nbytes / 2**30:.3g} GiB of {where}: {error.strerror}"
            ) from None
        raise
    except BaseException:
        os.close(file)
        raise
    return file


def _open_nameless(directory: str | os.PathLike[str]) -> int:
    """Return the descriptor of a new file without a name in a directory on disk."""
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # EISDIR: a file system from before there were such files
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
        reason = (
            "this file system has no files without a name (O_TMPFILE): "
            "choose a storage_directory on a local disk"
        )
        raise OSError(errno.EOPNOTSUPP, reason, os.fspath(directory)) from None


def describe(
    kind: str,
    capacity: int,
    fields: Mapping[str, Any],
    nbytes: int,
    token: tuple[int, int],
    file: int,
    options: Mapping[str, Any],
) -> Descriptor:
    """Return the descriptor of a buffer whose memory this process has open as ``file``."""
    if file < 0:
        raise AttachError(
            "the buffer's file was closed, or this forked process could not open it: "
            "nobody can attach here"
        )
    return Descriptor(
        kind,
        capacity,
        fields,
        nbytes,
        token,
        os.getpid(),
        file,
        _identity(os.fstat(file)),
        _machine(),
        options,
    )


def check(descriptor: Any) -> None:
    """Raise TypeError or ValueError for what is no descriptor, or has impossible numbers."""
    if not isinstance(descriptor, Descriptor):
        raise TypeError(
            f"descriptor must be what buffer.descriptor returned, got {type(descriptor).__name__}"
        )
    for name in ("nbytes", "pid", "file"):
        as_count(f"descriptor.{name}", getattr(descriptor, name), sys.maxsize, least=0)


def open_of(descriptor: Descriptor) -> int:
    """Return a file of our own for the memory of a checked descriptor, or raise AttachError."""
    if not is_supported() or descriptor.machine != _machine():
        raise AttachError(
            "the descriptor is from another machine, from before its last start, "
            "or from another container: attach where the buffer was made"
        )
    maker = f"/proc/{descriptor.pid}"
    if not os.path.exists(maker):
        raise AttachError(
            f"process {descriptor.pid}, which made the descriptor, has ended: "
            "take one from a process that still has the buffer"
        )
    path = f"{maker}/fd/{descriptor.file}"
    file = None
    try:
        if _identity(os.stat(path)) == descriptor.identity:  # looked at before it is opened
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AttachError(
            f"process {descriptor.pid}, which made the descriptor, has closed the buffer, "
            f"or this process may not look into it (another user?): {error.strerror}"
        ) from None
    if file is None:
        raise _something_else(descriptor)
    found = os.fstat(file)
    if _identity(found) != descriptor.identity or found.st_size != descriptor.nbytes:
        os.close(file)
        raise _something_else(descriptor)
    return file


def _identity(file: os.stat_result) -> tuple[int, int]:
    """Return what tells a file from all others of this machine."""
    return file.st_dev, file.st_ino


def _something_else(descriptor: Descriptor) -> AttachError:
    return AttachError(
        f"process {descriptor.pid} has ended, or closed the buffer and opened something else "
        "since: take a descriptor from a process that still has it"
    )


def free_memory() -> int:
    """Return how many bytes can be had without swapping: by the machine, and by control groups."""
    free = int(_field(Path("/proc/meminfo"), "MemAvailable:")) * 1024
    for folder, version in control_groups("memory", "memory"):
        limit, use, droppable = _LIMITS[version]
        try:
            maximum = (folder / limit).read_text().strip()
            if maximum != "max":
                used = int((folder / use).read_text())
                dropped = int(_field(folder / "memory.stat", droppable))
                free = min(free, max(int(maximum) - used + dropped, 0))
        except (OSError, ValueError):
            continue
    return free


def _machine() -> str:
    """Return what tells apart machines, their starts, and namespaces of processes."""
    return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"


def _field(path: Path, name: str) -> str:
    """Return the number behind a name in a file of names and numbers."""
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return value.split()[0]
    return "0"


def _seal(file: int) -> None:
    """Forbid everybody to change the size, for access to what is gone would be a bus error."""
    import fcntl

    fcntl.fcntl(
        file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    )
