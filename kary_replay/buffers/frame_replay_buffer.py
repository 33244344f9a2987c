"""The replay buffer for stacks of frames, which keeps every frame once.

A row holds one frame, the newest, with the transition that led to it, and the handles of the rows
that hold the others:

    slot        0      1      2      3      4
    frame       a0     b0     a1     b1     a2
    history     –      –      000    111    002          what precedes next_observation's frame
    drawn                     a0a0a0 b0b0b0 a0a0a1       observation
                              a0a0a1 b0b0b1 a0a1a2       next_observation

Here stack = 3, n_step = 1, and episodes of two environments are added in turns.

Slots 0 and 1 hold the first frames of their episodes: no transition led there, so they are never
drawn (their mass is 0).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..core.frame_reader import FrameReader
from ..errors import FieldError
from ..fields import Fields, checked_fields, fields_of_space, leaves_of, map_leaves
from ..types import Batch, Field, UniformShare
from ..validation import as_count
from .prioritized_replay_buffer import PrioritizedReplayBuffer

__all__ = ["FrameReplayBuffer", "frames_of_row"]

Self = TypeVar("Self", bound="FrameReplayBuffer")

TAKEN = ("frame", "frames", "next_frame", "next_row", "history", "observation", "next_observation")
COMPUTED = {
    "reward": Field((), np.float32),
    "discount": Field((), np.float32),
    "terminated": Field((), np.bool_),
}
PADDINGS = ("repeat", "zeros")
MAX_AXES = 30  # of a frame: a batch of stacks has two more


class FrameReplayBuffer(PrioritizedReplayBuffer):
    """A prioritized ring of transitions whose observations are stacks of frames, each stored once.

    Parameters
    ----------
    capacity : int
        Rows kept, at least stack + n_step. A transition takes one; so does the first frame of an
        episode, and n_step - 1 more per episode for n-step returns. Then the oldest is overwritten.
    frame : Field, or mapping of str to Field
        One frame; of a dict observation, every part is stacked.
    fields : mapping of str to Field
        What else a transition has: ``action``, and more as you like. The fields reward and discount
        (float32) and terminated (bool) are added where they are not given.
    stack : int
        Frames of an observation, at least 1.
    n_step : int
        Steps that the writers fold into one transition.
    padding : {"repeat", "zeros"}
        What stands in for the frames before an episode's first: that first frame, or zeros.
    alpha, beta, priority_epsilon, seed, shared, storage_directory, uniform_share
        As for PrioritizedReplayBuffer; ``alpha=0`` draws uniformly.

    Raises
    ------
    ValueError, TypeError, MemoryError, OSError
        As for PrioritizedReplayBuffer.

    Notes
    -----
    Rows come from `FrameStackWriter`s, as many as you like, of any threads and processes; ``add``
    raises. A row takes the bytes of a frame and of the fields, and 16 · stack (for n_step > 1:
    16 · (2 · stack - 1)) plus about 34 more. That is 7.2 GB for 1e6 rows of 84 × 84 pixels, 4 of
    them an observation.

    ``len`` counts all rows, also those that only hold a frame. ``n_added`` counts transitions.

    A transition is drawn as long as all its frames are there. The history of the oldest rows is
    overwritten before the rows themselves, so about n_envs · (stack + n_step) rows are not drawn
    any more. ``reset`` forgets frames, too. Begin every episode anew after it, by the writers'
    ``reset``: transitions that refer to forgotten frames are never drawn.

    Threads and processes may do at once what they may with a PrioritizedReplayBuffer. No batch ever
    has a frame in a place that is not its own, for a frame is named by its slot's generation.

    Mnih et al. (2015), Human-level control through deep reinforcement learning: stacks of 4 frames
    of 84 × 84, 1e6 of them.

    Examples
    --------
    >>> import kary_replay as kr
    >>> frame, fields = kr.Field((84, 84), "uint8"), {"action": kr.Field((), "int64")}
    >>> buffer = kr.FrameReplayBuffer(1000, frame, fields, stack=4, seed=0)
    >>> writer = kr.FrameStackWriter(buffer, n_envs=2, gamma=0.99)
    >>> writer.reset(np.zeros((2, 84, 84), np.uint8))
    >>> writer.add(action=[0, 1], reward=[0.5, 1.0], next_frame=np.ones((2, 84, 84), np.uint8),
    ...            terminated=[False, True], truncated=[False, False])
    array([2, 3])
    >>> batch = buffer.sample(32)
    >>> batch.observation.shape, batch.next_observation.shape
    ((32, 4, 84, 84), (32, 4, 84, 84))
    >>> buffer.update_priorities(batch.handle, batch.reward - 0.5)
    32
    """

    def __init__(
        self,
        capacity: int,
        frame: Field | Fields,
        fields: Fields,
        stack: int = 4,
        n_step: int = 1,
        padding: str = "repeat",
        alpha: float = 0.6,
        beta: float = 0.4,
        priority_epsilon: float = 1e-6,
        seed: int | None = None,
        shared: bool = False,
        storage_directory: str | os.PathLike[str] | None = None,
        uniform_share: UniformShare = 0.0,
    ) -> None:
        self._options = _checked_window(as_count("capacity", capacity), stack, n_step, padding)
        rows = _row_fields(frame, fields, frames_of_row(self.stack, self.n_step))
        super().__init__(
            capacity,
            rows,
            alpha=alpha,
            beta=beta,
            priority_epsilon=priority_epsilon,
            seed=seed,
            shared=shared,
            storage_directory=storage_directory,
            uniform_share=uniform_share,
        )

    @classmethod
    def from_spaces(
        cls: type[Self],
        capacity: int,
        observation_space: Any,
        action_space: Any,
        *,
        extra_fields: Fields | None = None,
        **kwargs: Any,
    ) -> Self:
        """Return a buffer for a gymnasium environment; see ReplayBuffer.from_spaces.

        Parameters
        ----------
        capacity, action_space, extra_fields
            As there.
        observation_space : gymnasium.Space
            Of one frame: of the environment without the wrapper that stacks frames.
        **kwargs
            For the constructor.

        Returns
        -------
        FrameReplayBuffer
            With the fields action, reward, discount, terminated and the extra ones.

        Raises
        ------
        TypeError
            For a space without a fixed shape and dtype.
        """
        frame = fields_of_space(observation_space, "observation_space")
        return cls(
            capacity,
            frame,
            {"action": fields_of_space(action_space, "action_space"), **(extra_fields or {})},
            **kwargs,
        )

    @classmethod
    def _checked_options(
        cls, capacity: int, fields: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        if options.keys() != {"stack", "n_step", "padding"}:
            raise ValueError(f"options must be stack, n_step and padding, got {options!r}")
        checked = _checked_window(capacity, **options)
        others = {name: field for name, field in fields.items() if name not in ("frame", "history")}
        rows = _row_fields(
            fields.get("frame"), others, frames_of_row(checked["stack"], checked["n_step"])
        )
        if list(fields.items()) != list(rows.items()):
            raise ValueError(f"fields must be, for {checked}, in this order: {rows}, got {fields}")
        return checked

    def _new_reader(self) -> FrameReader:
        n_frame_fields = sum(path[0] == "frame" for path in self._paths)
        return FrameReader(self._slots, n_frame_fields, frames_of_row(self.stack, self.n_step))

    @property
    def stack(self) -> int:
        """Frames of an observation."""
        return int(self._options["stack"])

    @property
    def n_step(self) -> int:
        """Steps that the writers fold into one transition."""
        return int(self._options["n_step"])

    @property
    def padding(self) -> str:
        """What stands in for frames before an episode's first: "repeat" (that frame) or "zeros"."""
        return str(self._options["padding"])

    def __len__(self) -> int:
        """Return the number of rows kept, those that only hold a frame included."""
        return super().__len__()

    def add(self, /, **_: Any) -> NoReturn:
        """Raise TypeError: rows refer to each other, and come from a `FrameStackWriter`."""
        raise TypeError(
            "the rows of a FrameReplayBuffer come from a FrameStackWriter: use its reset and add"
        )

    def sample(
        self,
        batch_size: int,
        *,
        stratified: bool = True,
        unique: bool = False,
        out: Batch | Mapping[str, Any] | None = None,
    ) -> Batch:
        """Draw ``batch_size`` transitions with probability mass_i / total.

        Parameters
        ----------
        batch_size, stratified, unique
            As for PrioritizedReplayBuffer.sample.
        out : Batch or mapping, optional
            Where the batch goes, as for ReplayBuffer.sample: ``frames`` and the fields.

        Returns
        -------
        Batch
            ``observation`` and ``next_observation`` [B, stack, ...], oldest frame first, then the
            fields, ``importance_weight``, ``index`` and ``handle``, and last ``frames``:
            [B, stack + 1, ...], or for n_step > 1 [B, 2 · stack, ...]. ``observation`` is
            ``frames[:, :stack]`` and ``next_observation`` is ``frames[:, -stack:]``. Both are
            views, so move ``frames`` alone to a GPU.

        Raises
        ------
        EmptyBufferError
            If there is no transition with all its frames.
        ValueError, TypeError
            As for PrioritizedReplayBuffer.sample.

        Notes
        -----
        O(B · (bytes of the frames + K · log_K(capacity))), with the GIL released and, as a rule, no
        lock: only a transition whose frames are gone loses its mass under the lock, and another one
        is drawn.
        """
        return super().sample(batch_size, stratified=stratified, unique=unique, out=out)

    def _arrays_of(self, out: Batch | Mapping[str, Any]) -> dict[str, Any]:
        if not isinstance(out, (Batch, Mapping)):
            return super()._arrays_of(out)
        given = dict(out)
        for view in ("observation", "next_observation"):
            if given.pop(view, None) is not None and "frames" not in given:
                raise FieldError(f"out: {view} is a view of frames: give frames")
        for name in ("frame", "history"):
            if name in given:
                raise FieldError(f"field {name} is unknown: a batch has frames")
        if "frames" in given:
            given["frame"] = given.pop("frames")
        return super()._arrays_of(given)

    def _batch(self, columns: dict[str, Any]) -> Batch:
        """Return what the reader drew, as observations."""
        drawn = vars(super()._batch(columns))
        frames = drawn.pop("frame")
        del drawn["history"]
        stack = self.stack
        return Batch(
            {
                "observation": map_leaves(frames, lambda part: part[:, :stack]),
                "next_observation": map_leaves(frames, lambda part: part[:, -stack:]),
                **drawn,
                "frames": frames,
            }
        )


