"""What workers report to the supervisor: small, picklable, and complete in themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "EpisodeEnded",
    "Evaluated",
    "Evaluation",
    "Finished",
    "Problem",
    "Saved",
    "Started",
    "Trained",
]


class EpisodeEnded(NamedTuple):
    """A training episode has ended."""

    env_steps: int
    """Environment steps of the whole run at that moment."""
    episode_return: float
    length: int


class Evaluation(NamedTuple):
    """How a policy did in episodes that have the same seeds every time, without exploring.

    ``env_steps``, ``updates`` and ``wall_seconds`` are those at which its parameters were taken.
    ``returns`` has the return of each episode. ``n_cut`` episodes were cut off after
    ``evaluation_max_steps``; their returns are those until then.
    """

    env_steps: int
    updates: int
    wall_seconds: float
    mean_return: float
    returns: tuple[float, ...]
    n_cut: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation that a file has; raise ValueError or TypeError if it has none."""
        one = cls(**{**record, "returns": tuple(record["returns"])})
        counts = (one.env_steps, one.updates, one.n_cut)
        if not all(type(count) is int and count >= 0 for count in counts):
            raise ValueError(f"its counts are {one.env_steps!r}, {one.updates!r} and {one.n_cut!r}")
        numbers = (one.wall_seconds, one.mean_return, *one.returns)
        if not all(type(number) in (int, float) for number in numbers):
            raise ValueError(f"its returns are {one.mean_return!r} and {one.returns!r}")
        return one


class Evaluated(NamedTuple):
    """A policy has been evaluated."""

    evaluation: Evaluation
    parameters: npt.NDArray[np.float32]
    """The parameters that were evaluated, as `streams.parameters.as_vector` makes them."""


class Trained(NamedTuple):
    """How training goes, in numbers by name, such as td_error."""

    env_steps: int
    figures: dict[str, float]


class Started(NamedTuple):
    """A worker has been made, and waits for the order to go."""


class Saved(NamedTuple):
    """A worker has written its state into a folder, or says why it could not."""

    folder: str
    refusal: str = ""


class Finished(NamedTuple):
    """A worker has brought to an end what it had begun."""


class Problem(NamedTuple):
    """A worker has failed."""

    message: str
    is_environment: bool = False
    """Whether the worker's environment failed."""
    has_diverged: bool = False
    """Whether training has diverged: a new start would lead to the same."""
    was_killed: bool = False
    """Whether others have ended the worker's process."""
    is_blameless: bool = False
    """Whether it has nothing to do with the worker, and does not count among its failures."""
    error: BaseException | None = None
    """What was raised, if that happened in the process of the supervisor."""
