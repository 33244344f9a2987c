"""The shapes of one step, into which this module brings the arrays that SB3 hands to ``add``.

SB3's own buffer lets NumPy broadcast these arrays. The native buffer broadcasts nothing, so an
array of another shape that SB3 accepts is reshaped before it is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from kary_replay.errors import FieldError

Shape = tuple[int, ...]


class StepShapes(NamedTuple):
    """The shapes that the arrays of one step of all environments have in the native buffer."""

    n_envs: int
    observation_shape: Shape | Mapping[str, Shape]  # of one environment; a mapping for a Dict space
    action_size: int  # numbers in the action of one environment

    def scalar(self, name: str, value: Any) -> np.ndarray:
        """Return `value` as one number per environment, [n_envs]."""
        return self._reshaped(name, value, ())

    def action(self, value: Any) -> np.ndarray:
        """Return actions as [n_envs, action_size]; the action of one environment may have axes."""
        array = np.asarray(value)
        fits = array.shape[:1] == (self.n_envs,) and array.size == self.n_envs * self.action_size
        if fits and array.dtype != object:
            return array.reshape(self.n_envs, self.action_size)
        return self._reshaped("action", value, (self.action_size,))

    def observation(self, name: str, value: Any) -> Any:
        """Return observations as [n_envs, …], or as a dict of such arrays for a Dict space."""
        shape = self.observation_shape
        if not isinstance(shape, Mapping):
            return self._reshaped(name, value, shape)
        if not isinstance(value, dict) or not shape.keys() <= value.keys():
            given = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise FieldError(f"{name} must be a dict with {', '.join(shape)}, got {given}")
        return {
            key: self._reshaped(f"{name}[{key!r}]", value[key], part) for key, part in shape.items()
        }

    def _reshaped(self, name: str, value: Any, shape: Shape) -> np.ndarray:
        """Return `value` as [n_envs, *shape]; only axes of length 1 may be missing or too many."""
        array = np.asarray(value)
        if array.dtype == object:
            raise TypeError(f"{name} must be numbers, got {value!r}")
        wanted = (self.n_envs, *shape)
        if [n for n in array.shape if n != 1] != [n for n in wanted if n != 1]:
            raise FieldError(f"{name} must have shape {wanted}, got {array.shape}")
        return array.reshape(wanted)
