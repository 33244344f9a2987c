"""Sequences for recurrent networks, where each row of the buffer is a stretch of one episode.

    step           0   1   2   3   4   5   6 (ends the episode)       length = 4, period = 2
    sequence 0     [0   1   2   3]                                    mask 1 1 1 1
    sequence 1             [2   3   4   5]                            mask 1 1 1 1
    sequence 2                     [4   5   6   –]                    mask 1 1 1 0

A sequence starts every ``period`` steps, until one of them reaches the end of the episode. That one
is padded with zeros, and the mask says which steps are real. (The alternative is to shift the last
sequence back until it is full. It replays the last steps more often than others, and it needs the
recurrent state of every step. Acme pads by default, too.)

>>> import kary_replay as kr
>>> step = {
...     "observation": kr.Field((), "int64"),
...     "reward": kr.Field((), "float32"),
...     "terminated": kr.Field((), "bool"),
... }
>>> fields = kr.sequence_fields(step, length=4, recurrent_state=kr.Field((8,), "float32"))
>>> for name in "observation", "mask", "recurrent_state":
...     print(name, fields[name].shape, fields[name].dtype)
observation (4,) int64
mask (4,) bool
recurrent_state (8,) float32
>>> buffer = kr.PrioritizedReplayBuffer(1000, fields, seed=0)
>>> writer = kr.SequenceWriter(buffer, n_envs=1, length=4, period=2, burn_in=1)
>>> for t in range(7):
...     _ = writer.add(
...         observation=t,
...         reward=1.0,
...         recurrent_state=[t] * 8,  # the state from which the network saw observation t
...         terminated=t == 6,
...         truncated=False,
...     )
>>> buffer.field_view("observation")[:3]
array([[0, 1, 2, 3],
       [2, 3, 4, 5],
       [4, 5, 6, 0]])
>>> buffer.field_view("mask")[2], buffer.field_view("recurrent_state")[:3, 0]
(array([ True,  True,  True, False]), array([0., 2., 4.], dtype=float32))

The first ``burn_in`` steps of an episode are in no sequence's second part, so that nothing is
learned from them. ``SequenceWriter(..., pad_start=True)`` begins that many steps earlier:

    step                   0   1   2   3 (ends the episode)           length = 4, burn_in = 2
    sequence 0     [–   –   0   1]                                    mask 0 0 1 1
    sequence 1             [0   1   2   3]                            mask 1 1 1 1

A learner starts from ``recurrent_state``, runs the network over the burn-in without a gradient, and
learns from the rest. Where a sequence begins with padding, ``recurrent_state`` is the state behind
the padding:

>>> batch = buffer.sample(32)
>>> warm_up, observation = kr.split_burn_in(batch.observation, writer.burn_in)
>>> _, mask = kr.split_burn_in(batch.mask, writer.burn_in)
>>> td_error = np.ones(mask.shape)  # [B, length - burn_in]
>>> buffer.update_priorities(batch.handle, kr.sequence_priority(td_error, mask))
32
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..fields import Fields, checked_fields, map_leaves
from ..types import Field
from ..validation import as_array, as_count, as_fraction

__all__ = ["sequence_fields", "sequence_priority", "split_burn_in"]

PER_ROW = ("mask", "recurrent_state")  # a row has one of each, whatever its number of steps


def sequence_fields(
    fields: Fields, length: int, recurrent_state: Field | Fields | None = None
) -> dict[str, Any]:
    """Return the fields of a buffer whose rows are sequences.

    Parameters
    ----------
    fields : mapping of str to Field
        The fields of one step, nested as you like. The learner needs terminated at the end of an
        episode and, if episodes are cut off, next_observation and truncated.
    length : int
        The number of steps in a sequence, at least 1.
    recurrent_state : None, Field or mapping of them
        The state that the network keeps between two steps. Each sequence stores the one of its
        first step.

    Returns
    -------
    dict of str to Field
        The given fields with a leading axis ``length``, followed by mask (bool [length]) and, if
        there is one, recurrent_state.

    Raises
    ------
    ValueError, TypeError
        If an argument is of the wrong kind, or a field is named mask or recurrent_state.
    """
    length = as_count("length", length)
    step = checked_fields(fields, "fields")
    taken = [name for name in PER_ROW if name in step]
    if taken:
        raise ValueError(
            "fields must not be named mask or recurrent_state, which the sequence has, "
            f"got {', '.join(taken)}"
        )
    rows: dict[str, Any] = map_leaves(
        step, lambda field: Field((length, *field.shape), field.dtype)
    )
    rows["mask"] = Field((length,), np.bool_)
    if isinstance(recurrent_state, Field):
        rows["recurrent_state"] = recurrent_state
    elif isinstance(recurrent_state, Mapping):
        rows["recurrent_state"] = checked_fields(recurrent_state, "recurrent_state")
    elif recurrent_state is not None:
        kind = type(recurrent_state).__name__
        raise TypeError(f"recurrent_state must be None, a Field or a mapping of them, got {kind}")
    return rows


def split_burn_in(value: Any, burn_in: int) -> tuple[Any, Any]:
    """Split sequences into the burn-in and the steps to learn from.

    Parameters
    ----------
    value : array [B, length, ...] or mapping of them
        A field of a batch, as an array of NumPy or of any library that slices in the same way.
    burn_in : int
        The number of first steps that only warm up the recurrent state, from 0 to length - 1.

    Returns
    -------
    tuple
        ``value[:, :burn_in]`` and ``value[:, burn_in:]``, as views. A mapping gives two dicts.

    Raises
    ------
    ValueError, TypeError
        If burn_in is out of range, or value has no second axis.

    Notes
    -----
    The cost is O(1): nothing is copied. Source: Kapturowski et al. (2019), Recurrent experience
    replay in distributed reinforcement learning (R2D2), section 3.
    """
    if isinstance(value, Mapping):
        parts = {key: split_burn_in(part, burn_in) for key, part in value.items()}
        burn_ins = {key: part[0] for key, part in parts.items()}
        return burn_ins, {key: part[1] for key, part in parts.items()}
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) < 2:
        given = type(value).__name__ if shape is None else f"shape {tuple(shape)}"
        raise TypeError(
            f"value must be an array of shape [B, length, ...] or a mapping of them, got {given}"
        )
    n = as_burn_in(burn_in, shape[1])
    return value[:, :n], value[:, n:]


def sequence_priority(
    td_error: npt.ArrayLike, mask: npt.ArrayLike, eta: float = 0.9
) -> npt.NDArray[np.float64]:
    """Return eta · max |td_error| + (1 - eta) · mean |td_error| over each sequence's real steps.

    Parameters
    ----------
    td_error : array of float [B, T]
        The TD error of every step, finite wherever mask is true. The sign does not matter.
    mask : array of bool [B, T]
        The steps that count, which are real and not burn-in: the second half of
        ``split_burn_in(batch.mask, burn_in)``.
    eta : float
        The share of the largest error, from 0 to 1.

    Returns
    -------
    float64 [B]
        The priority of each sequence, for ``update_priorities``; 0 for a row without real steps.
        The ``priority`` function of a writer must add a small constant to it.

    Raises
    ------
    ValueError, TypeError
        If an argument is of the wrong shape or kind, or a TD error that counts is NaN or infinite.

    Notes
    -----
    The cost is O(B · T). Source: Kapturowski et al. (2019), section 2.3, with eta = 0.9.

    Examples
    --------
    >>> sequence_priority([[1.0, -3.0, 100.0]], [[True, True, False]], eta=0.9)
    array([2.9])
    """
    eta = as_fraction("eta", eta)
    errors, counts = as_array("td_error", td_error), as_array("mask", mask)
    if errors.dtype.kind not in "iuf":
        raise TypeError(f"td_error must be an array of real numbers, got dtype {errors.dtype}")
    if counts.dtype != np.bool_:
        raise TypeError(f"mask must be an array of bool, got dtype {counts.dtype}")
    if errors.ndim != 2 or errors.shape[1] == 0 or errors.shape != counts.shape:
        raise ValueError(
            "td_error and mask must both have the shape [B, T], "
            f"got {errors.shape} and {counts.shape}"
        )
    absolute = np.where(counts, np.abs(errors.astype(np.float64)), 0.0)
    bad = np.flatnonzero(~np.isfinite(absolute).all(axis=1))
    if bad.size:
        raise ValueError(
            f"td_error must be finite where mask is true, got another value in row {bad[0]}"
        )
    mean = absolute.sum(axis=1) / np.maximum(counts.sum(axis=1), 1)
    priority: npt.NDArray[np.float64] = eta * absolute.max(axis=1) + (1.0 - eta) * mean
    return priority


def as_burn_in(value: Any, length: int) -> int:
    """Return ``value`` as an int from 0 to length - 1."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"burn_in must be an integer, got {value!r}")
    if not 0 <= value < length:
        raise ValueError(
            f"burn_in must be from 0 to {length - 1}, shorter than a sequence, got {value}"
        )
    return int(value)
