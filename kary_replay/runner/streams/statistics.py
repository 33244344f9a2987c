"""Statistics of what actors see, on their way to the learners, who normalize by them.

Each actor has moments of its own, which it alone writes; readers merge those of all. They may see
a step in part, also one in which an actor was killed: that moves the statistics by less than the
step itself does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from ...algorithms.normalization import Moments, merged, moments_of
from .board import STEPS
from .stream import Checkpoint, Hosted, Medium, Numbers, Peer

__all__ = ["HostedStatistics", "Statistics", "StatisticsStream"]


@dataclass(frozen=True)
class StatisticsStream:
    """The moments of what each actor has seen.

    Parameters
    ----------
    n_numbers : int
        Numbers of one row, as `Normalization.numbers` makes them.
    n_actors : int
        How many actors there are.
    """

    n_numbers: int
    n_actors: int

    def host(self, medium: Medium, checkpoint: Checkpoint) -> HostedStatistics:
        """Make the moments, and take up those of an earlier session; ValueError if they differ."""
        numbers = medium.numbers(self.n_actors * 3 * self.n_numbers)
        statistics = Statistics(self, numbers)
        for index, saved in enumerate(checkpoint.counters.get("statistics", ())):
            # The user may have set another number of actors in config.json.
            row = statistics.moments[index % self.n_actors]
            row[...] = merged(row, np.array(saved, np.float64).reshape(row.shape))
        return HostedStatistics(statistics)


class Statistics:
    """Either end of a stream of statistics."""

    def __init__(self, stream: StatisticsStream, numbers: Numbers) -> None:
        self._stream, self._numbers = stream, numbers
        self.moments = numbers.array.reshape(stream.n_actors, 3, stream.n_numbers)

    def add(self, actor: int, rows: npt.NDArray[np.float64]) -> None:
        """Count rows [N, n_numbers] that an actor has seen."""
        moments = self.moments[actor]
        moments[...] = merged(moments, moments_of(rows))

    def total(self) -> Moments:
        """Return the moments of what all actors have seen, merged in their order."""
        return reduce(merged, self.moments.copy())

    def __reduce__(self) -> tuple[Any, ...]:
        return Statistics, (self._stream, self._numbers)


class HostedStatistics(Hosted):
    """A stream of statistics in the memory of this machine."""

    def __init__(self, end: Statistics) -> None:
        self._end = end

    def sink(self) -> Statistics:
        """Return the end of actors and learners."""
        return self._end

    def counters(self) -> dict[str, Any]:
        """Return the moments of each actor."""
        return {"statistics": self._end.moments.tolist()}

    def told(self, peer: Peer) -> Any:
        """Return the moments of the actors that a peer follows."""
        moments = self._end.moments
        return {index: moments[index].copy() for kind, index in peer.followed if kind == STEPS}

    def heard(self, peer: Peer, told: Any) -> None:
        """Take over the moments of actors that work there."""
        for index, moments in told.items():
            if (STEPS, index) in peer.workers:
                self._end.moments[index] = moments
