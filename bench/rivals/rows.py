"""The rows and priorities every buffer is filled with: HalfCheetah-shaped, 17 + 6 + 1 + 17 float32 and a bool."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

OBSERVATION, ACTION = 17, 6
PAYLOAD_BYTES = 4 * (2 * OBSERVATION + ACTION + 1) + 1
CHUNK = 100_000
ALPHA, BETA = 0.6, 0.4


def rows(n: int, seed: int = 1) -> dict[str, np.ndarray]:
    """N transitions with the names kary-replay uses."""
    rng = np.random.default_rng(seed)
    return {
        "observation": rng.standard_normal((n, OBSERVATION), dtype=np.float32),
        "action": rng.standard_normal((n, ACTION), dtype=np.float32),
        "reward": rng.standard_normal(n, dtype=np.float32),
        "next_observation": rng.standard_normal((n, OBSERVATION), dtype=np.float32),
        "terminated": np.zeros(n, dtype=bool),  # HalfCheetah never terminates
    }


def td_errors(n: int, seed: int = 2) -> np.ndarray:
    """N heavy-tailed |TD errors|, as in training: most small, a few large. float32, as a loss returns them."""
    return np.random.default_rng(seed).lognormal(-1.0, 1.0, n).astype(np.float32)


def chunks(slots: int) -> Iterator[tuple[slice, dict[str, np.ndarray], np.ndarray]]:
    """(slots of the chunk, rows, |TD errors|): the rows repeat from chunk to chunk, the priorities do not."""
    size = min(CHUNK, slots)
    block = rows(size)
    for number, start in enumerate(range(0, slots, size)):
        n = min(size, slots - start)
        yield slice(start, start + n), {name: array[:n] for name, array in block.items()}, td_errors(n, 2 + number)


class Updates:
    """Fresh (index, |TD error|) batches: every call of every repetition gets indices that were not used before."""

    def __init__(self, slots: int, batch: int) -> None:
        self._rng = np.random.default_rng(3)
        self._errors = td_errors(max(1 << 16, 2 * batch), 5)
        self._slots, self._batch = slots, batch

    def errors(self, n: int) -> list[np.ndarray]:
        starts = self._rng.integers(0, len(self._errors) - self._batch, n)
        return [self._errors[start : start + self._batch].copy() for start in starts]

    def indices(self, n: int) -> np.ndarray:
        return self._rng.integers(0, self._slots, (n, self._batch))

    def pairs(self, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
        return list(zip(self.indices(n), self.errors(n), strict=True))
