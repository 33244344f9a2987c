"""Transitions on their way from the actors to the learners, through a prioritized buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...algorithms import Algorithm, Share
from ...buffers.frame_replay_buffer import FrameReplayBuffer
from ...buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from ...buffers.rate_limiter import RateLimiter
from ...errors import RateLimiterTimeoutError
from ...fields import map_leaves
from ...prefetch.prefetcher import Prefetcher
from ...shards import ShardService
from ...types import Batch, Field, UniformShare
from ..environments.stacking import Stacking
from .inference import Inference, as_tensors
from .stream import Checkpoint, Hosted, Medium

__all__ = ["HostedReplay", "ReplaySink", "ReplaySource", "ReplayStream"]

# columns that a buffer of frames has by itself
MADE_OF_FRAMES = "next_observation", "reward", "discount", "terminated"


@dataclass(frozen=True)
class ReplayStream:
    """A prioritized buffer, and a limiter that holds the rows drawn per row added near a ratio.

    Parameters
    ----------
    columns : mapping
        The fields of a row, by name.
    capacity, alpha, beta, uniform_share, seed
        As `PrioritizedReplayBuffer` has them. Beta rises to 1 in the course of the run.
    samples_per_insert, min_size, error
        As `RateLimiter` has them.
    batch_size : int
        Rows that all learners draw together for one update.
    n_learners : int
        How many they are.
    stacking : Stacking, optional
        How observations are made of frames: then each frame is stored once.
    n_step : int
        Steps of a row, which a buffer of frames has to know.
    """

    columns: Mapping[str, Any]
    capacity: int
    alpha: float
    beta: float
    uniform_share: UniformShare
    seed: int
    samples_per_insert: float
    min_size: int
    error: float
    batch_size: int
    n_learners: int = 1
    stacking: Stacking | None = None
    n_step: int = 1

    def host(self, medium: Medium, checkpoint: Checkpoint) -> Hosted:
        """Make the buffer, or read it from a checkpoint.

        Where several machines have parts of the run, the buffer is a shard.

        Raises
        ------
        MemoryError, OSError, ValueError
            If there is no room for the buffer.
        OSError, ValueError, KeyError
            If what was saved cannot be read.
        """
        if medium.part is not None:
            from .sharded_replay import HostedShard

            return HostedShard(self, medium, medium.part, checkpoint)
        if checkpoint.folder is not None:
            saved = checkpoint.folder / "replay"
            kind = PrioritizedReplayBuffer if self.stacking is None else FrameReplayBuffer
            buffer = kind.load(saved, shared=medium.is_shared)
        else:
            buffer = self._new_buffer(medium.is_shared)
        origin = checkpoint.counters.get("origin")
        limiter = RateLimiter(
            buffer,
            self.samples_per_insert,
            self.min_size,
            self.error,
            origin=tuple(origin) if origin else None,
        )
        return HostedReplay(self, buffer, limiter)

    def _new_buffer(self, shared: bool) -> PrioritizedReplayBuffer:
        options = {
            **self._options(shared),
            "beta": self.beta,
            "uniform_share": self.uniform_share,
        }
        if self.stacking is not None:
            return self._frame_buffer(self.capacity, options)
        return PrioritizedReplayBuffer(self.capacity, dict(self.columns), **options)

    def new_shard(self, capacity: int) -> PrioritizedReplayBuffer:
        """Return an empty shard of so many rows, which other processes may attach to."""
        options = self._options(shared=True)
        if self.stacking is not None:
            return self._frame_buffer(capacity, options)
        return ShardService.new_buffer(capacity, dict(self.columns), **options)

    def _options(self, shared: bool) -> dict[str, Any]:
        return {"alpha": self.alpha, "seed": self.seed, "shared": shared}

    def _frame_buffer(self, capacity: int, options: dict[str, Any]) -> FrameReplayBuffer:
        assert self.stacking is not None
        columns = dict(self.columns)
        stack = columns.pop("observation")
        frame = map_leaves(stack, lambda field: Field(field.shape[1:], field.dtype))
        for name in MADE_OF_FRAMES:
            columns.pop(name, None)
        return FrameReplayBuffer(
            capacity, frame, columns, **self.stacking._asdict(), n_step=self.n_step, **options
        )


class HostedReplay(Hosted):
    """A replay stream in the memory of this machine."""

    def __init__(
        self, stream: ReplayStream, buffer: PrioritizedReplayBuffer, limiter: RateLimiter
    ) -> None:
        self._stream, self._buffer, self._limiter = stream, buffer, limiter

    def sink(self) -> ReplaySink:
        """Return the actors' end."""
        return ReplaySink(self._buffer, self._limiter)

    def source(self) -> ReplaySource:
        """Return the learners' end."""
        return ReplaySource(self._buffer, self._limiter, self._stream)

    def save(self, folder: Path) -> None:
        """Write the buffer."""
        self._buffer.save(folder / "replay")

    def counters(self) -> dict[str, Any]:
        """Return where the limiter began to count."""
        return {"origin": list(self._limiter.origin)}

    def figures(self) -> dict[str, float]:
        """Return size, samples_per_insert, beta, uniform_share, relative and least noise."""
        return {
            "size": len(self._buffer),
            "samples_per_insert": self._limiter.ratio,
            "beta": self._buffer.beta,
            "uniform_share": self._buffer.uniform_share,
            "relative_noise": self._buffer.relative_noise,
            "least_noise": self._buffer.least_noise,
        }

    def is_used_up(self) -> bool:
        """Return whether the limiter allows no further update."""
        return self._limiter.allowed_samples() < self._stream.batch_size

    def close(self) -> None:
        """Let go of the buffer's memory."""
        self._buffer.close()


