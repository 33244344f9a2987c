"""Does work beside the main thread, for which nobody has to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["in_background"]

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> Future[T]:
    """Do some work in a thread of its own, for which the end of the program does not wait."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="kary-replay", daemon=True).start()
    return future
