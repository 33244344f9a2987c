"""Finds out whether an environment's observations are stacks of frames."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
from gymnasium import wrappers

__all__ = ["Stacking", "stacking_of"]

# What may be around the stacks: it shows every observation as it is, of every step.
TRANSPARENT = (
    gymnasium.ActionWrapper,
    gymnasium.RewardWrapper,
    wrappers.HumanRendering,
    wrappers.OrderEnforcing,
    wrappers.PassiveEnvChecker,
    wrappers.RecordEpisodeStatistics,
    wrappers.RecordVideo,
    wrappers.RenderCollection,
    wrappers.TimeLimit,
)
PADDINGS = {"reset": "repeat", "zero": "zeros"}  # gymnasium's name: that of FrameReplayBuffer


class Stacking(NamedTuple):
    """How observations are made of frames, which lie along their first axis, the oldest first."""

    stack: int
    """Frames of an observation."""
    padding: str
    """What stands in for frames before an episode's first, as FrameReplayBuffer names it."""


def stacking_of(env: Any) -> Stacking | None:
    """Return how an environment stacks frames; None if it does not, or if wrappers may alter them.

    A wrapper around the stacks that leaves out steps, or takes some when an episode begins, is
    among those.
    """
    while isinstance(env, TRANSPARENT):
        env = env.env
    if not isinstance(env, wrappers.FrameStackObservation):
        return None
    padding, space = PADDINGS.get(str(env.padding_type)), env.observation_space
    parts = space.values() if isinstance(space, gymnasium.spaces.Dict) else [space]
    are_boxes = all(isinstance(part, gymnasium.spaces.Box) for part in parts)
    return Stacking(int(env.stack_size), padding) if are_boxes and padding is not None else None
