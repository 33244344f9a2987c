"""Everybody who takes part in the scenarios of whole buffers, full of the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.harness.timing import Contender
from bench.rivals import python_buffer, remote
from bench.rivals.cpprb_buffer import CpprbBuffer
from bench.rivals.ours import OurBuffer
from bench.rivals.rows import VECTOR, Kind
from bench.rivals.sb3_buffer import Sb3Buffer
from bench.rivals.tianshou_buffer import TianshouBuffer

RLLIB_SLOTS = 1_000_000  # it keeps several Python objects per row
RLLIB_SLOTS_SHORT = 10_000


class Cast:
    """Ours and its rivals; what is left out is in `notes`, and in `remote.status`."""

    def __init__(self, slots: int, rows_per_add: int, kind: Kind, short: bool) -> None:
        arguments = (slots, rows_per_add, kind)
        self.notes: dict[str, str] = {}
        self.ours = OurBuffer(*arguments)
        self._rivals: list[Any] = [
            build(*arguments) for build in (TianshouBuffer, CpprbBuffer, Sb3Buffer)
        ]
        if rows_per_add == 1:
            self._rivals.append(python_buffer.PythonBuffer(*arguments))
        else:
            self.notes[python_buffer.NAME] = (
                "left out where several rows are added at once: it is made for one environment"
            )
        self._remote: list[remote.RemoteRival] = []
        most = RLLIB_SLOTS_SHORT if short else RLLIB_SLOTS
        for environment in remote.BUFFERS:
            if environment == "rllib" and slots > most:
                self.notes["RLlib"] = (
                    f"left out above {most:.0e} slots: filling it takes too long".replace(
                        "e+0", "e"
                    )
                )
            elif (rival := remote.attempt(environment, self.notes, *arguments)) is not None:
                self._remote.append(rival)

    def contenders(self, method: str, *arguments: Any) -> tuple[Contender, list[Any]]:
        """Ours, and all rivals that offer this."""
        rivals = [rival for rival in (*self._rivals, *self._remote) if hasattr(rival, method)]
        return getattr(self.ours, method)(*arguments), [
            getattr(rival, method)(*arguments) for rival in rivals
        ]

    def close(self) -> None:
        """End the processes of those that have one."""
        for rival in self._remote:
            rival.close()


@contextmanager
def cast(
    slots: int, rows_per_add: int = 1, kind: Kind = VECTOR, short: bool = False
) -> Iterator[Cast]:
    """All of them, while the context lasts."""
    made = Cast(slots, rows_per_add, kind, short)
    try:
        yield made
    finally:
        made.close()
        vars(made).clear()
