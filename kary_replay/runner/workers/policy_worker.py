"""The policy worker: says for many actors at once what the networks say of their observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..failures import DivergedError
from ..streams.inference import as_tensors, moved
from ..streams.parameters import Newest
from .worker import Seat

__all__ = ["PolicyWorker"]


class PolicyWorker:
    """Answers the groups of environments that have asked.

    Parameters
    ----------
    seat : Seat
        With the streams "parameters" and "inference", to read from.

    Notes
    -----
    One piece of work is one pass through the networks. There is nothing to go on from: what was
    asked and not answered, a successor answers.
    """

    def __init__(self, seat: Seat) -> None:
        self.seat, self.row = seat, seat.row
        self.inference = seat.streams["inference"]
        self.algorithm = seat.algorithm()
        config = seat.config
        noise_seed = config.seed, seat.index, seat.part  # each machine has an index of 0
        self.newest = Newest(
            self.algorithm, seat.streams["parameters"], config.publishes_all, noise_seed
        )

    def work(self, patience_seconds: float) -> bool:
        """Answer; return False if nobody asks within the patience."""
        self.seat.beat()
        if not self.row.wait(patience_seconds, self._gather):
            return False
        groups, observation, state = self.asked
        updates = self.newest.take_up()
        self.row.parameter_version = updates
        read = moved(as_tensors(observation), self.algorithm.device)
        outputs, next_state = self.algorithm.outputs_and_state(read, state)
        if not np.isfinite(outputs).all():
            board = self.seat.board
            what = "the policy's networks say what is no longer finite"
            raise DivergedError(what, updates, board.env_steps, self.seat.config.options)
        self.inference.answer(self.seat.index, groups, outputs, next_state, updates)
        self.row.answers += 1
        return True

    def _gather(self, patience_seconds: float) -> bool:
        """Wait at most so long for a request; keep what was asked."""
        self.asked = self.inference.gather(self.seat.index, patience_seconds)
        return bool(self.asked[0])

    def finish(self, give_up: Callable[[], bool]) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
