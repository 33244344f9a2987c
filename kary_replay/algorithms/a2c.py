"""Advantage actor-critic, and what it is with actors that do not wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .algorithm import Tensors
from .on_policy import ROWS, OnPolicy, OnPolicyOptions, squared

__all__ = ["A2C", "IMPALA", "A2COptions", "IMPALAOptions"]


@dataclass(frozen=True)
class A2COptions(OnPolicyOptions):
    """Hyperparameters of A2C."""

    learning_rate: float = 7e-4
    rollout_length: int = 5
    gae_lambda: float = 1.0


@dataclass(frozen=True)
class IMPALAOptions(A2COptions):
    """Hyperparameters of IMPALA."""

    vtrace: bool = True
    rollout_length: int = 20


class A2C(OnPolicy):
    """One step of the optimizer on the rollouts of many environments.

    Mnih et al. (2016), arXiv:1602.01783, without asynchrony, and with Adam.
    """

    name = "a2c"
    paper = "https://arxiv.org/abs/1602.01783"
    options_class = A2COptions
    options: A2COptions

    def loss(
        self,
        observation: Any,
        action: Tensor,
        log_prob: Tensor,
        advantage: Tensor,
        return_: Tensor,
        value: Tensor,
        *schedules: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return what to minimize, and log pi(a|s) of each row, [B]."""
        options = self.options
        outputs, new_value = self.network(observation)
        distribution = self.network.distribution
        log_pi = distribution.log_prob(outputs, action)
        loss = options.vf_coef * squared(return_ - new_value).mean()
        loss = loss - (advantage * log_pi).mean()
        if options.ent_coef:
            loss = loss - options.ent_coef * distribution.entropy(outputs).mean()
        return loss, log_pi.detach()

    def pieces(self, rows: Tensors) -> Iterator[Tensors]:
        """Yield all rows at once."""
        yield {**{name: rows[name] for name in ROWS}, "schedules": {}}


class IMPALA(A2C):
    """A2C on rollouts of older policies, whose actions are worth what V-trace says.

    Espeholt et al. (2018), arXiv:1802.01561, with Adam.
    """

    name = "impala"
    paper = "https://arxiv.org/abs/1802.01561"
    options_class = IMPALAOptions
    options: IMPALAOptions
