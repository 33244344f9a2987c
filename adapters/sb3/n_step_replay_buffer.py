"""The prioritized replay buffer for n-step returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

from kary_replay.adapters.sb3.arguments import check_count, check_number
from kary_replay.adapters.sb3.prioritized_buffer import BetaSchedule, PrioritizeBy
from kary_replay.adapters.sb3.replay_buffer import PrioritizedReplayBuffer
from kary_replay.types import UniformShare


class PrioritizedNStepReplayBuffer(PrioritizedReplayBuffer, NStepReplayBuffer):
    """Prioritized replay of n-step returns, computed when a batch is drawn.

    SB3 hands ``n_steps`` and ``gamma`` to its own class only, so give them here as well::

        DQN(
            "MlpPolicy",
            env,
            gamma=0.99,
            replay_buffer_class=PrioritizedNStepReplayBuffer,
            replay_buffer_kwargs={"n_steps": 3, "gamma": 0.99},
        )

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage, \
handle_timeout_termination
        The same as in `stable_baselines3.common.buffers.NStepReplayBuffer`, which does not support
        ``optimize_memory_usage``.
    n_steps : int
        The number of rewards in a return, at least 1. A return has fewer if its episode or the
        stored rows end earlier.
    gamma : float
        The discount of one step, in [0, 1].
    alpha, beta, priority_epsilon, seed, uniform_share, prioritize_by
        The same as in `PrioritizedReplayBuffer`. The priority of a transition is that of the return
        that begins with it.

    Raises
    ------
    NotImplementedError
        If ``optimize_memory_usage`` is True and ``handle_timeout_termination`` is False.
    ValueError, TypeError
        If n_steps or gamma is out of range, or for a reason of `PrioritizedReplayBuffer`, among
        them that both of these are True.

    Notes
    -----
    One thread at a time may use the buffer, like SB3's own. Sampling never writes to the rows;
    SB3's own class does.
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
        n_steps: int = 3,
        gamma: float = 0.99,
        alpha: float = 0.6,
        beta: float | BetaSchedule = 0.4,
        priority_epsilon: float = 1e-6,
        seed: int | None = None,
        uniform_share: UniformShare = "auto",
        prioritize_by: PrioritizeBy = "gradient",
    ) -> None:
        check_count("n_steps", n_steps)
        check_number("gamma", gamma, most=1)
        if optimize_memory_usage and not handle_timeout_termination:
            raise NotImplementedError(
                f"{type(self).__name__} does not support optimize_memory_usage=True; leave it False"
            )
        super().__init__(
            buffer_size,
            observation_space,
            action_space,
            device,
            n_envs,
            optimize_memory_usage,
            handle_timeout_termination,
            alpha=alpha,
            beta=beta,
            priority_epsilon=priority_epsilon,
            seed=seed,
            uniform_share=uniform_share,
            prioritize_by=prioritize_by,
        )
        self.n_steps = int(n_steps)
        self.gamma = gamma

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """Draw a batch in proportion to the masses; see `PrioritizedReplayBuffer.sample`.

        The rewards are the discounted sums. Next observations and dones are those of the last step
        in each sum, and ``discounts`` [B, 1] are the factors of the next values.
        """
        batch = self._draw(batch_size)
        row, environment = np.divmod(batch.index, self.n_envs)
        step = np.arange(self.n_steps)
        rows = (row[:, None] + step) % self.buffer_size  # [B, n_steps]
        environments = environment[:, None]
        # An episode that goes on beyond the newest row is cut there, because the row after it
        # belongs to an older episode.
        newest = (self.pos - 1) % self.buffer_size
        ends = (
            (self.dones[rows, environments] != 0)
            | (self.timeouts[rows, environments] != 0)
            | (rows == newest)
        )
        n_summed = np.where(ends.any(axis=1), ends.argmax(axis=1) + 1, self.n_steps)  # [B]
        is_summed = step < n_summed[:, None]
        rewards = self._normalize_reward(self.rewards[rows, environments], env)
        # SB3 computes this in float32 and in this order, and the results are to be bit-equal.
        discounted = rewards * self.gamma ** step.astype(np.float32) * is_summed
        last = (row + n_summed - 1) % self.buffer_size
        discounts = self.gamma ** n_summed.astype(np.float32)
        return self._samples(
            batch,
            self.next_observations[last, environment],
            self.dones[last, environment] * (1 - self.timeouts[last, environment]),
            discounted.sum(axis=1, keepdims=True),
            env,
            discounts=self._tensor(discounts.reshape(-1, 1)),
        )
