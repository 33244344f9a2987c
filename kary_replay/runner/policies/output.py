"""Where the commands that make a file of a policy write it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..config import ConfigError

__all__ = ["NewFile", "check_output", "say"]


def say(line: str) -> None:
    """Print a line; what is done goes on if nobody reads any more."""
    with contextlib.suppress(OSError):
        print(line)


def check_output(path: Path, *endings: str) -> None:
    """Raise ConfigError unless a file with such an ending can be written; leave all as it is."""
    if path.suffix not in endings:
        raise ConfigError(f"output must end in {' or '.join(endings)}, got {path}")
    if not path.parent.is_dir():
        raise ConfigError(f"output must be in a folder that exists, got {path}")
    new = NewFile(path).path
    try:
        if path.exists():
            path.open("ab").close()
        new.open("wb").close()  # perhaps over what one with this number left when it was killed
        new.unlink()
    except OSError as error:
        raise ConfigError(f"output cannot be written: {error}") from None


class NewFile:
    """A file under a name of its own, until it is complete.

    Parameters
    ----------
    goal : Path
        What it is called then; a former file of that name stays until then.
    """

    def __init__(self, goal: Path) -> None:
        self._goal = goal
        self.path = goal.with_name(f".{goal.stem}.{os.getpid()}{goal.suffix}")

    @contextlib.contextmanager
    def being_written(self) -> Iterator[None]:
        """Leave nothing of it if that raises; make of OSError, as of a full disk, a ConfigError."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(OSError):
                self.path.unlink()
            if not isinstance(error, OSError):
                raise
            reason = str(error).partition("\n")[0]
            raise ConfigError(f"{self._goal} cannot be written: {reason}") from None

    def complete(self) -> None:
        """Let it take the place of the former one."""
        os.replace(self.path, self._goal)
