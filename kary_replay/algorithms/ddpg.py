"""Deep deterministic policy gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .actor_critic import ActorCritic, Critics, mean_error, regression
from .algorithm import Options, Tensors, check_finite
from .networks import MLP, Encoder
from .off_policy import OffPolicyOptions

__all__ = ["DDPG", "DDPGOptions", "DeterministicActor"]


@dataclass(frozen=True)
class DDPGOptions(OffPolicyOptions):
    """Hyperparameters of DDPG."""

    exploration_noise: float = 0.1
    """Standard deviation of what actors add to their actions, which are from -1 to 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_finite("exploration_noise", self.exploration_noise)


class DeterministicActor(nn.Module):
    """The action μ(s) of an observation: [B, n_actions], from -1 to 1."""

    def __init__(self, observation_space: Any, n_actions: int, options: Options) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, options.image_network)
        self.mu = MLP(self.encoder.n_features, options.hidden, n_actions)

    def forward(self, observation: Any) -> Tensor:
        action: Tensor = self.mu(self.encoder(observation)).tanh()
        return action


class DDPG(ActorCritic):
    """A critic learns the value of what a deterministic actor does; the actor climbs it.

    Lillicrap et al. (2016), arXiv:1509.02971; with Gaussian noise in place of an Ornstein-Uhlenbeck
    process, as in TD3 (section 6.1 of arXiv:1802.09477).
    """

    name = "ddpg"
    paper = "https://arxiv.org/abs/1509.02971"
    options_class = DDPGOptions
    options: DDPGOptions
    n_critics: ClassVar[int] = 1

    def build(self) -> None:
        options, spaces = self.options, (self.observation_space, self.n_actions)
        self.actor, self.actor_target = (
            DeterministicActor(*spaces, options).to(self.device) for _ in range(2)
        )
        self.critic, self.critic_target = (
            Critics(*spaces, options, self.n_critics).to(self.device) for _ in range(2)
        )
        self.minimize("critic", self.critic, self.critic_loss)
        self.minimize("actor", self.actor, self.actor_loss)
        self.add_target("critic", self.critic_target)
        self.add_target("actor", self.actor_target)
        self.policy = self.actor

    def steps(self, batch: Tensors, due: frozenset[str]) -> Tensor:
        weight = batch["importance_weight"]
        (td_error,) = self.minimizers["critic"].step(*self.rows(batch), weight)
        self.minimizers["actor"].step(batch["observation"], weight)
        return td_error

    def critic_loss(
        self,
        observation: Any,
        action: Tensor,
        reward: Tensor,
        next_observation: Any,
        discount: Tensor,
        weight: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the critic's weighted squared error, and |TD error| of each row."""
        with torch.no_grad():
            next_q = self.critic_target(
                next_observation, self.actor_target(next_observation)
            ).squeeze(1)
        return regression(self.critic(observation, action), reward + discount * next_q, weight)

    def actor_loss(self, observation: Any, weight: Tensor) -> tuple[Tensor]:
        """Return what to minimize so that the actor's actions are worth more."""
        return (-(weight * self.critic.first(observation, self.actor(observation))).mean(),)

    @torch.no_grad()
    def td_error(self, batch: Tensors) -> Tensor:
        observation, action, reward, next_observation, discount = self.rows(batch)
        next_q = self.critic(next_observation, self.actor(next_observation)).amin(1)
        return mean_error(self.critic(observation, action), reward + discount * next_q)

    def outputs(self, observation: Any) -> npt.NDArray[np.float32]:
        """Return the actor's actions, [N, n_actions]."""
        return np.tanh(self.actor.mu.numpy(self.actor.encoder.numpy(observation)))

    def decide(
        self,
        outputs: npt.NDArray[np.float32],
        exploration: npt.NDArray[np.float32],
        rng: np.random.Generator,
    ) -> dict[str, npt.NDArray[Any]]:
        action = outputs
        if exploration.any():
            action += exploration[:, None] * rng.standard_normal(action.shape, np.float32)
            action.clip(-1.0, 1.0, out=action)
        return {"action": action.reshape(-1, *self.action_space.shape)}

    def exploration(self, progress: float) -> float:
        return self.options.exploration_noise
