"""Networks that explore by themselves: layers whose weights have noise of a learned size.

Fortunato et al. (2018), Noisy Networks for Exploration, arXiv:1706.10295, with factorized noise.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .networks import MLP, rectify, through
from .parameters import Array

__all__ = ["NoisyMLP", "factorized_noise"]


def factorized_noise(numbers: Tensor) -> Tensor:
    """Return what weights are disturbed by, of standard normal numbers: f(x) = sign(x) √|x|."""
    return numbers.sign() * numbers.abs().sqrt()


class NoisyMLP(nn.Module):
    """Linear layers with rectifiers in between, each weight with noise of its own size.

    Parameters
    ----------
    n_inputs, n_outputs : int
        Numbers of a row.
    hidden : tuple of int
        Widths of the layers between.
    size : float
        Of the noise at first, times the square root of a layer's inputs.

    Attributes
    ----------
    n_noise : int
        How many numbers `forward` takes: those of a layer's inputs, then those of its outputs.
    """

    def __init__(self, n_inputs: int, hidden: tuple[int, ...], n_outputs: int, size: float) -> None:
        super().__init__()
        self.means = MLP(n_inputs, hidden, n_outputs)
        self._linears = self.means._linears
        shares = [size / math.sqrt(layer.in_features) for layer in self._linears]
        self.weight_sizes, self.bias_sizes = (
            nn.ParameterList(
                torch.full_like(getattr(layer, name), share)
                for layer, share in zip(self._linears, shares, strict=True)
            )
            for name in ("weight", "bias")
        )
        self.n_noise = sum(layer.in_features + layer.out_features for layer in self._linears)
        self._disturbed: list[Array] | None = None

    def forward(self, features: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the outputs with factorized noise, float [n_noise]; without it those of means."""
        if noise is None:
            means: Tensor = self.means(features)
            return means
        for number, (weight, bias) in enumerate(self._weights(noise)):
            features = F.linear(F.relu(features) if number else features, weight, bias)
        return features

    def _weights(self, noise: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the disturbed weight and bias of each layer."""
        found, start = [], 0
        for layer, weight_size, bias_size in zip(
            self._linears, self.weight_sizes, self.bias_sizes, strict=True
        ):
            middle, end = start + layer.in_features, start + layer.in_features + layer.out_features
            inputs, outputs = noise[start:middle], noise[middle:end]
            weight = layer.weight + weight_size * (outputs.unsqueeze(1) * inputs.unsqueeze(0))
            found.append((weight, layer.bias + bias_size * outputs))
            start = end
        return found

    @torch.no_grad()
    def disturb(self, noise: Tensor) -> None:
        """Let `numpy` compute with this noise from now on, by the present weights."""
        weights = chain.from_iterable(self._weights(noise))
        self._disturbed = [each.cpu().numpy().T for each in weights]

    def numpy(self, features: Array) -> Array:
        """Return what ``forward`` does, without gradients, with the noise of `disturb`."""
        if self._disturbed is None:
            return self.means.numpy(features)
        return through(self._disturbed, rectify, features)

    def noise_share(self) -> float:
        """Return how large the noise of weights is, on average over layers, as ``size`` is."""
        shares: list[Any] = [
            sizes.detach().abs().mean() * math.sqrt(sizes.shape[1]) for sizes in self.weight_sizes
        ]
        return float(torch.stack(shares).mean())
