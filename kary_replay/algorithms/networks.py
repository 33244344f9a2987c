"""Networks for vectors, images and dicts of both.

Layers, sizes and initial weights are those of Stable-Baselines3, so that trained policies load
there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .spaces import is_board, is_image
from .updates.recorded import Recorded

__all__ = ["ACTIVATIONS", "IMAGE_NETWORKS", "MLP", "Encoder", "initialize", "rectify", "through"]

CPU = torch.device("cpu")
RECORDED_SIZES = 8  # of batches; each takes 2 to 28 MiB for images of Atari, up to 128 of them
ONE_AT_A_TIME = threading.Lock()  # what a recording returns, its next call overwrites
DICT_IMAGE_FEATURES, BOARD_FEATURES = 256, 128
Layer = tuple[int, int, int]  # channels, width of the window, stride
# Layers, and features of an image that is alone
IMAGE_NETWORKS: dict[str, tuple[Sequence[Layer], int]] = {
    # Mnih et al. (2015), https://doi.org/10.1038/nature14236
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    # van Hasselt, Hessel & Aslanides (2019), arXiv:1906.05243
    "data_efficient": (((32, 5, 5), (64, 5, 5)), 256),
}
Array = npt.NDArray[np.float32]
Observation = Any  # Tensor [B, ...], or a dict of them


class MLP(nn.Sequential):
    """Linear layers with an activation in between, "relu" or "tanh"."""

    def __init__(
        self, n_inputs: int, hidden: tuple[int, ...], n_outputs: int, activation: str = "relu"
    ) -> None:
        self._linears = [nn.Linear(*widths) for widths in pairwise((n_inputs, *hidden, n_outputs))]
        layer, self._activate = ACTIVATIONS[activation]
        super().__init__(*[part for linear in self._linears for part in (linear, layer())][:-1])
        self._views: list[tuple[Array, Array]] = []

    def numpy(self, features: Array) -> Array:
        """Return what ``forward`` does, without gradients; on a CPU by NumPy.

        For a few rows what torch does around the operations takes longer than they do. 8 rows
        through layers of 64 units take 60 µs with torch and 15 with NumPy, or 130 and 40 µs if
        other work has been done in between.
        """
        weight = self._linears[0].weight
        if not self._views or self._views[0][0].__array_interface__["data"][0] != weight.data_ptr():
            if weight.device.type != "cpu":
                with torch.no_grad():
                    outputs: Tensor = self(torch.from_numpy(features).to(weight.device))
                return outputs.cpu().numpy()
            self._views = [
                (linear.weight.detach().numpy().T, linear.bias.detach().numpy())
                for linear in self._linears
            ]
        return through(self._views, self._activate, features)


def through(
    layers: Sequence[tuple[Array, Array]], activate: Callable[[Array], None], features: Array
) -> Array:
    """Return what layers make of features: matrices [inputs, outputs] and biases."""
    for number, (matrix, bias) in enumerate(layers):
        if number:
            activate(features)
        features = features @ matrix
        features += bias
    return features


def rectify(features: Array) -> None:
    """Set what is below 0 to 0, in place."""
    np.maximum(features, 0, out=features)


def _tangent(features: Array) -> None:
    np.tanh(features, out=features)


ACTIVATIONS: dict[str, tuple[type[nn.Module], Callable[[Array], None]]] = {
    "relu": (nn.ReLU, rectify),
    "tanh": (nn.Tanh, _tangent),
}
"""Layers by name, and what does the same to an array, in place."""


def initialize(module: nn.Module, gain: float) -> None:
    """Give the layers of a module orthogonal weights of a gain, and no biases.

    Saxe, McClelland & Ganguli (2014), arXiv:1312.6120.
    """
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


class ImageCNN(nn.Module):
    """Convolutions of images, and a layer of features.

    Images without an axis of channels have one channel.
    """

    def __init__(self, shape: tuple[int, ...], n_features: int, layers: Sequence[Layer]) -> None:
        super().__init__()
        self.n_features = n_features
        n_channels, *_ = self.shape = shape if len(shape) == 3 else (1, *shape)
        self.cnn = nn.Sequential()
        for n_outputs, window, stride in layers:
            self.cnn.extend((nn.Conv2d(n_channels, n_outputs, window, stride), nn.ReLU()))
            n_channels = n_outputs
        self.cnn.append(nn.Flatten())
        with torch.no_grad():
            n_flat = self.cnn(torch.zeros(1, *self.shape)).shape[1]
        self.linear = nn.Sequential(nn.Linear(n_flat, n_features), nn.ReLU())

    def forward(self, image: Tensor) -> Tensor:
        features: Tensor = self.linear(self.cnn(image.float().reshape(-1, *self.shape) / 255.0))
        return features


class BoardCNN(nn.Module):
    """The convolution of Young & Tian (2019), arXiv:1903.03176, and a layer of features."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.n_features = BOARD_FEATURES
        n_channels, height, width = shape
        n_flat = 16 * (height - 2) * (width - 2)
        self.cnn = nn.Sequential(nn.Conv2d(n_channels, 16, 3), nn.ReLU(), nn.Flatten())
        self.linear = nn.Sequential(nn.Linear(n_flat, BOARD_FEATURES), nn.ReLU())

    def forward(self, board: Tensor) -> Tensor:
        features: Tensor = self.linear(self.cnn(board.float()))
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
            return (
                value.unsqueeze(1) - self.start == torch.arange(self.n, device=value.device)
            ).float()
        return (
            value
            if value.dim() == 2 and value.dtype == torch.float32
            else value.reshape(len(value), -1).float()
        )