class ReplaySink:
    """The actors' end of a replay stream."""

    def __init__(self, buffer: PrioritizedReplayBuffer, limiter: RateLimiter) -> None:
        self._buffer, self._limiter = buffer, limiter
        self._writers: dict[int, Any] = {}  # by group

    @property
    def has_begun(self) -> bool:
        """Whether there are as many rows as learning starts with."""
        return len(self._buffer) >= self._limiter.min_size

    @property
    def priority_epsilon(self) -> float:
        """What is added to |TD error| to make a priority."""
        return self._buffer.priority_epsilon

    def writer(
        self,
        algorithm: Algorithm,
        n_envs: int,
        group: int,
        inference: Inference,
        priority: Any = None,
    ) -> Any:
        """Return what turns the steps of some environments into rows, as the algorithm does."""
        self._writers[group] = algorithm.writer(self._target, n_envs, priority)
        return self._writers[group]

    @property
    def _target(self) -> Any:
        """Where writers add to."""
        return self._buffer

    def next_group(self, groups: Sequence[int], n: int, patience_seconds: float) -> int | None:
        """Wait at most so long; return the first group if ``n`` rows may be added now."""
        return groups[0] if may(self._limiter.await_add, n, patience_seconds) else None

    def may_choose(self, group: int) -> bool:
        """Return True: rows are of any policy."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return what the writers have of steps that are in no row yet."""
        return {
            str(group): as_tensors(writer.state_dict()) for group, writer in self._writers.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the writers go on with these steps."""
        for group, writer in self._writers.items():
            if str(group) in state:
                saved = state[str(group)]
                writer.load_state_dict({name: tensor.numpy() for name, tensor in saved.items()})


class ReplaySource:
    """The learners' end of a replay stream."""

    def __init__(
        self, buffer: PrioritizedReplayBuffer, limiter: RateLimiter, stream: ReplayStream
    ) -> None:
        self._buffer, self._limiter, self._stream = buffer, limiter, stream
        self._batch_size = 0
        self._batch: Batch | None = None  # the last one, into whose arrays the next one is drawn
        self._prefetcher: Iterator[Any] | None = None

    @property
    def draws_tensors(self) -> bool:
        """Whether batches come as tensors on the learner's device, which they do drawn ahead."""
        return self._prefetcher is not None

    def prepare(
        self, batch_size: int, device: torch.device, n_ahead: int, share: Share, index: int
    ) -> None:
        """Say what `draw` is to return; a thread brings ``n_ahead`` batches to the device."""
        self._batch_size = batch_size
        if n_ahead:
            transform = with_whole_stacks if self._stream.stacking is not None else None
            self._prefetcher = Prefetcher(
                self._buffer, batch_size, device, n_ahead, transform=transform
            )

    def blank(self, n: int) -> Batch:
        """Return a batch of ``n`` rows of zeros."""
        return blank(self._stream.columns, n)

    def may_draw(self, n: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether ``n`` rows may be drawn now."""
        return may(self._limiter.await_sample, n, patience_seconds)

    def draw(self) -> Batch:
        """Draw a batch by priority, or take one that was drawn ahead.

        The next call may overwrite it.
        """
        if self._prefetcher is not None:
            batch: Batch = next(self._prefetcher)
            return batch
        if self._stream.stacking is not None:
            return with_whole_stacks(self._buffer.sample(self._batch_size))
        self._batch = self._buffer.sample(self._batch_size, out=self._batch)
        return self._batch

    def learned(self, batch: Batch, td_error: Any) -> None:
        """Set the priorities of a batch's rows; ValueError if an error is not finite."""
        self._buffer.update_priorities(batch.handle, td_error)

    def release(self, updates: int) -> None:
        """Do nothing: batches are copies."""

    def advance(self, progress: float) -> None:
        """Set what changes with the share of the run that is done, 0 to 1: beta."""
        beta = self._stream.beta
        self._buffer.beta = beta + progress * (1 - beta)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: rows may be drawn again."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """End the thread that draws ahead."""
        if isinstance(self._prefetcher, Prefetcher):
            self._prefetcher.close()


def with_whole_stacks(batch: Batch) -> Batch:
    """Return a batch whose stacks lie each on its own, as native updates and copies want them.

    They are arrays, or tensors of a batch that was drawn ahead.
    """

    def whole(stacks: Any) -> Any:
        if isinstance(stacks, torch.Tensor):
            return stacks.contiguous()
        return np.ascontiguousarray(stacks)

    columns = dict(batch)
    del columns["frames"]
    stacks = {name: columns[name] for name in ("observation", "next_observation")}
    return Batch({**columns, **map_leaves(stacks, whole)})


def blank(fields: Mapping[str, Any], n: int) -> Batch:
    """Return a batch of ``n`` rows of zeros."""
    columns = map_leaves(fields, lambda field: np.zeros((n, *field.shape), field.dtype))
    return Batch({**columns, "importance_weight": np.ones(n, np.float32)})


def may(wait: Callable[[int, float], bool], n: int, patience_seconds: float) -> bool:
    """Return whether a limiter lets ``n`` rows pass within the patience."""
    with suppress(RateLimiterTimeoutError):
        return bool(wait(n, patience_seconds))
    return False
