"""Deep Q-networks, with double, dueling, n-step and distributional learning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..validation import as_count
from .algorithm import Tensors, check_bool, check_finite, check_positive
from .networks import MLP, Encoder
from .noisy import NoisyMLP, factorized_noise
from .q_learning import QLearning, QLearningOptions, dueling, of_actions
from .return_distributions import AtomReturns, MeanReturns, QuantileReturns, ReturnDistribution

__all__ = ["DQN", "DQNOptions", "Rainbow", "RainbowOptions"]

ROWS = "observation", "action", "reward", "next_observation", "discount"
NOISES = "noise", "target_noise"


@dataclass(frozen=True)
class DQNOptions(QLearningOptions):
    """Hyperparameters of DQN."""

    tau: float = 1.0
    target_interval: int = 100
    n_atoms: int = 1
    """Values of a distributional (C51) network; 1: the mean alone."""
    v_min: float = -10.0
    """Lowest value of a distribution over atoms; only with n_atoms > 1."""
    v_max: float = 10.0
    """Highest value of a distribution over atoms; only with n_atoms > 1."""
    n_quantiles: int = 1
    """Quantiles of a network that learns them (QR-DQN); 1: the mean alone."""
    noisy: bool = False
    """Explore by noise of a learned size in the weights behind the encoder, and by nothing else."""
    noise_size: float = 0.5
    """Of that noise at first, times the square root of a layer's inputs; only with noisy."""
    prioritize_by: Literal["td_error", "gradient"] = "gradient"
    """What a row's priority is: its TD error, or the size of its gradient.

    The latter is the TD error up to huber_delta; with n_atoms > 1 both are the divergence of the
    distributions, with n_quantiles > 1 the TD error of the means."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("v_min", "v_max"):
            check_finite(name, getattr(self, name), -math.inf)
        if as_count("n_atoms", self.n_atoms) > 1:
            if not self.v_min < self.v_max:
                raise ValueError(f"v_min must be below v_max, got {self.v_min} and {self.v_max}")
            width = float(self.v_max) - float(self.v_min)
            check_positive("v_max - v_min", width)
            check_positive("(v_max - v_min) / (n_atoms - 1)", width / (self.n_atoms - 1))
        if as_count("n_quantiles", self.n_quantiles) > 1 and self.n_atoms > 1:
            raise ValueError(
                f"n_quantiles must be 1 with n_atoms={self.n_atoms}, got {self.n_quantiles}: "
                "returns are distributed over atoms or over quantiles, so set n_quantiles=1 or "
                "n_atoms=1"
            )
        default = type(self)
        bounds = default.v_min, default.v_max
        if self.n_atoms == 1 and (self.v_min, self.v_max) != bounds:
            such_as = "n_atoms=51" + (" and n_quantiles=1" if self.n_quantiles > 1 else "")
            raise ValueError(
                f"v_min={self.v_min} and v_max={self.v_max} need n_atoms above 1, got 1: they are "
                f"the ends of a distribution over atoms, such as {such_as}"
            )
        check_bool("noisy", self.noisy)
        check_positive("noise_size", self.noise_size)
        if not self.noisy and self.noise_size != default.noise_size:
            raise ValueError(
                f"noise_size={self.noise_size} needs noisy=True: there is no other noise that it "
                "is the size of"
            )
        if self.prioritize_by not in ("td_error", "gradient"):
            raise ValueError(
                f"prioritize_by must be 'td_error' or 'gradient', got {self.prioritize_by!r}"
            )

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> Any:
        options = dict(saved)
        # what had no effect, and was not refused at first
        if options.get("n_atoms") == 1:
            options |= {"v_min": cls.v_min, "v_max": cls.v_max}
        if options.get("noisy") is False:
            options["noise_size"] = cls.noise_size
        if "prioritize_by" not in options:
            # There was no choice at first: losses, and gradients, were divided by huber_delta.
            options["max_gradient_norm"] *= options["huber_delta"]
            options["prioritize_by"] = "td_error"
        return super().from_saved(options)

    def returns(self, device: Any) -> ReturnDistribution:
        """Return how what networks say of returns is to be read."""
        if self.n_atoms > 1:
            return AtomReturns(self.n_atoms, self.v_min, self.v_max, device)
        if self.n_quantiles > 1:
            return QuantileReturns(self.n_quantiles, self.huber_delta, device)
        return MeanReturns(self.huber_delta)


class QNetwork(nn.Module):
    """Values of every action, [B, n_actions], or what says how its return is distributed.

    That is [B, n_actions, n_outputs].
    """

    def __init__(
        self, observation_space: Any, n_actions: int, n_outputs: int, options: DQNOptions
    ) -> None:
        super().__init__()
        self.shape = (n_actions, n_outputs) if n_outputs > 1 else (n_actions,)
        self.encoder = Encoder(observation_space, options.image_network)
        n_features = self.encoder.n_features

        def layers(n_outputs: int) -> MLP | NoisyMLP:
            if options.noisy:
                return NoisyMLP(n_features, options.hidden, n_outputs, options.noise_size)
            return MLP(n_features, options.hidden, n_outputs)

        self.advantage = layers(n_actions * n_outputs)
        self.value = layers(n_outputs) if options.dueling else None
        self.noisy = [part for part in (self.advantage, self.value) if isinstance(part, NoisyMLP)]

    def forward(self, observation: Any, noise: Tensor | None = None) -> Tensor:
        return self.head(self.encoder(observation), noise)

    def head(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the output for features of observations, with noise where layers are noisy."""
        parts = self._parts(noise)
        value = None if self.value is None else self.value(features, *parts[1:])
        return self._joined(self.advantage(features, *parts[:1]), value)

    def numpy(self, features: Any) -> Tensor:
        """Return what ``head`` does, on the CPU and without gradients, with noise of `disturb`."""
        value = None if self.value is None else torch.from_numpy(self.value.numpy(features))
        return self._joined(torch.from_numpy(self.advantage.numpy(features)), value)

    def _joined(self, advantage: Tensor, value: Tensor | None) -> Tensor:
        output = advantage.view(-1, *self.shape) if len(self.shape) > 1 else advantage
        return output if value is None else dueling(output, value)

    @property
    def n_noise(self) -> int:
        """How many numbers all noisy layers need."""
        return sum(part.n_noise for part in self.noisy)

    def disturb(self, noise: Tensor) -> None:
        """Let the layers act with this noise, by the present weights."""
        for part, its_noise in zip(self.noisy, self._parts(noise), strict=True):
            part.disturb(its_noise)

    def _parts(self, noise: Tensor | None) -> list[Tensor]:
        """Return the noise of each of the noisy layers; nothing where there is none."""
        if noise is None:
            return []
        return list(torch.split(noise, [part.n_noise for part in self.noisy]))


