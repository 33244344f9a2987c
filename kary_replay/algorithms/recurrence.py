"""Networks that remember what has been in an episode, and what they read of rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .parameters import Array, Views

__all__ = ["LSTM", "parts_of", "sequences"]

OBSERVATION, STATE, GOES_ON = "observation.", "state", "goes_on"


class LSTM(nn.Module):
    """Long short-term memory, which reads some sequences side by side.

    Hochreiter & Schmidhuber (1997), https://doi.org/10.1162/neco.1997.9.8.1735, with the forget
    gates of Gers et al. (2000), https://doi.org/10.1162/089976600300015015. Its state, [N, 2 * n],
    has the outputs of the n units and then their cells.

    Parameters
    ----------
    n_inputs, n_units : int
        Numbers that it reads and returns at each step.

    Notes
    -----
    ``torch.nn.LSTM`` computes the same in one operation, in which no state can be reset. Here all
    operations are ones that native programs have; its steps cost little more than the products in
    them. Of a layer's 4 * n outputs the first are the gates of input, forgetting and output.
    """

    def __init__(self, n_inputs: int, n_units: int) -> None:
        super().__init__()
        self.n_units = n_units
        self.inputs = nn.Linear(n_inputs, 4 * n_units)
        self.recurrent = nn.Linear(n_units, 4 * n_units, bias=False)
        self._views = Views((self.inputs, self.recurrent))

    @property
    def state_size(self) -> int:
        """How many numbers the state of a sequence has."""
        return 2 * self.n_units

    def forward(
        self, features: Tensor, state: Tensor, goes_on: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read N sequences of T steps.

        Parameters
        ----------
        features : Tensor, float32 [T * N, n_inputs]
            The first steps of all sequences, then the second ones, and so on.
        state : Tensor, float32 [N, state_size]
            What there is before the first steps.
        goes_on : Tensor, float32 [T * N], optional
            1 where a step goes on with what there is after the one before; 0 where it begins anew,
            with zeros. Those of the first steps do not matter. None: all go on.

        Returns
        -------
        tuple of Tensor
            Of each step the outputs, [T * N, n_units], and the states after it,
            [T * N, state_size].
        """
        length, widths = len(features) // len(state), (3 * self.n_units, self.n_units)
        carried = None if goes_on is None else goes_on.unsqueeze(1).chunk(length)
        output, cell = state.chunk(2, 1)
        outputs, cells = [], []
        read: list[Tensor] = []
        with_gradient: Any = WeightGradient.apply  # which has no annotations
        layers = with_gradient(self.inputs(features), self.recurrent.weight, read)
        matrix = self.recurrent.weight.detach()
        for number, layer in enumerate(layers.chunk(length)):
            if number and carried is not None:
                output, cell = output * carried[number], cell * carried[number]
            read.append(output.detach())
            gates, content = torch.split_with_sizes(layer + F.linear(output, matrix), widths, 1)
            enters, stays, leaves = sigmoid(gates).chunk(3, 1)
            cell = stays * cell + enters * content.tanh()
            output = leaves * cell.tanh()
            outputs.append(output)
            cells.append(cell)
        every = torch.cat(outputs)
        return every, torch.cat([every, torch.cat(cells)], 1)

    def numpy(self, features: Array, state: Array) -> tuple[Array, Array]:
        """Return what ``forward`` does for a single step, without gradients; on a CPU by NumPy."""
        arrays = self._views.arrays()
        if arrays is None:
            device = self.inputs.weight.device
            with torch.no_grad():
                output, after = self(*(torch.from_numpy(x).to(device) for x in (features, state)))
            return output.cpu().numpy(), after.cpu().numpy()
        matrix, bias, recurrent = arrays
        width = self.n_units
        layer = features @ matrix
        layer += state[:, :width] @ recurrent
        layer += bias
        layer[:, : 3 * width] *= 0.5
        np.tanh(layer, out=layer)
        gates, content = layer[:, : 3 * width], layer[:, 3 * width :]
        gates *= 0.5
        gates += 0.5
        after = np.empty_like(state)
        after[:, width:] = (
            gates[:, width : 2 * width] * state[:, width:] + gates[:, :width] * content
        )
        after[:, :width] = gates[:, 2 * width :] * np.tanh(after[:, width:])
        return after[:, :width], after


class WeightGradient(torch.autograd.Function):
    """Gives a matrix, by which each step is multiplied, the gradient of all steps at once.

    The steps themselves are computed by a matrix without gradient. A product for each, and a sum of
    these, take four times as long as the rest of 128 steps with 256 units.

    Parameters
    ----------
    layers : Tensor [T * N, n]
        To each of T parts a product is to be added; returned as they are.
    matrix : Tensor [n, k]
        What is to have the gradient.
    read : list of T tensors [N, k]
        What is multiplied, to be filled in until the gradient is asked for.
    """

    @staticmethod
    def forward(ctx: Any, layers: Tensor, matrix: Tensor, read: list[Tensor]) -> Tensor:
        ctx.read = read
        return layers.view_as(layers)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, gradient.t().mm(torch.cat(ctx.read)), None


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x)), in operations that native programs have."""
    half: Tensor = (x * 0.5).tanh()
    return half * 0.5 + 0.5


def sequences(observation: Any, state: Tensor, goes_on: Tensor) -> dict[str, Tensor]:
    """Return what networks with memory read of rollouts, as one dict of tensors.

    Parameters
    ----------
    observation : Tensor [T * N, ...], or dict of them
        What was observed, step by step.
    state : Tensor, float32 [N, state_size]
        What there was before the first steps. Every row has it, so that rows can be chosen.
    goes_on : Tensor, float32 [T * N]
        As `LSTM` has it.
    """
    parts = observation if isinstance(observation, dict) else {"": observation}
    named = {f"{OBSERVATION}{key}": part for key, part in parts.items()}
    n_steps = len(goes_on) // len(state)
    return {**named, STATE: state.repeat(n_steps, 1), GOES_ON: goes_on}


def parts_of(read: dict[str, Tensor], keys: list[str] | None) -> tuple[Any, Tensor, Tensor]:
    """Return observation, state of every row, and goes_on of `sequences`.

    ``keys`` are those of an observation that is a dict, and None otherwise.
    """
    observation: Any = (
        read[OBSERVATION] if keys is None else {key: read[f"{OBSERVATION}{key}"] for key in keys}
    )
    return observation, read[STATE], read[GOES_ON]
