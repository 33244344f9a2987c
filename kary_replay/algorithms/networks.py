"""Networks for vectors, images and dicts of both.

Layers, sizes and initial weights are those of Stable-Baselines3, so that trained policies load
there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .parameters import Array, Views, are_readable, stored
from .spaces import is_board, is_image, parts_of_space
from .updates.recorded import Recorded
from .updates.translation import contiguous_strides

__all__ = ["ACTIVATIONS", "IMAGE_NETWORKS", "MLP", "Encoder", "initialize", "rectify", "through"]

BYTES = (torch.uint8, torch.bool)
MOST_NUMBERS = 2**22  # of images that are recorded as one batch: 128 images of Atari
MOST_ROWS = 512  # of them; there are 32 sizes up to it, for which a recording has room
DICT_IMAGE_FEATURES, BOARD_FEATURES = 256, 128
Layer = tuple[int, int, int]  # channels, width of the window, stride
# Layers, and features of an image that is alone
IMAGE_NETWORKS: dict[str, tuple[Sequence[Layer], int]] = {
    # Mnih et al. (2015), https://doi.org/10.1038/nature14236
    "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    # van Hasselt, Hessel & Aslanides (2019), arXiv:1906.05243
    "data_efficient": (((32, 5, 5), (64, 5, 5)), 256),
}
Observation = Any  # Tensor [B, ...], or a dict of them


class MLP(nn.Sequential):
    """Linear layers with an activation in between, "relu" or "tanh"."""

    def __init__(
        self, n_inputs: int, hidden: tuple[int, ...], n_outputs: int, activation: str = "relu"
    ) -> None:
        self._linears = [nn.Linear(*widths) for widths in pairwise((n_inputs, *hidden, n_outputs))]
        layer, self._activate = ACTIVATIONS[activation]
        super().__init__(*[part for linear in self._linears for part in (linear, layer())][:-1])
        self._views = Views(self._linears)

    def numpy(self, features: Array) -> Array:
        """Return what ``forward`` does, without gradients; on a CPU by NumPy.

        For a few rows what torch does around the operations takes longer than they do. 8 rows
        through layers of 64 units take 60 µs with torch and 15 with NumPy, or 130 and 40 µs if
        other work has been done in between.
        """
        arrays = self._views.arrays()
        if arrays is not None:
            return through(arrays, self._activate, features)
        with torch.no_grad():
            device = self._linears[0].weight.device
            outputs: Tensor = self(torch.from_numpy(features).to(device))
        return outputs.cpu().numpy()


def through(arrays: list[Array], activate: Callable[[Array], None], features: Array) -> Array:
    """Return what layers make of features, each a matrix [inputs, outputs] and a bias."""
    for number, (matrix, bias) in enumerate(zip(arrays[::2], arrays[1::2], strict=True)):
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


class CNN(nn.Module):
    """Convolutions, and a layer of features.

    Parameters
    ----------
    shape : tuple of int
        Of an image: channels, rows, columns. One channel need not be said.
    layers : sequence of Layer
        The convolutions.
    n_features : int
        What comes out.
    """

    def __init__(self, shape: tuple[int, ...], layers: Sequence[Layer], n_features: int) -> None:
        super().__init__()
        self.shape, self.n_features = shape, n_features
        n_channels, *sides = shape if len(shape) == 3 else (1, *shape)
        self.cnn = nn.Sequential()
        one = torch.zeros(1, n_channels, *sides)
        for n_outputs, window, stride in layers:
            self.cnn.extend((nn.Conv2d(n_channels, n_outputs, window, stride), nn.ReLU()))
            n_channels = n_outputs
        self.cnn.append(nn.Flatten())
        with torch.no_grad():
            n_flat = self.cnn(one).shape[1]
        linear = nn.Linear(n_flat, n_features)
        self.linear = nn.Sequential(linear, nn.ReLU())
        most_rows = min(MOST_ROWS, max(1, MOST_NUMBERS // math.prod(shape)))
        self._most_rows = 1 << most_rows.bit_length() - 1
        self._strides = contiguous_strides((1, *shape))
        self._recorded: Recorded | None = None
        self._places: list[Any] = []  # of the parameters that it reads
        convolutions = [each for each in self.cnn if isinstance(each, nn.Conv2d)]
        # in a tuple, so that weights have no second name
        self._layers: tuple[nn.Conv2d | nn.Linear, ...] = (*convolutions, linear)

    def forward(self, images: Tensor) -> Tensor:
        numbers = images.float()
        features: Tensor = self.linear(
            self.cnn(numbers if len(self.shape) == 3 else numbers.unsqueeze(1))
        )
        return features

    def numpy(self, images: Tensor | npt.NDArray[Any]) -> Array:
        """Return what ``forward`` does, without gradients, for a tensor or an array.

        On a CPU native programs compute it, which give the same to within rounding, and an image
        the same features to the bit in any batch. There is one for each size, of which the first
        three binary digits count: smaller batches are filled up, by a quarter at most. One thread
        at a time gets in; another may change parameters in place meanwhile, but not give them other
        memory. Layers that are replaced after the first call are not noticed. The first batch of a
        size takes 3 to 160 ms longer, and its program 1 to 28 MiB for images of Atari, 270 MiB if
        there are batches of all sizes.
        """
        rows = torch.as_tensor(images)
        if rows.shape[1:] != self.shape:
            raise ValueError(f"images must be [B, *{self.shape}], got {tuple(rows.shape)}")
        read = stored(self._layers)
        places = [(id(each), each.device, each.dtype, each.stride()) for each in read]
        if places != self._places:  # programs go on to read what was there, and as it lay
            self._recorded = Recorded(self._features) if are_readable(self._layers) else None
            self._places = places
        recorded = self._recorded
        if recorded is None:
            with torch.no_grad():
                outputs: Tensor = self(rows.to(self._layers[0].weight.device))
            return outputs.float().cpu().numpy()
        rows = (rows if rows.dtype in BYTES else rows.float()).cpu().contiguous()
        if rows.stride() != self._strides:  # of axes of one, where they say nothing
            rows = rows.view(-1).view(rows.shape)
        features, begin = np.empty((len(rows), self.n_features), np.float32), 0
        for size in self._sizes(len(rows)):
            part = rows[begin : begin + size]
            n = len(part)
            if n < size:
                part = torch.cat([part, part.new_zeros(size - n, *self.shape)])
            features[begin : begin + n] = recorded.arrays(part)[0][:n]
            begin += n
        return features

    def _sizes(self, n_rows: int) -> Iterator[int]:
        """Yield the sizes of programs for a batch, the last of which may be for more."""
        while n_rows > 0:
            n = min(n_rows, self._most_rows)
            step = 1 << max(0, (n - 1).bit_length() - 3)
            yield -(-n // step) * step
            n_rows -= n

    def _features(self, images: Tensor) -> tuple[Tensor]:
        with torch.no_grad():
            return (self(images).float(),)


class ImageCNN(CNN):
    """A CNN of images of bytes."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.float() / 255.0)


