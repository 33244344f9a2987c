"""A fast way to read and write the rows of a Tianshou buffer whose fields are numeric arrays.

`ReplayBuffer.__getitem__` and `add` allow for every kind of field: a distribution, an array of
objects, a field that they see for the first time. Most fields are numeric arrays of fixed shape,
which need one `take` or one assignment. The functions of this module return None for any other
field, and Tianshou's own methods then do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from tianshou.data import Batch, ReplayBuffer

from kary_replay.adapters.tianshou.recycled_arrays import RecycledArrays

_REQUIRED = frozenset({"obs", "act", "rew", "terminated", "truncated", "done"})
_FIELDS = _REQUIRED | {"obs_next", "info", "policy"}
_NUMERIC = "biufc"

Step = Callable[[np.ndarray], np.ndarray]


def gather(
    buffer: ReplayBuffer,
    fields: dict[str, Any],
    index: np.ndarray,
    stores_next: bool,
    recycled: RecycledArrays,
) -> Batch | None:
    """Return the rows at `index` as `ReplayBuffer.__getitem__` does.

    Parameters
    ----------
    buffer : ReplayBuffer
        The buffer, whose `stack_num`, `prev` and `next` decide which rows belong together.
    fields : dict
        The fields that the buffer stores, by name.
    index : array of int [B]
        The rows. Negative numbers count from the end.
    stores_next : bool
        Whether `obs_next` is a field; otherwise it is the `obs` of the next row.
    recycled : RecycledArrays
        The arrays that large fields of the batch may use again.

    Returns
    -------
    Batch or None
        The fields with a leading axis B, stacked ones as [B, stack_num, …]. None if a field is not
        numeric.
    """
    if not fields.keys() >= _REQUIRED:
        return None
    at = _from_the_start(index, buffer.maxsize)
    stacked = stack(at, buffer.stack_num, buffer.prev)
    if stores_next:
        next_name, next_stacked = "obs_next", stacked
    else:
        next_name, next_stacked = "obs", following(stacked, buffer.next(at))
    batch = Batch()
    rows = batch.__dict__  # Batch's own setter examines each value, which takes time
    try:
        rows["obs"] = take(fields["obs"], stacked, recycled)
        for name in ("act", "rew", "terminated", "truncated", "done"):
            rows[name] = take(fields[name], index, recycled)
        rows["obs_next"] = take(fields.get(next_name), next_stacked, recycled)
        rows["info"] = take(fields.get("info"), stacked, recycled)
        rows["policy"] = take(fields.get("policy"), stacked, recycled)
        for name in fields.keys() - _FIELDS:
            rows[name] = take(fields[name], index, recycled)
    except NotNumericError:
        return None
    return batch


def _from_the_start(index: np.ndarray, n: int) -> np.ndarray:
    """Return the indices as int64, which has all neighbours of a row, counted from row 0 of n."""
    if index.dtype != np.int64 and index.dtype.kind in "iu":
        index = index.astype(np.int64)
    return np.where(index < 0, index + n, index) if index.size and index.min() < 0 else index


class NotNumericError(Exception):
    """A field is neither a numeric array nor a batch of numeric arrays."""


def take(field: Any, index: np.ndarray, recycled: RecycledArrays) -> Any:
    """Return rows of a field or of a batch of fields; None, for no such field, gives no rows."""
    if type(field) is np.ndarray:
        if field.dtype.kind not in _NUMERIC:
            raise NotNumericError
        is_image = field.ndim > 2
        return recycled.take(field, index) if is_image else field.take(index, axis=0)
    if field is None:
        return Batch()
    if type(field) is not Batch:
        raise NotNumericError
    batch = Batch()
    for name, part in field.__dict__.items():
        if part is None:  # Tianshou keeps a None that lies within a batch
            raise NotNumericError
        batch.__dict__[name] = take(part, index, recycled)
    return batch


def stack(index: np.ndarray, n: int, previous: Step) -> np.ndarray:
    """Return the rows of n stacked frames, oldest first: [B, n], or `index` itself for n = 1."""
    if n == 1:
        return index
    steps = np.empty((len(index), n), np.int64)
    for i in range(n - 1, -1, -1):
        steps[:, i] = index
        if i:
            index = previous(index)
    return steps


def following(stacked: np.ndarray, next_index: np.ndarray) -> np.ndarray:
    """Return the frames that are stacked one step later, in the shape of `stacked`.

    Each of them comes before the next one, as the step before it, unless there is no next one: then
    a row, and with it its frames, is its own successor.
    """
    if stacked.ndim == 1:
        return next_index
    later = np.concatenate([stacked[:, 1:], next_index[:, np.newaxis]], axis=1)
    has_next = next_index != stacked[:, -1]
    return np.where(has_next[:, np.newaxis], later, stacked)


def pair(
    stored: dict[str, Any], new: dict[str, Any], n: int
) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Return each stored array with the n new rows for it, or None unless all are numeric and fit.

    Parameters
    ----------
    stored, new : dict
        The fields by name. A field may be a batch of fields.
    n : int
        The number of new rows.
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
    """Return the fields of `batch` [n, …] that are to be stored, or None if one is missing.

    Parameters
    ----------
    batch : Batch
        The batch that `add` was given.
    keys : collection of str, optional
        The names of the fields to take; by default all.
    only_last_obs : bool
        Whether to keep only the last of each row's stacked observations.
    stores_next : bool
        Whether to keep `obs_next`.
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
