"""The share of a buffer's draws that go to all rows alike, fixed or chosen by TD errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from kary_replay.adapters.tianshou.errors import ArgumentError, as_real

# As in the native buffers, whose core/noise.hpp says why.
_MEMORY = 10_000  # rows: older ones count exponentially less
_PRIORITIZED = 0.1  # the share while priorities pay
_PAYS = 0.5  # they do if the least noise is below that part of uniform replay's


class ShareOfDraws:
    """A share of uniform draws, `value`, and what TD errors show of the noise of batches.

    Parameters
    ----------
    given : float or "auto"
        The share, in [0, 1]. "auto": 0.1 while priorities pay, and 1 until that is known, and while
        there is little to gain.

    Raises
    ------
    AssertionError
        If the share is out of range, or another word. The error is a ValueError as well.
    TypeError
        If it is neither a number nor a word.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.adapts = isinstance(given, str) and given == "auto"
        self.value = 1.0 if self.adapts else _as_share(given)
        self.n_rows, self.weight, self.size, self.square = 0, 0.0, 0.0, 0.0

    def chance(self, relative: Any) -> Any:
        """Return N · P of rows whose masses are `relative` times the mean one."""
        return relative + self.value * (1.0 - relative)

    @property
    def least_noise(self) -> float:
        """The noise of the best draws over that of uniform ones; NaN before any TD error."""
        return self.size**2 / (self.square * self.weight) if self.square else np.nan

    def learn(self, relative: np.ndarray, td_error: np.ndarray) -> None:
        """Learn from the |TD errors| [B] of rows that were drawn with these relative masses [B]."""
        n, weight = len(td_error), 1.0 / self.chance(relative)
        with np.errstate(all="ignore"):
            size, square = (weight * td_error).mean(), (weight * td_error**2).mean()
        if not square < np.inf:
            return
        self.n_rows += n
        part = min(1.0, max(n / _MEMORY, n / self.n_rows))
        self.weight += part * (float(weight.mean()) - self.weight)
        self.size += part * (float(size) - self.size)
        self.square += part * (float(square) - self.square)
        if self.n_rows >= _MEMORY:
            self.value = _PRIORITIZED if self.least_noise < _PAYS else 1.0


def _as_share(given: Any) -> float:
    """Return a fixed share."""
    if isinstance(given, (bool, np.bool_)):
        raise TypeError(f"uniform_share must be 'auto' or a number from 0 to 1, got {given!r}")
    number = np.nan if isinstance(given, str) else as_real("uniform_share", given)
    if not 0 <= number <= 1:
        raise ArgumentError(f"uniform_share must be 'auto' or a number from 0 to 1, got {given!r}")
    return number
