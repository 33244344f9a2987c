"""What Ctrl-C and SIGTERM do while a run goes on."""

from __future__ import annotations

import signal
import threading
from types import TracebackType
from typing import Any

__all__ = ["Interrupts"]


class Interrupts:
    """Turns Ctrl-C and SIGTERM into an event; the second one ends the process as usual."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._take)

    def _take(self, number: int, frame: Any) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        self._stop.set()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
