"""Takes steps as actors have them, and has them cut into sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .sequence_writer import SequenceWriter

__all__ = ["RecurrentStepWriter"]

EPISODES = 100  # without a row, after which there will be none


class RecurrentStepWriter:
    """Gives a SequenceWriter steps, and what the policy carried to them.

    Parameters
    ----------
    writer : SequenceWriter
        Whose buffer has recurrent states, and of each step what is observed before it.
    """

    def __init__(self, writer: SequenceWriter) -> None:
        self._writer = writer
        self.n_envs = writer.n_envs
        self._n_without = 0  # episodes without a row, as long as there was none

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
        """Take one step, as `NStepWriter.add` does, with the policy's ``state`` before it.

        Raises
        ------
        ValueError
            If no episode of the first hundred was longer than the burn-in, so that nothing would
            ever be learned.
        """
        ends = {"terminated": terminated, "truncated": truncated}
        index = self._writer.add(recurrent_state=state, **ends, **step)
        if len(index):
            self._n_without = -1
        elif self._n_without >= 0:
            self._n_without += int((terminated | truncated).sum())
            if self._n_without >= EPISODES:
                raise ValueError(
                    f"burn_in must be less than the steps of an episode, got "
                    f"{self._writer.burn_in}: none of {self._n_without} episodes was longer"
                )
        return index

    def reset(self, env: npt.ArrayLike | None = None) -> None:
        """Drop the steps of some environments that are in no row yet."""
        self._writer.reset(env)

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the SequenceWriter goes on from."""
        return self._writer.state_dict()

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on from there."""
        self._writer.load_state_dict(state)
