"""Takes steps whose observations are stacks of frames, and has every frame stored once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FieldError
from .frame_stack_writer import FrameStackWriter
from .steps import streams_of

__all__ = ["StackedStepWriter"]


class StackedStepWriter:
    """Gives a FrameStackWriter the newest frames of stacked observations.

    Parameters
    ----------
    writer : FrameStackWriter
        Whose buffer has stacks of as many frames, and pads the beginnings of episodes in the same
        way.

    Notes
    -----
    A step that does not lead from one stack to the next by one frame is refused. That costs a look
    at all their bytes. An episode may begin with any stack, and go on with another one than before
    after `load_state_dict`: then all of its frames are written.
    """

    def __init__(self, writer: FrameStackWriter) -> None:
        self._writer = writer
        self.n_envs = writer.n_envs
        self._is_sure = np.ones(writer.n_envs, np.bool_)  # that it goes on from where it was

    def add(
        self,
        /,
        *,
        observation: npt.NDArray[Any],
        next_observation: npt.NDArray[Any],
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        env: npt.ArrayLike | None = None,
        **fields: Any,
    ) -> npt.NDArray[np.int64]:
        """Take one step, as `NStepWriter.add` does; observations are [M, stack, ...].

        Raises
        ------
        FieldError
            If the frames of one stack do not follow on those of the other. Nothing has been written
            then.
        """
        streams = streams_of(env, self.n_envs)
        if (next_observation[:, :-1] != observation[:, 1:]).any():
            raise FieldError(
                "next_observation must have the frames of observation but the oldest, and one more"
            )
        self._begin(observation, streams)
        return self._writer.add(
            next_frame=next_observation[:, -1],
            terminated=terminated,
            truncated=truncated,
            env=streams,
            **fields,
        )

    def reset(self, env: npt.ArrayLike | None = None) -> None:
        """Give up the running episodes of some environments: the next step begins another."""
        self._writer.end(env)

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the FrameStackWriter goes on from."""
        return self._writer.state_dict()

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on as `FrameStackWriter.load_state_dict` does, where the next stacks are the same."""
        self._writer.load_state_dict(state)
        self._is_sure[:] = False

    def _begin(self, observation: npt.NDArray[Any], streams: npt.NDArray[np.int64]) -> None:
        """Begin the episodes that have not begun, or were others before `load_state_dict`."""
        has_begun = self._writer.has_begun[streams]
        doubtful = np.flatnonzero(has_begun & ~self._is_sure[streams])
        if len(doubtful):
            shown = self._writer.shown(streams[doubtful])
            axes = tuple(range(1, shown.ndim))
            has_begun[doubtful] = (shown == observation[doubtful]).all(axes)
        self._is_sure[streams] = True
        new = np.flatnonzero(~has_begun)
        if not len(new):
            return
        stacks = observation[new]
        before = stacks[:, -1:] if self._writer.padding == "repeat" else stacks[:, -1:] * 0
        axes = tuple(range(1, stacks.ndim))
        is_first = (stacks[:, :-1] == before).all(axes)
        if is_first.any():
            self._writer.reset(stacks[is_first, -1], env=streams[new[is_first]])
        if not is_first.all():
            self._writer.begin_within(stacks[~is_first], env=streams[new[~is_first]])
