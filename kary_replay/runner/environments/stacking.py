"""Finds out whether an environment's observations are stacks of frames."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
from gymnasium.wrappers import FrameStackObservation

__all__ = ["Stacking", "stacking_of"]

PADDINGS = {"reset": "repeat", "zero": "zeros"}  # gymnasium's name: that of FrameReplayBuffer


class Stacking(NamedTuple):
    """How observations are made of frames, which lie along their first axis, the oldest first."""

    stack: int
    """Frames of an observation."""
    padding: str
    """What stands in for frames before an episode's first, as FrameReplayBuffer names it."""


def stacking_of(env: Any) -> Stacking | None:
    """Return how an environment stacks frames; None if it does not, or changes the stacks later."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, FrameStackObservation):
            padding = PADDINGS.get(str(env.padding_type))
            space = env.observation_space
            if padding is None or not isinstance(space, gymnasium.spaces.Box):
                return None
            return Stacking(int(env.stack_size), padding)
        if isinstance(env, gymnasium.ObservationWrapper):
            return None
        env = env.env
    return None
