"""What Ctrl-C, SIGTERM and SIGHUP do while a run goes on."""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any

from ..fork_server import ENDING

__all__ = ["Interrupts"]


class Interrupts:
    """Turns Ctrl-C, SIGTERM and SIGHUP into an event; the second of them does not wait for it.

    SIGHUP, which comes when a terminal is closed, stays ignored where it is, as under nohup.
    """

    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._has_come = stop, False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in ENDING:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._take)

    def _take(self, number: int, frame: Any) -> None:
        if self._has_come:
            raise KeyboardInterrupt
        self._has_come = True
        self._stop.set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
