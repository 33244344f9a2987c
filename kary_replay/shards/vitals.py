"""What a shard says of itself in every answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["VITALS_DTYPE", "are_possible", "vitals_of"]

MOST_ROWS = 1 << 40
VITALS_DTYPE = np.dtype(
    [
        ("identity", np.uint64, 2),  # of its memory: another one has other rows
        ("total", np.float64),  # of its masses
        ("n_rows", np.int64),  # rows that have mass
        ("size", np.int64),
        ("capacity", np.int64),
        ("n_added", np.int64),
        ("n_sampled", np.int64),
        ("max_priority", np.float64),
        ("largest_priority", np.float64),  # that a row can have
        ("alpha", np.float64),
        ("priority_epsilon", np.float64),
    ]
)


def vitals_of(slots: Any) -> npt.NDArray[np.void]:
    """Return VITALS_DTYPE [1] of a shard whose memory is mapped here."""
    vitals = np.zeros(1, VITALS_DTYPE)
    one = vitals[0]
    one["identity"] = slots.block.token
    one["total"] = max(slots.tree.total, 0.0)
    one["n_rows"] = slots.n_with_mass
    one["size"] = len(slots)
    one["capacity"] = slots.capacity
    one["n_added"] = slots.n_added
    one["n_sampled"] = slots.n_sampled
    one["max_priority"] = slots.max_priority
    one["largest_priority"] = slots.largest
    one["alpha"] = slots.alpha
    one["priority_epsilon"] = slots.priority_epsilon
    return vitals


def are_possible(vitals: Any) -> bool:
    """Whether a shard can be so. What comes from elsewhere is not believed unseen."""
    capacity = int(vitals["capacity"])
    return bool(
        0 <= vitals["total"] < np.inf
        and 0 <= vitals["n_rows"] <= capacity
        and 0 <= vitals["size"] <= capacity <= MOST_ROWS
        and vitals["n_added"] >= 0
        and vitals["n_sampled"] >= 0
        and 1 <= vitals["max_priority"] <= vitals["largest_priority"] < np.inf
        and 0 <= vitals["alpha"] <= 1
        and 0 < vitals["priority_epsilon"] < np.inf
    )
