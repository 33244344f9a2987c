"""The prioritized replay buffer for hindsight experience replay."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import (
    KEY_TO_GOAL_STRATEGY,
    GoalSelectionStrategy,
)
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from kary_replay.adapters.sb3.arguments import check_number
from kary_replay.adapters.sb3.prioritized_buffer import (
    BetaSchedule,
    PrioritizeBy,
    PrioritizedBuffer,
    randint,
)
from kary_replay.types import UniformShare


class PrioritizedHerReplayBuffer(PrioritizedBuffer, HerReplayBuffer):
    """Prioritized hindsight experience replay.

    A transition can be drawn once its episode has ended. A share of each batch gets goals that the
    episode reached later, which SB3's class chooses. The priority of a transition comes from the
    last goal that it was replayed with.

    Parameters
    ----------
    buffer_size, observation_space, action_space, env, device, n_envs, optimize_memory_usage, \
handle_timeout_termination, n_sampled_goal, goal_selection_strategy, copy_info_dict
        The same as in `stable_baselines3.her.HerReplayBuffer`.
    alpha, beta, priority_epsilon, seed, uniform_share, prioritize_by
        The same as in `PrioritizedReplayBuffer`.

    Raises
    ------
    RuntimeError
        If `sample` is called before the first episode has ended.
    AssertionError, ValueError, TypeError
        If an argument is wrong, as in SB3's class and in `PrioritizedReplayBuffer`.

    Notes
    -----
    One thread at a time may use the buffer, like SB3's own. Draws are independent and not
    stratified, so that real and virtual transitions both come from the whole buffer. For uniform
    draws it keeps the slots that can be drawn, 8 bytes each. Sources:
    Andrychowicz et al. 2017, arXiv:1707.01495; Schaul et al. 2016, arXiv:1511.05952.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        env: VecEnv,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: GoalSelectionStrategy | str = "future",
        copy_info_dict: bool = False,
        *,
        alpha: float = 0.6,
        beta: float | BetaSchedule = 0.4,
        priority_epsilon: float = 1e-6,
        seed: int | None = None,
        uniform_share: UniformShare = "auto",
        prioritize_by: PrioritizeBy = "gradient",
    ) -> None:
        self._check_sizes(buffer_size, n_envs)
        _check_goals(observation_space, n_sampled_goal, goal_selection_strategy)
        super().__init__(
            n_envs,
            observation_space,
            action_space,
            env,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            n_sampled_goal,
            goal_selection_strategy,
            copy_info_dict,
        )
        self._move_to_native(
            buffer_size, alpha, beta, priority_epsilon, seed, uniform_share, prioritize_by
        )
        shape = (self.buffer_size, self.n_envs)
        self.infos = np.array([[{} for _ in range(shape[1])] for _ in range(shape[0])])
        self.ep_start = np.zeros(shape, np.int64)
        # The length of the row's episode, once that has ended. Rows with 0 must not be drawn, and
        # have mass 0.
        self.ep_length = np.zeros(shape, np.int64)

    _drawable: np.ndarray | None = None  # the slots that can be drawn, in order; None: look again

    def add(
        self,
        obs: dict[str, np.ndarray],
        next_obs: dict[str, np.ndarray],
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Sequence[dict[str, Any]],
    ) -> None:
        """Add one transition per environment, which can be drawn once its episode has ended.

        It then gets the largest priority seen so far. Parameters and errors are those of
        `PrioritizedBuffer.add`.
        """
        self._note_row()
        # This raises, if at all, before anything has changed.
        super().add(obs, next_obs, action, reward, done, infos)
        self._note_row(infos)

    _n_noted = 0  # steps, of those added since the last reset, that `_note_row` has seen
    # a step that it has begun to note, and where an episode that is as long as the ring ends there
    _noting: tuple[int, Any] = (0, False)

    def _note_row(self, infos: Sequence[dict[str, Any]] | None = None) -> None:
        """Note what the newest row means for the episodes, if that is still to be done.

        It is where Ctrl-C came in the midst of `add`; the infos of that row are not known any more.
        """
        n_added = self._n_steps_added()
        if self._n_noted == n_added:
            return
        row = (self.pos - 1) % self.buffer_size
        ends = self.dones[row] != 0
        begins_next = ends & (self._current_ep_start == self.pos)
        if self._noting[0] != n_added:
            self._noting = n_added, begins_next
        was_closed = begins_next & ~self._noting[1]  # by a call that was interrupted
        for environment in np.flatnonzero(self.ep_length[row] * ~was_closed):
            # The overwritten row belonged to an episode. The rest of that episode cannot be drawn
            # any more, because the rows that its goals come from are being overwritten.
            n_gone = (row - self.ep_start[row, environment]) % self.buffer_size
            n_left = self.ep_length[row, environment] - n_gone
            left = (row + np.arange(n_left)) % self.buffer_size
            self.ep_length[left, environment] = 0
            self._native.tree.set(left * self.n_envs + environment, 0.0)
            self._drawable = None
        (present,) = np.nonzero(~was_closed)
        self.ep_start[row, present] = self._current_ep_start[present]
        self._native.tree.set(row * self.n_envs + present, 0.0)
        if self.copy_info_dict:
            self.infos[row] = [{} for _ in range(self.n_envs)] if infos is None else infos
        for environment in np.flatnonzero(ends & ~was_closed):
            self._compute_episode_length(int(environment))
        self._n_noted = n_added

    def _compute_episode_length(self, env_idx: int) -> None:
        """Give the rows of the episode that has just ended a mass, so that they can be drawn."""
        first = int(self._current_ep_start[env_idx])
        super()._compute_episode_length(env_idx)
        n_rows = int(self.ep_length[first, env_idx])
        rows = (first + np.arange(n_rows)) % self.buffer_size
        mass = self._native.max_priority**self._native.alpha
        self._native.tree.set(rows * self.n_envs + env_idx, mass)
        self._drawable = None

    def reset(self) -> None:
        """Forget all rows, priorities and episodes, including the episodes that go on."""
        super().reset()
        self._n_noted, self._noting = 0, (0, False)
        self.ep_length[:] = 0
        self._current_ep_start[:] = 0
        self._drawable = None

    def truncate_last_trajectory(self) -> None:
        """End the episodes that go on at their last row. SB3 calls this after loading a buffer."""
        self.flush_priorities()
        super().truncate_last_trajectory()

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> DictReplayBufferSamples:
        """Draw a batch in proportion to the masses.

        The first rows of the batch are transitions as they were added, the others have new goals.
        Parameters, result and errors are those of `PrioritizedBuffer.sample`.

        Raises
        ------
        RuntimeError
            If no episode has ended yet.
        """
        self._note_row()
        if self._native.total_mass <= 0:
            raise RuntimeError(
                "no episode has ended yet, so there is nothing to draw: "
                "choose a learning_starts beyond the longest episode of the environment"
            )
        batch = self._draw(batch_size, stratified=False)
        n_real = batch_size - int(self.her_ratio * batch_size)
        if n_real < batch_size:
            self._replace_goals(batch, slice(n_real, batch_size))
        return self._samples(
            batch,
            batch.next_observation,
            batch.episode_end * (1 - batch.truncated),
            self._normalize_reward(batch.reward.reshape(-1, 1), env),
            env,
        )

    def _stock_slots(self, batch_size: int) -> np.ndarray:
        """Draw slots as SB3's own buffer does, whose batches begin with the virtual ones."""
        if self._drawable is None:
            self._drawable = np.flatnonzero(self.ep_length)
        slots = self._drawable[randint(0, len(self._drawable), batch_size)]
        return np.roll(slots, -int(self.her_ratio * batch_size))

    def _replace_goals(self, batch: Any, virtual: slice) -> None:
        """Give the virtual rows of a batch new goals, and the rewards for these goals.

        The arrays of the batch belong to the caller, so they are changed in place.
        """
        rows, environments = np.divmod(batch.index[virtual], self.n_envs)
        goals = self._sample_goals(rows, environments)
        for observation in (batch.observation, batch.next_observation):
            observation["desired_goal"][virtual] = goals
        assert self.env is not None, (
            "PrioritizedHerReplayBuffer needs a VecEnv to compute the rewards of virtual "
            "transitions: call set_env(env)"
        )
        infos = [{} for _ in rows]
        if self.copy_info_dict:
            infos = copy.deepcopy(self.infos[rows, environments])
        achieved = batch.next_observation["achieved_goal"][virtual]
        # All environments are alike, so the first one computes all rewards.
        rewards = self.env.env_method("compute_reward", achieved, goals, infos, indices=[0])[0]
        batch.reward[virtual] = np.asarray(rewards, np.float32).reshape(-1)

    def _hides_rows(self) -> bool:
        """Return True: rows of an episode that goes on, or has lost its goals, are not drawn."""
        return True

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the environment, as SB3 does; `set_env` sets another one."""
        self._note_row()
        left_out = ("env", "_drawable")
        return {
            name: value for name, value in super().__getstate__().items() if name not in left_out
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.env = None
        if "_n_noted" not in state:
            self._n_noted = self._n_steps_added()


def _check_goals(
    observation_space: spaces.Space[Any], n_sampled_goal: Any, goal_selection_strategy: Any
) -> None:
    """Raise unless goals can be chosen; the types of errors are those of SB3's class."""
    check_number("n_sampled_goal", n_sampled_goal)
    strategy = goal_selection_strategy
    if isinstance(strategy, str) and strategy.lower() not in KEY_TO_GOAL_STRATEGY:
        names = ", ".join(KEY_TO_GOAL_STRATEGY)
        raise KeyError(f"goal_selection_strategy must be one of {names}, got {strategy!r}")
    parts = ("observation", "achieved_goal", "desired_goal")
    if isinstance(observation_space, spaces.Dict) and not set(parts) <= set(observation_space):
        raise ValueError(
            f"observation_space must have {', '.join(parts)}, as of a goal-conditioned "
            f"environment, got {', '.join(observation_space)}: use PrioritizedDictReplayBuffer"
        )