def _checked_window(capacity: int, stack: Any, n_step: Any, padding: Any) -> dict[str, Any]:
    """Return these as the buffer's options, or raise."""
    stack, n_step = as_count("stack", stack), as_count("n_step", n_step)
    if stack + n_step > capacity:
        limit = f"capacity, {capacity}: a transition needs so many rows"
        raise ValueError(f"stack + n_step must be at most {limit}, got {stack} + {n_step}")
    if padding not in PADDINGS:
        raise ValueError(f"padding must be one of {', '.join(PADDINGS)}, got {padding!r}")
    return {"stack": stack, "n_step": n_step, "padding": padding}


def frames_of_row(stack: int, n_step: int) -> int:
    """Return how many frames are drawn with a row.

    The two observations of one step overlap. Those of several steps are drawn separately, for
    windows of less than n_step steps overlap elsewhere.
    """
    return stack + 1 if n_step == 1 else 2 * stack


def _row_fields(frame: Any, fields: Any, width: int) -> dict[str, Any]:
    """Return the fields of a row, the frame's first, then the history."""
    others = checked_fields(fields, "fields")
    taken = [name for name in others if name in TAKEN]
    if taken:
        raise ValueError(
            f"fields must not be named {', '.join(TAKEN)}: "
            f"the writer makes them, got {', '.join(taken)}"
        )
    if "action" not in others:
        raise ValueError(f"fields must name action, got {', '.join(others)}")
    frames = frame if isinstance(frame, Field) else checked_fields(frame, "frame")
    for _, field in leaves_of({"frame": frames}):
        if len(field.shape) > MAX_AXES:
            raise ValueError(f"frame must have at most {MAX_AXES} axes, got {len(field.shape)}")
    return {"frame": frames, "history": Field((width - 1, 2), np.int64), **COMPUTED, **others}
