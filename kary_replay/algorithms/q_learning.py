"""What Q-learning for discrete actions is, whatever the networks remember or say of returns."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..validation import as_fraction, as_real
from .algorithm import check_bool, check_finite, check_positive
from .off_policy import OffPolicy, OffPolicyOptions
from .spaces import check_actions_are_discrete

__all__ = ["QLearning", "QLearningOptions", "dueling", "of_actions"]


@dataclass(frozen=True)
class QLearningOptions(OffPolicyOptions):
    """Hyperparameters of Q-learning."""

    double: bool = True
    """Choose the next action by the trained network, value it by the target network."""
    dueling: bool = False
    """Add up a state's value and the actions' advantages."""
    huber_delta: float = 1.0
    """TD error up to which the loss is quadratic; beyond, a row's gradient stays at this size.

    A distribution over atoms has another loss; that of quantiles is divided by it."""
    max_gradient_norm: float = 10.0
    """Longer gradients are scaled down to this length."""
    exploration_initial: float = 1.0
    """Probability of a random action at the beginning."""
    exploration_final: float = 0.05
    """Probability of a random action later."""
    exploration_fraction: float = 0.1
    """Share of the training over which it falls."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("double", "dueling"):
            check_bool(name, getattr(self, name))
        for name in ("exploration_initial", "exploration_final"):
            as_fraction(name, getattr(self, name))
        check_finite("exploration_fraction", self.exploration_fraction)
        check_positive("huber_delta", self.huber_delta)
        if not as_real("max_gradient_norm", self.max_gradient_norm) > 0:
            raise ValueError(f"max_gradient_norm must be above 0, got {self.max_gradient_norm}")
        if self.max_gradient_norm != math.inf:
            check_positive("max_gradient_norm", self.max_gradient_norm)


class QLearning(OffPolicy):
    """Q-learning for discrete actions, which explores by random ones."""

    options: QLearningOptions
    q: Any
    q_target: Any

    @classmethod
    def check_spaces(cls, observation_space: Any, action_space: Any) -> None:
        super().check_spaces(observation_space, action_space)
        check_actions_are_discrete(cls.name, action_space)

    def build(self) -> None:
        self.q, self.q_target = (self.network().to(self.device) for _ in range(2))
        self.minimize("q", self.q, self.loss, self.options.max_gradient_norm)
        self.add_target("q", self.q_target)
        self.policy = self.q

    @abstractmethod
    def network(self) -> nn.Module:
        """Return a new network of what actions are worth."""

    @abstractmethod
    def loss(self, *rows: Any) -> tuple[Tensor, ...]:
        """Return what the trained network's minimizer minimizes, and what `steps` returns."""

    def decide(
        self,
        outputs: npt.NDArray[np.float32],
        exploration: npt.NDArray[np.float32],
        rng: np.random.Generator,
    ) -> dict[str, npt.NDArray[Any]]:
        action: npt.NDArray[np.int64] = outputs.argmax(1)
        if exploration.any():
            at_random = rng.random(len(action)) < exploration
            action[at_random] = rng.integers(int(self.action_space.n), size=int(at_random.sum()))
        return {"action": action}

    def exploration(self, progress: float) -> float:
        options = self.options
        done_share = (
            min(1.0, progress / options.exploration_fraction)
            if options.exploration_fraction > 0
            else 1.0
        )
        return options.exploration_initial + done_share * (
            options.exploration_final - options.exploration_initial
        )


def of_actions(outputs: Tensor, action: Tensor) -> Tensor:
    """Return the outputs of one action of each row: [B], or [B, n_outputs]."""
    if outputs.dim() == 2:
        return outputs.gather(1, action.unsqueeze(1)).squeeze(1)
    return outputs[torch.arange(len(action), device=outputs.device), action]


def dueling(advantage: Tensor, value: Tensor) -> Tensor:
    """Return what actions are worth: of advantages [B, n_actions, ...] and values [B, ...].

    Wang et al. (2016), arXiv:1511.06581, equation 9.
    """
    return advantage - advantage.mean(1, keepdim=True) + value.view(-1, 1, *advantage.shape[2:])
