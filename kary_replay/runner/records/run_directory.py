"""A run on disk: its configuration, its curve, and the last checkpoint that is whole.

    config.json            every setting, complete
    episodes.jsonl         one line per finished episode
    evaluations.jsonl      one line per evaluation
    best_policy.pt         the parameters of the best evaluation, and that evaluation
    last_policy.pt         those of the last one
    checkpoint.json        names the folder below, and has the counters
    checkpoint-000012000/  replay/ (the buffer), learner-0.pt, actor-0.pt, …
    events.out.tfevents…   for TensorBoard
    learning_curve.png

The policies and checkpoint.json are replaced in one step.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

import numpy as np
import torch

from ... import version
from ...buffers.checkpoint_files import sync
from ..config import ConfigError, RunnerConfig, as_json, from_json
from ..messages import Evaluated, Evaluation

__all__ = [
    "EPISODES",
    "EVALUATIONS",
    "PolicyName",
    "RunDirectory",
    "load_state",
    "plain",
    "save_state",
]

FORMAT = 1
EPISODES, EVALUATIONS = "episodes.jsonl", "evaluations.jsonl"
PolicyName = Literal["best", "last"]
T = TypeVar("T")


class RunDirectory:
    """The directory of one run.

    Parameters
    ----------
    path : Path
        Where it is.
    name : Path, optional
        How messages call it; by default as it was given.

    Notes
    -----
    ``path`` is absolute: an environment may change the working directory.
    """

    def __init__(self, path: Path, name: Path | None = None) -> None:
        self.path, self.name = path.absolute(), name or path
        self._is_made = False  # by this run
        self._files: dict[str, TextIO] = {}
        self._locks: list[TextIO] = []
        self.written_by: str | None = version.VERSION

    @classmethod
    def new(cls, config: RunnerConfig, here: Path | None = None) -> RunDirectory:
        """Make the directory of a new run, and lock it; ConfigError if it cannot be made.

        ``here`` is where a relative path begins, by default the working directory.
        """
        cls.check_free(config, here)
        name = Path("runs") / default_name(config)
        if config.directory is not None:
            name = Path(config.directory)
        number = 1
        content = {"format": FORMAT, "version": version.VERSION, **as_json(config)}
        text = json.dumps(content, indent=2, default=plain)
        try:
            new = cls((here or Path()) / name, name)
            new.path.parent.mkdir(parents=True, exist_ok=True)
            while not new._make():
                if config.directory is not None:
                    break  # it was there, and empty
                number += 1
                name = name.with_name(f"{default_name(config)}_{number}")
                new = cls(new.path.with_name(name.name), name)
            with (new.path / "config.json").open("x") as file:  # unless another run has just begun
                try:
                    file.write(text)
                    file.flush()
                except OSError:  # a full disk
                    new.discard()
                    raise
        except OSError as error:
            raise ConfigError(f"directory={str(name)!r} cannot be made: {error}") from None
        new.lock()
        return new

    def _make(self) -> bool:
        """Make the folder; return False if something of that name is there."""
        with contextlib.suppress(FileExistsError):
            self.path.mkdir()
            self._is_made = True
        return self._is_made

    def lock(self) -> None:
        """Keep other runs out of the directory; ConfigError if one is there.

        The lock lasts until `unlock`, or the end of this process. Where the file system has no
        locks, a warning says so.
        """
        config = self.path / "config.json"
        try:
            try:
                # for writing, or a file system on another machine (NFS) refuses the lock
                self._locks.append(config.open("r+"))
            except OSError:  # of a finished run, say, that is kept read-only
                self._locks.append(config.open())
            fcntl.flock(self._locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.unlock()
            raise ConfigError(
                f"a run is going on in {self.name}: wait for its end, or end it with Ctrl-C"
            ) from None
        except OSError as error:
            self.unlock()
            warnings.warn(
                f"{self.name} cannot be locked ({error.strerror}), so nothing keeps another run "
                "out of it: see to it that none is begun there",
                RuntimeWarning,
                stacklevel=3,
            )

    def unlock(self) -> None:
        """Let other runs go on here."""
        for file in self._locks:
            file.close()
        self._locks.clear()

    def change(self, settings: Mapping[str, Any]) -> None:
        """Write other settings into config.json, in one step; ConfigError if that fails."""
        if not settings:
            return
        new = self.path / "config.json.new"
        try:
            content = json.loads((self.path / "config.json").read_text())
            new.write_text(json.dumps({**content, **settings}, indent=2, default=plain))
            # the file that is locked is about to be replaced: its successor must be locked before
            # that
            if self._locks:
                self._locks.append(new.open("r+"))
                fcntl.flock(self._locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.replace(new, self.path / "config.json")
        except OSError as error:
            raise ConfigError(
                f"the run in {self.name} cannot go on: config.json cannot be written: {error}"
            ) from None

    def discard(self) -> None:
        """Remove all that the run has there, and the directory if the run has made it."""
        if self._is_made:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        with contextlib.suppress(OSError):  # as far as that is possible
            for path in list(self.path.iterdir()):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()

    @staticmethod
    def check_free(config: RunnerConfig, here: Path | None = None) -> None:
        """Raise ConfigError if the directory that a new run is to have is taken."""
        if config.directory is None:
            return
        path = (here or Path()) / config.directory
        try:
            taken = path.exists() and (not path.is_dir() or any(path.iterdir()))
        except OSError as error:
            raise ConfigError(
                f"directory={config.directory!r} cannot be looked into: {error}"
            ) from None
        if taken:
            resumable = (path / "checkpoint.json").exists() or not (path / "config.json").exists()
            remedy = (
                f"go on with --resume {config.directory}"
                if resumable
                else "remove it, if its run has ended: that wrote no checkpoint to go on from"
            )
            raise ConfigError(
                f"directory must be new or empty, got {config.directory}: choose another one, "
                f"or {remedy}"
            )

    @classmethod
    def existing(cls, path: Path) -> tuple[RunDirectory, RunnerConfig]:
        """Return the directory of an earlier run, and its configuration."""
        try:
            content = json.loads((path / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{path} is not the directory of a run: config.json: {error}"
            ) from None
        if not isinstance(content, dict):
            raise ConfigError(f"{path} is not the directory of a run: config.json has no settings")
        if content.pop("format", None) != FORMAT:
            raise ConfigError(
                f"{path} was written by another version of kary-replay, {content.get('version')}; "
                f"this is {version.VERSION}"
            )
        found = cls(path)
        found.written_by = content.pop("version", None)
        return found, from_json(content)

    def read_checkpoint(self, config: RunnerConfig, read: Callable[[Path], T]) -> T:
        """Return what is read in the folder of the last checkpoint.

        In a run that goes on, a later one may replace it meanwhile: then it is read there.

        Raises
        ------
        ConfigError
            As `checkpoint` does.
        """
        while True:
            before = self._named_checkpoint()
            try:
                return read(self.checkpoint(config)[0])
            except (ConfigError, OSError):
                if self._named_checkpoint() == before:
                    raise

    def _named_checkpoint(self) -> bytes:
        """Return what says which checkpoint is the last one; empty if there is none."""
        with contextlib.suppress(OSError):
            return (self.path / "checkpoint.json").read_bytes()
        return b""

    def checkpoint(self, config: RunnerConfig) -> tuple[Path, dict[str, Any]]:
        """Return the folder and the counters of the last checkpoint.

        Raises
        ------
        ConfigError
            If there is no checkpoint, it is damaged, or it is of another task.
        """
        try:
            content = json.loads((self.path / "checkpoint.json").read_text())
        except FileNotFoundError:
            raise ConfigError(
                f"{self.name} has no checkpoint to go on from: none was written. A new run needs "
                "another directory, or this one removed"
            ) from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.name} has no checkpoint to go on from: {error}") from None
        needed = {"folder", "env_steps", "updates", "seconds"}
        if not isinstance(content, dict) or not needed <= set(content):
            raise ConfigError(
                f"{self.name / 'checkpoint.json'} is damaged: it names no folder, "
                "or has no counters"
            )
        for name, here in (("algorithm", config.algorithm), ("env", config.env_name)):
            if content.get(name, here) != here:
                raise ConfigError(
                    f"the checkpoint in {self.name} is of {name} {content[name]}, but config.json "
                    f"says {here}: set it back to {content[name]}, or begin a run of its own"
                )
        folder = self.path / content["folder"]
        if not folder.is_dir():
            raise ConfigError(
                f"{self.name} names the checkpoint {content['folder']}, which is gone"
            )
        for path in {folder / "learner-0.pt", *folder.glob("*.pt")}:
            try:
                load_state(path)
            except Exception as error:  # torch has many for files that are cut off or missing
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise ConfigError(
                    f"the checkpoint {self.name / folder.name} is damaged: {path.name}: {reason}"
                ) from None
        return folder, content

    def begin_checkpoint(self, env_steps: int) -> Path:
        """Make the folder of a new checkpoint; it does not count until `commit`.

        Its name is that of this attempt alone. A worker that writes its state late, when the
        checkpoint was given up or committed without it, finds no folder of that name.
        """
        folder = self.path / f"checkpoint-{env_steps:012d}.{secrets.token_hex(4)}"
        folder.mkdir()
        return folder

    def commit(self, begun: Path, counters: Mapping[str, Any]) -> Path:
        """Make the checkpoint that was begun the last one, and return its folder.

        `sweep` removes the others.
        """
        self.flush()
        folder = begun.with_suffix("")
        while folder.exists():
            folder = folder.with_name(folder.name + "b")
        begun.rename(folder)
        for path in folder.glob("*.new"):  # somebody is late
            path.unlink()
        for path in folder.iterdir():
            if path.is_file():  # replay buffers have seen to theirs
                sync(path)
        sync(folder)
        for path in (*self.path.glob("config.json"), *self.path.glob("*_policy.pt")):
            sync(path)
        new = self.path / "checkpoint.json.new"
        new.write_text(json.dumps({"folder": folder.name, **counters}, indent=2))
        sync(new)
        os.replace(new, self.path / "checkpoint.json")
        sync(self.path)
        return folder

    def sweep(self) -> None:
        """Remove checkpoints that were replaced, or that a failure or crash left half written."""
        last = self.path / "checkpoint.json"
        try:
            kept = json.loads(last.read_text())["folder"] if last.exists() else None
        except (OSError, ValueError, KeyError, TypeError):
            return  # it may have named any of them
        for folder in self.path.glob("checkpoint-*"):
            if folder.name != kept and folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)

    @property
    def has_checkpoint(self) -> bool:
        """Whether a checkpoint has been made."""
        return (self.path / "checkpoint.json").exists()

    def keep_policy(self, name: PolicyName, evaluated: Evaluated) -> None:
        """Keep parameters and their evaluation under a name; OSError if that fails."""
        content = {
            **evaluated.evaluation._asdict(),
            "parameters": torch.from_numpy(evaluated.parameters),
        }
        save_state(self.path / f"{name}_policy.pt", content)

    def policy(self, name: PolicyName) -> Evaluated | None:
        """Return the policy of that name; None if there is none, ConfigError if it is damaged."""
        path = self.path / f"{name}_policy.pt"
        if not path.exists():
            return None
        try:
            content = load_state(path)
            parameters = content.pop("parameters").numpy()
            if not np.isfinite(parameters).all():
                raise ValueError("its parameters are not finite")
            return Evaluated(Evaluation.of(content), parameters)
        except Exception as error:  # torch has many for files that are cut off
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"{path} is damaged: {reason}; remove it to do without this policy"
            ) from None

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Add a line to a file of records; it is on disk after `flush`."""
        if name not in self._files:
            self._files[name] = (self.path / name).open("a")
        self._files[name].write(json.dumps(record) + "\n")

    def flush(self) -> None:
        """Hand the records to the system, so that they outlive this process."""
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Close the files of records."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def records(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the whole lines of a file of records; ConfigError if one is no record."""
        if not (self.path / name).exists():
            return
        with (self.path / name).open(errors="replace") as file:
            for number, line in enumerate(file, 1):
                try:
                    record = json.loads(line)
                except ValueError:  # a crash while it was written
                    continue
                is_record = isinstance(record, dict) and type(record.get("env_steps")) is int
                if is_record and name == EPISODES:
                    is_record = all(
                        isinstance(record.get(key), (int, float))
                        for key in ("episode_return", "wall_seconds")
                    )
                if not is_record:
                    raise ConfigError(
                        f"{file.name} is damaged: line {number} is no record of this run; remove it"
                    )
                yield record

    def evaluations(self) -> Iterator[Evaluation]:
        """Yield the evaluations that are recorded."""
        for record in self.records(EVALUATIONS):
            try:
                yield Evaluation.of(record)
            except (KeyError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"{self.name / EVALUATIONS} is damaged: {record} is no evaluation ({error}); "
                    "remove it"
                ) from None

    def keep_records(self, name: str, env_steps: int) -> None:
        """Drop the records of what came after a checkpoint."""
        if not (self.path / name).exists():
            return
        new = self.path / f"{name}.new"
        try:
            with new.open("w") as file:
                file.writelines(
                    json.dumps(record) + "\n"
                    for record in self.records(name)
                    if record["env_steps"] <= env_steps
                )
            os.replace(new, self.path / name)
        except OSError as error:
            raise ConfigError(
                f"the run in {self.name} cannot go on: {name} cannot be written: {error}"
            ) from None


def plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python; TypeError for anything else."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"config.json cannot have {value!r}")


def default_name(config: RunnerConfig) -> str:
    """Return what the directory of a run is called if the user does not say."""
    return re.sub(r"[^\w.-]+", "_", f"{config.algorithm}_{config.env_name}_s{config.seed}")


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a worker's state, whole or not at all; OSError if that fails, as on a full disk."""
    content = io.BytesIO()  # for torch says nothing of what the system says of a file
    torch.save(dict(state), content)
    new = path.with_suffix(".new")
    try:
        new.write_bytes(content.getbuffer())
        os.replace(new, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            new.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None


def load_state(path: Path) -> dict[str, Any]:
    """Read a worker's state; nothing in the file is executed."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
