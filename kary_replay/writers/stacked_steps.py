"""Takes steps whose observations are stacks of frames, and has every frame stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import FieldError
from ..fields import map_leaves
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
        observation: Any,
        next_observation: Any,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        env: npt.ArrayLike | None = None,
        **fields: Any,
    ) -> npt.NDArray[np.int64]:
        """Take one step, as `NStepWriter.add` does; observations are [M, stack, ...], or dicts.

        Raises
        ------
        FieldError
            If the frames of one stack do not follow on those of the other. Nothing has been written
            then.
        """
        streams = streams_of(env, self.n_envs)
        pairs = zip(_parts(observation), _parts(next_observation), strict=True)
        if any((after[:, :-1] != before[:, 1:]).any() for before, after in pairs):
            raise FieldError(
                "next_observation must have the frames of observation but the oldest, and one more"
            )
        self._begin(observation, streams)
        return self._writer.add(
            next_frame=map_leaves(next_observation, lambda part: part[:, -1]),
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

    def _begin(self, observation: Any, streams: npt.NDArray[np.int64]) -> None:
        """Begin the episodes that have not begun, or were others before `load_state_dict`."""
        has_begun = self._writer.has_begun[streams]
        doubtful = np.flatnonzero(has_begun & ~self._is_sure[streams])
        if len(doubtful):
            shown = _parts(self._writer.shown(streams[doubtful]))
            present = [part[doubtful] for part in _parts(observation)]
            has_begun[doubtful] = _are_equal(shown, present)
        self._is_sure[streams] = True
        new = np.flatnonzero(~has_begun)
        if not len(new):
            return
        stacks = map_leaves(observation, lambda part: part[new])
        first = [part[:, -1:] for part in _parts(stacks)]
        if self._writer.padding == "zeros":
            first = [part * 0 for part in first]
        is_first = _are_equal([part[:, :-1] for part in _parts(stacks)], first)
        if is_first.any():
            frames = map_leaves(stacks, lambda part: part[is_first, -1])
            self._writer.reset(frames, env=streams[new[is_first]])
        if not is_first.all():
            others = map_leaves(stacks, lambda part: part[~is_first])
            self._writer.begin_within(others, env=streams[new[~is_first]])


def _parts(observation: Any) -> list[npt.NDArray[Any]]:
    """Return the arrays of an observation, which is one, or a dict of them, by their names."""
    if not isinstance(observation, Mapping):
        return [observation]
    return [part for name in sorted(observation) for part in _parts(observation[name])]


def _are_equal(
    some: Sequence[npt.NDArray[Any]], others: Sequence[npt.NDArray[Any]]
) -> npt.NDArray[np.bool_]:
    """Return in which rows all arrays are equal, [M]."""
    found = [
        np.equal(one, other).all(axis=tuple(range(1, one.ndim)))
        for one, other in zip(some, others, strict=True)
    ]
    equal: npt.NDArray[np.bool_] = np.logical_and.reduce(found)
    return equal
