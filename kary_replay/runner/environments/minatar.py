"""MinAtar's games as the networks take them: what is where on a board, channels first.

Young & Tian (2019), MinAtar, arXiv:1903.03176.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

__all__ = ["is_board_game", "make_board_game", "register_board_games"]

FAMILY = "MinAtar/"
PIXELS = 16  # each way, of a field in pictures


def is_board_game(env: Any) -> bool:
    """Return whether an id, or what is registered for it, is of a game of MinAtar."""
    if not isinstance(env, (str, EnvSpec)):
        return False
    name = env.id if isinstance(env, EnvSpec) else env
    return name.rpartition(":")[2].startswith(FAMILY)


def register_board_games() -> None:
    """Register the ids, which importing the package does not; ImportError without it."""
    if not any(name.startswith(FAMILY) for name in gymnasium.registry):
        from minatar.gym import register_envs

        register_envs()


def make_board_game(env: Any, **options: Any) -> Any:
    """Return a game whose observations are bools [channels, 10, 10].

    Parameters
    ----------
    env : str or EnvSpec
        What gymnasium makes.
    **options
        For gymnasium.make, such as sticky_action_prob.
    """
    return BoardGame(gymnasium.make(env, disable_env_checker=True, **options))


class BoardGame(gymnasium.ObservationWrapper):
    """Moves channels to the front, lets a seed decide a whole episode, and shows pictures of bytes.

    A game remembers the last action of the episode before, which a sticky one would repeat.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        *board, n_channels = env.observation_space.shape
        self.observation_space = gymnasium.spaces.Box(0, 1, (n_channels, *board), np.bool_)

    def reset(self, **how: Any) -> Any:
        game: Any = self.unwrapped
        game.game.last_action = 0
        return super().reset(**how)

    def observation(self, observation: Any) -> Any:
        return observation.transpose(2, 0, 1)

    def render(self) -> Any:
        picture: Any = self.env.render()
        if isinstance(picture, np.ndarray) and picture.ndim == 3 and picture.dtype != np.bool_:
            enlarged = picture.repeat(PIXELS, 0).repeat(PIXELS, 1)
            picture = np.rint(255 * enlarged).astype(np.uint8)
        return picture
