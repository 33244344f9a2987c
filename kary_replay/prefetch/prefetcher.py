"""The prefetcher, whose thread draws the next batch while the learner trains on the last one.

A batch belongs to the thread that took it, because nothing that a learner can see is reused: a
batch consists of fresh arrays, or of fresh memory of its device.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy.typing as npt
import torch

from ..buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from ..buffers.rate_limiter import RateLimiter
from ..buffers.replay_buffer import ReplayBuffer
from ..errors import ClosedError, EmptyBufferError
from ..types import Batch
from ..validation import as_count, as_timeout
from .transfer import CudaTransfer, HostTransfer, Transfer, check_dtypes

__all__ = ["Prefetcher"]

MAX_DEPTH = 64
FIRST_SLEEP_SECONDS, LONGEST_SLEEP_SECONDS = 100e-6, 5e-3  # between two looks at an empty buffer
JOIN_SECONDS = 10.0  # a thread that runs longer than this hangs in the caller's transform


class Prefetcher:
    """An endless iterator over batches of torch tensors, which a thread prepares ahead of time.

    Parameters
    ----------
    buffer : kary_replay.ReplayBuffer or kary_replay.PrioritizedReplayBuffer
        The buffer to draw from.
    batch_size : int
        The number of rows in a batch, at least 1.
    device : str or torch.device
        The device of the tensors.
    depth : int
        The number of batches that are drawn ahead, from 1 to 64. A larger depth evens out a load
        that varies, but draws by older priorities.
    pin_memory : bool, optional
        Whether batches travel to a CUDA device through page-locked memory, a ring that is allocated
        once, and on a stream of their own, so that the copy overlaps the training. The default is
        True for a CUDA device; other devices do not take True.
    transform : callable, optional
        A function from Batch to Batch. The thread calls it, without gradients, on the tensors on
        their device. It may change the batch that it gets.
    rate_limiter : RateLimiter, optional
        The rate limiter that the thread asks before each draw.
    timeout_seconds : float, optional
        How long the thread waits for the limiter, or for the first row in an empty buffer, before
        ``next`` raises. By default the thread waits for ever.
    sample_options : mapping, optional
        Further arguments of ``buffer.sample``, such as ``{"stratified": False}``.

    Raises
    ------
    ValueError, TypeError, RuntimeError
        If an argument is out of range or of the wrong kind, torch has no such device, or torch has
        no dtype for a field.

    Notes
    -----
    A batch has every field as a tensor [B, ...], and nested fields as dicts of tensors. It has
    ``importance_weight`` as a tensor [B], and ``index`` and ``handle`` as NumPy arrays. It belongs
    to the caller: no later batch overwrites it, however long it is kept.

    A batch is drawn before the priorities of the ``depth`` batches before it are written back, so
    priorities lag by that many updates more than with ``buffer.sample``. A row that is overwritten
    meanwhile does no harm: its handle is stale, and `update_priorities` drops it.

    The thread starts with the first ``next``. It ends with `close`, at the end of the ``with``
    block, when the prefetcher is collected, and when the interpreter exits. An error in the thread
    is raised by ``next`` after the batches drawn before it are used up, and the call after that
    starts a new thread. Any number of threads may call ``next`` and `update_priorities`. Each batch
    goes to one of them.

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
                "buffer must be a ReplayBuffer or a PrioritizedReplayBuffer, "
                f"got {type(buffer).__name__}"
            )
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be a function of a batch, got {transform!r}")
        options = dict(sample_options or {})
        if "out" in options:
            raise ValueError(
                "sample_options must not have out: batches that were handed out would be written "
                "to; leave it out"
            )
        timeout = as_timeout(timeout_seconds)
        check_dtypes(buffer.fields)
        self._buffer = buffer
        self._depth = as_count("depth", depth, MAX_DEPTH)
        self._device = torch.device(device)
        if self._device.type == "cuda" and self._device.index is None:
            # The current device of this thread is meant, and the prefetcher's thread has another.
            self._device = torch.device("cuda", torch.cuda.current_device())
        torch.empty(0, device=self._device)
        if pin_memory and self._device.type != "cuda":
            raise ValueError(
                f"pin_memory is for CUDA devices, got device {self._device}: leave it out"
            )
        self._pinned = self._device.type == "cuda" and pin_memory is not False
        self._sampler = _Sampler(
            buffer,
            as_count("batch_size", batch_size),
            rate_limiter,
            timeout,
            options,
        )
        self._transform = transform
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._finalizer: Any = None  # of the present worker
        self._closed = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch, and have the thread draw another one.

        Raises
        ------
        EmptyBufferError, RateLimiterTimeoutError
            If the thread has waited longer than timeout_seconds.
        ClosedError
            If the prefetcher or the buffer is closed.
        Exception
            If drawing or the transform has raised it.
        """
        while True:
            worker = self._running()
            # This order costs one batch too many after an interrupt between the two lines. The
            # other order would leave one too few for ever.
            worker.wanted.put(True)
            item = worker.ready.get()
            if isinstance(item, tuple):
                return worker.transfer.receive(*item)
            with self._lock:
                if self._worker is worker:
                    self._worker = None
            if isinstance(item, StopIteration):  # which would end the loop without a word
                raise RuntimeError("the transform has raised StopIteration") from item
            if item is not None:
                raise item
            worker.ready.put(None)  # wakes the next of the other threads that wait

    def update_priorities(self, batch: Batch, td_error: torch.Tensor | npt.ArrayLike) -> int:
        """Set the priorities of a batch's rows to |td_error| + priority_epsilon.

        Parameters
        ----------
        batch : Batch
            A batch of this prefetcher, not necessarily the last one.
        td_error : tensor on any device, or array, of float [B] or [B, 1]
            The TD errors, which are finite. Their signs do not matter.

        Returns
        -------
        int
            The number of rows that were still in the buffer.

        Raises
        ------
        ValueError, TypeError
            If the arguments do not fit, as in ``buffer.update_priorities``, or the buffer has no
            priorities.

        Notes
        -----
        The priorities are set when the call returns. It therefore waits for the value of a tensor
        on an accelerator.
        """
        if not isinstance(self._buffer, PrioritizedReplayBuffer):
            name = type(self._buffer).__name__
            raise TypeError(f"a {name} has no priorities: use a PrioritizedReplayBuffer")
        if isinstance(td_error, torch.Tensor):
            td_error = td_error.detach().cpu().double().numpy()
        return self._buffer.update_priorities(batch.handle, td_error)

    def close(self) -> None:
        """End the thread, wait for its end, and drop the batches drawn ahead; the buffer stays."""
        with self._lock:
            self._closed = True
            worker, self._worker = self._worker, None
            self._forget_worker()
        if worker is not None:
            worker.stop()
            worker.join()

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        sizes = f"batch_size={self._sampler.batch_size}, device='{self._device}'"
        return f"Prefetcher({self._buffer!r}, {sizes}, depth={self._depth})"

    def _running(self) -> _Worker:
        """Return the worker, or a new one if there is none or its thread is gone.

        The thread is gone in a process that has just been forked, for instance.
        """
        with self._lock:
            if self._closed:
                raise ClosedError("the prefetcher is closed")
            if self._worker is None or (
                # in this order: what a thread leaves, it leaves before it ends
                not self._worker.thread.is_alive() and self._worker.ready.empty()
            ):
                transfer: Transfer = HostTransfer(self._device)
                if self._device.type == "cuda":
                    transfer = CudaTransfer(self._device, self._depth + 1, self._pinned)
                self._worker = _Worker(self._sampler, transfer, self._transform)
                # The finalizer only signals and takes no lock, because a garbage collection may run
                # in any thread, the worker's own included.
                self._forget_worker()
                self._finalizer = weakref.finalize(self, self._worker.stop)
                self._finalizer.atexit = False
                self._worker.start(self._depth)
            return self._worker

    def _forget_worker(self) -> None:
        """Let go of the worker before, which the finalizer would keep with its pinned memory."""
        if self._finalizer is not None:
            self._finalizer.detach()


class _Sampler(NamedTuple):
    """Draws a batch as soon as the rate limiter allows it and the buffer has a row."""

    buffer: ReplayBuffer
    batch_size: int
    rate_limiter: RateLimiter | None
    timeout_seconds: float | None
    options: dict[str, Any]

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
    """The thread that draws and sends batches.

    It holds no reference to the prefetcher, which can therefore be collected while the thread runs.
    """

    def __init__(
        self, sampler: _Sampler, transfer: Transfer, transform: Callable[[Batch], Batch] | None
    ) -> None:
        self.sampler, self.transfer, self.transform = sampler, transfer, transform
        # True asks for one more batch, False for the end of the thread.
        self.wanted: SimpleQueue[bool] = SimpleQueue()
        # None marks the end of the thread.
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
            self.transfer.start()
            with torch.no_grad():
                while self.wanted.get():
                    batch = self.sampler(lambda: self.stopped)
                    if batch is None:
                        break
                    self.ready.put(self.transfer.send(batch, self.transformed))
                    # Without this, the thread would keep the arrays until its next draw.
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
        """Tell the thread to end, and do not wait for it."""
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
    """End all threads before the interpreter is taken apart."""
    workers = list(_RUNNING)
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.thread.join(JOIN_SECONDS)
