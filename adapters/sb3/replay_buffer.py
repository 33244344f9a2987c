"""The prioritized replay buffer for SB3's off-policy algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

import kary_replay
from kary_replay.adapters.sb3.prioritized_buffer import (
    BetaSchedule,
    PrioritizeBy,
    PrioritizedBuffer,
)
from kary_replay.types import UniformShare


class PrioritizedReplayBuffer(PrioritizedBuffer):
    """Prioritized replay for SB3's off-policy algorithms, which stay as they are.

    Pass the class as ``replay_buffer_class`` and, if the defaults do not suit, its keyword-only
    parameters as ``replay_buffer_kwargs``. `sample` draws transitions in proportion to
    priority**alpha over all environments at once. The rewards that it returns carry the importance
    weights into the loss of the critic, and the TD errors back out of it (see
    `kary_replay.adapters.sb3.prioritized_loss`). The TD errors enter the tree before the next batch
    is drawn or the next transition is added.

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage, \
handle_timeout_termination
        The same as in `stable_baselines3.common.buffers.ReplayBuffer`.
    alpha : float
        The exponent of the priorities, in [0, 1]; 0 is uniform replay. It can be set later.
    beta : float or callable
        The exponent of the importance weights, in [0, 1]: the share of the bias that they correct.
        With 0 all weights are 1. A callable, such as `kary_replay.LinearSchedule`, is given the
        number of transitions drawn so far. Beta can be set later.
    priority_epsilon : float
        The number that is added to each |TD error|, so that every transition can be drawn again.
    seed : int, optional
        The seed of the draws. By default they follow the global streams of NumPy and torch, which
        SB3 seeds before it makes its buffer, so that an SB3 run with a seed is reproducible. While
        the uniform share is 1, rows are then drawn from NumPy's as SB3's own buffer draws them: the
        run is that of SB3's own buffer, bit for bit. Buffers that you make yourself, with nothing
        drawn in between, draw alike by priority: give each a seed.
    uniform_share : float or "auto"
        The share of draws that go to all transitions alike, in [0, 1]. It bounds the importance
        weights by uniform_share ** -beta; with 0 they have no bound, and are divided by the largest
        of their batch. With "auto" it is 0.1 while few transitions have most of the errors, and 1,
        which is uniform replay, until that is known and while there is little to gain by priorities
        (docs/prioritized_replay.md). It can be set later.
    prioritize_by : "td_error" or "gradient"
        What a priority is: the |TD error|, or the size of the gradient that the loss of the row has
        with respect to the prediction. They differ where a Huber loss (`smooth_l1_loss`,
        `huber_loss`) turns linear: beyond that, errors pull no harder, and count as the one from
        which on they do not. Of losses that are written out, such as those of QR-DQN and TQC, the
        backward pass brings the gradient; its size is its length over all predictions of a row. For
        `mse_loss` and `l1_loss` it is the |TD error|.

    Attributes
    ----------
    observations, actions, rewards, next_observations, dones, timeouts : np.ndarray
        The stored rows in SB3's shape, [buffer_size, n_envs, …]: writable views of the native
        buffer.
    n_sampled : int
        The number of transitions drawn so far.

    Raises
    ------
    TypeError
        If `observation_space` is a Dict.
    ValueError
        If alpha, beta, priority_epsilon or uniform_share is out of range, prioritize_by is
        another word, or SB3 refuses an argument.

    Notes
    -----
    One thread at a time may use the buffer, like SB3's own. Source: Schaul et al. 2016,
    arXiv:1511.05952, algorithm 1.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        alpha: float = 0.6,
        beta: float | BetaSchedule = 0.4,
        priority_epsilon: float = 1e-6,
        seed: int | None = None,
        uniform_share: UniformShare = "auto",
        prioritize_by: PrioritizeBy = "gradient",
    ) -> None:
        if isinstance(observation_space, spaces.Dict):
            raise TypeError(
                f"{type(self).__name__} does not take Dict observation spaces: use "
                "PrioritizedDictReplayBuffer (with goals: PrioritizedHerReplayBuffer), or flatten "
                "the observations (gymnasium.wrappers.FlattenObservation)"
            )
        self._check_sizes(buffer_size, n_envs)
        super().__init__(
            n_envs,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
        )
        self._move_to_native(
            buffer_size, alpha, beta, priority_epsilon, seed, uniform_share, prioritize_by
        )

    def add(
        self,
        obs: np.ndarray,
        next_obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Sequence[dict[str, Any]],
    ) -> None:
        """Add one transition per environment; see `PrioritizedBuffer.add`."""
        if not self.optimize_memory_usage:
            super().add(obs, next_obs, action, reward, done, infos)
            return
        following = self._step_shapes().observation("next_obs", next_obs)
        super().add(obs, next_obs, action, reward, done, infos)
        # The next observation is stored as the observation of the next row. That row loses its own
        # one by this, and cannot be drawn any more.
        self.observations[self.pos] = following
        if self.full:
            self._native.tree.set(self.pos * self.n_envs + np.arange(self.n_envs), 0.0)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state; with one array for both observations, it has the newest one as well.

        That lies in the next row, which the native buffer does not have yet.
        """
        state = super().__getstate__()
        if self.optimize_memory_usage:
            state["_newest_observation"] = self.observations[self.pos].copy()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        newest = state.pop("_newest_observation", None)
        super().__setstate__(state)
        if newest is not None:
            self.observations[self.pos] = newest

    def _next_observation(self, batch: kary_replay.Batch) -> np.ndarray:
        if not self.optimize_memory_usage:
            return batch.next_observation
        rows, environments = np.divmod(batch.index, self.n_envs)
        return self.observations[(rows + 1) % self.buffer_size, environments]
