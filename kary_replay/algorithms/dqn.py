"""Deep Q-networks, with double, dueling, n-step and distributional learning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..validation import as_count
from .algorithm import Tensors, check_above_0
from .networks import MLP, Encoder
from .off_policy import OffPolicy, OffPolicyOptions
from .spaces import check_actions_are_discrete
from .updates.minimizer import Minimizer

__all__ = ["DQN", "DQNOptions"]

ROWS = "observation", "action", "reward", "next_observation", "discount"


@dataclass(frozen=True)
class DQNOptions(OffPolicyOptions):
    """Hyperparameters of DQN."""

    tau: float = 1.0
    target_interval: int = 100
    double: bool = True
    """Choose the next action by the trained network, value it by the target network."""
    dueling: bool = False
    """Add up a state's value and the actions' advantages."""
    n_atoms: int = 1
    """Values of a distributional (C51) network; 1: the mean alone."""
    v_min: float = -10.0
    """Lowest value of the distribution."""
    v_max: float = 10.0
    """Highest value of the distribution."""
    huber_delta: float = 1.0
    """TD error up to which the loss is quadratic; beyond, a row's gradient stays at this size."""
    prioritize_by: Literal["td_error", "gradient"] = "gradient"
    """What a row's priority is: its TD error, or the size of its gradient.

    The latter is the TD error up to huber_delta; with n_atoms > 1 both are the same."""
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
        if (
            as_count("n_atoms", self.n_atoms) > 1
            and not -math.inf < self.v_min < self.v_max < math.inf
        ):
            raise ValueError(
                f"v_min must be below v_max, both finite, got {self.v_min} and {self.v_max}"
            )
        for name in ("exploration_initial", "exploration_final"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a probability, 0 to 1, got {getattr(self, name)}")
        if not self.exploration_fraction >= 0:
            raise ValueError(
                f"exploration_fraction must be at least 0, got {self.exploration_fraction}"
            )
        check_above_0("huber_delta", self.huber_delta)
        if self.prioritize_by not in ("td_error", "gradient"):
            raise ValueError(
                f"prioritize_by must be 'td_error' or 'gradient', got {self.prioritize_by!r}"
            )
        if not self.max_gradient_norm > 0:
            raise ValueError(f"max_gradient_norm must be above 0, got {self.max_gradient_norm}")


class QNetwork(nn.Module):
    """Values of every action, [B, n_actions], or logits of them, [B, n_actions, n_atoms]."""

    def __init__(self, observation_space: Any, n_actions: int, options: DQNOptions) -> None:
        super().__init__()
        self.shape = (n_actions, options.n_atoms) if options.n_atoms > 1 else (n_actions,)
        self.encoder = Encoder(observation_space)
        n_features = self.encoder.n_features
        self.advantage = MLP(n_features, options.hidden, n_actions * options.n_atoms)
        self.value = MLP(n_features, options.hidden, options.n_atoms) if options.dueling else None

    def forward(self, observation: Any) -> Tensor:
        return self.head(self.encoder(observation))

    def head(self, features: Tensor) -> Tensor:
        """Return the output for features of observations."""
        output: Tensor = self.advantage(features)
        if len(self.shape) > 1:
            output = output.view(-1, *self.shape)
        if self.value is not None:
            output = (
                output
                - output.mean(1, keepdim=True)
                + self.value(features).unsqueeze(1).reshape(-1, 1, *self.shape[1:])
            )
        return output


class DQN(OffPolicy):
    """Q-learning for discrete actions.

    Mnih et al. (2015), https://doi.org/10.1038/nature14236; double: van Hasselt et al. (2016),
    arXiv:1509.06461; dueling: Wang et al. (2016), arXiv:1511.06581; distributional: Bellemare et
    al. (2017), arXiv:1707.06887; all of them and n-step returns together: Hessel et al. (2018),
    Rainbow, arXiv:1710.02298.
    """

    name = "dqn"
    paper = "https://doi.org/10.1038/nature14236"
    options_class = DQNOptions
    options: DQNOptions

    @classmethod
    def check_spaces(cls, observation_space: Any, action_space: Any) -> None:
        super().check_spaces(observation_space, action_space)
        check_actions_are_discrete(cls.name, action_space)

    def build(self) -> None:
        options, n_actions = self.options, int(self.action_space.n)
        self.q, self.q_target = (
            QNetwork(self.observation_space, n_actions, options).to(self.device) for _ in range(2)
        )
        loss = self.loss if options.n_atoms == 1 else self.distributional_loss
        self.minimizers["q"] = Minimizer(
            [self.q],
            loss,
            options.learning_rate,
            max_gradient_norm=options.max_gradient_norm,
            share=self.share,
        )
        self.add_target("q", self.q_target)
        self.atoms = torch.linspace(
            options.v_min, options.v_max, options.n_atoms, device=self.device
        )
        self.policy = self.q

    def steps(self, batch: Tensors, due: frozenset[str]) -> Tensor:
        rows = [batch[name] for name in ROWS]
        (td_error,) = self.minimizers["q"].step(*rows, batch["importance_weight"])
        return td_error

    def loss(
        self,
        observation: Any,
        action: Tensor,
        reward: Tensor,
        next_observation: Any,
        discount: Tensor,
        weight: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted Huber loss, and what each row counts as."""
        rows = observation, action, reward, next_observation, discount
        q, target = self.values(self.q_target, *rows)
        loss = F.huber_loss(q, target, reduction="none", delta=self.options.huber_delta)
        return (weight * loss).mean(), self.priority_of(q.detach() - target)

    def distributional_loss(
        self,
        observation: Any,
        action: Tensor,
        reward: Tensor,
        next_observation: Any,
        discount: Tensor,
        weight: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted cross-entropy, and in TD error's place the divergence of each row."""
        rows = observation, action, reward, next_observation, discount
        cross_entropy, divergence = self.divergences(self.q_target, *rows)
        return (weight * cross_entropy).mean(), divergence

    def values(
        self,
        network: QNetwork,
        observation: Any,
        action: Tensor,
        reward: Tensor,
        next_observation: Any,
        discount: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the trained network's values, and the targets; ``network`` values what is next."""
        with torch.no_grad():
            value = self.mean(network(next_observation))
            if self.options.double and network is not self.q:
                best = self.mean(self.q(next_observation)).argmax(1, keepdim=True)
                value = value.gather(1, best).squeeze(1)
            else:
                value = value.amax(1)
            target = reward + discount * value
        q = self.mean(self.q(observation))
        return q.gather(1, action.unsqueeze(1)).squeeze(1), target

    def divergences(
        self,
        network: QNetwork,
        observation: Any,
        action: Tensor,
        reward: Tensor,
        next_observation: Any,
        discount: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return each row's cross-entropy to the projected target distribution, and its divergence.

        ``network`` says what comes next. The divergence, without gradient, is what the
        cross-entropy has above its lowest value, the target's entropy: 0 where there is no error.
        """
        n_atoms, low, high = self.options.n_atoms, self.options.v_min, self.options.v_max
        with torch.no_grad():
            logits = network(next_observation)
            chooser = logits
            if self.options.double and network is not self.q:
                chooser = self.q(next_observation)
            best = self.mean(chooser).argmax(1)
            # [B, n_atoms]
            probability = logits[torch.arange(len(best), device=self.device), best].softmax(1)
            # Each atom's return, in units of the spacing, is shared out to the two atoms beside it
            # (arXiv:1707.06887, eq. 7).
            returns = (reward.unsqueeze(1) + discount.unsqueeze(1) * self.atoms).clamp(low, high)
            position = (returns - low) * ((n_atoms - 1) / (high - low))
            share = (
                1
                - (
                    position.unsqueeze(1) - torch.arange(n_atoms, device=self.device).view(1, -1, 1)
                ).abs()
            ).clamp(min=0)
            target = (share @ probability.unsqueeze(2)).squeeze(2)  # share: [B, to atom, from atom]
        logits = self.q(observation)[torch.arange(len(action), device=self.device), action]
        cross_entropy = -(target * logits.log_softmax(1)).sum(1)
        entropy = -(target * target.clamp(min=1e-8).log()).sum(1)
        return cross_entropy, (cross_entropy.detach() - entropy).clamp(min=0)

    def mean(self, output: Tensor) -> Tensor:
        """Return the value of every action, [B, n_actions]."""
        return output if self.options.n_atoms == 1 else (output.softmax(2) * self.atoms).sum(2)

    @torch.no_grad()
    def td_error(self, batch: Tensors) -> Tensor:
        rows = [batch[name] for name in ROWS]
        if self.options.n_atoms > 1:
            return self.divergences(self.q, *rows)[1]
        q, target = self.values(self.q, *rows)
        return self.priority_of(q - target)

    def priority_of(self, error: Tensor) -> Tensor:
        """Return what rows with these TD errors count as, [B]."""
        size = error.abs()
        by_gradient = self.options.prioritize_by == "gradient"
        return size.clamp(max=self.options.huber_delta) if by_gradient else size

    def figures(self, batch: Tensors) -> dict[str, float]:
        with torch.no_grad():
            q, target = self.values(self.q_target, *(batch[name] for name in ROWS))
        own = {
            "td_error": float((q - target).abs().mean()),  # what `update` returns may end at 1
            "q": float(q.mean()),
            "epsilon": self.exploration(self.progress),
        }
        return {**super().figures(batch), **own}

    def outputs(self, observation: Any) -> npt.NDArray[np.float32]:
        """Return values of all actions, [N, n_actions], or what is as good for choosing one."""
        features = self.q.encoder.numpy(observation)
        # the value stream of a dueling network adds the same to all actions
        if self.options.n_atoms == 1:
            return self.q.advantage.numpy(features)
        with torch.no_grad():
            values = self.mean(self.q.head(torch.from_numpy(features).to(self.device)))
        return values.cpu().numpy()

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
