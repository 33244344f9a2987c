"""Which sizes are measured."""

from __future__ import annotations

SLOTS = (100_000, 1_000_000, 10_000_000)
BATCHES = (32, 256, 4096)
ARITIES = (2, 4, 8, 16, 32, 64)
MIDDLE = (1_000_000, 256)  # the point the bars are set at


def points(full: bool) -> list[tuple[int, int]]:
    """(slots, batch): the whole grid, or the bar's row and a smaller buffer."""
    if full:
        return [(n, batch) for n in SLOTS for batch in BATCHES]
    return [(SLOTS[0], 256), *((MIDDLE[0], batch) for batch in BATCHES)]


def slots(full: bool) -> list[int]:
    return list(SLOTS) if full else [MIDDLE[0]]


def ids(pairs: list[tuple[int, int]]) -> list[str]:
    return [f"{n:.0e}-{batch}".replace("+0", "") for n, batch in pairs]
