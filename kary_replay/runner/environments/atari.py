"""Atari games as they are usually learned from: small grey frames, stacked, of every fourth step.

Machado et al. (2018), Revisiting the Arcade Learning Environment, arXiv:1709.06009. Episodes end
with the game, not with a life, and actions are sticky, as ale-py's games of version 5 have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit, TransformReward

__all__ = ["FAMILY", "is_game", "make_game"]

FAMILY = "ALE/"
STACK = 4
OWN = "obs_type", "frameskip"  # whoever gives one of these wants the screen as it is


def is_game(env: Any, options: Mapping[str, Any]) -> bool:
    """Return whether an id, or what is registered for it, is of a game that is to be prepared."""
    if not isinstance(env, (str, EnvSpec)):
        return False
    name = env.id if isinstance(env, EnvSpec) else env
    return name.rpartition(":")[2].startswith(FAMILY) and not set(options) & set(OWN)


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
    max_episode_steps : int, optional
        After how many steps, of four frames each, an episode is cut off.
    **options
        For gymnasium.make, such as repeat_action_probability.
    """
    try:
        import cv2  # noqa: F401
    except ImportError:
        message = 'Atari games need OpenCV: pip install "kary-replay[atari]"'
        raise ImportError(message) from None
    made = gymnasium.make(env, disable_env_checker=True, frameskip=1, **options)
    made = AtariPreprocessing(made)
    if clip_rewards:
        made = TransformReward(made, _sign)
    made = FrameStackObservation(made, STACK)
    return made if max_episode_steps is None else TimeLimit(made, max_episode_steps)


def _sign(reward: Any) -> float:
    return float(np.sign(reward))
