"""What actors and learners ask of the stream between them, whatever lies behind its two ends.

`replay` has the ends of a prioritized buffer. Another stream under the name "experience", such as
one of rollouts, has the same.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from ...algorithms import Algorithm
from ...types import Batch

__all__ = ["Sink", "Source"]


class Sink(Protocol):
    """The actors' end."""

    @property
    def has_begun(self) -> bool:
        """Whether actions are those of the policy; before, they are drawn at random."""

    @property
    def priority_epsilon(self) -> float:
        """What is added to |TD error| to make a priority."""

    def writer(self, algorithm: Algorithm, n_envs: int, priority: Any = None) -> Any:
        """Return what turns the steps of some environments into rows, as the algorithm does."""

    def may_add(self, n: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether ``n`` rows may be added now."""


class Source(Protocol):
    """The learners' end."""

    @property
    def draws_tensors(self) -> bool:
        """Whether batches come as tensors on the learner's device."""

    def prepare(self, batch_size: int, device: torch.device, n_ahead: int) -> None:
        """Say how many rows `draw` is to return, where, and how many batches lie ready."""

    def blank(self, n: int) -> Batch:
        """Return a batch of ``n`` rows of zeros."""

    def may_draw(self, n: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether all learners may draw ``n`` rows together now."""

    def draw(self) -> Batch:
        """Return the learner's part of a batch."""

    def learned(self, batch: Batch, td_error: Any) -> None:
        """Take back a batch and its errors; ValueError if one of them is not finite."""

    def advance(self, progress: float) -> None:
        """Set what changes with the share of the run that is done, 0 to 1."""

    def close(self) -> None:
        """End what `prepare` began."""
