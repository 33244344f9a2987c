"""Gathering and writing rows of a Tianshou buffer, where they are plain arrays.

`ReplayBuffer.__getitem__` and `add` treat every field as if it might be anything: a distribution,
an array of objects, a field seen for the first time. Most fields are numeric arrays of fixed shape,
and for these one `take` or one assignment is all there is to do. Both functions return None when
something else turns up, for Tianshou to deal with.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from tianshou.data import Batch, ReplayBuffer

_REQUIRED = frozenset({"obs", "act", "rew", "terminated", "truncated", "done"})
_FIELDS = _REQUIRED | {"obs_next", "info", "policy"}
_NUMERIC = "biufc"

Step = Callable[[np.ndarray], np.ndarray]


def gather(
    buffer: ReplayBuffer, fields: dict[str, Any], index: np.ndarray, stores_next: bool
) -> Batch | None:
    """Return the rows at `index` as `ReplayBuffer.__getitem__` does.

    Parameters
    ----------
    buffer : ReplayBuffer
        Whose `stack_num`, `prev` and `next` decide which rows belong together.
    fields : dict
        What the buffer stores, by name.
    index : array of int [B]
        Rows.
    stores_next : bool
        Whether `obs_next` is a field, or the `obs` of the next row.

    Returns
    -------
    Batch or None
        Fields with a leading axis B; of stacked ones, [B, stack_num, …]. None if a field is not
        numeric.
    """
    if not fields.keys() >= _REQUIRED:
        return None
    stacked = stack(index, buffer.stack_num, buffer.prev)
    if stores_next:
        next_name, next_stacked = "obs_next", stacked
    else:
        next_name, next_stacked = "obs", stack(buffer.next(index), buffer.stack_num, buffer.prev)
    batch = Batch()
    rows = batch.__dict__  # Batch's own setter examines each value, which it needs of objects only
    try:
        rows["obs"] = take(fields["obs"], stacked)
        for name in ("act", "rew", "terminated", "truncated", "done"):
            rows[name] = take(fields[name], index)
        rows["obs_next"] = take(fields.get(next_name), next_stacked)
        rows["info"] = take(fields.get("info"), stacked)
        rows["policy"] = take(fields.get("policy"), stacked)
        for name in fields.keys() - _FIELDS:
            rows[name] = take(fields[name], index)
    except NotNumericError:
        return None
    return batch


class NotNumericError(Exception):
    """A field is neither a numeric array nor a batch of such."""


def take(field: Any, index: np.ndarray) -> Any:
    """Return the rows of a field, which may be a batch of fields; None stands for a field that is not there."""
    if type(field) is np.ndarray:
        if field.dtype.kind not in _NUMERIC:
            raise NotNumericError
        return field.take(index, axis=0)
    if field is None:
        return Batch()
    if type(field) is not Batch:
        raise NotNumericError
    batch = Batch()
    for name, part in field.__dict__.items():
        if part is None:  # inside a batch, Tianshou keeps it
            raise NotNumericError
        batch.__dict__[name] = take(part, index)
    return batch


def stack(index: np.ndarray, n: int, previous: Step) -> np.ndarray:
    """Return the rows whose frames are stacked, oldest first: [B, n], or `index` itself for n = 1."""
    if n == 1:
        return index
    steps = np.empty((len(index), n), np.int64)
    for i in range(n - 1, -1, -1):
        steps[:, i] = index
        if i:
            index = previous(index)
    return steps


def pair(
    stored: dict[str, Any], new: dict[str, Any], n: int
) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Return each stored array with the n new rows for it, or None unless all are numeric and fit.

    Parameters
    ----------
    stored, new : dict
        Fields by name; a field may be a batch of fields.
    n : int
        How many rows there are.
    """
    if stored.keys() != new.keys():
        return None
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for name, rows in stored.items():
        more = new[name]
        if type(rows) is np.ndarray and type(more) is np.ndarray:
            fits = more.shape[:1] == (n,) and more.shape[1:] == rows.shape[1:]
            if not fits or rows.dtype.kind not in _NUMERIC or more.dtype.kind not in _NUMERIC:
                return None
            pairs.append((rows, more))
        elif type(rows) is Batch and type(more) is Batch:
            parts = pair(rows.__dict__, more.__dict__, n)
            if parts is None:
                return None
            pairs += parts
        else:
            return None
    return pairs


def new_fields(
    batch: Batch, keys: Collection[str] | None, only_last_obs: bool, stores_next: bool
) -> dict[str, Any] | None:
    """Return what of `batch` [n, …] is to be stored, or None if that is not clear at a glance.

    Parameters
    ----------
    batch : Batch
        What `add` was given.
    keys : collection of str, optional
        The fields that are taken; by default all.
    only_last_obs : bool
        Keep the last of each row's stacked observations.
    stores_next : bool
        Keep `obs_next`.
    """
    given = batch.__dict__
    fields = dict(given) if keys is None else {name: given[name] for name in keys if name in given}
    try:
        fields["done"] = np.logical_or(fields["terminated"], fields["truncated"])
        if not stores_next:
            fields.pop("obs_next", None)
        if only_last_obs:
            for name in ("obs", "obs_next") if stores_next else ("obs",):
                fields[name] = fields[name][:, -1]
    except (KeyError, IndexError, TypeError):
        return None
    return fields
