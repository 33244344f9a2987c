"""The directory of a checkpoint: what is in it, and in which order it gets there.

The order sees to it that a crash never leaves half a checkpoint.

    checkpoint.json          the manifest, sealed by its checksum: what counts, and the checksums of
    data-0123456789abcdef/   the files it names
    kary-replay.lock         locked by whoever saves

New files go to a new data folder. When they are on the disk, a new manifest replaces the old one in
one step, and the old folder is removed. So the manifest names whole files at any moment. The next
save removes what a crashed one left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import CheckpointError
from ..validation import as_count

Bytes = npt.NDArray[np.uint8]

CHUNK_NBYTES = 16 << 20
MANIFEST, NEW_MANIFEST, LOCK = "checkpoint.json", "checkpoint.json.new", "kary-replay.lock"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
DATA = re.compile(r"data-[0-9a-f]{16}")
# in front of the manifest's content, and of its checksum
HEAD, TAIL = b'{"kary_replay_checkpoint": ', b',\n"crc32": '


class NewFile:
    """A file being written in chunks, each with its checksum; all but the last have one size."""

    def __init__(self, path: Path, chunk_nbytes: int = CHUNK_NBYTES) -> None:
        self.path, self.chunk_nbytes, self.nbytes = path, chunk_nbytes, 0
        self.crc32: list[int] = []
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def __enter__(self: Any) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def write_all(self, values: Bytes) -> None:
        """Write everything, from the first chunk to the last."""
        for number, start in enumerate(range(0, len(values), self.chunk_nbytes)):
            self.write(number, values[start : start + self.chunk_nbytes])

    def write(self, number: int, chunk: Bytes) -> None:
        """Write the next chunk, or one that was there already and may have grown."""
        at, left = number * self.chunk_nbytes, chunk.data
        self.nbytes = max(self.nbytes, at + len(left))
        self.crc32[number : number + 1] = [zlib.crc32(left)]
        while left:
            n = os.pwrite(self._file, left, at)
            at, left = at + n, left[n:]

    def read(self, number: int, into: Bytes) -> None:
        """Read a chunk back into an array of its length."""
        at, left = number * self.chunk_nbytes, into.data
        while left:
            n = os.preadv(self._file, [left], at)
            if n == 0:
                break
            at, left = at + n, left[n:]
        if left or zlib.crc32(into.data) != self.crc32[number]:
            raise OSError(errno.EIO, "what was just written reads differently", str(self.path))

    def sync(self) -> None:
        """Wait until it is on the disk."""
        os.fsync(self._file)

    def summary(self) -> dict[str, Any]:
        """Return what the manifest says of it."""
        crc32 = [f"{crc32:08x}" for crc32 in self.crc32]
        return {"nbytes": self.nbytes, "chunk_nbytes": self.chunk_nbytes, "crc32": crc32}


# ------------------------------------------------------------------------------------ the directory


@contextlib.contextmanager
def new_data(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give a new data folder, and a dict to fill with what the manifest is to say.

    At the end they take the place of the checkpoint that is there. After an error that checkpoint
    stays, and the new folder is removed.
    """
    _refuse_foreign(folder)
    _make(folder)
    with _locked(folder):
        _sweep(folder)
        data = folder / f"data-{os.urandom(8).hex()}"
        try:
            os.mkdir(data)
            content: dict[str, Any] = {"data": data.name}
            yield data, content
            sync(data)
            with NewFile(folder / NEW_MANIFEST) as file:
                file.write_all(
                    np.frombuffer(_sealed(HEAD + json.dumps(content, indent=1).encode()), np.uint8)
                )
                file.sync()
            sync(folder)
            os.replace(folder / NEW_MANIFEST, folder / MANIFEST)
            sync(folder)
        except BaseException:
            _sweep(folder, data.name)
            raise
        _sweep(folder)


