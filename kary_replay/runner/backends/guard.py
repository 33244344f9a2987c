"""Ends what workers leave behind when the supervisor itself is killed."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

__all__ = ["Guard"]

# Reads lists of process groups until the supervisor's end of the pipe is closed, which the kernel
# does however it ended. The last list counts: the number of a group that has ended may by then
# belong to somebody else.
PROGRAM = (
    'while read list; do [ "$list" = dismissed ] && exit; groups=$list; done; '
    'kill -9 $groups 2> /dev/null; rm -rf "$@"'
)
ADOPTED = f"exec 3<&0; ({PROGRAM}) <&3 3<&- &"  # its parent ends at once


class Guard:
    """A small process that outlives the supervisor and then kills groups of processes.

    A worker dies with its supervisor by itself. What its environments have started does not, and
    is found by its process group.

    Parameters
    ----------
    *folders : Path
        Are removed, too.
    is_adopted : bool
        Whether it is no child of this process, whose children somebody kills when it ends.
    """

    def __init__(self, *folders: Path, is_adopted: bool = False) -> None:
        program = ADOPTED if is_adopted else PROGRAM
        command = ["/bin/sh", "-c", program, "guard", *map(str, folders)]
        self._shell = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def watch(self, groups: Iterable[int]) -> None:
        """Have these groups of processes killed when the time has come, and no others."""
        self._say(" ".join(f"-{group}" for group in groups))

    def close(self) -> None:
        """Dismiss the guard; the supervisor has ended everything itself."""
        self._say("dismissed")
        self._shell.kill()
        self._shell.wait()
        assert self._shell.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._shell.stdin.close()

    def _say(self, line: str) -> None:
        assert self._shell.stdin is not None
        if self._shell.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):  # somebody killed the guard
            self._shell.stdin.write(f"{line}\n".encode())
            self._shell.stdin.flush()
