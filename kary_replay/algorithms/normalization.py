"""Observations and rewards on a common scale, by statistics of all that was seen.

Replay keeps the raw numbers. They are normalized when networks read them, so that old rows follow
the statistics of today.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .spaces import is_board, is_image, kinds, parts_of_space
from .updates.minimizer import take_up

if TYPE_CHECKING:
    from .algorithm import Algorithm, Tensors

__all__ = ["Moments", "Normalization", "Normalized", "merged", "moments_of"]

# A standard deviation below this share of the mean is the rounding of a constant in float32.
LEAST_SPREAD = 1e-6
FINER = torch.float64, torch.int64, torch.int32  # than float32
Moments = npt.NDArray[np.float64]
"""Of n numbers [3, n]: how often each was seen, its mean, its sum of squared deviations."""


def moments_of(rows: npt.NDArray[np.float64]) -> Moments:
    """Return the moments of rows [N, n]."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = rows.mean(0)
        return np.stack([np.full_like(mean, len(rows)), mean, np.square(rows - mean).sum(0)])


def merged(first: Moments, second: Moments) -> Moments:
    """Return the moments of two sets of rows together.

    Chan, Golub & LeVeque (1983), https://doi.org/10.1080/00031305.1983.10483115, eq. 2.1. How the
    rows were divided, and in which order parts are merged, makes no difference but for rounding.
    """
    count = first[0] + second[0]
    share = second[0] / np.maximum(count, 1)
    with np.errstate(over="ignore", invalid="ignore"):
        apart = second[1] - first[1]
        squares = first[2] + second[2] + np.square(apart) * first[0] * share
        return np.stack([count, first[1] + apart * share, squares])


