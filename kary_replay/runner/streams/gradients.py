"""What learners share: which of them does which update, and the mean of their gradients."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from ...algorithms import Algorithm, Share
from .looking import found_within
from .stream import Checkpoint, Hosted, Medium, Numbers

__all__ = ["GradientStream", "Gradients", "HostedGradients"]


@dataclass(frozen=True)
class GradientStream:
    """An edge among learners that do every update together.

    Parameters
    ----------
    n_learners : int
        How many learners there are. On GPUs NCCL averages, otherwise Gloo.
    """

    n_learners: int

    def host(self, medium: Medium, checkpoint: Checkpoint) -> HostedGradients:
        """Give the learners a number to announce updates by, and a place to meet."""
        place = medium.folder() / "learners" if self.n_learners > 1 else None
        announced = medium.numbers(1)
        announced.array[0] = checkpoint.counters.get("updates", 0)
        return HostedGradients(Gradients(self.n_learners, announced, place))


class HostedGradients(Hosted):
    """A gradient stream of learners that reach the same numbers and the same folder."""

    def __init__(self, end: Gradients) -> None:
        self._end = end

    def sink(self) -> Gradients:
        """Return a learner's end."""
        return self._end

    def source(self) -> Gradients:
        """Return a learner's end."""
        return self._end


class Gradients:
    """A learner's end of the stream among the learners.

    The first learner alone asks whether rows may be drawn, for all of them, and announces each
    update. If every learner asked for its own part, some could go on without the others, and would
    wait for them in the average for ever.
    """

    def __init__(self, n_learners: int, announced: Numbers, place: Path | None) -> None:
        self.n_learners, self._announced, self._place = n_learners, announced, place

    def announce(self, update: int) -> None:
        """Let the other learners do this update; the first learner calls it."""
        self._announced.array[0] = update

    def is_announced(self, update: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether the first learner does this update."""
        announced = self._announced.array
        return found_within(patience_seconds, lambda: announced[0] >= update or None) is not None

    def begin(self, algorithm: Algorithm) -> None:
        """Do nothing: all learners have the same weights at all times."""

    def exchange(self) -> None:
        """Do nothing."""

    def share(self, index: int, device: str) -> Share:
        """Return one learner's share; with several learners this waits until all have met."""
        if self.n_learners == 1:
            return Share()
        import torch.distributed as dist

        on_gpu = device.startswith("cuda")
        if on_gpu:
            torch.cuda.set_device(device)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            init_method=f"file://{self._place}",
            rank=index,
            world_size=self.n_learners,
        )

        def average(vector: torch.Tensor) -> None:
            dist.all_reduce(vector)
            vector.div_(self.n_learners)

        return Share(index, self.n_learners, average)
