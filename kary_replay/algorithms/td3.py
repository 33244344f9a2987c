"""Twin delayed deep deterministic policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..validation import as_count
from .actor_critic import regression
from .algorithm import Tensors, check_finite
from .ddpg import DDPG, DDPGOptions

__all__ = ["TD3", "TD3Options"]


@dataclass(frozen=True)
class TD3Options(DDPGOptions):
    """Hyperparameters of TD3."""

    target_interval: int = 2
    """Updates between two moves of the target networks, which policy_delay does not change: to move
    them with the actor, as the paper does, let the two be equal."""
    policy_delay: int = 2
    """Updates of the critics for one of the actor."""
    target_noise: float = 0.2
    """Standard deviation of what is added to the target's actions."""
    target_noise_clip: float = 0.5
    """The most that is added to them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        as_count("policy_delay", self.policy_delay)
        for name in ("target_noise", "target_noise_clip"):
            check_finite(name, getattr(self, name))


class TD3(DDPG):
    """DDPG with three cures for overestimated values.

    They are the lesser of two critics, a delayed actor, and smoothed target actions: Fujimoto et
    al. (2018), arXiv:1802.09477.
    """

    name = "td3"
    paper = "https://arxiv.org/abs/1802.09477"
    options_class = TD3Options
    options: TD3Options
    n_critics = 2

    def due(self) -> frozenset[str]:
        """Return what of an update is due: "actor", "targets", both or nothing."""
        is_actor_due = self.n_updates % self.options.policy_delay == 0
        return super().due() | {"actor"} if is_actor_due else super().due()

    def noises(self, n_rows: int) -> Tensors:
        return {"noise": self.noise(n_rows, self.n_actions)}

    def steps(self, batch: Tensors, due: frozenset[str]) -> Tensor:
        weight = batch["importance_weight"]
        (td_error,) = self.minimizers["critic"].step(*self.rows(batch), weight, batch["noise"])
        if "actor" in due:
            self.minimizers["actor"].step(batch["observation"], weight)
        return td_error

    def critic_loss(  # type: ignore[override]
        self,
        observation: Any,
        action: Tensor,
        reward: Tensor,
        next_observation: Any,
        discount: Tensor,
        weight: Tensor,
        noise: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the critics' weighted squared errors, and the mean |TD error| of each row.

        The noise is standard normal.
        """
        sigma, clip = self.options.target_noise, self.options.target_noise_clip
        with torch.no_grad():
            smoothing = (sigma * noise).clamp(-clip, clip)
            next_action = (self.actor_target(next_observation) + smoothing).clamp(-1, 1)
            next_q = self.critic_target(next_observation, next_action).amin(1)
        return regression(self.critic(observation, action), reward + discount * next_q, weight)
