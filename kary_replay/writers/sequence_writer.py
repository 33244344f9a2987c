"""The writer that cuts episodes into the sequences of sequences.py while the environments step."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..fields import leaves_of, map_leaves, name_of
from ..types import Field
from ..validation import as_count
from .sequences import PER_ROW, as_burn_in
from .steps import (
    FLAGS,
    Buffer,
    PriorityFunction,
    StepReader,
    StepWriter,
    fields_of,
)

__all__ = ["SequenceWriter"]


class SequenceWriter(StepWriter):
    """Cuts the steps of ``n_envs`` environments into sequences and adds them to a buffer.

    Parameters
    ----------
    buffer : ReplayBuffer or PrioritizedReplayBuffer
        A buffer whose fields ``sequence_fields`` made. Its capacity counts sequences.
    n_envs : int
        The number of environments, at least 1. The steps of each are one stream.
    length : int
        The number of steps in a sequence, burn-in included, as ``sequence_fields`` was given it.
    period : int
        The number of steps from the start of one sequence to the start of the next, from 1 to
        length. Sequences overlap by length - period steps.
    burn_in : int
        The number of first steps of a sequence that are not learned from, from 0 to length - 1.
    pad_start : bool
        Begin the first sequence of an episode burn_in steps before it, with padding, so that its
        first steps are learned from, too. The mask is then false where the padding is, and a
        learner that reads the burn-in begins anew behind it: the stored recurrent state is that of
        the first real step.
    priority : None or function
        A function that is given the rows about to be written (a dict of arrays with a leading axis
        B, as ``buffer.add`` takes them) and returns their raw priorities, float [B], above 0. With
        None a new row gets the largest priority seen.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range or of the wrong kind, or the fields of the buffer are not
        those of such sequences. Nothing has been created then.
    MemoryError
        If the system refuses the memory, about ``n_envs`` times the bytes of a row.

    Notes
    -----
    R2D2 has length = 80, period = 40 and burn_in = 40. With period ≤ length - burn_in every step is
    learned from, except the first burn_in steps of each episode; with pad_start these are as well.
    A last sequence that ends within its burn-in has nothing to learn from and is not written, so
    without pad_start an episode of at most burn_in steps leaves no row.

    One thread at a time may use a writer. Any number of writers, each with its own environments,
    may write to one buffer at once, while other threads sample from it. Unfinished sequences belong
    to the writer: the buffer does not save them, but `state_dict` has them.

    Source: Kapturowski et al. (2019), Recurrent experience replay in distributed reinforcement
    learning, section 2.3 (overlap, never across episodes) and section 3 (stored state, burn-in).

    Examples
    --------
    >>> import kary_replay as kr
    >>> step = {"observation": kr.Field((2,), "float32"), "reward": kr.Field((), "float32")}
    >>> buffer = kr.ReplayBuffer(100, kr.sequence_fields(step, length=80))
    >>> writer = kr.SequenceWriter(buffer, n_envs=2, length=80, period=40, burn_in=40)
    >>> writer.add(
    ...     observation=[[0, 1], [2, 3]],
    ...     reward=[0.5, 1.0],
    ...     terminated=[False, False],
    ...     truncated=[False, False],
    ... )
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
        *,
        pad_start: bool = False,
    ) -> None:
        self._length = as_count("length", length)
        self._period = as_count("period", period)
        if self._period > self._length:
            raise ValueError(
                f"period must be at most length, {length}, or steps would be left out, got {period}"
            )
        self._burn_in = as_burn_in(burn_in, self._length)
        if not isinstance(pad_start, (bool, np.bool_)):
            raise TypeError(f"pad_start must be True or False, got {pad_start!r}")
        self._n_before = self._burn_in if pad_start else 0  # steps of padding before an episode
        fields = fields_of(buffer)
        step = _step_fields(fields, self._length)
        given = {name: step[name] for name in step if name not in FLAGS}
        super().__init__(buffer, fields, StepReader(given, n_envs, computed="mask"), priority)
        # Step t of an episode, padding included, lies in slot t % length: when it arrives, no
        # unfinished sequence needs step t - length any more. In the same way the state of the
        # sequence that starts at step s lies in slot s // period % n_open.
        self._n_open = -(-self._length // self._period)
        self._ring = {}
        for path, field in leaves_of(step):
            n_slots = self._n_open if path[0] == "recurrent_state" else self._length
            self._ring[path] = np.zeros((self.n_envs, n_slots, *field.shape), field.dtype)

    @property
    def length(self) -> int:
        """The number of steps in a sequence, burn-in included."""
        return self._length

    @property
    def period(self) -> int:
        """The number of steps from the start of one sequence to the start of the next."""
        return self._period

    @property
    def burn_in(self) -> int:
        """The number of first steps that are not learned from; see split_burn_in."""
        return self._burn_in

    @property
    def pad_start(self) -> bool:
        """Whether the first sequence of an episode begins burn_in steps before it."""
        return self._n_before > 0

    def __repr__(self) -> str:
        sizes = f"length={self.length}, period={self.period}, burn_in={self.burn_in}"
        sizes += ", pad_start=True" if self.pad_start else ""
        return f"SequenceWriter(n_envs={self.n_envs}, {sizes}, buffer={self._buffer!r})"

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
            Whether the episode ended in a terminal state, and whether it was cut off. They are
            stored if they are fields of the buffer.
        env : None, int or distinct ints [M]
            The environments that stepped. None means all of them, and then M = n_envs.
        **fields
            Every field of a step. Each has the leading axis M, in the order of ``env``; if M is 1,
            the leading axis may be left out. ``recurrent_state``, if it is a field, is the state
            from which the network saw this observation.

        Returns
        -------
        int64 [B], or None from a ShardedReplayBuffer, whose rows have no slots
            The slots of the buffer that were written, in the order of ``env``: at most one for each
            environment that stepped.

        Raises
        ------
        FieldError, ValueError, TypeError
            If an argument does not fit, or the priorities are wrong. The step has not been taken
            then, and nothing has been written.

        Notes
        -----
        The cost is O(bytes of the steps and rows). Other threads may use the buffer meanwhile, but
        not this writer. In gymnasium's next-step autoreset mode the step after the end of an
        episode is not a real one: use ``env`` to leave its environment out.
        """
        step = self._reader.read(env, fields, terminated, truncated)
        streams, t = step.streams, self._n_steps[step.streams] + self._n_before
        starts = np.flatnonzero(t % self._period == 0)
        first = np.flatnonzero(t == self._n_before) if self._n_before else ()
        flags = {("terminated",): step.terminated, ("truncated",): step.truncated}
        columns = step.columns | flags
        for path, ring in self._ring.items():
            if path[0] == "recurrent_state":
                slots = t[starts] // self._period % self._n_open
                ring[streams[starts], slots] = columns[path][starts]
                if len(first):
                    n_begun = -(-self._n_before // self._period)  # sequences, in the padding
                    ring[streams[first], :n_begun] = columns[path][first, None]
            else:
                ring[streams, t % self._length] = columns[path]
        end, ended = t + 1, step.terminated | step.truncated
        # [M] the first step of the oldest unfinished sequence; once the episode has ended, this
        # sequence contains any later one
        start = -(-np.maximum(end - self._length, 0) // self._period) * self._period
        n_steps = end - start
        ready = np.flatnonzero((n_steps == self._length) | (ended & (n_steps > self._burn_in)))
        index = self._write(streams[ready], start[ready], n_steps[ready])
        # Up to here only slots that no sequence needs have changed, so the step has not been taken
        # if the buffer refuses the rows.
        self._n_steps[streams] = np.where(ended, 0, end - self._n_before)
        return index

    def _state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all that changes from step to step."""
        return {"n_steps": self._n_steps} | {
            f"last {name_of(path)}": ring for path, ring in self._ring.items()
        }

    def _settings(self) -> dict[str, float]:
        """Return the arguments on which the meaning of a state depends."""
        names = "length", "period", "burn_in", "pad_start"
        return {name: getattr(self, name) for name in names}

    def _write(
        self,
        streams: npt.NDArray[np.int64],  # [B]
        start: npt.NDArray[np.int64],  # [B] first step, from that of the padding before an episode
        n_steps: npt.NDArray[np.int64],  # [B] 1 to length, with that padding
    ) -> npt.NDArray[np.int64]:
        """Add B sequences to the buffer."""
        if not len(streams):
            return np.empty(0, np.int64)
        nth = np.arange(self._length)
        t = start[:, None] + nth  # [B, length]
        slot = t % self._length
        mask = (nth < n_steps[:, None]) & (t >= self._n_before)
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
        return self._add_rows(columns)


def _step_fields(fields: dict[str, Any], length: int) -> dict[str, Any]:
    """Return the fields of a step, with any recurrent state; raise if the length does not fit."""
    use = f"make the fields of the buffer with sequence_fields(fields, {length})"
    if fields.get("mask") != Field((length,), np.bool_):
        raise ValueError(
            f"buffer must have a field mask of {length} bools, got {fields.get('mask')}: {use}"
        )
    for path, field in leaves_of(fields):
        if path[0] not in PER_ROW and field.shape[:1] != (length,):
            raise ValueError(
                f"buffer has {name_of(path)} of shape {field.shape}, "
                f"which is not of {length} steps: {use}"
            )
    for name in FLAGS:
        if name in fields and fields[name] != Field((length,), np.bool_):
            raise ValueError(
                f"buffer must have {name} as one bool per step, got {fields[name]}: {use}"
            )
    steps = {name: field for name, field in fields.items() if name not in PER_ROW}
    step: dict[str, Any] = map_leaves(steps, lambda field: Field(field.shape[1:], field.dtype))
    if "recurrent_state" in fields:
        step["recurrent_state"] = fields["recurrent_state"]
    return step
