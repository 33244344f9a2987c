"""Networks for vectors, images and dicts of both.

Layers, sizes and initial weights are those of Stable-Baselines3, so that trained policies load there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .spaces import is_image

__all__ = ["Encoder", "mlp"]

IMAGE_FEATURES, DICT_IMAGE_FEATURES = 512, 256
Observation = Any  # Tensor [B, ...], or a dict of them


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
        self.start = int(getattr(space, "start", 0)) if self.n else 0
        self.n_features = self.n or int(np.prod(space.shape))

    def forward(self, value: Tensor) -> Tensor:
        if self.n is not None:
            # Not F.one_hot, which looks at the values: that cannot be recorded.
            return (value.unsqueeze(1) - self.start == torch.arange(self.n, device=value.device)).float()
        return value.reshape(len(value), -1).float()


class Encoder(nn.Module):
    """An observation as a vector of features: images through the CNN, all else as it is, dicts part by part.

    Parameters
    ----------
    space : gymnasium.Space
        Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
    """

    def __init__(self, space: Any) -> None:
        super().__init__()
        spaces = space.spaces if isinstance(getattr(space, "spaces", None), Mapping) else None
        n_image = IMAGE_FEATURES if spaces is None else DICT_IMAGE_FEATURES
        self.keys = None if spaces is None else list(spaces)
        self.parts = nn.ModuleList()
        self.n_features = 0
        for part in (space,) if spaces is None else spaces.values():
            self.parts.append(NatureCNN(part.shape, n_image) if is_image(part) else Flatten(part))
            self.n_features += n_image if is_image(part) else Flatten(part).n_features

    def forward(self, observation: Observation) -> Tensor:
        if self.keys is None:
            features: Tensor = self.parts[0](observation)
            return features
        return torch.cat([part(observation[key]) for key, part in zip(self.keys, self.parts, strict=True)], dim=1)
