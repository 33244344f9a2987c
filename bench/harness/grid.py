"""Which sizes are measured."""

from __future__ import annotations

from bench.harness.machine import n_cores

SLOTS = (10_000, 100_000, 1_000_000, 10_000_000)
BATCHES = (32, 256, 4096)
ARITIES = (2, 4, 8, 16, 32, 64)
MIDDLE = (1_000_000, 256)  # the point the bars are set at


def points(full: bool, smoke: bool) -> list[tuple[int, int]]:
    """Return (slots, batch): the whole grid, the bar's row with a small buffer, or one point."""
    if smoke:
        return [(SLOTS[0], BATCHES[0])]
    if full:
        return [(n, batch) for n in SLOTS for batch in BATCHES]
    return [(SLOTS[0], 256), *((MIDDLE[0], batch) for batch in BATCHES)]


def slots(full: bool, smoke: bool) -> list[int]:
    if smoke:
        return [SLOTS[0]]
    # RLlib takes part at the smaller one only: it is filled in Python
    return list(SLOTS) if full else [SLOTS[0], MIDDLE[0]]


def counts(most: int | None = None) -> list[int]:
    """Return how many threads or processes: 1, 2, 4, … and the cores (or `most`)."""
    most = most or n_cores()
    return sorted({*(1 << i for i in range(most.bit_length())), most})


def ids(pairs: list[tuple[int, int]]) -> list[str]:
    return [f"{n:.0e}-{batch}".replace("+0", "") for n, batch in pairs]
