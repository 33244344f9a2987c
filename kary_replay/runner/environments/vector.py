"""Environments: stepped together, checked, and brought back to where they were.

An environment's state is never saved: it is the seed of the episode and the actions taken since.
Playing these again leads to the same state in any environment whose randomness comes from its seed.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

__all__ = ["EnvironmentFaultError", "Environments", "Steps", "action_scale", "random_actions"]

MAX_SEED = 2**31 - 1
FLAGS = (bool, np.bool_)
LARGEST_REWARD = float(np.finfo(np.float32).max)
# steps; of a longer episode actions are not kept, and a new one begins when a run goes on
LONGEST_REPLAY = 100_000


class EnvironmentFaultError(RuntimeError):
    """An environment raised, or returned what it must not; the message says where and what."""


class Steps(NamedTuple):
    """One step of N environments; next_observation is of the same episode, also at its end."""

    observation: Any
    next_observation: Any
    reward: npt.NDArray[np.float64]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]


class Episode(NamedTuple):
    """An episode that has ended, with the return that the environment reports, if it does.

    That is ``info["episode"]["r"]``, as gymnasium's RecordEpisodeStatistics and Stable-Baselines3's
    Monitor have it: of the rewards before wrappers around these changed them.
    """

    episode_return: float
    length: int


class Environments:
    """Several environments, stepped one after another.

    Parameters
    ----------
    make : function
        Makes an environment.
    n_envs : int
        How many.
    rng : numpy.random.Generator
        Draws the seed of every episode.
    name : str
        As messages name the whole, such as "CartPole-v1 (actor 0)".
    alive : function
        Is called before each step and reset of an environment: whoever watches sees that the one
        before has ended.

    Raises
    ------
    EnvironmentFaultError
        From any call, also this one: an environment raised, or returned NaN, a wrong shape, or no
        numbers.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        n_envs: int,
        rng: np.random.Generator,
        name: str,
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._name, self._rng, self._alive = name, rng, alive
        try:
            self._envs = [make() for _ in range(n_envs)]
        except (Exception, SystemExit) as error:
            raise EnvironmentFaultError(
                f"{name}: making it raised {type(error).__name__}: {error}"
            ) from error
        self._space = self._envs[0].observation_space
        parts = self._space.spaces if isinstance(self._space, spaces.Dict) else {"": self._space}
        self._bounds = {key: _numbers(part) for key, part in parts.items()}
        self._scale = action_scale(self._envs[0].action_space)
        self.n_envs = n_envs
        self.observation, self._spare, self._next = (_empty(self._space, n_envs) for _ in range(3))
        self._reward = np.zeros(n_envs)
        self._terminated, self._truncated = np.zeros(n_envs, bool), np.zeros(n_envs, bool)
        self._returns, self._lengths = np.zeros(n_envs), np.zeros(n_envs, np.int64)
        self._infos: list[Any] = [None] * n_envs  # of the last steps
        self._seeds = [0] * n_envs
        self._actions = [bytearray() for _ in range(n_envs)]  # of the running episode
        self.ended: list[Episode] = []

    @property
    def begins(self) -> npt.NDArray[np.bool_]:
        """Where the observation is the first one of an episode, [N]."""
        return np.equal(self._lengths, 0)

    def reset(self) -> None:
        """Begin a new episode everywhere."""
        for i in range(self.n_envs):
            self._reset(i)

    def step(self, action: npt.NDArray[Any]) -> Steps:
        """Take one step in each environment, with actions [N, ...] as algorithms choose them.

        Where an episode has ended, a new one begins. ``observation`` is then what actions are next
        chosen for. The next call overwrites what is returned.
        """
        real = self._scale(action)
        for i, env in enumerate(self._envs):
            if self._lengths[i] < LONGEST_REPLAY:
                self._actions[i] += action[i].tobytes()
            self._step(i, env, real[i])
        self._check()
        self._returns += self._reward
        self._lengths += 1
        before, self.observation = self.observation, self._spare
        self._spare = before
        for own, new in zip(_parts(self.observation), _parts(self._next), strict=True):
            own[...] = new
        over = self._terminated | self._truncated
        if over.any():
            for i in np.flatnonzero(over).tolist():
                self.ended.append(Episode(self._return(i), int(self._lengths[i])))
                self._reset(i)
        return Steps(before, self._next, self._reward, self._terminated, self._truncated)

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to come back here."""
        space = self._envs[0].action_space
        dtype, shape = (np.int64, ()) if _is_discrete(space) else (np.float32, space.shape)
        actions: list[torch.Tensor | None] = []
        for length, played in zip(self._lengths, self._actions, strict=True):
            whole = length <= LONGEST_REPLAY
            actions.append(
                torch.from_numpy(np.frombuffer(bytes(played), dtype).reshape(-1, *shape).copy())
                if whole
                else None
            )
        return {"seeds": list(self._seeds), "actions": actions}

    def load_state_dict(self, state: Mapping[str, Any], writer: Any = None) -> bool:
        """Play the running episodes again; return whether they all could be.

        Where an episode cannot be played again, since it ended early or was too long, a new one has
        begun, and ``writer`` gives up its steps that are in no row yet.
        """
        all_played = True
        for i, (seed, actions) in enumerate(zip(state["seeds"], state["actions"], strict=True)):
            if actions is None or not self._play_again(i, int(seed), actions.numpy()):
                all_played = False
                self._reset(i)
                if writer is not None:
                    writer.reset(i)
        return all_played

    def _play_again(self, i: int, seed: int, actions: npt.NDArray[Any]) -> bool:
        """Take the steps of an episode; return False if one of them ends it."""
        self._reset(i, seed)
        for action in actions:
            self._actions[i] += action.tobytes()
            self._step(i, self._envs[i], self._scale(action[None])[0])
            if self._terminated[i] or self._truncated[i]:
                return False
            self._returns[i] += self._reward[i]
            self._lengths[i] += 1
            _set_row(self.observation, i, self._next)
        return True

    def play(
        self,
        act: Callable[[Any], npt.NDArray[Any]],
        seeds: Sequence[int],
        max_steps: int,
        each_step: Callable[[], None] = lambda: None,
    ) -> tuple[list[float], int]:
        """Play one episode for each seed, at most N; what ran before is given up.

        Return their returns, and how many episodes were cut off after ``max_steps``.
        """
        for i in range(self.n_envs):
            self._reset(i, seeds[min(i, len(seeds) - 1)])
        running = np.arange(self.n_envs) < len(seeds)
        for _ in range(max_steps):
            if not running.any():
                break
            each_step()
            real = self._scale(act(self.observation))
            for i in np.flatnonzero(running).tolist():
                self._step(i, self._envs[i], real[i])
            self._check()
            self._returns[running] += self._reward[running]
            self._lengths[running] += 1
            for own, new in zip(_parts(self.observation), _parts(self._next), strict=True):
                own[running] = new[running]
            running &= ~(self._terminated | self._truncated)
        return [self._return(i) for i in range(len(seeds))], int(running.sum())

    def close(self) -> None:
        """Close every environment; one that fails to is no reason to lose a run."""
        for env in self._envs:
            with contextlib.suppress(Exception, SystemExit):
                env.close()

    def _reset(self, i: int, seed: int | None = None) -> None:
        self._seeds[i] = int(self._rng.integers(MAX_SEED)) if seed is None else seed
        self._actions[i].clear()
        self._returns[i], self._lengths[i] = 0.0, 0
        self._alive()
        try:
            observation, _ = self._envs[i].reset(seed=self._seeds[i])
        except (Exception, SystemExit) as error:
            raise self._fault(i, f"reset raised {type(error).__name__}: {error}", error) from error
        self._store(self.observation, i, observation, "reset")
        for part in _parts(self.observation):
            if part.dtype.kind == "f" and not np.isfinite(part[i]).all():
                raise self._fault(i, f"reset returned the observation {part[i]}")

    def _step(self, i: int, env: Any, action: Any) -> None:
        self._alive()
        try:
            observation, reward, terminated, truncated, info = env.step(action)
        except (Exception, SystemExit) as error:
            raise self._fault(i, f"step raised {type(error).__name__}: {error}", error) from error
        self._store(self._next, i, observation, "step")
        self._infos[i] = info
        if type(terminated) not in FLAGS or type(truncated) not in FLAGS:
            self._check_flags(i, terminated=terminated, truncated=truncated)
        try:
            self._reward[i], self._terminated[i], self._truncated[i] = reward, terminated, truncated
        except Exception:  # of whatever it is
            raise self._fault(i, f"step returned reward={reward!r}, which is no number") from None

    def _check_flags(self, i: int, **flags: Any) -> None:
        """Refuse what NumPy would take for True or False without a word, such as text and None."""
        for name, flag in flags.items():
            try:
                number = np.asarray(flag)
                is_flag = number.dtype.kind in "biuf" and number.item() in (0, 1)
            except Exception:  # of whatever it is
                is_flag = False
            if not is_flag:
                raise self._fault(
                    i, f"step returned {name}={flag!r}, which is neither True nor False"
                )

    def _return(self, i: int) -> float:
        """Return what an episode has returned, as the environment says if it has ended."""
        if self._terminated[i] or self._truncated[i]:
            with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):
                reported = float(np.asarray(self._infos[i]["episode"]["r"]).item())
                if np.isfinite(reported):
                    return reported
        return float(self._returns[i])

    def _store(self, columns: Any, i: int, observation: Any, what: str) -> None:
        """Copy an observation to row i, if it is one."""
        if not isinstance(columns, dict):
            observation, columns = {"": observation}, {"": columns}
        for key, column in columns.items():
            try:
                value = observation[key]
            except (KeyError, TypeError, IndexError):
                raise self._fault(i, f"{what} returned an observation without {key!r}") from None
            try:
                given = np.asarray(value)
            except ValueError:
                raise self._fault(i, f"{what} returned {value!r}, which is no array") from None
            if given.shape != column.shape[1:]:
                raise self._fault(
                    i,
                    f"{what} returned an observation of shape {given.shape}, "
                    f"the space has {column.shape[1:]}",
                )
            if given.dtype.kind not in "biuf":
                raise self._fault(i, f"{what} returned {value!r}, which is no {column.dtype}")
            bounds = self._bounds[key]
            if given.dtype != column.dtype or bounds is not None:
                self._check_fits(i, given, column.dtype, bounds, what)
            column[i] = given

    def _check_fits(
        self,
        i: int,
        given: npt.NDArray[Any],
        dtype: np.dtype[Any],
        bounds: tuple[Any, Any] | None,
        what: str,
    ) -> None:
        """Refuse fractions for integers, and numbers that the space does not have."""
        if dtype.kind == "f":
            return
        if bounds is None and dtype.kind == "b":
            bounds = 0, 1
        elif bounds is None:
            bounds = np.iinfo(dtype).min, np.iinfo(dtype).max
        low, high = bounds
        is_whole = given.dtype.kind != "f"
        if given.size and not (is_whole and ((given >= low) & (given <= high)).all()):
            raise self._fault(
                i,
                f"{what} returned an observation of {given.dtype} from {given.min()} to "
                f"{given.max()}, the space has {dtype} from {low} to {high}: return these, or give "
                "the environment another space",
            )

    def _check(self) -> None:
        """Refuse NaN, and what is beyond float32, in what the last step of each returned."""
        is_good = np.abs(self._reward) <= LARGEST_REWARD
        if not is_good.all():
            i = int(np.flatnonzero(~is_good)[0])
            beyond = ", which is beyond float32: scale it" if np.isfinite(self._reward[i]) else ""
            raise self._fault(i, f"step returned reward={self._reward[i]}{beyond}")
        for part in _parts(self._next):
            if part.dtype.kind == "f" and not np.isfinite(part).all():
                i = int(np.flatnonzero(~np.isfinite(part.reshape(self.n_envs, -1)).all(1))[0])
                raise self._fault(i, f"step returned the observation {part[i]}")

    def _fault(
        self, i: int, what: str, cause: BaseException | None = None
    ) -> EnvironmentFaultError:
        when = f"environment {i}, episode of seed {self._seeds[i]}, step {int(self._lengths[i])}"
        if cause is not None:
            last = traceback.extract_tb(cause.__traceback__)[-1]
            when += f"; {last.filename}, line {last.lineno}"
        return EnvironmentFaultError(f"{self._name}: {what} ({when})")


def action_scale(space: Any) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """Return what turns actions [N, ...] as algorithms choose them into the environment's own."""
    if _is_discrete(space):
        start = int(space.start)
        return lambda action: action + start
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)

    def scale(action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        share = ((action.astype(np.float64) + 1) / 2).clip(0, 1)
        # Rounding must not lead out of the bounds, which many environments insist on.
        real: npt.NDArray[Any] = (low * (1 - share) + high * share).astype(space.dtype)
        return real.clip(space.low, space.high)

    return scale


def random_actions(space: Any, n: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Return N uniform actions, as algorithms choose them."""
    if _is_discrete(space):
        return rng.integers(int(space.n), size=n)
    return rng.uniform(-1, 1, (n, *space.shape)).astype(np.float32)


def _is_discrete(space: Any) -> bool:
    return isinstance(space, spaces.Discrete)


def _numbers(space: Any) -> tuple[Any, Any] | None:
    """Return the least and the largest number of a space that numbers things, or None."""
    if isinstance(space, spaces.Discrete):
        return int(space.start), int(space.start + space.n - 1)
    if isinstance(space, spaces.MultiDiscrete):
        start = getattr(space, "start", 0)
        return start, start + space.nvec - 1
    return None


def _empty(space: Any, n: int) -> Any:
    """Return room for N observations."""
    if isinstance(space, spaces.Dict):
        return {key: _empty(part, n) for key, part in space.spaces.items()}
    return np.zeros((n, *space.shape), space.dtype)


def _parts(observation: Any) -> list[npt.NDArray[Any]]:
    return list(observation.values()) if isinstance(observation, dict) else [observation]


def _set_row(observation: Any, i: int, source: Any) -> None:
    for own, new in zip(_parts(observation), _parts(source), strict=True):
        own[i] = new[i]
