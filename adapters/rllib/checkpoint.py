"""What the buffer writes beside its rows, and how both take the place of what was there before.

A folder has the rows, in a folder of their own with a name that no other one has, and a file that
names them. The file comes last, in one step: until then the one before is in force, with its rows.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import pickle
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pyarrow import fs

import kary_replay as kr
from kary_replay.errors import CheckpointError

FORMAT = 1  # of states and checkpoints
_STATE = "state.pkl"
_ROWS = re.compile(r"rows_[0-9a-f]{16}")  # folders that `save` makes
_DIGEST = 32  # bytes in front of what was pickled


def save(
    path: str | pathlib.Path,
    filesystem: fs.FileSystem | None,
    state: dict[str, Any],
    native: kr.PrioritizedReplayBuffer | None,
) -> str:
    """Write the state, and the rows if there are any; return the path.

    Raises OSError if it cannot be written.
    """
    there, where = file_system_of(path, filesystem)
    there.create_dir(where, recursive=True)
    rows = f"rows_{secrets.token_hex(8)}"
    try:
        if native is not None:
            state = {**state, "rows": rows}
            with _local(there, f"{where}/{rows}", brings_back=True) as folder:
                native.save(folder)
        _write(there, where, pickle.dumps(state, protocol=5))
    except BaseException:
        with suppress(OSError):
            there.delete_dir(f"{where}/{rows}")
        raise
    for one in there.get_file_info(fs.FileSelector(where)):  # of earlier saves, also ones cut off
        is_ours = one.type == fs.FileType.Directory and _ROWS.fullmatch(one.base_name)
        if is_ours and one.base_name != state.get("rows"):
            there.delete_dir(one.path)
    return where


def load(
    path: str | pathlib.Path,
    filesystem: fs.FileSystem | None,
    storage_directory: str | os.PathLike[str] | None,
) -> tuple[dict[str, Any], kr.PrioritizedReplayBuffer | None]:
    """Return the state, and the rows if there are any.

    Raises CheckpointError if it is damaged or of a later version, FileNotFoundError if nothing is
    there.
    """
    there, where = file_system_of(path, filesystem)
    state = _read(there, where)
    if "rows" not in state:
        return state, None
    rows = f"{where}/{state['rows']}"
    if there.get_file_info(rows).type != fs.FileType.Directory:
        raise CheckpointError(f"'{where}' is damaged: there is no folder {state['rows']}")
    with _local(there, rows) as folder:
        return state, kr.PrioritizedReplayBuffer.load(folder, storage_directory=storage_directory)


def check_format(what: str, state: Any) -> None:
    """Raise CheckpointError for a state of others, or of a later version."""
    found = state.get("format") if isinstance(state, dict) else None
    if not isinstance(found, int):
        raise CheckpointError(
            f"this {what} was not saved by kary-replay; RLlib's own buffer can read its own states"
        )
    if found > FORMAT:
        raise CheckpointError(
            f"this {what} was saved by kary-replay {state.get('version')} in format {found}; "
            f"version {kr.__version__} reads formats up to {FORMAT}: load it with that version"
        )


def file_system_of(
    path: str | pathlib.Path, filesystem: fs.FileSystem | None
) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path, and the path there."""
    text = path if isinstance(path, str) else path.as_posix()
    if filesystem is not None:
        return filesystem, text
    if "://" not in text:
        text = os.path.abspath(text)
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(text)
    return found


def _read(there: fs.FileSystem, where: str) -> dict[str, Any]:
    """Return the state that a folder has."""
    with there.open_input_stream(f"{where}/{_STATE}") as stream:
        content = stream.read()
    digest, payload = content[:_DIGEST], content[_DIGEST:]
    if hashlib.sha256(payload).digest() != digest:
        raise CheckpointError(f"'{where}/{_STATE}' is damaged")
    state: dict[str, Any] = pickle.loads(payload)
    check_format(f"checkpoint '{where}'", state)
    return state


def _write(there: fs.FileSystem, where: str, payload: bytes) -> None:
    """Let a folder have this state."""
    content = hashlib.sha256(payload).digest() + payload
    if not isinstance(there, fs.LocalFileSystem):
        with there.open_output_stream(f"{where}/{_STATE}") as stream:
            stream.write(content)
        return
    written = pathlib.Path(where) / f"{_STATE}.tmp"
    with written.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(written, pathlib.Path(where) / _STATE)


@contextmanager
def _local(there: fs.FileSystem, path: str, brings_back: bool = False) -> Iterator[pathlib.Path]:
    """Let a folder be a local one: itself, or a copy, which is brought back if that is wanted."""
    if isinstance(there, fs.LocalFileSystem):
        yield pathlib.Path(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        if not brings_back:
            fs.copy_files(path, folder, source_filesystem=there)
        yield pathlib.Path(folder)
        if brings_back:
            fs.copy_files(folder, path, destination_filesystem=there)