class Encoder(nn.Module):
    """An observation as a vector of features.

    Images and boards go through CNNs, all else is taken as it is, and dicts part by part.

    Parameters
    ----------
    space : gymnasium.Space
        Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of these.
    image_network : str
        One of ``IMAGE_NETWORKS``.
    """

    def __init__(self, space: Any, image_network: str = "nature") -> None:
        super().__init__()
        spaces = space.spaces if isinstance(getattr(space, "spaces", None), Mapping) else None
        layers, n_image = IMAGE_NETWORKS[image_network]
        if spaces is not None:
            n_image = DICT_IMAGE_FEATURES
        self.keys = None if spaces is None else list(spaces)
        self.parts = nn.ModuleList()
        self.n_features = 0
        for part in (space,) if spaces is None else spaces.values():
            encoder: ImageCNN | BoardCNN | Flatten
            if is_image(part):
                encoder = ImageCNN(part.shape, n_image, layers)
            elif is_board(part):
                encoder = BoardCNN(part.shape)
            else:
                encoder = Flatten(part)
            self.parts.append(encoder)
            self.n_features += encoder.n_features
        self.is_vector = (
            spaces is None and isinstance(self.parts[0], Flatten) and self.parts[0].n is None
        )
        # What else there is takes as long when it is recorded.
        has_convolutions = not all(isinstance(part, Flatten) for part in self.parts)
        self._recorded = Recorded(self._features) if has_convolutions else None
        self._sizes: set[int] = set()  # of batches, that are recorded
        self._weights = list(self.parameters())[:1]  # in a list, so that they have no second name

    def forward(self, observation: Observation) -> Tensor:
        if self.keys is None:
            features: Tensor = self.parts[0](observation)
            return features
        return torch.cat(
            [part(observation[key]) for key, part in zip(self.keys, self.parts, strict=True)], dim=1
        )

    def numpy(self, observation: Observation) -> Array:
        """Return what ``forward`` does, without gradients, for tensors or arrays.

        On a CPU convolutions are a native program, which gives the same to within rounding. 8
        images through the network of van Hasselt et al. take 0.35 ms so, and 0.84 with torch; 8
        boards of MinAtar 0.07 and 0.22.
        """
        if self.is_vector:
            array: npt.NDArray[Any] = (
                observation.cpu().numpy() if isinstance(observation, Tensor) else observation
            )
            return array.reshape(len(array), -1).astype(np.float32, copy=False)
        device = self._weights[0].device if self._weights else CPU
        if self.keys is None:
            tensors: Any = torch.as_tensor(observation).to(device)
            n_rows = len(tensors)
        else:
            tensors = {key: torch.as_tensor(observation[key]).to(device) for key in self.keys}
            n_rows = len(tensors[self.keys[0]])
        if self._recorded is not None and device == CPU and self._is_worth_recording(n_rows):
            with ONE_AT_A_TIME:
                return self._recorded(tensors)[0].numpy().copy()
        return self._features(tensors)[0].cpu().numpy()

    def _is_worth_recording(self, n_rows: int) -> bool:
        """Return whether batches of this size are recorded: the first sizes that come."""
        if len(self._sizes) < RECORDED_SIZES:
            self._sizes.add(n_rows)
        return n_rows in self._sizes

    def _features(self, observation: Observation) -> tuple[Tensor]:
        with torch.no_grad():
            return (self(observation),)
