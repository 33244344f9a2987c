"""Looking for missing values without reading the whole buffer again every time.

Tianshou's trainer asks `buffer.hasnull()` after every collection, often once per environment step,
and stock copies and examines all rows for it. Here the rows written since the last time are
examined, and beside them one stretch of the others, so that what was written into the arrays behind
the buffer's back is found in time, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tianshou.data import Batch

_STRETCH_NBYTES = 1 << 18
_MAX_NOTES = 4096  # beyond, all rows are examined: nobody has asked for long


class NullScan:
    """What is known of the missing values in the fields of one buffer.

    Copies and pickles know nothing: their first scan reads everything.
    """

    def __init__(self) -> None:
        # as of the last scan; a field that is not among them has not been read
        self._fields: list[np.ndarray] = []
        self._written: list[np.ndarray] = []
        self._stretch = 0

    def note(self, index: np.ndarray) -> None:
        """Note that rows were written: int64 [B]."""
        self._written.append(index)
        if len(self._written) > _MAX_NOTES:
            self.forget()

    def forget(self) -> None:
        """Note that anything may have been written."""
        self._fields, self._written = [], []

    def finds_none(self, fields: dict[str, Any]) -> bool:
        """Scan, and tell whether there is certainly no value missing in what was read.

        Parameters
        ----------
        fields : dict
            All fields of the buffer.

        Returns
        -------
        bool
            False if a value may be missing; then nothing is taken for known.
        """
        leaves = list(_leaves(fields))
        if any(leaf is None for leaf in leaves):
            self.forget()
            return False
        floats = [leaf for leaf in leaves if leaf.dtype.kind in "fc" and leaf.size]
        known = len(floats) == len(self._fields) and all(
            a is b for a, b in zip(floats, self._fields, strict=True)
        )
        if not floats:
            clean = True
        elif known:
            clean = self._stretch_is_clean(floats)
            if self._written:
                index = (
                    self._written[0] if len(self._written) == 1 else np.concatenate(self._written)
                )
                clean = clean and all(_is_clean(field.take(index, axis=0)) for field in floats)
        else:
            clean = all(_is_clean(field) for field in floats)
        if not clean:
            self.forget()
            return False
        self._fields, self._written = floats, []
        return True

    def _stretch_is_clean(self, floats: list[np.ndarray]) -> bool:
        """Read the next stretch of rows, going round."""
        n_rows = min(map(len, floats))
        n = max(
            1,
            _STRETCH_NBYTES // sum(field.itemsize * (field.size // len(field)) for field in floats),
        )
        start = self._stretch if self._stretch < n_rows else 0
        self._stretch = start + n
        return all(_is_clean(field[start : start + n]) for field in floats)

    def __reduce__(self) -> tuple[Any, ...]:
        return NullScan, ()


def _leaves(fields: dict[str, Any]) -> Iterator[np.ndarray | None]:
    """Yield the numeric arrays of all fields, and None for whatever else there is."""
    for field in fields.values():
        if type(field) is np.ndarray and field.dtype.kind in "biufc":
            yield field
        elif type(field) is Batch:
            yield from _leaves(field.__dict__)
        else:
            yield None


def _is_clean(values: np.ndarray) -> bool:
    """Tell whether no value is NaN: a minimum passes it on, and needs no array of answers."""
    return not np.isnan(values.min())
