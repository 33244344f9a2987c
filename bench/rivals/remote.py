"""Rivals whose requirements clash with everybody else's, each in an environment of its own.

`make rivals` makes the environments, .venv-rivals/NAME from requirements-NAME.txt. The process
(server.py) builds the rival and runs the loop of bench.harness.timing on it, one repetition at a
time, when it is told to. So it takes its turn in the same rounds as all the others, and waits
between its repetitions.
"""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.harness.paths import ROOT
from bench.harness.timing import Before

ENVIRONMENTS = ROOT / ".venv-rivals"
RIVALS = {  # environment -> class that wraps it
    "rllib": "bench.rivals.rllib_buffer:RllibBuffer",
    "torchrl": "bench.rivals.torchrl_buffer:TorchrlBuffer",
    "sbx": "bench.rivals.sbx_learner:SbxLearner",
    "reverb": "bench.rivals.reverb_buffer:ReverbBuffer",
    "ray": "bench.rivals.ray_actor:RayActorBuffer",
}
TRAINERS = ("sample_factory",)  # environments of those that only train, and have no class here
LIVES_IN = {"ray": "rllib"}  # rivals in the environment of another one
BUFFERS = ("rllib", "torchrl")  # those whose replay buffers are compared
LEFT_OUT, NOT_INSTALLED = "left out", "not installed: make rivals"
NAMES = {
    "rllib": "RLlib",
    "torchrl": "TorchRL",
    "sbx": "SBX",
    "reverb": "Reverb",
    "ray": "Ray",
}
status: dict[str, str] = {}  # of those that were asked for: versions, or why it is left out


class MissingRivalError(Exception):
    """The rival is not here, or does not work here; the message says why."""


class RemoteError(RuntimeError):
    """Something failed in the rival's process."""


def is_apart(rival: str) -> bool:
    """Return whether a rival lives in an environment of its own."""
    return rival in RIVALS or rival in TRAINERS


def python(environment: str) -> Path:
    """Return the interpreter of an environment."""
    return ENVIRONMENTS / LIVES_IN.get(environment, environment) / "bin" / "python"


def installed(environment: str) -> bool:
    """Tell whether `make rivals` has come to its end there."""
    return (ENVIRONMENTS / LIVES_IN.get(environment, environment) / "installed").exists()


@dataclass(frozen=True)
class RemoteContender:
    """A Contender of the other process."""

    name: str
    operations: int
    rival: RemoteRival
    key: int

    def timed(self, n_calls: int, before: Before) -> tuple[float, bool]:
        return self.rival.ask("timed", self.key, n_calls, before)


class RemoteRival:
    """One rival in a process of its own; it has those of the methods that its class has."""

    versions = "its process did not start"

    def __init__(self, environment: str, *arguments: Any) -> None:
        if not installed(environment):
            raise MissingRivalError(NOT_INSTALLED)
        mine, others = socket.socketpair()
        server = ["-W", "ignore", "-m", "bench.rivals.server", str(others.fileno())]
        command = [str(python(environment)), *server]
        quiet = {**os.environ, "RL_WARNINGS": "0"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, pass_fds=[others.fileno()], env=quiet, stderr=subprocess.DEVNULL
        )
        others.close()
        self.process_id = self._process.pid
        self._connection = Connection(mine.detach())
        try:
            self.versions = self.ask("versions")
            self.name, offered = self.ask("build", RIVALS[environment], arguments)
        except RemoteError as error:
            self.close()
            raise MissingRivalError(f"could not load, because {error} ({self.versions})") from None
        for method in offered:
            setattr(self, method, partial(self._contender, method))

    def ask(self, what: str, *arguments: Any) -> Any:
        """Have something done there, and return what comes back."""
        try:
            self._connection.send((what, arguments))
            good, answer = self._connection.recv()
        except (EOFError, OSError):
            raise RemoteError("its process ended") from None
        if not good:
            raise RemoteError(answer)
        return answer

    def _contender(self, method: str, *arguments: Any) -> RemoteContender:
        name, operations, key = self.ask("contender", method, arguments)
        return RemoteContender(name, operations, self, key)

    def close(self) -> None:
        """End its process."""
        self._connection.close()
        self._process.wait()


def attempt(environment: str, notes: dict[str, str], *arguments: Any) -> RemoteRival | None:
    """Return the rival, or None where there is none.

    `status` says why, and such a rival is not tried again; of one that has worked before, with
    other arguments, `notes` do.
    """
    name = NAMES[environment]
    if status.get(name, "").startswith(LEFT_OUT):
        return None
    try:
        rival = RemoteRival(environment, *arguments)
    except MissingRivalError as error:
        (notes if name in status else status)[name] = f"{LEFT_OUT}, {error}"
        return None
    status[name] = rival.versions
    return rival
