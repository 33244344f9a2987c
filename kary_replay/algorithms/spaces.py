"""Which observations the networks take, and which actions an algorithm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..types import Field

__all__ = [
    "UnsuitableSpaceError",
    "action_field",
    "check_actions_are_bounded",
    "check_actions_are_discrete",
    "check_actions_are_known",
    "check_observations",
    "is_board",
    "is_image",
    "kinds",
    "parts_of_space",
]

LEAST_IMAGE = 36  # pixels each way: what the CNN leaves at least one column and row of
LEAST_BOARD = 3  # fields each way
NUMBERS = {"Box", "Discrete", "MultiDiscrete", "MultiBinary"}


class UnsuitableSpaceError(ValueError):
    """The algorithm cannot handle such observations or actions."""


def kinds(space: Any) -> set[str]:
    """Return the names of a space's classes."""
    return {cls.__name__ for cls in type(space).__mro__}


def parts_of_space(space: Any) -> dict[Any, Any]:
    """Return the parts of a Dict by their keys; another space by None, as its only part."""
    spaces = getattr(space, "spaces", None)
    return dict(spaces) if isinstance(spaces, Mapping) else {None: space}


def is_image(space: Any) -> bool:
    """Return whether the CNN takes a space: images of bytes, channels first or without channels."""
    return (
        len(space.shape or ()) in (2, 3)
        and space.dtype == np.uint8
        and min(space.shape[-2:]) >= LEAST_IMAGE
    )


def is_board(space: Any) -> bool:
    """Return whether the small CNN takes a space: bools, what is where, channels first."""
    shape = space.shape or ()
    return len(shape) == 3 and space.dtype == np.bool_ and min(shape[1:]) >= LEAST_BOARD


def action_field(space: Any) -> Field:
    """Return the field of actions as algorithms choose them: numbers from 0, or float32."""
    return Field((), np.int64) if hasattr(space, "n") else Field(space.shape, np.float32)


def check_observations(name: str, space: Any) -> None:
    """Raise UnsuitableSpaceError if the networks cannot take these observations."""
    parts = parts_of_space(space)
    if not parts:
        raise UnsuitableSpaceError(f"{name} wants something in observations, got an empty Dict")
    for key, part in parts.items():
        where = "" if key is None else f" under {key!r}"
        if not kinds(part) & NUMBERS:
            raise UnsuitableSpaceError(
                f"{name} cannot handle observations of kind {type(part).__name__}{where}, "
                f"only {', '.join(sorted(NUMBERS))} and a Dict of these: flatten them, "
                "for instance with gymnasium.wrappers.FlattenObservation"
            )
        if 0 in part.shape:
            raise UnsuitableSpaceError(
                f"{name} wants at least one number in an observation, got shape {part.shape}{where}"
                ": leave such parts of a Dict out, for instance with "
                "gymnasium.wrappers.FilterObservation, or give a constant"
            )
        _check_image(name, part, where)
        if (
            len(part.shape) == 3
            and part.dtype == np.bool_
            and part.shape[0] == part.shape[1] != part.shape[2]
        ):
            raise UnsuitableSpaceError(
                f"{name} wants the channels of boards first, got shape {part.shape}{where}: "
                "move that axis, for instance with gymnasium.wrappers.TransformObservation"
            )


def _check_image(name: str, space: Any, where: str) -> None:
    """Raise UnsuitableSpaceError if these are images that the CNN does not take."""
    shape = space.shape
    sides: dict[int, tuple[Any, ...]] = {3: (shape[:2], shape[1:]), 4: (shape[1:3], shape[2:])}
    if np.issubdtype(space.dtype, np.floating):  # tables of whole numbers are often no images
        sides[2] = (shape,)
    if is_image(space) or not any(min(pair) >= LEAST_IMAGE for pair in sides.get(len(shape), ())):
        return
    if len(shape) == 4:
        raise UnsuitableSpaceError(
            f"{name} wants images of three axes, channels first, got shape {shape}{where}: stack "
            "grey ones, as gymnasium.wrappers.GrayscaleObservation makes them without keep_dim, "
            "or put all channels of a stack into one axis, for instance with "
            "gymnasium.wrappers.TransformObservation"
        )
    if space.dtype == np.uint8:
        raise UnsuitableSpaceError(
            f"{name} wants the channels of images first, got shape {shape}{where}: "
            "move that axis, for instance with gymnasium.wrappers.TransformObservation"
        )
    if space.dtype != np.bool_:
        raise UnsuitableSpaceError(
            f"{name} wants images as bytes, uint8 from 0 to 255, got {space.dtype} of shape "
            f"{shape}{where}: return these, or flatten what is no image with "
            "gymnasium.wrappers.FlattenObservation"
        )


def check_actions_are_discrete(name: str, space: Any) -> None:
    """Raise UnsuitableSpaceError if actions are not numbered."""
    if "Discrete" not in kinds(space):
        raise UnsuitableSpaceError(f"{name} needs discrete actions, got {space}: {_remedy(space)}")


def check_actions_are_bounded(name: str, space: Any) -> None:
    """Raise UnsuitableSpaceError if actions are not numbers between bounds."""
    if "Box" not in kinds(space):
        raise UnsuitableSpaceError(
            f"{name} needs continuous actions, got {space}: {_remedy(space)}"
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise UnsuitableSpaceError(
            f"{name} needs continuous actions, got a Box of {space.dtype}: give it a float dtype"
        )
    if 0 in space.shape:
        raise UnsuitableSpaceError(
            f"{name} needs actions of at least one number, got shape {space.shape}"
        )
    if not _is_bounded(space):
        raise UnsuitableSpaceError(
            f"{name} needs actions between finite bounds, got {space}: "
            "set them with gymnasium.wrappers.RescaleAction or gymnasium.wrappers.TransformAction"
        )


def check_actions_are_known(name: str, space: Any) -> None:
    """Raise UnsuitableSpaceError unless actions are numbered, or numbers between bounds."""
    if "Discrete" not in kinds(space):
        check_actions_are_bounded(name, space)


def _is_bounded(space: Any) -> bool:
    return bool(np.isfinite(space.low).all() and np.isfinite(space.high).all())


def _remedy(space: Any) -> str:
    """Return what to do about actions that an algorithm cannot choose."""
    names = kinds(space)
    if "Discrete" in names:
        return "use dqn or ppo"
    if "Box" in names and np.issubdtype(space.dtype, np.floating):
        return "use ddpg, td3, sac or ppo" + (
            "" if _is_bounded(space) else ", with actions between finite bounds"
        )
    none = "no algorithm here takes these as they are"
    if "MultiDiscrete" in names and space.nvec.ndim == 1 and not np.any(getattr(space, "start", 0)):
        sizes = tuple(space.nvec.tolist())
        function = f"lambda action: numpy.array(numpy.unravel_index(action, {sizes}))"
        wrapper = f"TransformAction(env, {function}, Discrete({math.prod(sizes)}))"
        return f"{none}. Number the combinations, for dqn or ppo: gymnasium.wrappers.{wrapper}"
    return (
        f"{none}. Wrap the environment, for instance in gymnasium.wrappers.TransformAction: "
        "one Discrete, for dqn or ppo, or one Box of floats between finite bounds"
    )
