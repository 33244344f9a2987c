"""The writer of a FrameReplayBuffer, which stores every frame once while the environments step.

NStepWriter computes the n-step returns. It folds windows whose observations are handles of the rows
that hold the frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..buffers.frame_replay_buffer import FrameReplayBuffer
from ..errors import FieldError
from ..fields import leaves_of, look_up, map_leaves, name_of, refuse_unknown
from ..types import HANDLE_DTYPE, Field
from .n_step import NStepWriter
from .steps import (
    FLAG,
    PriorityFunction,
    as_column,
    checked_priority,
    copies,
    streams_of,
    take_up_arrays,
)

__all__ = ["FrameStackWriter"]

LARGEST_SEEN, NEVER_DRAWN = -1.0, 0.0  # priorities that the rows take for these two meanings


class FrameStackWriter:
    """Adds the transitions of ``n_envs`` environments to a FrameReplayBuffer, one frame at a time.

    Parameters
    ----------
    buffer : FrameReplayBuffer
        The buffer. It says how many frames make an observation and how many steps a transition.
    n_envs : int
        The number of environments, at least 1. The steps of each are one stream.
    gamma : float
        The discount of one step, from 0 to 1.
    priority : None or function
        A function that is given the transitions about to be written (a dict of arrays with a
        leading axis B: the fields of the buffer except the frames) and returns their raw
        priorities, float [B], above 0. With None a new row gets the largest priority seen.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range or of the wrong kind, the fields of the buffer do not fit
        (see NStepWriter), or the buffer has fewer rows than ``n_envs * (stack + n_step)``: frames
        would be overwritten before their transitions are written.

    Notes
    -----
    A window of k steps, where k is n_step or what is left of the episode, becomes a transition with
    these values:

    - observation has the frames up to that of the first step, and next_observation the frames up to
      that of the last step.
    - reward, discount, terminated and the other fields are those that NStepWriter computes.

    One thread at a time may use a writer. Any number of writers, each with its own environments,
    may write to one buffer at once, from any process, while others sample. If other writers are
    much faster, frames may be overwritten before the last transition that needs them is written.
    That transition is never drawn.

    Pending windows and the frames last seen belong to the writer, which has a `state_dict`. Without
    it, and after the buffer has been reset, begin every episode anew.

    Examples
    --------
    >>> import kary_replay as kr
    >>> fields = {"action": kr.Field((), "int64")}
    >>> pixel = kr.Field((), "uint8")
    >>> buffer = kr.FrameReplayBuffer(100, pixel, fields, stack=3, n_step=2, seed=0)
    >>> writer = kr.FrameStackWriter(buffer, n_envs=1, gamma=0.5)
    >>> writer.reset(10)
    >>> for frame in 11, 12, 13:
    ...     ends = {"terminated": frame == 13, "truncated": False}
    ...     index = writer.add(action=0, reward=1.0, next_frame=frame, **ends)
    >>> batch = buffer.sample(3)
    >>> for name in "observation", "next_observation", "reward", "discount":
    ...     print(f"{name:16}", batch[name].tolist())
    observation      [[10, 10, 10], [10, 10, 11], [10, 11, 12]]
    next_observation [[10, 11, 12], [11, 12, 13], [11, 12, 13]]
    reward           [1.5, 1.5, 1.0]
    discount         [0.25, 0.0, 0.0]
    """

    def __init__(
        self,
        buffer: FrameReplayBuffer,
        n_envs: int,
        gamma: float,
        priority: PriorityFunction | None = None,
    ) -> None:
        if not isinstance(buffer, FrameReplayBuffer):
            raise TypeError(f"buffer must be a FrameReplayBuffer, got {type(buffer).__name__}")
        self._buffer = buffer
        self._rows = _WindowBuffer(buffer, checked_priority(priority, buffer))
        self._folder = NStepWriter(self._rows, n_envs, buffer.n_step, gamma)
        stack, n_envs = buffer.stack, self._folder.n_envs
        if n_envs * (stack + buffer.n_step) > buffer.capacity:
            raise ValueError(
                f"n_envs * (stack + n_step) must be at most the buffer's capacity, "
                f"{buffer.capacity}, got {n_envs} * ({stack} + {buffer.n_step}): "
                "frames would be overwritten before they are used"
            )
        self._frame = list(leaves_of({"frame": buffer.fields["frame"]}))
        self._others = [
            path for path, _ in leaves_of(buffer.fields) if path[0] not in ("frame", "history")
        ]
        self._step_fields = {
            name: field for name, field in self._rows.fields.items() if name not in WINDOW_FIELDS
        }
        # the handles of the frames that make each environment's current observation
        self._history: npt.NDArray[np.int64] = np.zeros((n_envs, stack, 2), np.int64)
        self._has_begun = np.zeros(n_envs, np.bool_)

    @property
    def n_envs(self) -> int:
        """The number of environments."""
        return self._folder.n_envs

    @property
    def gamma(self) -> float:
        """The discount of one step."""
        return self._folder.gamma

    @property
    def n_pending(self) -> npt.NDArray[np.int64]:
        """The pending transitions of each environment: int64 [n_envs], 0 to n_step - 1."""
        return self._folder.n_pending

    def __repr__(self) -> str:
        sizes = f"n_envs={self.n_envs}, gamma={self.gamma}"
        return f"FrameStackWriter({sizes}, buffer={self._buffer!r})"

    @property
    def has_begun(self) -> npt.NDArray[np.bool_]:
        """Which environments have an episode under way: bool [n_envs]."""
        return self._has_begun.copy()

    @property
    def padding(self) -> str:
        """What stands in for frames before an episode's first, as the buffer says."""
        return self._buffer.padding

    def end(self, env: npt.ArrayLike | None = None) -> None:
        """Give up the episodes of some environments, and drop their pending transitions.

        Parameters
        ----------
        env : None, int or distinct ints
            The environments; None means all of them. Each needs `reset` before its next step.

        Raises
        ------
        ValueError, TypeError
            If there is no such environment. Nothing has been dropped then.
        """
        streams = streams_of(env, self.n_envs)
        self._folder.reset(streams)
        self._has_begun[streams] = False

    def begin_within(self, stack: Any, env: npt.ArrayLike | None = None) -> None:
        """Go on within episodes whose frames so far this writer has not seen.

        Parameters
        ----------
        stack : array [M, stack, ...] or mapping of them
            The frames of the present observations, the oldest first, in the order of ``env``.
        env : None, int or distinct ints [M]
            The environments. None means all of them, and then M = n_envs.

        Raises
        ------
        FieldError, ValueError, TypeError
            If an argument does not fit. Nothing has been dropped then.

        Notes
        -----
        Each frame takes a row. Pending transitions of these environments are dropped. The cost is
        O(bytes of the frames).
        """
        streams = streams_of(env, self.n_envs)
        n, n_frames, handles = len(streams), self._buffer.stack, []
        map_leaves(stack, partial(_check_frames, n=n, n_frames=n_frames))
        shown = [
            self._frames("stack", map_leaves(stack, partial(_nth, j=j)), n) for j in range(n_frames)
        ]
        nothing = self._transitions(self._rows.none, n)
        for frames in shown:
            handles.append(self._write(frames + nothing, np.full(n, NEVER_DRAWN))[1])
        self._folder.reset(streams)
        self._history[streams] = np.stack(handles, 1)
        self._has_begun[streams] = True

    def shown(self, env: npt.ArrayLike | None = None) -> Any:
        """Return the frames that this writer takes for the present observations.

        Parameters
        ----------
        env : None, int or distinct ints [M]
            The environments that have begun. None means all of them, and then M = n_envs.

        Returns
        -------
        array [M, stack, ...] or dict of them
            Copies. Frames that have been overwritten since are others.
        """
        history = self._history[streams_of(env, self.n_envs)]
        is_none = history[:, :, 1] == 0  # before the first, padded with zeros

        def stacked(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
            frames = part[history[:, :, 0]]
            frames[is_none] = 0
            return frames

        return map_leaves(self._buffer.field_view("frame"), stacked)

    def reset(self, frame: Any, env: npt.ArrayLike | None = None) -> None:
        """Begin an episode of every environment, or of some, and drop their pending transitions.

        Parameters
        ----------
        frame : array [M, ...] or mapping of them
            The first frames, in the order of ``env``; if M is 1, the leading axis may be left out.
        env : None, int or distinct ints [M]
            The environments that begin. None means all of them, and then M = n_envs.

        Raises
        ------
        FieldError, ValueError, TypeError
            If an argument does not fit. Nothing has been written or dropped then.

        Notes
        -----
        The cost is O(bytes of the frames). An environment whose episode has ended needs this call
        before its next step. Other threads may use the buffer meanwhile, but not this writer.
        """
        streams = streams_of(env, self.n_envs)
        n = len(streams)
        columns = self._frames("frame", frame, n) + self._transitions(self._rows.none, n)
        _, handles = self._write(columns, np.full(n, NEVER_DRAWN))
        self._folder.reset(streams)
        self._history[streams] = handles[:, None] if self._buffer.padding == "repeat" else 0
        self._history[streams, -1] = handles
        self._has_begun[streams] = True

    def add(
        self,
        /,
        *,
        next_frame: Any,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        env: npt.ArrayLike | None = None,
        **fields: Any,
    ) -> npt.NDArray[np.int64]:
        """Take one step of every environment, or of some, and add the completed transitions.

        Parameters
        ----------
        next_frame : array [M, ...] or mapping of them
            The frame that the step led to: one frame of each environment, not a stack. At the end
            of an episode, too, it is not the one that a reset returned.
        terminated, truncated : bool [M]
            Whether the episode ended in a terminal state, and whether it was cut off. If both are
            true, the episode counts as terminated.
        env : None, int or distinct ints [M]
            The environments that stepped. None means all of them, and then M = n_envs.
        **fields
            Action, reward and every other field of the buffer except discount, terminated and
            truncated. Each has the leading axis M, in the order of ``env``; if M is 1, the leading
            axis may be left out.

        Returns
        -------
        int64 [B]
            The slots of the transitions, by environment in the order of ``env``, then by first
            step.

        Raises
        ------
        FieldError, ValueError, TypeError
            If an argument does not fit, an environment has not been reset since its last episode,
            or the priorities are wrong. The step has not been taken then, and nothing has been
            written.

        Notes
        -----
        The cost is O(M · n_step + bytes of the frames): some 80 microseconds for a few
        environments. Other threads may use the buffer meanwhile, but not this writer. In
        gymnasium's next-step autoreset mode the step after the end of an episode is not a real one:
        use ``env`` to leave its environment out, and give ``reset`` the frame that this step
        returned.
        """
        streams = streams_of(env, self.n_envs)
        n = len(streams)
        refuse_unknown(fields, self._step_fields)
        frames = self._frames("next_frame", next_frame, n)
        idle = streams[~self._has_begun[streams]]
        if len(idle):
            raise ValueError(
                f"environment {idle[0]} has no episode: "
                "call reset with its first frame before its first step"
            )
        history = self._history[streams]
        ends = {
            "terminated": as_column("terminated", FLAG, terminated, n),
            "truncated": as_column("truncated", FLAG, truncated, n),
        }
        made = {"observation": history, "next_observation": history, "next_row": np.arange(n)}
        self._rows.written = self._rows.none, None
        self._folder.add(**made, **fields, **ends, env=streams)
        # From here on the step has been taken.
        rows, priorities = self._rows.written
        which = rows["next_row"]
        n_transitions = len(which)
        is_alone = np.ones(n, np.bool_)  # [M] the environments whose frame ends no transition
        is_alone[which] = False
        if n_transitions != n or is_alone.any():
            which = np.append(which, np.flatnonzero(is_alone))
            frames = [column[which] for column in frames]
            if priorities is None and len(which) > n_transitions:
                priorities = np.full(n_transitions, LARGEST_SEEN)
            if priorities is not None:
                priorities = _padded(priorities, len(which))
        index, handles = self._write(frames + self._transitions(rows, len(which)), priorities)
        newest = np.empty((n, 2), np.int64)
        newest[which] = handles
        self._history[streams] = np.concatenate([history[:, 1:], newest[:, None]], axis=1)
        self._has_begun[streams[ends["terminated"] | ends["truncated"]]] = False
        return index[:n_transitions]

    def state_dict(self) -> dict[str, npt.NDArray[Any]]:
        """Return for `load_state_dict` which frames were seen last, and the pending windows.

        They are arrays by name, copies. Frames are named by their rows of the buffer: the state is
        good beside a buffer that was saved at the same moment.
        """
        return copies(self._state(), self._folder._settings())

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go on with the episodes of another writer of such steps, beside the same rows.

        Raises
        ------
        ValueError
            If it was a writer of other steps, or made otherwise. Nothing has been changed then.

        Notes
        -----
        The cost is O(n_envs * (stack + n_step)). Other threads may use the buffer meanwhile, but
        not this writer.
        """
        take_up_arrays(self._state(), self._folder._settings(), state)

    def _state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all that changes from step to step."""
        return {
            "history": self._history,
            "has_begun": self._has_begun,
            **self._folder._state(),
        }

    def _frames(self, name: str, value: Any, n: int) -> list[npt.NDArray[Any]]:
        """Return the checked frames of n environments, one column for each part of a frame."""
        given = {name: value}
        try:
            refuse_unknown(given, {name: self._buffer.fields["frame"]})
            parts = [look_up(given, (name, *path[1:])) for path, _ in self._frame]
        except KeyError as error:
            raise FieldError(
                f"field {error.args[0]} is missing: every part of a frame must be given"
            ) from None
        return [
            as_column(name_of((name, *path[1:])), field, part, n)
            for (path, field), part in zip(self._frame, parts, strict=True)
        ]

    def _transitions(self, rows: dict[str, Any], n: int) -> list[npt.NDArray[Any]]:
        """Return the columns behind the frames: those of the windows, then zeros up to n rows."""
        columns = [self._rows.histories(rows), *(look_up(rows, path) for path in self._others)]
        return [_padded(column, n) for column in columns]

    def _write(
        self, columns: list[npt.NDArray[Any]], priorities: npt.NDArray[np.float64] | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Add rows, and return their slots [B] and handles [B, 2]."""
        n = len(columns[0])
        handles = np.empty(n, HANDLE_DTYPE)
        index = self._buffer._writer.add(
            dict(zip(self._buffer._names, columns, strict=True)),
            checked=priorities,
            handles=handles,
        )
        return index, handles.view(np.int64).reshape(n, 2)


WINDOW_FIELDS = ("observation", "next_observation", "next_row")  # the buffer does not have these


class _WindowBuffer:
    """Stands in for the buffer of an NStepWriter, and keeps the windows that one step completes.

    The FrameStackWriter takes them from here, and writes them together with the frames.
    """

    def __init__(self, buffer: FrameReplayBuffer, priority: PriorityFunction | None) -> None:
        fields = buffer.fields
        self.history: Field = fields["history"]
        observation = Field((buffer.stack, 2), np.int64)
        own = {
            "observation": observation,
            "next_observation": observation,
            "next_row": Field((), np.int64),
        }
        self.fields = {
            **{name: field for name, field in fields.items() if name not in ("frame", "history")},
            **own,
        }
        self.capacity = buffer.capacity
        self.none = map_leaves(self.fields, lambda f: np.empty((0, *f.shape), f.dtype))
        self.written: tuple[dict[str, Any], npt.NDArray[np.float64] | None] = self.none, None
        self._buffer = buffer
        self._priority = priority

    def add(self, /, **rows: Any) -> npt.NDArray[np.int64]:
        """Keep the windows; raise, and keep nothing, if their priorities are wrong."""
        n = len(rows["next_row"])
        priorities = None
        if self._priority is not None:
            given = {name: column for name, column in rows.items() if name not in WINDOW_FIELDS}
            priorities = self._buffer._writer.priorities(self._priority(given), n)
        self.written = rows, priorities
        return np.empty(n, np.int64)

    def histories(self, rows: dict[str, Any]) -> npt.NDArray[np.int64]:
        """Return the histories of these windows, [B, width - 1, 2]."""
        history: npt.NDArray[np.int64] = rows["observation"]
        if history.shape[1:] != self.history.shape:
            # The next observation consists of the last step's observation, except its oldest frame,
            # and of the row's own frame.
            history = np.concatenate([history, rows["next_observation"][:, 1:]], axis=1)
        return history


def _check_frames(stack: Any, n: int, n_frames: int) -> None:
    """Refuse an array that has not so many stacks of so many frames."""
    shape = np.shape(stack)
    if shape[:2] != (n, n_frames):
        raise FieldError(
            f"stack must have {n_frames} frames for each of {n} environments, so a shape that "
            f"begins with ({n}, {n_frames}), got {shape}"
        )


def _nth(stack: npt.NDArray[Any], j: int) -> npt.NDArray[Any]:
    """Return one frame of each stack."""
    return np.asarray(stack)[:, j]


def _padded(column: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """Return a column with zeros appended up to n rows."""
    if len(column) == n:
        return column
    rest = np.zeros((n - len(column), *column.shape[1:]), column.dtype)
    return np.concatenate([column, rest])