class DQN(QLearning):
    """Q-learning for discrete actions.

    Mnih et al. (2015), https://doi.org/10.1038/nature14236; double: van Hasselt et al. (2016),
    arXiv:1509.06461; dueling: Wang et al. (2016), arXiv:1511.06581; distributional: Bellemare et
    al. (2017), arXiv:1707.06887; quantiles: Dabney et al. (2018), arXiv:1710.10044;
    noise in weights: Fortunato et al. (2018), arXiv:1706.10295; most of them and n-step returns
    together: Hessel et al. (2018), Rainbow, arXiv:1710.02298.
    """

    name = "dqn"
    paper = "https://doi.org/10.1038/nature14236"
    options_class = DQNOptions
    options: DQNOptions
    q: QNetwork
    q_target: QNetwork
    acting_noise: Tensor | None = None
    """By which the networks explore as they act; None: they do not."""

    def build(self) -> None:
        self.returns = self.options.returns(self.device)
        super().build()

    def network(self) -> QNetwork:
        sizes = int(self.action_space.n), self.returns.n_outputs
        return QNetwork(self.observation_space, *sizes, self.options)

    def steps(self, batch: Tensors, due: frozenset[str]) -> Tensor:
        rows = [batch[name] for name in ROWS]
        noises = [batch[name] for name in NOISES if name in batch]
        (td_error,) = self.minimizers["q"].step(*rows, batch["importance_weight"], *noises)
        return td_error

    def noises(self, n_rows: int) -> Tensors:
        if not self.options.noisy:
            return {}
        # one draw for all rows, and for all learners
        numbers = torch.randn(len(NOISES), self.q.n_noise, generator=self.generator)
        drawn = factorized_noise(numbers).to(self.device)
        return dict(zip(NOISES, drawn, strict=True))

    def loss(
        self,
        observation: Any,
        action: Tensor,
        reward: Tensor,
        next_observation: Any,
        discount: Tensor,
        weight: Tensor,
        noise: Tensor | None = None,
        target_noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted loss, and what each row counts as."""
        rows = observation, action, reward, next_observation, discount
        loss, size = self.losses(self.q_target, *rows, noise, target_noise)
        return (weight * loss).mean(), size

    def losses(
        self,
        network: QNetwork,
        observation: Any,
        action: Tensor,
        reward: Tensor,
        next_observation: Any,
        discount: Tensor,
        noise: Tensor | None = None,
        network_noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each row, and what it counts as.

        ``network`` values what is next, with ``network_noise``; the trained one has ``noise``.
        """
        chosen = self.chosen(network, observation, action, next_observation, noise, network_noise)
        outputs, next_outputs = chosen
        loss, size = self.returns.losses(outputs, reward, next_outputs, discount)
        return loss, self.priority_of(size)

    def chosen(
        self,
        network: QNetwork,
        observation: Any,
        action: Tensor,
        next_observation: Any,
        noise: Tensor | None = None,
        network_noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return what the trained network says of an action, and ``network`` of the next one."""
        with torch.no_grad():
            next_outputs = network(next_observation, network_noise)
            chooser = next_outputs
            if self.options.double and network is not self.q:
                chooser = self.q(next_observation, noise)
            best = self.returns.mean(chooser).argmax(1)
            next_outputs = of_actions(next_outputs, best)
        return of_actions(self.q(observation, noise), action), next_outputs

    @torch.no_grad()
    def td_error(self, batch: Tensors) -> Tensor:
        return self.losses(self.q, *(batch[name] for name in ROWS))[1]

    def priority_of(self, size: Tensor) -> Tensor:
        """Return what rows with errors of these sizes count as, [B]."""
        by_gradient = self.options.prioritize_by == "gradient" and self.returns.n_outputs == 1
        return size.clamp(max=self.options.huber_delta) if by_gradient else size

    def values(
        self,
        network: QNetwork,
        observation: Any,
        action: Tensor,
        reward: Tensor,
        next_observation: Any,
        discount: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the means of the trained network, and their targets by ``network``, [B]."""
        q, following = (
            self.returns.mean(outputs.unsqueeze(1)).squeeze(1)
            for outputs in self.chosen(network, observation, action, next_observation)
        )
        return q, reward + discount * following

    def figures(self, batch: Tensors) -> dict[str, float]:
        with torch.no_grad():
            q, target = self.values(self.q_target, *(batch[name] for name in ROWS))
        own = {
            "td_error": float((q - target).abs().mean()),  # what `update` returns may end at 1
            "q": float(q.mean()),
            "epsilon": self.exploration(self.progress),
        }
        for name, part in zip(("advantage", "value"), self.q.noisy, strict=False):
            own[f"noise/{name}"] = part.noise_share()
        return {**super().figures(batch), **own}

    def resample_noise(self, seed: Sequence[int]) -> None:
        if self.options.noisy:
            rng = np.random.default_rng(seed)
            numbers = torch.from_numpy(rng.standard_normal(self.q.n_noise, np.float32))
            self.acting_noise = factorized_noise(numbers).to(self.device)
            self.q.disturb(self.acting_noise)

    def outputs(self, observation: Any) -> npt.NDArray[np.float32]:
        """Return values of all actions, [N, n_actions], or what is as good for choosing one."""
        features = self.q.encoder.numpy(observation)
        # the value stream of a dueling network adds the same to all actions
        if self.returns.n_outputs == 1:
            return self.q.advantage.numpy(features)
        with torch.no_grad():
            values = self.returns.mean(self.q.numpy(features).to(self.device))
        return values.cpu().numpy()

    def exploration(self, progress: float) -> float:
        return 0.0 if self.options.noisy else super().exploration(progress)


@dataclass(frozen=True)
class RainbowOptions(DQNOptions):
    """Hyperparameters of Rainbow: those of DQN, with all that it adds.

    Quantiles find the range of returns by themselves. The paper's atoms (n_atoms=51, n_quantiles=1)
    are for returns that are known to lie between v_min and v_max.
    """

    n_step: int = 3
    dueling: bool = True
    n_quantiles: int = 32
    noisy: bool = True


class Rainbow(DQN):
    """DQN with double, dueling, n-step, distributional learning, and noise in weights."""

    name = "rainbow"
    paper = "https://arxiv.org/abs/1710.02298"
    options_class = RainbowOptions
