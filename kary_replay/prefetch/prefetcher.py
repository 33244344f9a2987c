"""Batches as torch tensors, drawn and brought to their device by a thread, while the learner trains on the one before.

Nothing is reused that a learner can see: a batch consists of fresh arrays, or of fresh memory of
its device, and belongs to whoever took it.

Importing this module imports torch; ``import kary_replay`` does not.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any

import numpy.typing as npt
import torch

from ..buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from ..buffers.rate_limiter import RateLimiter
from ..buffers.replay_buffer import ReplayBuffer
from ..errors import ClosedError, EmptyBufferError
from ..types import Batch
from ..validation import as_count, as_real
from .transfer import To, ToCuda, check_dtypes

__all__ = ["Prefetcher"]

MAX_DEPTH = 64
FIRST_SLEEP_SECONDS, LONGEST_SLEEP_SECONDS = 100e-6, 5e-3  # between looks at an empty buffer
JOIN_SECONDS = 10.0  # a thread still running then is inside the caller's transform, and hangs


class Prefetcher:
    """An endless iterator over batches of torch tensors; a thread prepares the next while the learner trains on one.

    Parameters
    ----------
    buffer : kary_replay.ReplayBuffer or kary_replay.PrioritizedReplayBuffer
        What to draw from.
    batch_size : int
        Rows of a batch, at least 1.
    device : str or torch.device
        Where the tensors are to be.
    depth : int
        Batches drawn ahead, 1 … 64. More even out a load that varies, and are drawn by older
        priorities.
    pin_memory : bool, optional
        For a CUDA device, and by default for every one: batches travel through page-locked memory,
        a ring that is allocated once, on a stream of their own, so that the copy overlaps the
        training.
    transform : callable, optional
        Batch to Batch, called in the thread, without gradients, on the tensors on their device. May
        change the batch it gets.
    rate_limiter : RateLimiter, optional
        Asked before each draw.
    timeout_seconds : float, optional
        How long the thread waits for the limiter, or for the first row in an empty buffer, before
        ``next`` raises. By default for ever.
    sample_options : mapping, optional
        Further arguments of ``buffer.sample``, such as ``{"stratified": False}``.

    Raises
    ------
    ValueError, TypeError, RuntimeError
        If an argument is out of range or of the wrong kind; if torch has no such device, or no
        dtype for a field.

    Notes
    -----
    A batch has every field as a tensor [B, ...] (nested fields as dicts of them),
    ``importance_weight`` as a tensor [B], ``index`` and ``handle`` as NumPy arrays. It belongs to
    the caller: no later batch overwrites it, however long it is kept.

    A batch is drawn before the priorities of the ``depth`` batches before it are written back, so
    priorities lag by that many updates more than with ``buffer.sample``. A row that is overwritten
    in between is no harm: its handle is stale, and `update_priorities` drops it.

    The thread starts with the first ``next`` and ends with `close`, with the ``with`` block, when
    the prefetcher is collected or when the interpreter exits. Whatever is raised in it, ``next``
    raises, once the batches drawn before are used up; the next call starts anew. Any number of
    threads may call ``next`` and `update_priorities`; each batch goes to one of them.

    Examples
    --------
    >>> import kary_replay as kr
    >>> from kary_replay.prefetch import Prefetcher
    >>> fields = {"observation": kr.Field((2,), "float32"), "reward": kr.Field((), "float32")}
    >>> buffer = kr.PrioritizedReplayBuffer(100, fields, seed=0)
    >>> index = buffer.add(observation=[[0, 1], [2, 3]], reward=[0.5, 1.0])
    >>> with Prefetcher(buffer, batch_size=4) as batches:
    ...     batch = next(batches)
    ...     applied = batches.update_priorities(batch, td_error=batch.reward - 0.7)
    >>> batch.observation.shape, batch.importance_weight.dtype, applied
    (torch.Size([4, 2]), torch.float32, 4)
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        batch_size: int,
        device: str | torch.device = "cpu",
        depth: int = 1,
        pin_memory: bool | None = None,
        transform: Callable[[Batch], Batch] | None = None,
        *,
        rate_limiter: RateLimiter | None = None,
        timeout_seconds: float | None = None,
        sample_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(buffer, ReplayBuffer):
            raise TypeError(
                f"buffer must be a ReplayBuffer or a PrioritizedReplayBuffer, got {type(buffer).__name__}"
            )
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be a function of a batch, got {transform!r}")
        if timeout_seconds is not None and not as_real("timeout_seconds", timeout_seconds) >= 0:
            raise ValueError(f"timeout_seconds must be at least 0, got {timeout_seconds}")
        check_dtypes(buffer.fields)
        self._buffer = buffer
        self._depth = as_count("depth", depth, MAX_DEPTH)
        self._device = torch.device(device)
        if self._device.type == "cuda" and self._device.index is None:
            # the caller's: the thread has another one
            self._device = torch.device("cuda", torch.cuda.current_device())
        torch.empty(0, device=self._device)
        if pin_memory and self._device.type != "cuda":
            raise ValueError(
                f"pin_memory is for CUDA devices, got device {self._device}: leave it out"
            )
        self._pinned = self._device.type == "cuda" and pin_memory is not False
        self._draw = _Draw(
            buffer,
            as_count("batch_size", batch_size),
            rate_limiter,
            timeout_seconds,
            dict(sample_options or {}),
        )
        self._transform = transform
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._closed = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch, and have another one drawn.

        Raises
        ------
        EmptyBufferError, RateLimiterTimeoutError
            After timeout_seconds.
        ClosedError
            If the prefetcher or the buffer is closed.
        Exception
            Whatever drawing or transform raised.
        """
        while True:
            worker = self._running()
            # first: an interrupt in between costs a batch too many, not one too few for ever
            worker.wanted.put(True)
            item = worker.ready.get()
            if isinstance(item, tuple):
                return worker.move.receive(*item)
            with self._lock:
                if self._worker is worker:
                    self._worker = None
            if item is not None:
                raise item
            worker.ready.put(None)  # for others who wait

    def update_priorities(self, batch: Batch, td_error: torch.Tensor | npt.ArrayLike) -> int:
        """Set the priorities of a batch's rows to |td_error| + priority_epsilon.

        Parameters
        ----------
        batch : Batch
            From this prefetcher; it may be an old one.
        td_error : tensor on any device, or array, of float [B] or [B, 1]
            Finite; the sign does not matter.

        Returns
        -------
        int
            How many rows were still there.

        Raises
        ------
        ValueError, TypeError
            As ``buffer.update_priorities``; if the buffer has no priorities.

        Notes
        -----
        Done when it returns. For a tensor on an accelerator that means to wait until its value is
        known.
        """
        if not isinstance(self._buffer, PrioritizedReplayBuffer):
            raise TypeError(
                f"a {type(self._buffer).__name__} has no priorities: use a PrioritizedReplayBuffer"
            )
        if isinstance(td_error, torch.Tensor):
            td_error = td_error.detach().cpu().double().numpy()
        return self._buffer.update_priorities(batch.handle, td_error)

    def close(self) -> None:
        """End the thread, and wait until it has. Batches drawn ahead are dropped; the buffer stays."""
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()
            worker.join()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        size = self._draw.batch_size
        return f"Prefetcher({self._buffer!r}, batch_size={size}, device='{self._device}', depth={self._depth})"

    def _running(self) -> _Worker:
        """Return the worker; a new one if there is none, or its thread is gone, as in a process just forked."""
        with self._lock:
            if self._closed:
                raise ClosedError("the prefetcher is closed")
            if self._worker is None or (
                self._worker.ready.empty() and not self._worker.thread.is_alive()
            ):
                move = (
                    ToCuda(self._device, self._depth + 1, self._pinned)
                    if self._device.type == "cuda"
                    else To(self._device)
                )
                self._worker = _Worker(self._draw, move, self._transform)
                # Only signals, and takes no lock: a collection may run anywhere, also in the thread
                # itself.
                weakref.finalize(self, self._worker.stop).atexit = False
                self._worker.start(self._depth)
            return self._worker


class _Draw:
    """Draws a batch as soon as there is one."""

    def __init__(
        self,
        buffer: ReplayBuffer,
        batch_size: int,
        rate_limiter: RateLimiter | None,
        timeout_seconds: float | None,
        options: dict[str, Any],
    ) -> None:
        self.buffer, self.batch_size, self.options = buffer, batch_size, options
        self.rate_limiter, self.timeout_seconds = rate_limiter, timeout_seconds

    def __call__(self, should_stop: Callable[[], bool]) -> Batch | None:
        """Return a batch, or None if ``should_stop`` ended the wait for it."""
        limiter, timeout = self.rate_limiter, self.timeout_seconds
        if limiter is not None and not limiter.await_sample(
            self.batch_size, timeout, should_stop=should_stop
        ):
            return None
        started, sleep = time.monotonic(), FIRST_SLEEP_SECONDS
        while not should_stop():
            try:
                return self.buffer.sample(self.batch_size, **self.options)
            except EmptyBufferError:
                waited = time.monotonic() - started
                if timeout is not None and waited >= timeout:
                    raise EmptyBufferError(
                        f"no row was there to draw for {waited:.3g} s: has every actor stopped?"
                    ) from None
            time.sleep(sleep)
            sleep = min(2 * sleep, LONGEST_SLEEP_SECONDS)
        return None


class _Worker:
    """The thread. Knows nothing of the prefetcher, which can thus be collected while the thread runs."""

    def __init__(self, draw: _Draw, move: To, transform: Callable[[Batch], Batch] | None) -> None:
        self.draw, self.move, self.transform = draw, move, transform
        self.wanted: SimpleQueue[bool] = SimpleQueue()  # True: one more batch; False: no more
        # None is the last
        self.ready: SimpleQueue[tuple[Batch, Any] | BaseException | None] = SimpleQueue()
        self.stopped = False
        self.thread = threading.Thread(target=self.run, name="kary-replay prefetch", daemon=True)

    def start(self, n_batches: int) -> None:
        _RUNNING.add(self)
        for _ in range(n_batches):
            self.wanted.put(True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.move.start()
            with torch.no_grad():
                while self.wanted.get():
                    batch = self.draw(lambda: self.stopped)
                    if batch is None:
                        break
                    self.ready.put(self.move.bring(batch, self.transformed))
                    # its arrays go when the learner lets go of them, not at the next draw
                    del batch
        except BaseException as error:
            self.ready.put(error)
        finally:
            self.ready.put(None)

    def transformed(self, batch: Batch) -> Batch:
        if self.transform is not None:
            batch = self.transform(batch)
            if not isinstance(batch, Batch):
                raise TypeError(f"transform must return the batch, got {type(batch).__name__}")
        return batch

    def stop(self) -> None:
        """Tell the thread to end, without waiting."""
        self.stopped = True
        self.wanted.put(False)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self.thread is not threading.current_thread():
            self.thread.join(JOIN_SECONDS)
            if self.thread.is_alive():
                raise RuntimeError(
                    f"the thread still runs after {JOIN_SECONDS:g} s: does transform hang?"
                )


_RUNNING: weakref.WeakSet[_Worker] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End all threads while the interpreter is still whole."""
    workers = list(_RUNNING)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.thread.join(JOIN_SECONDS)
