"""How a run goes right now, read off the board."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import NamedTuple

from ..plan import Plan

__all__ = ["Figures", "Progress"]

WINDOW = 20  # looks that rates and shares of waiting are taken over


class Figures(NamedTuple):
    """The numbers of a moment; NaN where there is none."""

    seconds: float
    seconds_left: float
    env_steps: int
    env_steps_per_second: float
    updates: int
    updates_per_second: float
    behind: float  # updates, of the actors' parameters, on average
    most_behind: float
    buffer_size: int
    samples_per_insert: float
    actors_waited: float  # share of the time
    learners_waited: float


class Progress:
    """Looks at the board now and then.

    Parameters
    ----------
    plan : Plan
        The run.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._looks: deque[tuple[float, ...]] = deque(maxlen=WINDOW)

    def look(self) -> Figures:
        """Return how it goes; rates are those since a few looks ago."""
        plan, board = self.plan, self.plan.board
        waited = (
            float(board.column(kind, "waited_seconds").sum()) for kind in ("actor", "learner")
        )
        now = (time.monotonic(), board.env_steps, board.updates, *waited)
        self._looks.append(now)
        passed, steps, updates, actors, learners = (
            new - old for new, old in zip(now, self._looks[0], strict=True)
        )
        rate = steps / passed if passed else math.nan
        behind = (
            board.updates
            - board.column("actor", "parameter_version")[board.column("actor", "first_step") > 0]
        )
        return Figures(
            seconds=plan.seconds,
            seconds_left=(plan.config.total_env_steps - board.env_steps) / rate
            if rate > 0
            else math.nan,
            env_steps=board.env_steps,
            env_steps_per_second=rate,
            updates=board.updates,
            updates_per_second=updates / passed if passed else math.nan,
            behind=float(behind.mean()) if len(behind) else math.nan,
            most_behind=float(behind.max()) if len(behind) else math.nan,
            buffer_size=len(plan.replay.buffer),
            samples_per_insert=plan.replay.limiter.ratio,
            actors_waited=actors / passed / plan.n_actors if passed else math.nan,
            learners_waited=learners / passed / plan.config.learners if passed else math.nan,
        )
