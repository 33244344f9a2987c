"""Soft actor-critic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .actor_critic import ActorCritic, Critics, mean_error, regression
from .algorithm import Options, Tensors, check_finite, check_positive
from .networks import MLP, Encoder
from .off_policy import OffPolicyOptions

__all__ = ["SAC", "SACOptions"]

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0


@dataclass(frozen=True)
class SACOptions(OffPolicyOptions):
    """Hyperparameters of SAC."""

    learning_rate: float = 3e-4
    ent_coef: float | None = None
    """Worth of a nat of entropy, above 0; None: adjusted so that the policy has target_entropy."""
    target_entropy: float | None = None
    """Entropy of the policy in nats, where ent_coef is adjusted; None: minus one for each number of
    an action."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ent_coef is not None:
            check_positive("ent_coef", self.ent_coef)
        if self.target_entropy is not None:
            check_finite("target_entropy", self.target_entropy, -math.inf)
            if self.ent_coef is not None and self.target_entropy != type(self).target_entropy:
                raise ValueError(
                    f"target_entropy={self.target_entropy} needs ent_coef=None, got "
                    f"{self.ent_coef}: only one that is adjusted has an entropy to reach"
                )

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> Any:
        options = dict(saved)
        if options.get("ent_coef") is not None and options.get("target_entropy") is not None:
            # It had no effect, and was not refused at first.
            del options["target_entropy"]
        return super().from_saved(options)


class GaussianActor(nn.Module):
    """A normal distribution whose tanh is the action.

    It is given by its mean and the logarithm of its standard deviation, [B, n_actions] each.
    """

    def __init__(self, observation_space: Any, n_actions: int, options: Options) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, options.image_network)
        self.head = MLP(self.encoder.n_features, options.hidden, 2 * n_actions)

    def forward(self, observation: Any) -> tuple[Tensor, Tensor]:
        mean, log_std = self.head(self.encoder(observation)).chunk(2, dim=1)
        return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def sample(self, observation: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actions that standard normal noise leads to, and their log densities, [B].

        See appendix C of the paper.
        """
        mean, log_std = self(observation)
        u = mean + log_std.exp() * noise
        # Minus log(1 - tanh(u)²) is 2 (u + softplus(-2u)) - 2 log 2, which keeps its digits where
        # tanh(u) is near one.
        log_density = 2 * (u + F.softplus(-2 * u)) - log_std - 0.5 * noise.square()
        return u.tanh(), log_density.sum(1) - mean.shape[1] * (
            0.5 * math.log(2 * math.pi) + 2 * math.log(2)
        )


class Temperature(nn.Module):
    """Worth of entropy, as its logarithm."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor([math.log(value)]))

    def forward(self) -> Tensor:
        return self.log_alpha.exp()


class SAC(ActorCritic):
    """An actor draws its actions, and is paid for their entropy beside the return.

    Haarnoja et al. (2018), arXiv:1812.05905, with the temperature alpha adjusted as in its section
    5.

    With ``n_step`` above 1 the rewards of these steps are summed up without the entropy of those
    between, which is known for the policy of that time alone: what follows the last one has it.
    """

    name = "sac"
    paper = "https://arxiv.org/abs/1812.05905"
    options_class = SACOptions
    options: SACOptions

    def build(self) -> None:
        options, spaces = self.options, (self.observation_space, self.n_actions)
        self.actor = GaussianActor(*spaces, options).to(self.device)
        self.critic, self.critic_target = (
            Critics(*spaces, options, 2).to(self.device) for _ in range(2)
        )
        self.alpha = Temperature(1.0 if options.ent_coef is None else options.ent_coef).to(
            self.device
        )
        self.target_entropy = (
            -float(self.n_actions) if options.target_entropy is None else options.target_entropy
        )
        self.minimize("critic", self.critic, self.critic_loss)
        self.minimize("actor", self.actor, self.actor_loss)
        if options.ent_coef is None:
            self.minimize("alpha", self.alpha, self.alpha_loss)
        self.add_target("critic", self.critic_target)
        self.policy = self.actor

    def noises(self, n_rows: int) -> Tensors:
        return {"noise": self.noise(n_rows, 2 * self.n_actions)}

    def steps(self, batch: Tensors, due: frozenset[str]) -> Tensor:
        weight = batch["importance_weight"]
        next_noise, noise = batch["noise"].chunk(2, dim=1)
        (td_error,) = self.minimizers["critic"].step(*self.rows(batch), weight, next_noise)
        (log_pi,) = self.minimizers["actor"].step(batch["observation"], weight, noise)
        if "alpha" in self.minimizers:
            self.minimizers["alpha"].step(log_pi, weight)
        return td_error

    def critic_loss(
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
        with torch.no_grad():
            next_action, log_pi = self.actor.sample(next_observation, noise)
            next_value = (
                self.critic_target(next_observation, next_action).amin(1) - self.alpha() * log_pi
            )
        return regression(self.critic(observation, action), reward + discount * next_value, weight)

    def actor_loss(self, observation: Any, weight: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, lower with value and entropy, and the log densities of the actions."""
        action, log_pi = self.actor.sample(observation, noise)
        value = self.critic(observation, action).amin(1) - self.alpha().detach() * log_pi
        return -(weight * value).mean(), log_pi

    def alpha_loss(self, log_pi: Tensor, weight: Tensor) -> tuple[Tensor]:
        """Return what to minimize so that the entropy nears its target."""
        return (-(self.alpha.log_alpha * (weight * (log_pi + self.target_entropy))).mean(),)

    def figures(self, batch: Tensors) -> dict[str, float]:
        return {**super().figures(batch), "entropy_coefficient": float(self.alpha().detach())}

    @torch.no_grad()
    def td_error(self, batch: Tensors) -> Tensor:
        observation, action, reward, next_observation, discount = self.rows(batch)
        next_action, log_pi = self.actor.sample(next_observation, torch.zeros_like(action))
        next_value = self.critic(next_observation, next_action).amin(1) - self.alpha() * log_pi
        return mean_error(self.critic(observation, action), reward + discount * next_value)

    def outputs(self, observation: Any) -> npt.NDArray[np.float32]:
        """Return means and logarithms of standard deviations, [N, 2 * n_actions]."""
        return self.actor.head.numpy(self.actor.encoder.numpy(observation))

    def decide(
        self,
        outputs: npt.NDArray[np.float32],
        exploration: npt.NDArray[np.float32],
        rng: np.random.Generator,
    ) -> dict[str, npt.NDArray[Any]]:
        u, log_std = np.split(outputs, 2, axis=1)
        if exploration.any():
            std = np.exp(log_std.clip(LOG_STD_MIN, LOG_STD_MAX))
            u += exploration[:, None] * std * rng.standard_normal(u.shape, np.float32)
        return {"action": np.tanh(u).reshape(-1, *self.action_space.shape)}

    def exploration(self, progress: float) -> float:
        return 1.0
