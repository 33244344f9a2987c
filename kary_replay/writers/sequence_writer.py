"""Writes the sequences of sequences.py while the environments step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..fields import leaves_of, map_leaves, name_of
from ..types import Field
from ..validation import as_count
from .sequences import PER_ROW, as_burn_in
from .steps import Buffer, PriorityFunction, StepReader, checked_priority, fields_of, write

__all__ = ["SequenceWriter"]

FLAGS = ("terminated", "truncated")


class SequenceWriter:
    """Cuts the steps of ``n_envs`` environments into sequences, and adds these to a buffer.

    Parameters
    ----------
    buffer : ReplayBuffer or PrioritizedReplayBuffer
        Whose fields are those of ``sequence_fields``; its capacity counts sequences.
    n_envs : int
        Environments, at least 1. The steps of each are one stream.
    length : int
        Steps per sequence, burn-in included, at least 1; the one of the buffer's fields.
    period : int
        A sequence starts every so many steps, 1 to length; sequences overlap by length - period.
    burn_in : int
        First steps of each sequence that are not learned from, 0 to length - 1.
    priority : None or function
        Of the rows about to be written (dict of arrays with a leading axis B, as ``buffer.add``
        takes them), giving their raw priorities, float [B], above 0. None: the largest priority
        seen.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range or of the wrong kind, or the buffer's fields are none of such
        sequences. Nothing is created then.
    MemoryError
        If the system refuses the memory, about ``n_envs`` times the bytes of a row.

    Notes
    -----
    R2D2 has length = 80, period = 40, burn_in = 40. With period ≤ length - burn_in every step is
    learned from, but for the first burn_in ones of each episode. A last sequence of at most burn_in
    real steps has nothing to learn from and is not written: an episode of at most burn_in steps
    leaves no row.

    One thread at a time may use a writer. Any number of writers, each with its own environments,
    may write to one buffer at once, while other threads sample from it. Unfinished sequences are
    the writer's: the buffer does not save them.

    Kapturowski et al. (2019), Recurrent experience replay in distributed reinforcement learning,
    section 2.3 (overlap, never across episodes) and section 3 (stored state and burn-in).

    Examples
    --------
    >>> import kary_replay as kr
    >>> step = {"observation": kr.Field((2,), "float32"), "reward": kr.Field((), "float32")}
    >>> buffer = kr.ReplayBuffer(100, kr.sequence_fields(step, length=80))
    >>> writer = kr.SequenceWriter(buffer, n_envs=2, length=80, period=40, burn_in=40)
    >>> writer.add(observation=[[0, 1], [2, 3]], reward=[0.5, 1.0], terminated=[False, False], truncated=[False, False])
    array([], dtype=int64)
    """

    def __init__(
        self,
        buffer: Buffer,
        n_envs: int,
        length: int,
        period: int,
        burn_in: int = 0,
        priority: PriorityFunction | None = None,
    ) -> None:
        self._length = as_count("length", length)
        self._period = as_count("period", period)
        if self._period > self._length:
            raise ValueError(
                f"period must be at most length, {length}, or steps would be left out, got {period}"
            )
        self._burn_in = as_burn_in(burn_in, self._length)
        self._fields = fields_of(buffer)
        step = _step_fields(self._fields, self._length)
        self._buffer = buffer
        self._priority = checked_priority(priority, buffer)
        self._reader = StepReader(
            {name: step[name] for name in step if name not in FLAGS}, n_envs, computed="mask"
        )
        n_envs = self._reader.n_envs
        # Step t of an episode is in slot t % length: when it arrives, no unfinished sequence needs
        # step t - length any more. The state of the sequence that starts at step s is in slot s /
        # period % n_open likewise.
        self._n_open = -(-self._length // self._period)
        self._ring = {
            path: np.zeros(
                (
                    n_envs,
                    self._n_open if path[0] == "recurrent_state" else self._length,
                    *field.shape,
                ),
                field.dtype,
            )
            for path, field in leaves_of(step)
        }
        self._n_steps = np.zeros(n_envs, np.int64)  # of the current episode

    @property
    def n_envs(self) -> int:
        """Environments."""
        return self._reader.n_envs

    @property
    def length(self) -> int:
        """Steps per sequence, burn-in included."""
        return self._length

    @property
    def period(self) -> int:
        """A sequence starts every so many steps."""
        return self._period

    @property
    def burn_in(self) -> int:
        """First steps of each sequence that are not learned from; see split_burn_in."""
        return self._burn_in

    def __repr__(self) -> str:
        sizes = f"n_envs={self.n_envs}, length={self.length}, period={self.period}, burn_in={self.burn_in}"
        return f"SequenceWriter({sizes}, buffer={self._buffer!r})"

    def add(
        self,
        /,
        *,
        terminated: npt.ArrayLike,
        truncated: npt.ArrayLike,
        env: npt.ArrayLike | None = None,
        **fields: Any,
    ) -> npt.NDArray[np.int64]:
        """Take one step of every environment, or of some, and add the sequences that it completes.

        Parameters
        ----------
        terminated, truncated : bool [M]
            Whether the episode ended in a terminal state, or was cut off. Stored if they are fields
            of the buffer.
        env : None, int or distinct ints [M]
            Which environments stepped. None: all, M = n_envs.
        **fields
            Every field of a step, each with the leading axis M, in the order of ``env``; where M is
            1 the leading axis may be left out. ``recurrent_state``, if it is a field, is the state
            from which the network saw this observation.

        Returns
        -------
        int64 [B]
            The buffer's slots written, in the order of ``env``: at most one per environment that
            stepped.

        Raises
        ------
        FieldError, ValueError, TypeError
            If an argument does not fit, or the priorities are wrong. The step has not been taken
            then, and nothing is written.

        Notes
        -----
        O(bytes of the steps and rows). Other threads may use the buffer, not this writer. In
        gymnasium's next-step autoreset mode the step after an episode's end is no real one: leave
        its environment out, by ``env``.
        """
        step = self._reader.read(env, fields, terminated, truncated)
        streams, t = step.streams, self._n_steps[step.streams]
        starts = np.flatnonzero(t % self._period == 0)
        columns = dict(zip(self._reader.paths, step.columns, strict=True))
        columns.update({("terminated",): step.terminated, ("truncated",): step.truncated})
        for path, ring in self._ring.items():
            if path[0] == "recurrent_state":
                ring[streams[starts], t[starts] // self._period % self._n_open] = columns[path][
                    starts
                ]
            else:
                ring[streams, t % self._length] = columns[path]
        end, ended = t + 1, step.terminated | step.truncated
        # [M] first step of the oldest unfinished sequence; any later one lies within it once the
        # episode has ended
        start = -(-np.maximum(end - self._length, 0) // self._period) * self._period
        n_real = end - start
        ready = np.flatnonzero((n_real == self._length) | (ended & (n_real > self._burn_in)))
        index = self._write(streams[ready], start[ready], n_real[ready])
        # Up to here only slots that nobody needs have changed: had the buffer refused, this step
        # would not have been taken.
        self._n_steps[streams] = np.where(ended, 0, end)
        return index

    def reset(self, env: npt.ArrayLike | None = None) -> None:
        """Drop the unfinished sequences of some environments, as of one that crashed; their next step begins an episode.

        Parameters
        ----------
        env : None, int or distinct ints
            Which. None: all.

        Raises
        ------
        ValueError, TypeError
            If there is no such environment. Nothing is dropped then.

        Notes
        -----
        O(n_envs). After an episode's end nothing is unfinished: no call is needed there.
        """
        self._n_steps[self._reader.streams_of(env)] = 0

    def _write(
        self,
        streams: npt.NDArray[np.int64],  # [B]
        start: npt.NDArray[np.int64],  # [B] first step
        n_real: npt.NDArray[np.int64],  # [B] steps, 1 to length
    ) -> npt.NDArray[np.int64]:
        """Add B sequences to the buffer."""
        if not len(streams):
            return np.empty(0, np.int64)
        nth = np.arange(self._length)
        slot = (start[:, None] + nth) % self._length  # [B, length]
        mask = nth < n_real[:, None]
        columns = []
        for path, _ in leaves_of(self._fields):
            if path[0] == "mask":
                columns.append(mask)
            elif path[0] == "recurrent_state":
                columns.append(self._ring[path][streams, start // self._period % self._n_open])
            else:
                column = self._ring[path][streams[:, None], slot]
                column[~mask] = 0
                columns.append(column)
        return write(self._buffer, self._fields, columns, self._priority)


def _step_fields(fields: dict[str, Any], length: int) -> dict[str, Any]:
    """Return the fields of one step and of the recurrent state, if ``fields`` are those of sequences of ``length``."""
    use = f"make the fields of the buffer with sequence_fields(fields, {length})"
    if fields.get("mask") != Field((length,), np.bool_):
        raise ValueError(
            f"buffer must have a field mask of {length} bools, got {fields.get('mask')}: {use}"
        )
    for path, field in leaves_of(fields):
        if path[0] not in PER_ROW and field.shape[:1] != (length,):
            raise ValueError(
                f"buffer has {name_of(path)} of shape {field.shape}, which is not of {length} steps: {use}"
            )
    for name in FLAGS:
        if name in fields and fields[name] != Field((length,), np.bool_):
            raise ValueError(
                f"buffer must have {name} as one bool per step, got {fields[name]}: {use}"
            )
    steps = {name: field for name, field in fields.items() if name not in PER_ROW}
    step = map_leaves(steps, lambda field: Field(field.shape[1:], field.dtype))
    return (
        {**step, "recurrent_state": fields["recurrent_state"]}
        if "recurrent_state" in fields
        else step
    )
