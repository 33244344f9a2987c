"""Takes steps as actors have them, and has them cut into sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .sequence_writer import SequenceWriter

__all__ = ["RecurrentStepWriter"]


class RecurrentStepWriter:
    """Gives a SequenceWriter steps, and what the policy carried to them.

    Parameters
    ----------
    writer : SequenceWriter
        Whose buffer has recurrent states, and of each step what is observed before it.
    """

    def __init__(self, writer: SequenceWriter) -> None:
        self._writer = writer

    def add(
        self,
        /,
        *,
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
        next_observation: Any,
        state: Any,
        **step: Any,
    ) -> npt.NDArray[np.int64]:
        """Take one step, as `NStepWriter.add` does, with the policy's ``state`` before it."""
        ends = {"terminated": terminated, "truncated": truncated}
        return self._writer.add(recurrent_state=state, **ends, **step)

    def reset(self, env: npt.ArrayLike | None = None) -> None:
        """Drop the steps of some environments that are in no row yet."""
        self._writer.reset(env)

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the SequenceWriter goes on from."""
        return self._writer.state_dict()

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from there."""
        self._writer.load_state_dict(state)
