"""What algorithms for continuous actions share: critics, and the spaces they are for.

Inside, an action is a vector of numbers from -1 to 1, one for each of the environment's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .algorithm import Options, Tensors
from .networks import MLP, Encoder
from .off_policy import OffPolicy
from .spaces import check_actions_are_bounded

__all__ = ["ActorCritic", "Critics", "mean_error", "regression"]


class Critics(nn.Module):
    """Some critics Q(s, a) that share an encoder: [B, n]."""

    def __init__(self, observation_space: Any, n_actions: int, options: Options, n: int) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, options.image_network)
        # Two stacks of layers, not one of batched products (baddbmm, the first layer a single
        # product). In a recorded update of twins those take 0.95 times as long at 64 units and 64
        # rows, but 1.1 at 256 rows and 1.1 to 1.2 at 256 units.
        n_inputs = self.encoder.n_features + n_actions
        self.q = nn.ModuleList(MLP(n_inputs, options.hidden, 1) for _ in range(n))

    def forward(self, observation: Any, action: Tensor) -> Tensor:
        inputs = torch.cat([self.encoder(observation), action], 1)
        return torch.cat([q(inputs) for q in self.q], 1)

    def first(self, observation: Any, action: Tensor) -> Tensor:
        """Return what the first one says, [B]."""
        value: Tensor = self.q[0](torch.cat([self.encoder(observation), action], 1))
        return value.squeeze(1)


def regression(q: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted squared error of critics [B, n], and the `mean_error` of each row.

    The squared errors of a row are summed over the critics, and their weighted mean is taken over
    the rows.
    """
    wanted = target.unsqueeze(1).expand_as(q)
    squared = F.mse_loss(q, wanted, reduction="none").sum(1)
    return (weight * squared).mean(), mean_error(q.detach(), target)


def mean_error(q: Tensor, target: Tensor) -> Tensor:
    """Return |q - target| of each row, [B], as the mean over the critics of ``q``, [B, n]."""
    return (q - target.unsqueeze(1).expand_as(q)).abs().mean(1)


class ActorCritic(OffPolicy):
    """An algorithm for continuous actions, whose ``build`` makes a ``critic``."""

    critic: Critics

    @classmethod
    def check_spaces(cls, observation_space: Any, action_space: Any) -> None:
        super().check_spaces(observation_space, action_space)
        check_actions_are_bounded(cls.name, action_space)

    @property
    def n_actions(self) -> int:
        """How many numbers an action has."""
        return int(np.prod(self.action_space.shape))

    def figures(self, batch: Tensors) -> dict[str, float]:
        observation, action, *_ = self.rows(batch)
        with torch.no_grad():
            q = self.critic(observation, action)
        return {**super().figures(batch), "q": float(q.mean())}

    def rows(self, batch: Tensors) -> tuple[Any, ...]:
        """Return observation, action, reward, next observation and discount."""
        action = batch["action"]
        if action.dim() != 2:
            action = action.reshape(-1, self.n_actions)
        return (
            batch["observation"],
            action,
            batch["reward"],
            batch["next_observation"],
            batch["discount"],
        )
