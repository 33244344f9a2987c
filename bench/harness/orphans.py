"""Runs a command, and waits for what it leaves behind.

A process that outlives its parent becomes a child of this one, so that the time it has used counts
as the command's, and that it has ended before the next command begins.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36  # of Linux
PATIENCE = 10.0  # seconds that processes have to end after their parent


def run(command: Sequence[str], folder: Path, timeout: float) -> None:
    """Run a command in a folder, to its end.

    Raises subprocess.CalledProcessError, with what it wrote to stderr, or TimeoutExpired. Of its
    process group nobody is left in any case, also if this process is told to end (SIGTERM).
    """
    adopt()
    with told_to_end() as told, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=errors,  # no pipe, which those left behind would hold open
            start_new_session=True,
        )
        try:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # from now on it interrupts
            if told:
                raise KeyboardInterrupt
            process.wait(timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            wait(process.pid)
        if process.returncode:
            errors.seek(0)
            raise subprocess.CalledProcessError(process.returncode, command, stderr=errors.read())


@contextlib.contextmanager
def told_to_end() -> Iterator[list[int]]:
    """Note signals to end, which do nothing else, until whoever waits for a process can end it."""
    told: list[int] = []
    former = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, former)


def adopt() -> None:
    """Become the parent of those whose parent ends, where the system has such a thing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wait(group: int) -> None:
    """Wait for the children that are in a process group; kill those that take too long."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            ended, _ = os.waitpid(-group, os.WNOHANG)
        except ChildProcessError:
            return
        if ended:
            continue
        if time.monotonic() > deadline:
            os.killpg(group, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.01)