class Normalization:
    """What is subtracted from observations, and what they and rewards are multiplied by.

    Parameters
    ----------
    observation_space : gymnasium.Space
        Of one environment. Numbers of a Box are normalized; images, and what is counted or one-hot,
        stay as they are.
    observations, rewards : bool
        Whether they are normalized.
    device : torch.device
        Where the networks are.

    Attributes
    ----------
    vector : Tensor, float32
        All shifts and factors, which are part of a run's parameters. At first nothing changes.
    n_numbers : int
        How many numbers statistics are kept of.

    Notes
    -----
    Observations get mean 0 and standard deviation 1. Rewards are divided by the standard deviation
    of the discounted sums of those that have come in an episode, and not shifted, which would
    change the task. Where a number has been constant, as when all rewards are 0, or its spread is
    not finite, the factor is 1; where the mean is not finite, the shift is 0.
    """

    def __init__(
        self, observation_space: Any, observations: bool, rewards: bool, device: torch.device
    ) -> None:
        shapes = {
            key: part.shape
            for key, part in parts_of_space(observation_space).items()
            if observations and "Box" in kinds(part) and not (is_image(part) or is_board(part))
        }
        sizes = [int(np.prod(shape)) for shape in shapes.values()]
        n, start = sum(sizes), 0
        self.n_numbers = n + rewards
        self.vector = torch.cat([torch.zeros(n), torch.ones(self.n_numbers)]).to(device)
        self.shifts: dict[Any, Tensor] = {}
        self.factors: dict[Any, Tensor] = {}
        for (key, shape), size in zip(shapes.items(), sizes, strict=True):
            self.shifts[key] = self.vector[start : start + size].view(shape)
            self.factors[key] = self.vector[n + start : n + start + size].view(shape)
            start += size
        self.reward_factor = self.vector[-1] if rewards else None

    def numbers(
        self, observation: Any, returns: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Return the rows [N, n_numbers] that statistics are kept of.

        ``returns``, [N], are the discounted sums of the rewards of each episode so far.
        """
        columns = [observation if key is None else observation[key] for key in self.shifts]
        if self.reward_factor is not None:
            columns.append(returns)
        rows = [column.reshape(len(column), -1) for column in columns]
        return np.concatenate(rows, 1, dtype=np.float64)

    def take_up(self, moments: Moments) -> None:
        """Normalize by these statistics from now on."""
        count, mean, squares = moments
        n = len(self.vector) - self.n_numbers
        with np.errstate(all="ignore"):
            spread = np.sqrt(squares / count)
            factor = (1 / spread).astype(np.float32)
            shift = mean[:n].astype(np.float32)
        factor[~(np.isfinite(factor) & (spread > LEAST_SPREAD * np.abs(mean)))] = 1.0
        factor[factor == 0] = 1.0
        shift[~np.isfinite(shift)] = 0.0
        self.vector.copy_(torch.from_numpy(np.concatenate([shift, factor])))

    def observation(self, observation: Any) -> Any:
        """Return observations, a tensor or a dict of them, as the networks are to read them."""
        if not isinstance(observation, dict):
            return self._part(None, observation)
        return {key: self._part(key, part) for key, part in observation.items()}

    def batch(self, batch: Tensors) -> Tensors:
        """Return a batch as the networks are to read it."""
        read = {
            name: self.observation(column) if name.endswith("observation") else column
            for name, column in batch.items()
        }
        if self.reward_factor is not None:
            read["reward"] = read["reward"] * self.reward_factor
        return read

    def _part(self, key: Any, part: Tensor) -> Tensor:
        if key in self.shifts:
            # not rounded before the mean is off, which may be large beside the spread
            numbers = part.double() if part.dtype in FINER else part.float()
            part = (numbers - self.shifts[key]).float() * self.factors[key]
        return part


class Normalized:
    """An algorithm whose networks read everything normalized; the rest of it is as it was.

    Parameters
    ----------
    algorithm : Algorithm
        Knows nothing of it.
    normalization : Normalization
        Is kept and published with the algorithm's parameters.
    """

    def __init__(self, algorithm: Algorithm, normalization: Normalization) -> None:
        self.algorithm, self.normalization = algorithm, normalization

    def __getattr__(self, name: str) -> Any:
        if name == "algorithm":  # of a copy that has nothing yet
            raise AttributeError(name)
        return getattr(self.algorithm, name)

    def update(self, batch: Tensors) -> Tensor:
        """Train on a batch of raw numbers."""
        return self.algorithm.update(self.normalization.batch(batch))

    def warm_up(self, batch: Tensors) -> None:
        """Record what updates need."""
        self.algorithm.warm_up(self.normalization.batch(batch))

    def figures(self, batch: Tensors) -> dict[str, float]:
        """Return how training goes, on the scale of the networks."""
        return self.algorithm.figures(self.normalization.batch(batch))

    def td_error(self, batch: Tensors) -> Tensor:
        """Return |TD error| of each row of raw numbers, on the scale of the networks."""
        algorithm: Any = self.algorithm
        error: Tensor = algorithm.td_error(self.normalization.batch(batch))
        return error

    def outputs(self, observation: Any) -> npt.NDArray[np.float32]:
        """Return what the networks say of raw observations, tensors."""
        return self.algorithm.outputs(self.normalization.observation(observation))

    def outputs_and_state(self, observation: Any, state: Any) -> tuple[Any, Any]:
        """Return what the networks say of raw observations, tensors, and the next state."""
        read = self.normalization.observation(observation)
        return self.algorithm.outputs_and_state(read, state)

    def choose(self, observation: Any, *how: Any) -> dict[str, npt.NDArray[Any]]:
        """Choose the actions for raw observations, tensors, and what belongs to them."""
        return self.algorithm.choose(self.normalization.observation(observation), *how)

    def act(self, observation: Any, *how: Any) -> npt.NDArray[Any]:
        """Choose the actions for raw observations, tensors."""
        return self.choose(observation, *how)["action"]

    def state_dict(self) -> dict[str, Any]:
        """Return all that training goes on from."""
        vector = self.normalization.vector.clone()
        return {**self.algorithm.state_dict(), "normalization": vector}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state, in place."""
        self.algorithm.load_state_dict(state)
        take_up({"normalization": self.normalization.vector}, state)
