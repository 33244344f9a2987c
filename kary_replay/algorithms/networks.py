"""Networks for vectors, images and dicts of both.

Layers, sizes and initial weights are those of Stable-Baselines3, so that trained policies load there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Encoder", "is_image", "mlp"]

IMAGE_FEATURES, DICT_IMAGE_FEATURES = 512, 256
Observation = Any  # Tensor [B, ...], or a dict of them


def is_image(space: Any) -> bool:
    """Return whether a space is of images that the CNN takes: channels first, bytes."""
    return len(space.shape or ()) == 3 and space.dtype == np.uint8 and min(space.shape[1:]) >= 36


def mlp(n_inputs: int, hidden: tuple[int, ...], n_outputs: int) -> nn.Sequential:
    """Return a stack of linear layers with ReLU in between."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(n_inputs, width), nn.ReLU()]
        n_inputs = width
    return nn.Sequential(*layers, nn.Linear(n_inputs, n_outputs))


class NatureCNN(nn.Module):
    """The convolutions of Mnih et al. (2015), https://doi.org/10.1038/nature14236, and a layer of features."""

    def __init__(self, shape: tuple[int, ...], n_features: int) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(shape[0], 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU(),
            nn.Flatten(),
        )  # fmt: skip
        with torch.no_grad():
            n_flat = self.cnn(torch.zeros(1, *shape)).shape[1]
        self.linear = nn.Sequential(nn.Linear(n_flat, n_features), nn.ReLU())

    def forward(self, image: Tensor) -> Tensor:
        features: Tensor = self.linear(self.cnn(image.float() / 255.0))
        return features


class Flatten(nn.Module):
    """Numbers of any shape and dtype as a vector of floats; those of a discrete space one-hot."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.n = int(space.n) if hasattr(space, "n") and not space.shape else None
        self.start = int(getattr(space, "start", 0))
        self.n_features = self.n or int(np.prod(space.shape))

    def forward(self, value: Tensor) -> Tensor:
        if self.n is not None:
            return torch.nn.functional.one_hot(value.long() - self.start, self.n).float()
        return value.flatten(1).float() if value.dim() != 2 or value.dtype != torch.float32 else value


class Encoder(nn.Module):
    """An observation as a vector of features: images through the CNN, all else as it is, dicts part by part.

    Parameters
    ----------
    space : gymnasium.Space
        Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
    """

    def __init__(self, space: Any) -> None:
        super().__init__()
        parts = getattr(space, "spaces", None)
        n_image = DICT_IMAGE_FEATURES if parts is not None else IMAGE_FEATURES
        self.keys = list(parts) if isinstance(parts, Mapping) else None
        spaces = [parts[key] for key in self.keys] if self.keys is not None else [space]
        self.parts = nn.ModuleList(NatureCNN(part.shape, n_image) if is_image(part) else Flatten(part) for part in spaces)
        self.n_features = sum(n_image if is_image(part) else Flatten(part).n_features for part in spaces)

    def forward(self, observation: Observation) -> Tensor:
        if self.keys is None:
            features: Tensor = self.parts[0](observation)
            return features
        return torch.cat([part(observation[key]) for key, part in zip(self.keys, self.parts, strict=True)], dim=1)
