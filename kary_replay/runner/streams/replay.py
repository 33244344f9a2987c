"""Transitions on their way from the actors to the learners: a replay buffer and the rate at which it is used."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from ...buffers.rate_limiter import RateLimiter
from ...errors import RateLimiterTimeoutError
from ...types import Batch, Field
from ...writers.n_step import NStepWriter

__all__ = ["ReplayStream", "fields_for"]


class ReplayStream:
    """A prioritized buffer, and a limiter that holds the rows drawn per row added near a ratio.

    Parameters
    ----------
    buffer : PrioritizedReplayBuffer
        With a field ``discount``; shared if other processes take part.
    samples_per_insert, min_size, error
        Of the `RateLimiter`.
    origin : (int, int), optional
        Where an earlier run began to count.
    """

    def __init__(
        self,
        buffer: PrioritizedReplayBuffer,
        samples_per_insert: float,
        min_size: int,
        error: float,
        origin: tuple[int, int] | None = None,
    ) -> None:
        self.buffer = buffer
        self.limiter = RateLimiter(buffer, samples_per_insert, min_size, error, origin=origin)

    def writer(self, n_envs: int, n_step: int, gamma: float, priority: Any = None) -> NStepWriter:
        """Return what turns the steps of some environments into rows."""
        return NStepWriter(self.buffer, n_envs, n_step, gamma, priority)

    def may_add(self, n: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether ``n`` rows may be added now."""
        return self._may(self.limiter.await_add, n, patience_seconds)

    def may_sample(self, n: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether ``n`` rows may be drawn now."""
        return self._may(self.limiter.await_sample, n, patience_seconds)

    def sample(self, batch_size: int) -> Batch:
        """Draw rows by priority."""
        return self.buffer.sample(batch_size)

    def update_priorities(self, batch: Batch, td_error: Any) -> None:
        """Set the priorities of a batch's rows."""
        self.buffer.update_priorities(batch.handle, td_error)

    def close(self) -> None:
        """Let go of the memory."""
        self.buffer.close()

    @staticmethod
    def _may(wait: Any, n: int, patience_seconds: float) -> bool:
        try:
            return bool(wait(n, patience_seconds))
        except RateLimiterTimeoutError:
            return False


def fields_for(observation_space: Any, action_space: Any) -> dict[str, Any]:
    """Return the fields of the transitions of an environment, actions as algorithms choose them."""
    probe = PrioritizedReplayBuffer.from_spaces(1, observation_space, action_space)
    fields = probe.fields
    probe.close()
    del fields["terminated"]
    discrete = hasattr(action_space, "n")
    fields["action"] = Field((), np.int64) if discrete else Field(action_space.shape, np.float32)
    fields["discount"] = Field((), np.float32)
    return fields
