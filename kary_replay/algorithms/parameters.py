"""Weights and biases of layers, as whoever acts reads them without torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

__all__ = ["Array", "Views", "are_readable", "stored"]

Array = npt.NDArray[np.float32]


def stored(layers: Iterable[nn.Module]) -> list[Tensor]:
    """Return the parameters of layers, without those that torch computes from others."""
    return [p for layer in layers for p in layer._parameters.values() if p is not None]


def are_readable(layers: Iterable[nn.Module]) -> bool:
    """Return whether others than torch can read parameters: on a CPU, and none made of others."""
    layers = tuple(layers)
    return all({"weight", "bias"} <= layer._parameters.keys() for layer in layers) and all(
        parameter.device.type == "cpu" for parameter in stored(layers)
    )


class Views:
    """Parameters of layers as arrays, which show what is changed in place.

    Parameters
    ----------
    layers : iterable of Module
        Each has a weight, and a bias or None for it.
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        self._layers = tuple(layers)
        self._arrays: list[Array] | None = None
        self._addresses: list[int] = []

    def arrays(self) -> list[Array] | None:
        """Return matrices [inputs, outputs] and biases in the order of layers, as they are now.

        None: only torch can compute with them.
        """
        read = stored(self._layers)
        addresses = [parameter.data_ptr() for parameter in read]
        if addresses != self._addresses:  # no other memory has these, while there are arrays of it
            self._arrays = None
            if are_readable(self._layers):
                self._arrays = [parameter.detach().numpy().T for parameter in read]
            self._addresses = addresses
        return self._arrays

    def __reduce__(self) -> tuple[Any, ...]:
        return Views, (self._layers,)  # a copy of arrays would be of no use
