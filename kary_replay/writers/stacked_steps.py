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
    Whole stacks are compared with what the buffer will put together: a step that does not lead
    from one stack to the next by one frame is refused. That costs a look at all their bytes.
    """

    def __init__(self, writer: FrameStackWriter) -> None:
        self._writer = writer
        self.n_envs = writer.n_envs

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
            If the frames of one stack do not follow on those of the other, or an episode begins
            with other frames than the buffer pads it with. Nothing has been written then.
        """
        streams = streams_of(env, self.n_envs)
        begins = ~self._writer.has_begun[streams]
        self._check_begin(observation[begins])
        if (next_observation[:, :-1] != observation[:, 1:]).any():
            raise FieldError(
                "next_observation must have the frames of observation but the oldest, and one more"
            )
        if begins.any():
            self._writer.reset(observation[begins, -1], env=streams[begins])
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
        """Go on as `FrameStackWriter.load_state_dict` does."""
        self._writer.load_state_dict(state)

    def _check_begin(self, observation: npt.NDArray[Any]) -> None:
        """Refuse stacks with other frames before the newest than the buffer pads with."""
        repeats = self._writer.padding == "repeat"
        before = observation[:, -1:] if repeats else np.zeros_like(observation[:, -1:])
        if (observation[:, :-1] != before).any():
            with_what = "the first frame" if repeats else "zeros"
            raise FieldError(
                f"the observation that an episode begins with must be padded with {with_what}"
            )
