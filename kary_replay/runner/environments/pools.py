"""Tasks of EnvPool, one at a time, by names such as "EnvPool/Pong-v5" and "EnvPool/Ant-v5".

Weng et al. (2022), EnvPool: A highly parallel reinforcement learning environment execution engine,
arXiv:2206.10558. Here actors are what runs in parallel, and each of their environments is a pool of
one. Atari games are prepared as those of ale-py are (`atari`): the same frames, sticky actions, and
stacks that the buffer holds once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TransformObservation

from ...fields import map_leaves
from . import atari

__all__ = ["FAMILY", "is_pool_game", "make_pool", "register_pool"]

FAMILY = "EnvPool/"
# Frames are stacked where the buffer sees it; the rest is what games of version 5 have in ale-py.
PREPARED = {"stack_num": 1, "use_fire_reset": False, "repeat_action_probability": 0.25}
OWN = "stack_num", "reward_clip"  # whoever gives one of these wants EnvPool's own preparation


def is_pool_game(env: Any, options: Mapping[str, Any]) -> bool:
    """Return whether an id is of one of EnvPool's Atari games that is to be prepared."""
    name = env.id if isinstance(env, EnvSpec) else env
    if not isinstance(name, str) or not name.startswith(FAMILY) or set(options) & set(OWN):
        return False
    return _is_atari(name.removeprefix(FAMILY))


@functools.cache
def _is_atari(task: str) -> bool:
    try:
        import envpool

        settings = envpool.make_spec(task).config._asdict()
    except Exception:  # it is not installed, or has no such task: who makes it says so
        return False
    return "noop_max" in settings


def register_pool(env: str) -> list[str]:
    """Register an id with gymnasium if EnvPool has the task; return the ids of all its tasks."""
    import envpool

    known = [FAMILY + task for task in envpool.list_all_envs()]
    if env in known and env not in gymnasium.registry:
        kwargs = {"task": env.removeprefix(FAMILY)}
        gymnasium.register(env, f"{__name__}:make_pool", kwargs=kwargs)
    return known


def make_pool(
    task: str, *, render_mode: str | None = None, clip_rewards: bool | None = None, **options: Any
) -> Any:
    """Return an environment of a task.

    Parameters
    ----------
    task : str
        As EnvPool names it.
    render_mode : str, optional
        "rgb_array" for pictures.
    clip_rewards : bool, optional
        Whether of an Atari game's rewards the sign is learned from, True by default; of other tasks
        there is no such choice.
    **options
        For ``envpool.make_gymnasium``.
    """
    if not is_pool_game(FAMILY + task, options):
        if clip_rewards is not None:
            raise TypeError(
                f"clip_rewards={clip_rewards!r} is for Atari games that are prepared here, and "
                f"{task} is none: leave it out"
            )
        return PoolOfOne(task, render_mode, options)
    made: Any = PoolOfOne(task, render_mode, {**PREPARED, **options})
    frame = made.observation_space
    space = gymnasium.spaces.Box(0, 255, frame.shape[1:], frame.dtype.type)
    made = TransformObservation(made, lambda observation: observation[0], space)
    return atari.stacked(made, clip_rewards is None or clip_rewards)


class PoolOfOne(gymnasium.Env[Any, Any]):
    """A pool of a single environment, without the axis of environments.

    A pool's seed is given when it is made, so that every reset with a seed makes a new one: the
    seed decides the whole episode, and runs can be resumed.
    """

    def __init__(self, task: str, render_mode: str | None, options: dict[str, Any]) -> None:
        self._task, self._options = task, options
        self.render_mode = render_mode
        self._pool = self._made(0)
        self.observation_space = self._pool.observation_space
        self.action_space = self._pool.action_space
        self.metadata = {"render_modes": ["rgb_array"]}

    def _made(self, seed: int) -> Any:
        import envpool

        more = {} if self.render_mode is None else {"render_mode": self.render_mode}
        return envpool.make_gymnasium(
            self._task, num_envs=1, **{"num_threads": 1, **more, **self._options, "seed": seed}
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._pool.close()
            self._pool = self._made(seed)
        observation, _ = self._pool.reset()
        return map_leaves(observation, _only), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        space = self.action_space
        action = np.asarray(action, space.dtype).reshape(1, *(space.shape or ()))
        observation, reward, terminated, truncated, _ = self._pool.step(action)
        ends = bool(terminated[0]), bool(truncated[0])
        return map_leaves(observation, _only), float(reward[0]), *ends, {}

    def render(self) -> Any:
        return _only(self._pool.render())

    def close(self) -> None:
        self._pool.close()


def _only(column: Any) -> Any:
    return column[0]
