"""Proximal policy optimization."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ..fields import map_leaves
from ..validation import as_count, as_fraction
from .algorithm import Tensors, check_bool, check_positive
from .on_policy import OnPolicy, OnPolicyOptions, divergence_of, n_bytes, squared

__all__ = ["APPO", "PPO", "APPOOptions", "PPOOptions"]

MOST_BYTES = 2**24  # of the rows of several epochs that are put in order at once


@dataclass(frozen=True)
class PPOOptions(OnPolicyOptions):
    """Hyperparameters of PPO."""

    batch_size: int = 64
    """Rows of one step of the optimizer, over all learners; divides n_envs · rollout_length.

    With lstm_hidden_size it is a multiple of rollout_length: whole sequences of environments."""
    n_epochs: int = 10
    """How often an update goes through its rows."""
    clip_range: float = 0.2
    """Change of an action's probability, as a share of it, beyond which nothing is gained."""
    clip_range_final_share: float = 1.0
    """Share of clip_range, 0 to 1, to which it falls linearly over the training."""
    clip_range_vf: float | None = None
    """Change of a value beyond which nothing is gained; None: there is no such bound."""
    normalize_advantage: bool = True
    """Shift and scale the advantages of each step to mean 0 and standard deviation 1."""
    target_kl: float | None = None
    """End an update early when the policy has moved so far, in nats; None: never.

    The step of the optimizer that finds it is the last one that is taken."""

    def __post_init__(self) -> None:
        super().__post_init__()
        as_count("batch_size", self.batch_size)
        as_count("n_epochs", self.n_epochs)
        check_positive("clip_range", self.clip_range)
        as_fraction("clip_range_final_share", self.clip_range_final_share)
        for name in ("clip_range_vf", "target_kl"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        check_bool("normalize_advantage", self.normalize_advantage)
        if self.rows_per_update % self.batch_size:
            envs = "n_envs" if self.envs_per_update is None else "envs_per_update"
            rows = self.rows_per_update
            divisors = [n for n in range(1, rows + 1) if rows % n == 0]
            below = [n for n in divisors if n < self.batch_size][-1:]
            above = [n for n in divisors if n > self.batch_size][:1]
            raise ValueError(
                f"batch_size must divide {envs} · rollout_length = {rows}, so that all steps have "
                f"as many rows, got {self.batch_size}: {' or '.join(map(str, below + above))} "
                "would do"
            )
        if self.lstm_hidden_size and self.batch_size % self.rollout_length:
            raise ValueError(
                f"batch_size must be a multiple of rollout_length={self.rollout_length} with "
                "lstm_hidden_size, so that each step of the optimizer has whole sequences, "
                f"got {self.batch_size}: choose another one of them"
            )
        if self.normalize_advantage and self.batch_size == 1:
            raise ValueError(
                "normalize_advantage=True needs a batch_size above 1: one has no spread"
            )


@dataclass(frozen=True)
class APPOOptions(PPOOptions):
    """Hyperparameters of APPO."""

    vtrace: bool = True
    gae_lambda: float = 1.0


class PPO(OnPolicy):
    """Several epochs on the same rollouts, in which a policy may not move far from what it was.

    Schulman et al. (2017), arXiv:1707.06347, with the details that Huang et al. (2022) list,
    https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/.
    """

    name = "ppo"
    paper = "https://arxiv.org/abs/1707.06347"
    options_class = PPOOptions
    options: PPOOptions

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
        options, (clip_range, per_clip_range) = self.options, schedules
        outputs, new_value = self.network(observation)
        distribution = self.network.distribution
        log_pi = distribution.log_prob(outputs, action)
        ratio = (log_pi - log_prob).exp()
        clipped = 1 + clip_range * ((ratio - 1) * per_clip_range).clamp(-1, 1)
        gain = smaller(advantage * ratio, advantage * clipped)
        error = squared(return_ - new_value)
        if options.clip_range_vf is not None:
            bound = options.clip_range_vf
            near = value + (new_value - value).clamp(-bound, bound)
            error = -smaller(-error, -squared(return_ - near))
        loss = options.vf_coef * error.mean() - gain.mean()
        if options.ent_coef:
            loss = loss - options.ent_coef * distribution.entropy(outputs).mean()
        return loss, log_pi.detach()

    def schedules(self) -> tuple[Tensor, ...]:
        fallen = self.progress * (1 - self.options.clip_range_final_share)
        clip_range = max(self.options.clip_range * (1 - fallen), 1e-6)
        return tuple(torch.tensor([x], device=self.device) for x in (clip_range, 1 / clip_range))

    def pieces(self, rows: Tensors) -> Iterator[Tensors]:
        """Yield the rows of each step: all rows in a random `order`, epoch by epoch."""
        options, size = self.options, self.options.batch_size // self.share.count
        schedules = dict(enumerate(self.schedules()))
        for mixed in self._epochs(rows, size):
            before = mixed.pop("before")
            if options.normalize_advantage:
                mixed["advantage"] = normalized(mixed["advantage"], size)
            for first in range(0, len(before), size):
                which = slice(first, first + size)
                yield {**map_leaves(mixed, itemgetter(which)), "schedules": schedules}
                if options.target_kl is not None:
                    change = self.log_pi - before[which]
                    if self.divergence(change) > options.target_kl:
                        return

    def _epochs(self, rows: Tensors, size: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of all epochs, each in an order of its own, some epochs at once.

        A copy of a few rows takes as long as one of thousands.
        """
        n_epochs, n_rows = self.options.n_epochs, len(rows["advantage"])
        at_once = max(1, MOST_BYTES // n_bytes(rows))
        for first in range(0, n_epochs, at_once):
            orders = [self.order(n_rows, size) for _ in range(min(at_once, n_epochs - first))]
            yield map_leaves(rows, itemgetter(torch.cat(orders).to(self.device)))

    def divergence(self, change: Tensor) -> float:
        """Return the estimated KL divergence over the rows of all learners.

        ``change`` is by how much the logarithms of their probabilities have grown, [B].
        """
        divergence = divergence_of(change).reshape(1)
        if self.share.average is not None:
            self.share.average(divergence)
        return float(divergence)


class APPO(PPO):
    """PPO on rollouts of older policies, whose actions are worth what V-trace says.

    Luo et al. (2020), IMPACT, arXiv:1912.00167, without its target network.
    """

    name = "appo"
    paper = "https://arxiv.org/abs/1912.00167"
    options_class = APPOOptions
    options: APPOOptions


def smaller(first: Tensor, second: Tensor) -> Tensor:
    """Return the smaller one of each pair, in operations that native programs have."""
    return torch.where(first - second <= 0, first, second)


def normalized(advantage: Tensor, size: int) -> Tensor:
    """Return advantages with mean 0 and standard deviation 1 in every ``size`` of them."""
    parts = advantage.reshape(-1, size)
    parts = parts - parts.mean(1, keepdim=True)
    return (parts / (parts.square().sum(1, keepdim=True) / (size - 1)).sqrt().add(1e-8)).reshape(-1)
