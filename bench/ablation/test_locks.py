"""Four locking disciplines at one and two native threads, and the batch update without a lock.

The disciplines are a coarse lock, a split lock, lazy writing, and lazy writing with lock-free
descent, after the claims of Zhang, Kuppannagari & Prasanna (2021), arXiv:2110.01101, section IV-D.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from bench.ablation.build import load
from bench.harness import grid
from bench.rivals.rows import ALPHA, td_errors

DISCIPLINES = {
    "coarse lock": 0,
    "split lock": 1,
    "lazy writing": 2,
    "lazy writing, lock-free descent": 3,
}
OURS = "lazy writing, lock-free descent"
LOADS = {  # rows (added, sampled, updated) in one round of each thread
    "sample 256": (0, 256, 0),
    "sample 256, update 256": (0, 256, 256),
    "add 16, sample 256, update 256": (16, 256, 256),
}
SLOTS = grid.MIDDLE[0]
UPDATES = {"recompute under a lock": 0, "lock-free, fixed point": 1}


@pytest.fixture(scope="module")
def buffer():
    return load().Buffer(np.float64(td_errors(SLOTS)) ** ALPHA)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("load", LOADS)
def test_locks(compare, request, buffer, load, threads):
    """Rounds per second of all threads together; ours against each simpler discipline."""
    seconds = request.config.getoption("--window") / 2
    windows = {
        name: partial(buffer.rate, number, threads, *LOADS[load], seconds)
        for name, number in DISCIPLINES.items()
    }
    parameters = {"slots": SLOTS, "load": load, "threads": threads}
    compare.rates("ablation: locks", parameters, OURS, windows, unit="rounds/s")


@pytest.mark.parametrize("threads", [1, 2])
def test_update(compare, request, threads):
    """Batches of 256 random leaves per second, with a lock and, in fixed point, without one."""
    race = load().UpdateRace(SLOTS)
    seconds = request.config.getoption("--window") / 2
    windows = {
        name: partial(race.rate, number, threads, grid.MIDDLE[1], seconds)
        for name, number in UPDATES.items()
    }
    parameters = {"slots": SLOTS, "threads": threads, "batch": grid.MIDDLE[1]}
    compare.rates(
        "ablation: lock-free update",
        parameters,
        "recompute under a lock",
        windows,
        unit="batches/s",
    )
