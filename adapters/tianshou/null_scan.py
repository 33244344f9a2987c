"""A search for missing values that does not read the whole buffer every time.

Tianshou's trainer calls `buffer.hasnull()` after every collection, often once per environment step,
and Tianshou's own buffer then copies and examines all rows. The scan of this module examines the
rows that were written since its last call and a stretch of the others. It therefore also finds,
some calls later, a value that was written straight into an array of the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tianshou.data import Batch

_STRETCH_NBYTES = 1 << 18
_MAX_NOTES = 4096  # after more writes than this without a scan, the next scan reads all rows


class NullScan:
    """Remembers which rows of one buffer have been examined for missing values.

    Copies and pickles remember nothing, so their first scan reads all rows.
    """

    def __init__(self) -> None:
        # The fields at the last scan. A field that is not among them has never been read.
        self._fields: list[np.ndarray] = []
        self._written: list[np.ndarray] = []
        self._stretch = 0

    def note(self, index: np.ndarray) -> None:
        """Note that the rows `index`, int64 [B], were written."""
        self._written.append(index)
        if len(self._written) > _MAX_NOTES:
            self.forget()

    def forget(self) -> None:
        """Note that any row may have been written."""
        self._fields, self._written = [], []

    def finds_none(self, fields: dict[str, Any]) -> bool:
        """Scan, and return whether certainly no value is missing in the rows that were read.

        Parameters
        ----------
        fields : dict
            All fields of the buffer.

        Returns
        -------
        bool
            False if a value may be missing. The scan has then forgotten all that it knew.
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
            if clean and self._written:
                # concatenating a single array would copy it
                first, *others = self._written
                index = np.concatenate(self._written) if others else first
                clean = all(_is_clean(field.take(index, axis=0)) for field in floats)
        else:
            clean = all(_is_clean(field) for field in floats)
        if not clean:
            self.forget()
            return False
        self._fields, self._written = floats, []
        return True

    def _stretch_is_clean(self, floats: list[np.ndarray]) -> bool:
        """Read the next stretch of rows; after the last row comes the first."""
        n_rows = min(map(len, floats))
        row_nbytes = sum(field.itemsize * (field.size // len(field)) for field in floats)
        n = max(1, _STRETCH_NBYTES // row_nbytes)
        start = self._stretch if self._stretch < n_rows else 0
        self._stretch = start + n
        return all(_is_clean(field[start : start + n]) for field in floats)

    def __reduce__(self) -> tuple[Any, ...]:
        return NullScan, ()


def _leaves(fields: dict[str, Any]) -> Iterator[np.ndarray | None]:
    """Yield the numeric arrays of all fields, and None for a field of any other kind."""
    for field in fields.values():
        if type(field) is np.ndarray and field.dtype.kind in "biufc":
            yield field
        elif type(field) is Batch:
            yield from _leaves(field.__dict__)
        else:
            yield None


def _is_clean(values: np.ndarray) -> bool:
    """Tell whether no value is NaN. The minimum is NaN if any value is, and needs no array."""
    return not np.isnan(values.min())