def _refuse_foreign(folder: Path) -> None:
    """Raise unless the directory is missing, empty or one of ours."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise _not_a_directory(folder) from None
    if not names or LOCK in names:
        return
    with contextlib.suppress(CheckpointError):
        read_manifest(folder)
        return
    some = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
    raise CheckpointError(
        f"'{folder}' holds other things than a checkpoint ({some}): "
        "save to a new or an empty directory"
    )


def _not_a_directory(folder: Path) -> NotADirectoryError:
    return NotADirectoryError(
        errno.ENOTDIR, "a checkpoint is a directory, this is none", str(folder)
    )


def _make(folder: Path) -> None:
    """Make the directory and those above it where they are missing, and wait for the disk."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync(one.parent)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other saves out of the directory, or raise if one is under way.

    The system unlocks it when the process that saves dies.
    """
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = "another thread or process is saving to this directory at this moment"
            raise BlockingIOError(errno.EAGAIN, message, str(folder)) from None
        try:
            yield
        finally:
            # Closing would not do, for a child forked meanwhile has the file, too.
            fcntl.flock(file, fcntl.LOCK_UN)
    finally:
        os.close(file)


def _sweep(folder: Path, name: str = "") -> None:
    """Remove the data folders that the manifest does not name, or only ``name`` of them.

    The caller has the lock.
    """
    with contextlib.suppress(OSError):
        (folder / NEW_MANIFEST).unlink(missing_ok=True)
    try:
        keep = read_manifest(folder).get("data") if os.path.lexists(folder / MANIFEST) else None
    except CheckpointError:
        if not name:
            return  # a damaged manifest may name any of them, but for one that is new
        keep = None
    except OSError:
        return
    with contextlib.suppress(OSError):
        for found in [name] if name else os.listdir(folder):
            if DATA.fullmatch(found) and found != keep:
                shutil.rmtree(folder / found, ignore_errors=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
            raise
    finally:
        os.close(file)


# ------------------------------------------------------------------------------------- the manifest


def _sealed(body: bytes) -> bytes:
    """Return the manifest: its body and the checksum of that."""
    return body + TAIL + b'"%08x"}\n' % zlib.crc32(body)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what the manifest says, or raise naming what is missing or damaged."""
    path = folder / MANIFEST
    try:
        with open_regular(path) as file:
            raw = file.read()
    except FileNotFoundError:
        if not folder.exists():
            raise FileNotFoundError(
                errno.ENOENT, "there is no such checkpoint", str(folder)
            ) from None
        why = (
            "no save to it has come to its end"
            if (folder / LOCK).exists()
            else f"it has no {MANIFEST}"
        )
        raise CheckpointError(f"'{folder}' holds no checkpoint: {why}") from None
    except NotADirectoryError:
        raise _not_a_directory(folder) from None
    except OSError as error:
        raise CheckpointError(f"'{path}' cannot be read: {error.strerror}") from error
    if not raw.startswith(HEAD) or _sealed(raw.rpartition(TAIL)[0]) != raw:
        raise CheckpointError(f"'{path}' is damaged, or no checkpoint of kary-replay")
    try:
        content = json.loads(raw)["kary_replay_checkpoint"]
    except ValueError:
        raise CheckpointError(f"'{path}' is no JSON") from None
    except RecursionError:
        raise CheckpointError(f"'{path}' is no manifest: it is nested too deeply") from None
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise CheckpointError(f"'{path}' is no manifest: it holds a {kind}, no object")
    return content


# -------------------------------------------------------------------------------------------- files


def open_data(
    folder: Path, content: dict[str, Any], names: list[str], close: contextlib.ExitStack
) -> dict[str, Any]:
    """Open the files of these names, which ``close`` will close, and check what the manifest says.

    Raises CheckpointError if one is no regular file or has another size, and ValueError or
    TypeError if the manifest names other files or contradicts itself.
    """
    files = {}
    if not DATA.fullmatch(content["data"]):
        raise ValueError(f"data is {content['data']!r}")
    if content["files"].keys() != set(names):
        raise ValueError(f"the files must be {', '.join(names)}, got {', '.join(content['files'])}")
    data = folder / content["data"]
    if data.is_symlink():
        raise _is_link(data)
    if data.exists() and not data.is_dir():
        raise CheckpointError(f"'{data}' is no directory")
    for name in names:
        about = content["files"][name]
        nbytes = as_count(f"nbytes of {name}", about["nbytes"], least=0)
        as_count(f"chunk_nbytes of {name}", about["chunk_nbytes"])
        files[name] = file = close.enter_context(open_regular(data / name))
        n = os.fstat(file.fileno()).st_size
        if n != nbytes:
            raise CheckpointError(f"'{file.name}' is damaged: it has {n} bytes instead of {nbytes}")
    return files


def _is_link(path: Path) -> CheckpointError:
    return CheckpointError(f"'{path}' is a symbolic link: put in its place what it leads to")


def open_regular(path: Path) -> io.FileIO:
    """Open a file for reading; CheckpointError if it is a link, a pipe or no file at all."""
    try:
        # Without O_NONBLOCK a pipe would keep us waiting for somebody who writes to it.
        file = io.FileIO(path, opener=lambda name, _: os.open(name, _READ))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _is_link(path) from None
        raise CheckpointError(f"'{path}' cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CheckpointError(f"'{path}' is no regular file")
    return file


def read_data(file: Any, about: dict[str, Any], into: Bytes) -> None:
    """Fill ``into`` with a file of which the manifest says ``about``.

    Raises CheckpointError naming the part of the file that is damaged.
    """
    nbytes, size, checksums = about["nbytes"], about["chunk_nbytes"], about["crc32"]
    if nbytes != len(into) or len(checksums) != -(-len(into) // size):
        raise ValueError(
            f"{nbytes} bytes in {len(checksums)} chunks of {size}, instead of {len(into)} bytes"
        )
    for number, crc32 in enumerate(checksums):
        left = chunk = into.data[number * size : (number + 1) * size]
        try:
            while left and (n := file.readinto(left)):
                left = left[n:]
        except OSError as error:
            raise CheckpointError(
                f"'{file.name}' cannot be read at chunk {number}: {error.strerror}"
            ) from error
        if left or f"{zlib.crc32(chunk):08x}" != crc32:
            raise CheckpointError(
                f"'{file.name}' is damaged: chunk {number} of {len(checksums)}, "
                f"from byte {number * size} on, does not have its checksum"
            )
