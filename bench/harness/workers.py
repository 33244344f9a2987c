"""Processes that do one kind of work on a buffer when told to, and say how much they did."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

CONTEXT = multiprocessing.get_context("spawn")
# makes, in the process, what does one piece of work and returns its rows
Factory = Callable[..., Callable[[], int]]


def _serve(factory: Factory, arguments: tuple[Any, ...], pipe: Any) -> None:
    work = factory(*arguments)
    work()
    gc.disable()
    pipe.send("ready")
    while (seconds := pipe.recv()) is not None:
        start = perf_counter()
        end, n = start + seconds, 0
        while perf_counter() < end:
            n += work()
        pipe.send(n / (perf_counter() - start))


class Worker:
    """One process. It lives until `close`, so that windows do not include its start."""

    def __init__(self, factory: Factory, *arguments: Any) -> None:
        self._pipe, other = CONTEXT.Pipe()
        self._process = CONTEXT.Process(
            target=_serve, args=(factory, arguments, other), daemon=True
        )
        self._process.start()
        assert self._pipe.recv() == "ready"

    def start(self, seconds: float) -> None:
        self._pipe.send(seconds)

    def rate(self) -> float:
        """Rows per second of the window that was started."""
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


def rates(workers: Sequence[Worker], seconds: float) -> list[float]:
    """Rows per second of each, all at once."""
    for worker in workers:
        worker.start(seconds)
    return [worker.rate() for worker in workers]
