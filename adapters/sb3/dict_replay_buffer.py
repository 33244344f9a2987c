"""The prioritized replay buffer for Dict observations."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer

from kary_replay.adapters.sb3.prioritized_buffer import (
    BetaSchedule,
    PrioritizeBy,
    PrioritizedBuffer,
)
from kary_replay.types import UniformShare


class PrioritizedDictReplayBuffer(PrioritizedBuffer, DictReplayBuffer):
    """Prioritized replay for Dict observation spaces (``MultiInputPolicy``).

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage, \
handle_timeout_termination
        The same as in `stable_baselines3.common.buffers.DictReplayBuffer`, which does not support
        ``optimize_memory_usage``.
    alpha, beta, priority_epsilon, seed, uniform_share, prioritize_by
        The same as in `PrioritizedReplayBuffer`.

    Raises
    ------
    AssertionError
        If SB3's class raises it, for a space that is no Dict or ``optimize_memory_usage=True``.
    ValueError, TypeError
        If an argument is out of range or of the wrong kind, as in `PrioritizedReplayBuffer`.

    Notes
    -----
    One thread at a time may use the buffer, like SB3's own. All else is as in
    `PrioritizedReplayBuffer`.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
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
