"""Weights that several learners change without waiting for each other.

Each learner trains a copy of its own. After every update it adds what the update has changed to the
shared weights, and takes up what others have added since. That is done chunk by chunk, so that
nobody waits for more than a chunk of another learner's. Target networks are each learner's own: the
changes of two that copy the same weights must not add up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...algorithms import Algorithm, Share
from .stream import Checkpoint, Hosted, Medium, Numbers

__all__ = ["HostedWeights", "WeightStream", "Weights", "weights_of"]

MOST_CHUNKS, LEAST_WEIGHTS = 16, 2**14  # chunks, and weights in each where there are several


def weights_of(algorithm: Algorithm) -> dict[str, torch.Tensor]:
    """Return all vectors that are trained, by the names of their minimizers."""
    return {name: minimizer.flat for name, minimizer in algorithm.minimizers.items()}


@dataclass(frozen=True)
class WeightStream:
    """An edge among learners that do updates of their own.

    Parameters
    ----------
    n_weights : int
        Of all vectors together.
    n_learners : int
        How many learners there are.
    """

    n_weights: int
    n_learners: int

    @property
    def n_chunks(self) -> int:
        """In how many pieces weights are exchanged: in one, if a copy takes less than a lock."""
        return min(MOST_CHUNKS, max(1, self.n_weights // LEAST_WEIGHTS))

    def host(self, medium: Medium, checkpoint: Checkpoint) -> HostedWeights:
        """Make room for the weights; the first learner says what they are."""
        weights = medium.numbers(-(-self.n_weights // 2))
        counts = medium.numbers(3 * self.n_learners)
        return HostedWeights(Weights(self, weights, counts, medium.locks(self.n_chunks)))


class HostedWeights(Hosted):
    """Shared weights in the memory of this machine."""

    def __init__(self, end: Weights) -> None:
        self._end = end

    def sink(self) -> Weights:
        """Return a learner's end."""
        return self._end

    def figures(self) -> dict[str, float]:
        """Return how many updates of others came between two exchanges of a learner: the mean."""
        n_exchanges, n_between, _ = self._end.counts.sum(0).tolist()
        return {"updates_between": n_between / n_exchanges if n_exchanges else 0.0}


class Weights:
    """A learner's end of the stream among learners; picklable to a process that is being started.

    Attributes
    ----------
    shared : float32 [n_weights]
        The sum of what all learners have changed.
    counts : float64 [n_learners, 3]
        Exchanges of each learner, updates of others in between, and of how many it knew last.
    """

    def __init__(
        self, stream: WeightStream, weights: Numbers, counts: Numbers, locks: Sequence[Any]
    ) -> None:
        self.stream, self._memory, self._locks = stream, (weights, counts), locks
        self.shared = torch.from_numpy(weights.array.view(np.float32)[: stream.n_weights])
        self.counts = counts.array.reshape(stream.n_learners, 3)
        self._index = 0
        self._own: list[torch.Tensor] = []
        self._before = torch.empty(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return Weights, (self.stream, *self._memory, self._locks)

    def share(self, index: int, device: str) -> Share:
        """Return a learner's share of an update: all of it."""
        self._index = index
        return Share()

    def begin(self, algorithm: Algorithm) -> None:
        """Begin with the present weights, which all learners have; the first one's are shared."""
        self._own = list(weights_of(algorithm).values())
        self._before = self._together()
        if self._index == 0:
            self.shared.copy_(self._before)

    def exchange(self) -> None:
        """Add what an update has changed in the learner's weights, and catch up."""
        self.catch_up()
        self._count()

    @torch.no_grad()
    def catch_up(self) -> None:
        """Take up what others have added, and add what has changed in the learner's weights."""
        changed = self._together()
        changed -= self._before
        n_chunks = self.stream.n_chunks
        bounds = np.linspace(0, len(self.shared), n_chunks + 1).astype(int)
        # each begins elsewhere, so that they do not follow one another from lock to lock
        first = self._index * n_chunks // self.stream.n_learners
        for number in range(first, first + n_chunks):
            chunk = slice(*bounds[number % n_chunks :][:2].tolist())
            with self._locks[number % n_chunks]:
                self.shared[chunk] += changed[chunk]
                self._before[chunk] = self.shared[chunk]
        begin = 0
        for vector in self._own:
            vector.copy_(self._before[begin : begin + len(vector)])
            begin += len(vector)

    def _together(self) -> torch.Tensor:
        """Return the learner's own weights as one vector on the CPU."""
        return torch.cat([vector.detach().cpu() for vector in self._own])

    def _count(self) -> None:
        own = self.counts[self._index]
        own[0] += 1
        others = float(self.counts[:, 0].sum() - own[0])
        own[1] += others - own[2]
        own[2] = others
