"""Policies that draw actions: how they do, and how probable an action is.

A policy's network gives the parameters of a distribution. Actors draw by NumPy, a few rows at a
time; learners compute densities and entropies by torch, of whole batches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

__all__ = ["Categorical", "Distribution", "Gaussian", "distribution_of"]

Array = npt.NDArray[Any]
LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)


class Distribution(nn.Module):
    """Of actions, given the outputs of a network.

    Attributes
    ----------
    n_outputs : int
        How many numbers the network gives for each observation.
    """

    n_outputs: int

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        """Return the logarithms of probabilities or densities, [B]."""
        raise NotImplementedError

    def entropy(self, outputs: Tensor) -> Tensor:
        """Return the entropies in nats, [B]."""
        raise NotImplementedError

    def parameters_of(self, outputs: Array) -> Array:
        """Return all parameters of the distributions, float32 [N, k]."""
        return outputs

    def draw(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return actions [N, ...], and the logarithms of their probabilities, float32 [N]."""
        raise NotImplementedError

    def mode(self, parameters: Array) -> Array:
        """Return the most probable actions, [N, ...]."""
        raise NotImplementedError


class Categorical(Distribution):
    """Of n actions, by logits."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n_outputs = n

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        return outputs.log_softmax(1).gather(1, action.unsqueeze(1)).squeeze(1)

    def entropy(self, outputs: Tensor) -> Tensor:
        log_p = outputs.log_softmax(1)
        return -(log_p.exp() * log_p).sum(1)

    def draw(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        above = parameters - parameters.max(1, keepdims=True)
        p = np.exp(above)
        cumulated = p.cumsum(1)
        total = cumulated[:, -1]
        # Below the total, however it was rounded: no action has a probability that is not its own.
        point = rng.random(len(above), np.float32) * total
        action = (cumulated <= point[:, None]).sum(1)
        log_p = above[np.arange(len(above)), action] - np.log(total)
        return action, log_p

    def mode(self, parameters: Array) -> Array:
        best: Array = parameters.argmax(1)
        return best


class Gaussian(Distribution):
    """Of actions of some numbers, by their means; the standard deviations are parameters.

    Parameters
    ----------
    shape : tuple of int
        Of an action.
    log_std : float
        Logarithm of the standard deviations at first, where actions go from -1 to 1.
    """

    def __init__(self, shape: tuple[int, ...], log_std: float) -> None:
        super().__init__()
        self.shape, self.n_outputs = shape, math.prod(shape)
        self.log_std = nn.Parameter(torch.full((self.n_outputs,), log_std))

    def log_prob(self, outputs: Tensor, action: Tensor) -> Tensor:
        apart = (action.reshape(len(outputs), -1) - outputs) * (-self.log_std).exp()
        return (-0.5 * apart * apart - self.log_std).sum(1) - self.n_outputs * LOG_SQRT_2_PI

    def entropy(self, outputs: Tensor) -> Tensor:
        entropy = (self.log_std + (0.5 + LOG_SQRT_2_PI)).sum()
        return entropy.expand(len(outputs))

    def parameters_of(self, outputs: Array) -> Array:
        """Return means and logarithms of standard deviations, [N, 2 * n]."""
        log_std = self.log_std.detach().cpu().numpy()
        return np.concatenate([outputs, np.broadcast_to(log_std, outputs.shape)], 1)

    def draw(self, parameters: Array, rng: np.random.Generator) -> tuple[Array, Array]:
        mean, log_std = np.split(parameters, 2, axis=1)
        noise = rng.standard_normal(mean.shape, np.float32)
        action = mean + np.exp(log_std) * noise
        log_p = (-0.5 * np.square(noise) - log_std).sum(1) - np.float32(
            self.n_outputs * LOG_SQRT_2_PI
        )
        return action.reshape(-1, *self.shape), log_p

    def mode(self, parameters: Array) -> Array:
        return parameters[:, : self.n_outputs].reshape(-1, *self.shape)


def distribution_of(action_space: Any, log_std: float) -> Distribution:
    """Return the distribution for actions that are numbered, or numbers between bounds."""
    if hasattr(action_space, "n"):
        return Categorical(int(action_space.n))
    return Gaussian(action_space.shape, log_std)
