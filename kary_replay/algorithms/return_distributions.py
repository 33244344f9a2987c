"""What Q-networks say of an action's return: its mean, a distribution over atoms, or quantiles.

Each kind says how many numbers an action has, what mean they stand for, and how far they are from
those that a reward and the next state's promise. A row's size, of which its priority is made, is 0
where there is no error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["AtomReturns", "MeanReturns", "QuantileReturns", "ReturnDistribution"]


class ReturnDistribution:
    """Of an action's return, given the outputs of a network.

    Parameters
    ----------
    n_outputs : int
        How many numbers the network gives for each action.
    """

    def __init__(self, n_outputs: int) -> None:
        self.n_outputs = n_outputs

    def mean(self, outputs: Tensor) -> Tensor:
        """Return the value of every action, [B, n_actions], of outputs [B, n_actions, n_outputs].

        A single output of an action has no axis.
        """
        raise NotImplementedError

    def losses(
        self, outputs: Tensor, reward: Tensor, next_outputs: Tensor, discount: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each row, and without gradient its size, [B].

        Parameters
        ----------
        outputs, next_outputs : Tensor
            Of the action, and without gradient of the one after it: [B, n_outputs].
        reward, discount : Tensor
            [B].
        """
        raise NotImplementedError


class MeanReturns(ReturnDistribution):
    """The mean alone.

    Parameters
    ----------
    huber_delta : float
        TD error up to which the loss is quadratic.
    """

    def __init__(self, huber_delta: float) -> None:
        super().__init__(1)
        self.huber_delta = huber_delta

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs

    def losses(
        self, outputs: Tensor, reward: Tensor, next_outputs: Tensor, discount: Tensor
    ) -> tuple[Tensor, Tensor]:
        target = reward + discount * next_outputs
        loss = F.huber_loss(outputs, target, reduction="none", delta=self.huber_delta)
        return loss, (outputs.detach() - target).abs()


class AtomReturns(ReturnDistribution):
    """Probabilities of fixed returns, the atoms (C51); the outputs are their logits.

    Bellemare, Dabney & Munos (2017), arXiv:1707.06887. The loss is the cross-entropy to what the
    target's atoms are projected to. A row's size is what it has above its lowest value, the
    entropy of that: a divergence.

    Parameters
    ----------
    n_atoms : int
        How many.
    low, high : float
        The first and the last.
    device : torch.device or str
        Where to compute.
    """

    def __init__(self, n_atoms: int, low: float, high: float, device: Any) -> None:
        super().__init__(n_atoms)
        self.low, self.high, self.device = low, high, device
        self.atoms = torch.linspace(low, high, n_atoms, device=device)

    def mean(self, outputs: Tensor) -> Tensor:
        return (outputs.softmax(2) * self.atoms).sum(2)

    def losses(
        self, outputs: Tensor, reward: Tensor, next_outputs: Tensor, discount: Tensor
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            probability = next_outputs.softmax(1)
            # Each atom's return, in units of the spacing, is shared out to the two atoms beside it
            # (eq. 7).
            returns = (reward.unsqueeze(1) + discount.unsqueeze(1) * self.atoms).clamp(
                self.low, self.high
            )
            position = (returns - self.low) * ((self.n_outputs - 1) / (self.high - self.low))
            places = torch.arange(self.n_outputs, device=self.device).view(1, -1, 1)
            share = (1 - (position.unsqueeze(1) - places).abs()).clamp(min=0)
            target = (share @ probability.unsqueeze(2)).squeeze(2)  # share: [B, to atom, from atom]
        cross_entropy = -(target * outputs.log_softmax(1)).sum(1)
        entropy = -(target * target.clamp(min=1e-8).log()).sum(1)
        return cross_entropy, (cross_entropy.detach() - entropy).clamp(min=0)


class QuantileReturns(ReturnDistribution):
    """Returns of equally probable quantiles (QR-DQN).

    Dabney et al. (2018), arXiv:1710.10044. The loss is that of quantile regression with Huber's in
    the place of absolute errors (eq. 10), summed over quantiles. It does not end at 0 where
    returns scatter, so a row's size is how far the means are apart.

    Parameters
    ----------
    n_quantiles : int
        How many.
    huber_delta : float
        Error of a quantile up to which its loss is quadratic.
    device : torch.device or str
        Where to compute.
    """

    def __init__(self, n_quantiles: int, huber_delta: float, device: Any) -> None:
        super().__init__(n_quantiles)
        self.huber_delta = huber_delta
        # the middles of n equal parts of 0 to 1
        self.shares = (torch.arange(n_quantiles, device=device) + 0.5) / n_quantiles

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs.mean(2)

    def losses(
        self, outputs: Tensor, reward: Tensor, next_outputs: Tensor, discount: Tensor
    ) -> tuple[Tensor, Tensor]:
        target = reward.unsqueeze(1) + discount.unsqueeze(1) * next_outputs
        error = outputs.unsqueeze(2) - target.unsqueeze(1)  # [B, quantile, of the target]
        nothing = torch.zeros_like(error)
        huber = F.huber_loss(error, nothing, reduction="none", delta=self.huber_delta)
        share = self.shares.view(1, -1, 1)
        weight = torch.where(error.detach() >= 0, 1 - share, share)
        loss = (weight * huber).mean(2).sum(1) / self.huber_delta
        return loss, (outputs.detach().mean(1) - target.mean(1)).abs()