class BoardCNN(CNN):
    """The CNN of Young & Tian (2019), arXiv:1903.03176, for what is where on a board."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape, ((16, 3, 1),), BOARD_FEATURES)


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
            numbers = torch.arange(self.start, self.start + self.n, device=value.device)
            return (value.unsqueeze(1) == numbers).float()
        return (
            value
            if value.dim() == 2 and value.dtype == torch.float32
            else value.reshape(len(value), -1).float()
        )

    def numpy(self, value: Tensor | npt.NDArray[Any]) -> Array:
        """Return what ``forward`` does, for a tensor or an array."""
        array = value.cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        if self.n is not None:
            array = array.astype(np.int64).reshape(len(array), 1) - self.start == np.arange(self.n)
        features: Array = array.reshape(len(array), self.n_features).astype(np.float32, copy=False)
        return features


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
        parts = parts_of_space(space)
        layers, n_image = IMAGE_NETWORKS[image_network]
        self.keys = None if None in parts else list(parts)
        if self.keys is not None:
            n_image = DICT_IMAGE_FEATURES
        self.parts = nn.ModuleList()
        self.n_features = 0
        for part in parts.values():
            encoder: CNN | Flatten
            if is_image(part):
                encoder = ImageCNN(part.shape, layers, n_image)
            elif is_board(part):
                encoder = BoardCNN(part.shape)
            else:
                encoder = Flatten(part)
            self.parts.append(encoder)
            self.n_features += encoder.n_features

    def forward(self, observation: Observation) -> Tensor:
        if self.keys is None:
            features: Tensor = self.parts[0](observation)
            return features
        return torch.cat(
            [part(observation[key]) for key, part in zip(self.keys, self.parts, strict=True)], dim=1
        )

    def numpy(self, observation: Observation) -> Array:
        """Return what ``forward`` does, without gradients, for tensors or arrays."""
        parts: Any = self.parts
        if self.keys is None:
            found: list[Array] = [parts[0].numpy(observation)]
        else:
            found = [p.numpy(observation[key]) for key, p in zip(self.keys, parts, strict=True)]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=1)
