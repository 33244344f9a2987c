"""How a run goes right now, as the board and the streams show it."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import NamedTuple

from ..flow import HostedFlow

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
    shards: int = 1
    machines: int = 1
    distance: float = math.nan  # of the law of draws from that of one buffer
    staleness: float = math.nan  # updates, of what the last update learned from, on average
    dropped_steps: int = 0  # which nobody learned from


class Progress:
    """Looks at the board now and then.

    Parameters
    ----------
    flow : HostedFlow
        The run.
    """

    def __init__(self, flow: HostedFlow) -> None:
        self.flow = flow
        self._looks: deque[tuple[float, ...]] = deque(maxlen=WINDOW)

    def look(self) -> Figures:
        """Return how the run goes; rates are those since a few looks ago."""
        flow, board = self.flow, self.flow.board
        waited = (board.column(kind, "waited_seconds").mean() for kind in ("actor", "learner"))
        now = (time.monotonic(), board.env_steps, board.updates, *map(float, waited))
        self._looks.append(now)
        passed, steps, updates, actors, learners = (
            new - old for new, old in zip(now, self._looks[0], strict=True)
        )
        rate = steps / passed if passed else math.nan
        steps_left = flow.config.total_env_steps - board.env_steps
        has_stepped = board.column("actor", "has_stepped") > 0
        behind = board.updates - board.column("actor", "parameter_version")[has_stepped]
        figures = flow.figures
        return Figures(
            seconds=flow.clock.seconds,
            seconds_left=steps_left / rate if rate > 0 else math.nan,
            env_steps=board.env_steps,
            env_steps_per_second=rate,
            updates=board.updates,
            updates_per_second=updates / passed if passed else math.nan,
            behind=float(behind.mean()) if len(behind) else math.nan,
            most_behind=float(behind.max()) if len(behind) else math.nan,
            buffer_size=int(figures.get("size", 0)),
            samples_per_insert=figures.get("samples_per_insert", math.nan),
            actors_waited=actors / passed if passed else math.nan,
            learners_waited=learners / passed if passed else math.nan,
            shards=int(figures.get("shards", 1)),
            machines=int(figures.get("machines", 1)),
            distance=figures.get("distance", math.nan),
            staleness=figures.get("staleness", math.nan),
            dropped_steps=int(figures.get("dropped_steps", 0)),
        )
