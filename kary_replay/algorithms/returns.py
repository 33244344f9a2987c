"""What rollouts say of actions: advantages and returns, from rewards and values.

All arrays are [T, N]: T steps of N environments. An episode that ends by itself, ``terminated``,
has no value after it. One that is cut off has: ``next_value`` is that of the observation after each
step, of the same episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["generalized_advantages"]

Array = npt.NDArray[Any]


def generalized_advantages(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: float,
    gae_lambda: float,
) -> Array:
    """Return the advantages of the actions taken, by generalized advantage estimation.

    Schulman et al. (2016), arXiv:1506.02438, eq. 16: the discounted sum of TD errors, each of which
    counts ``gae_lambda`` times as much as the one before, as far as the rollout goes within the
    episode.

    Parameters
    ----------
    reward, value, next_value : float [T, N]
        What a step brought, and the values of the observations before and after it.
    terminated, truncated : bool [T, N]
        Whether the step ended the episode.
    gamma, gae_lambda : float
        0 to 1.

    Returns
    -------
    float [T, N]
        Advantages; with the values they make returns.
    """
    error = reward + gamma * np.where(terminated, 0, next_value) - value
    goes_on = ~(terminated | truncated)
    carried = (gamma * gae_lambda) * goes_on
    advantage = np.empty_like(error)
    later = np.zeros_like(error[0])
    for t in range(len(error) - 1, -1, -1):
        later *= carried[t]
        later += error[t]
        advantage[t] = later
    return advantage
