"""remote.py's other end, in the rival's environment: `python -m bench.rivals.server DESCRIPTOR`."""

from __future__ import annotations

import gc
import sys
from importlib import import_module, metadata
from multiprocessing.connection import Connection
from typing import Any

from bench.harness.machine import without_folders
from bench.harness.timing import Before, Contender, collector_off

METHODS = ("sample", "update", "cycle", "add", "train")
LIBRARIES = (
    "ray",
    "torchrl",
    "tensordict",
    "sbx-rl",
    "dm-reverb",
    "tensorflow-cpu",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "torch",
    "numpy",
    "gymnasium",
)


class Server:
    """One rival and the contenders that were asked for."""

    def __init__(self) -> None:
        self._rival: Any = None
        self._contenders: list[Contender] = []

    def versions(self) -> str:
        """Write what is installed here, of what matters."""
        there = {distribution.metadata["Name"].lower() for distribution in metadata.distributions()}
        return ", ".join(f"{name} {metadata.version(name)}" for name in LIBRARIES if name in there)

    def build(self, target: str, arguments: tuple[Any, ...]) -> tuple[str, list[str]]:
        module, name = target.split(":")
        self._rival = getattr(import_module(module), name)(*arguments)
        return self._rival.name, [method for method in METHODS if hasattr(self._rival, method)]

    def contender(self, method: str, arguments: tuple[Any, ...]) -> tuple[str, int, int]:
        made = getattr(self._rival, method)(*arguments)
        self._contenders.append(made)
        gc.collect()
        return made.name, made.operations, len(self._contenders) - 1

    def timed(self, key: int, n_calls: int, before: Before) -> tuple[float, bool]:
        with collector_off():  # as at the other end
            return self._contenders[key].timed(n_calls, before)


def reason(error: Exception) -> str:
    """One line without folders, for the page that says why a rival is left out."""
    text = without_folders(str(error)).splitlines()[0] if str(error) else ""
    text = text if len(text) <= 120 else text[:120] + "…"
    return f"{type(error).__name__}: {text}"


def main() -> None:
    """Answer until the other end closes."""
    connection, server = Connection(int(sys.argv[1])), Server()
    while True:
        try:
            what, arguments = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, getattr(server, what)(*arguments)))
        except Exception as error:
            connection.send((False, reason(error)))


if __name__ == "__main__":
    main()
