"""Where the commands that make a file of a policy write it."""

from __future__ import annotations

from pathlib import Path

from ..config import ConfigError

__all__ = ["check_output"]


def check_output(path: Path, *endings: str) -> None:
    """Raise ConfigError unless a file with such an ending can be written; leave all as it is."""
    if path.suffix not in endings:
        raise ConfigError(f"output must end in {' or '.join(endings)}, got {path}")
    if not path.parent.is_dir():
        raise ConfigError(f"output must be in a folder that exists, got {path}")
    try:
        is_new = not path.exists()
        path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise ConfigError(f"output cannot be written: {error}") from None
