"""Atari games as they are usually learned from: small grey frames, stacked, of every fourth step.

Machado et al. (2018), Revisiting the Arcade Learning Environment, arXiv:1709.06009. Episodes end
with the game, not with a life, and actions are sticky, as ale-py's games of version 5 have it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import (
    AtariPreprocessing,
    FrameStackObservation,
    RecordEpisodeStatistics,
    TimeLimit,
    TransformReward,
)

from ...algorithms.algorithm import check_bool

__all__ = ["FAMILY", "hint", "is_game", "make_game", "stacked"]

FAMILY = "ALE/"
STACK, SKIP = 4, 4
FRAMES_PER_SECOND = 60  # of the console
OWN = "obs_type", "frameskip"  # whoever gives one of these wants the screen as it is


def is_game(env: Any, options: Mapping[str, Any]) -> bool:
    """Return whether an id, or what is registered for it, is of a game that is to be prepared."""
    if not isinstance(env, (str, EnvSpec)):
        return False
    name = env.id if isinstance(env, EnvSpec) else env
    return name.rpartition(":")[2].startswith(FAMILY) and not set(options) & set(OWN)


def hint(env: Any, options: Mapping[str, Any]) -> str:
    """Return how to have a game prepared, for whoever asked for its screen as it is."""
    given = [f"{name!r}" for name in OWN if name in options]
    if not given or not is_game(env, {}):
        return ""
    return f". Without {' and '.join(given)} in env_options, the game would be prepared"


def make_game(
    env: Any, *, clip_rewards: bool = True, max_episode_steps: int | None = None, **options: Any
) -> Any:
    """Return a game whose observations are stacks of four frames, 84 × 84 bytes each.

    Parameters
    ----------
    env : str or EnvSpec
        What gymnasium makes.
    clip_rewards : bool
        Whether of rewards the sign is learned from, so that one learning rate suits all games.
        Episodes still report what they returned in the game.
    max_episode_steps : int, optional
        After how many steps, of four frames each, an episode is cut off.
    **options
        For gymnasium.make, such as repeat_action_probability.
    """
    try:
        import cv2  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "cv2":
            raise
        message = 'Atari games need OpenCV: pip install "kary-replay[atari]"'
        raise ImportError(message) from None
    try:
        made = gymnasium.make(env, disable_env_checker=True, frameskip=1, **options)
    except OSError as error:  # its ROM is missing, or another one
        folder = os.environ.get("ALE_ROMS_DIR")
        if not folder:
            raise
        what = " ".join(str(error).split()).rstrip(".")
        raise OSError(
            f"{what}. ROMs are looked for in ALE_ROMS_DIR={folder}: unset it, and the game has "
            "the one that comes with ale-py"
        ) from None
    made = AtariPreprocessing(made, frame_skip=SKIP)
    if max_episode_steps is not None:
        made = TimeLimit(made, max_episode_steps)
    return stacked(made, clip_rewards)


def stacked(env: Any, clip_rewards: bool) -> Any:
    """Return a game of single frames with stacks of them, and with the sign of rewards."""
    check_bool("clip_rewards", clip_rewards)
    env.metadata = {**env.metadata, "render_fps": FRAMES_PER_SECOND // SKIP}
    if clip_rewards:
        env = TransformReward(RecordEpisodeStatistics(env), _sign)
    return FrameStackObservation(env, STACK)


def _sign(reward: Any) -> float:
    return float(np.sign(reward))
