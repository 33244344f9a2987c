"""What actors and learners ask of the stream between them, whatever lies behind its two ends.

`replay` has the ends of a prioritized buffer, and `rollout` those of what is learned from once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from ...algorithms import Algorithm, Share
from ...types import Batch
from .inference import Inference

__all__ = ["Sink", "Source"]


class Sink(Protocol):
    """The actors' end."""

    @property
    def has_begun(self) -> bool:
        """Whether actions are those of the policy; before, they are drawn at random."""

    @property
    def priority_epsilon(self) -> float:
        """What is added to |TD error| to make a priority."""

    def writer(
        self,
        algorithm: Algorithm,
        n_envs: int,
        group: int,
        inference: Inference,
        priority: Any = None,
    ) -> Any:
        """Return what turns the steps of some environments into rows, as the algorithm does.

        They are a group of all actors' environments, whose actions ``inference`` chooses.
        """

    def next_group(self, groups: Sequence[int], n: int, patience_seconds: float) -> int | None:
        """Wait at most so long; return the first of some groups that may add ``n`` rows now."""

    def may_choose(self, group: int) -> bool:
        """Return whether a group's next actions may be chosen by the current parameters."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the actor's writers go on from, beside the steps that are played again."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state, in the actor's writers."""


class Source(Protocol):
    """The learners' end."""

    @property
    def draws_tensors(self) -> bool:
        """Whether batches come as tensors on the learner's device."""

    def prepare(
        self, batch_size: int, device: torch.device, n_ahead: int, share: Share, index: int
    ) -> None:
        """Say how many rows `draw` is to return, where, how many batches lie ready, and to whom."""

    def blank(self, n: int) -> Batch:
        """Return a batch of ``n`` rows of zeros."""

    def may_draw(self, n: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether all learners may draw ``n`` rows together now."""

    def draw(self) -> Batch:
        """Return the learner's part of a batch, which the next call may overwrite."""

    def learned(self, batch: Batch, td_error: Any) -> None:
        """Take back a batch and its errors; ValueError if one of them is not finite."""

    def release(self, updates: int) -> None:
        """Note that what was drawn is not needed any more.

        If newer parameters were due, they have been published; they have had so many updates.
        """

    def advance(self, progress: float) -> None:
        """Set what changes with the share of the run that is done, 0 to 1."""

    def state_dict(self) -> dict[str, Any]:
        """Return what tells how far the learner has read."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; the stream may have been saved later than the learner."""

    def close(self) -> None:
        """End what `prepare` began."""
