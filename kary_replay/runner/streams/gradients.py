"""What learners share: which of them does which update, and the mean of their gradients."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...algorithms import Algorithm, Share
from ...core.ordered import load, store
from .looking import LOOK_SECONDS, found_within
from .stream import Checkpoint, Hosted, Medium, Numbers

__all__ = ["GradientStream", "Gradients", "HostedGradients", "Mean"]

N_YIELDS = 200  # while others are a little behind, before a learner sleeps between two looks


@dataclass(frozen=True)
class GradientStream:
    """An edge among learners that do every update together.

    Parameters
    ----------
    n_learners : int
        How many learners there are. On GPUs NCCL averages, otherwise they do so themselves.
    n_weights : int
        Of the largest network: numbers for which there is room.
    """

    n_learners: int
    n_weights: int

    def host(self, medium: Medium, checkpoint: Checkpoint) -> HostedGradients:
        """Give the learners a number to announce updates by, and places to meet."""
        announced = medium.numbers(1)
        announced.array[0] = checkpoint.counters.get("updates", 0)
        if self.n_learners == 1:
            return HostedGradients(Gradients(1, announced))
        n_words = -(-self.n_weights // 2)
        room, arrived = (medium.numbers(n * self.n_learners) for n in (2 * n_words, 1))
        place = medium.folder() / "learners"
        return HostedGradients(Gradients(self.n_learners, announced, room, arrived, place))


class HostedGradients(Hosted):
    """A gradient stream of learners that reach the same numbers and the same folder."""

    def __init__(self, end: Gradients) -> None:
        self._end = end

    def sink(self) -> Gradients:
        """Return a learner's end."""
        return self._end


class Gradients:
    """A learner's end of the stream among the learners.

    The first learner alone asks whether rows may be drawn, for all of them, and announces each
    update. If every learner asked for its own part, some could go on without the others, and would
    wait for them in the average for ever.
    """

    def __init__(
        self,
        n_learners: int,
        announced: Numbers,
        room: Numbers | None = None,
        arrived: Numbers | None = None,
        place: Path | None = None,
    ) -> None:
        self.n_learners, self._announced = n_learners, announced
        self._room, self._arrived, self._place = room, arrived, place

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

    def catch_up(self) -> None:
        """Do nothing."""

    def share(self, index: int, device: str) -> Share:
        """Return one learner's share; on GPUs this waits until all learners have met."""
        if self.n_learners == 1:
            return Share()
        if device.startswith("cuda"):
            return Share(index, self.n_learners, self._by_nccl(index, device))
        assert self._room is not None and self._arrived is not None
        return Share(index, self.n_learners, Mean(index, self._room, self._arrived))

    def _by_nccl(self, index: int, device: str) -> Any:
        """Return what averages vectors on GPUs."""
        import torch.distributed as dist

        torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl",
            init_method=f"file://{self._place}",
            rank=index,
            world_size=self.n_learners,
        )

        def average(vector: torch.Tensor) -> None:
            dist.all_reduce(vector)
            vector.div_(self.n_learners)

        return average


class Mean:
    """Averages vectors that all learners have, in memory that all of them reach.

    Parameters
    ----------
    index : int
        Which learner calls.
    room : Numbers [2 · n_learners · words]
        Where vectors are laid down; longer ones are averaged piece by piece.
    arrived : Numbers [n_learners]
        How many vectors each has laid down.

    Notes
    -----
    All call it for the same vectors in the same order. They add up in the order of the learners, so
    that all come to the same bits. The places of a vector are used again for the next but one: who
    lays that down has seen all others lay down the one between, which they do when they have read
    the first.
    """

    def __init__(self, index: int, room: Numbers, arrived: Numbers) -> None:
        self._index, self._arrived = index, arrived.array.view(np.int64)
        self._room = room.array.reshape(2, len(self._arrived), -1)
        self._n = load(self._arrived, index)

    def __call__(self, vector: torch.Tensor) -> None:
        """Set a vector to its mean over the learners, once they all have called."""
        own = vector.detach().contiguous()
        numbers = own.numpy().reshape(-1)
        n = self._room.shape[2] * self._room.itemsize // numbers.itemsize
        for begin in range(0, len(numbers), n):
            self._average(numbers[begin : begin + n])
        if own.data_ptr() != vector.data_ptr():
            vector.copy_(own)

    def _average(self, numbers: Any) -> None:
        self._n += 1
        laid_down = self._room[self._n % 2].view(numbers.dtype)[:, : len(numbers)]
        laid_down[self._index] = numbers
        store(self._arrived, self._index, self._n)
        self._await()
        np.add(laid_down[0], laid_down[1], out=numbers)
        for other in laid_down[2:]:
            numbers += other
        numbers /= numbers.dtype.type(len(self._arrived))

    def _await(self) -> None:
        """Wait until all have laid down this vector."""
        n_looks = 0
        for i in range(len(self._arrived)):
            while load(self._arrived, i) < self._n:
                n_looks += 1
                if n_looks <= N_YIELDS:
                    os.sched_yield()
                else:
                    time.sleep(LOOK_SECONDS)
