"""What rollouts say of actions: advantages and returns, from rewards and values.

All arrays are [T, N]: T steps of N environments. An episode that ends by itself, ``terminated``,
has no value after it. One that is cut off has: ``next_value`` is that of the observation after each
step, of the same episode.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["generalized_advantages", "vtrace"]

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


def vtrace(
    log_ratio: Array,
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    gamma: float,
    trace_lambda: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Array, Array]:
    """Return what actions of an older policy are worth to a newer one, and values to learn.

    Espeholt et al. (2018), arXiv:1802.01561, section 4.1: TD errors count in proportion to how much
    more probable the action is by now, at most ``rho_bar`` times, and those after it as often as it
    is, at most ``c_bar`` times. Where both policies are the same, and both bounds are at least 1,
    the values are those of generalized advantage estimation with ``trace_lambda``.

    Parameters
    ----------
    log_ratio : float [T, N]
        The logarithm of how much more probable each action is by the newer policy.
    reward, value, next_value, terminated, truncated, gamma
        As `generalized_advantages` has them; values are by the newer networks.
    trace_lambda : float
        0 to 1: how much later TD errors count, as in remark 2 of the paper; 1 is V-trace.
    rho_bar, c_bar : float
        Bounds of ratios, above 0. The policy whose values are learned is between both: nearer to
        the older one with a lower ``rho_bar``. A lower ``c_bar`` has less variance.

    Returns
    -------
    tuple of float [T, N]
        Advantages for the gradient of the policy, and values.
    """
    ratio = np.exp(np.minimum(log_ratio, math.log(max(rho_bar, c_bar))))
    rho, c = np.minimum(ratio, rho_bar), trace_lambda * np.minimum(ratio, c_bar)
    after = np.where(terminated, 0, next_value)
    error = rho * (reward + gamma * after - value)
    goes_on = ~(terminated | truncated)
    carried = gamma * c * goes_on
    above = np.empty_like(error)  # what values should be above the networks' own
    later = np.zeros_like(error[0])
    for t in range(len(error) - 1, -1, -1):
        later = error[t] + carried[t] * later
        above[t] = later
    after[:-1] += np.where(goes_on[:-1], above[1:], 0)
    return rho * (reward + gamma * after - value), value + above
