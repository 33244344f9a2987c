"""The rows and priorities of every buffer: HalfCheetah's vectors, or Atari's stacks of frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

ALPHA, BETA = 0.6, 0.4


@dataclass(frozen=True)
class Kind:
    """Shapes of a row; rewards are float32, ends of episodes bool."""

    name: str
    observation: tuple[int, ...]
    observation_dtype: str
    action: tuple[int, ...]
    action_dtype: str
    chunk: int  # rows that are made at once, and repeat from then on

    @property
    def nbytes(self) -> int:
        """Payload of a row: both observations, action, reward, end."""
        observation = int(np.prod(self.observation)) * np.dtype(self.observation_dtype).itemsize
        return (
            2 * observation
            + int(np.prod(self.action)) * np.dtype(self.action_dtype).itemsize
            + 4
            + 1
        )


VECTOR = Kind("HalfCheetah", (17,), "float32", (6,), "float32", 100_000)
ATARI = Kind("Atari 4×84×84", (4, 84, 84), "uint8", (), "int64", 500)
OBSERVATION, ACTION, CHUNK, PAYLOAD_BYTES = (
    VECTOR.observation[0],
    VECTOR.action[0],
    VECTOR.chunk,
    VECTOR.nbytes,
)


def rows(n: int, seed: int = 1, kind: Kind = VECTOR) -> dict[str, np.ndarray]:
    """N transitions with the names kary-replay uses."""
    rng = np.random.default_rng(seed)

    def draws(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if np.dtype(dtype).kind == "f":
            return rng.standard_normal((n, *shape), dtype=dtype)
        return rng.integers(0, 256 if dtype == "uint8" else 4, (n, *shape), dtype)

    return {
        "observation": draws(kind.observation, kind.observation_dtype),
        "action": draws(kind.action, kind.action_dtype),
        "reward": rng.standard_normal(n, dtype=np.float32),
        "next_observation": draws(kind.observation, kind.observation_dtype),
        "terminated": np.zeros(n, dtype=bool),  # HalfCheetah never terminates
    }


def td_errors(n: int, seed: int = 2) -> np.ndarray:
    """N heavy-tailed |TD errors| as a loss returns them, float32: most small, a few large."""
    return np.random.default_rng(seed).lognormal(-1.0, 1.0, n).astype(np.float32)


def chunks(
    slots: int, kind: Kind = VECTOR
) -> Iterator[tuple[slice, dict[str, np.ndarray], np.ndarray]]:
    """Yield (slots of the chunk, rows, |TD errors|); only the rows repeat."""
    size = min(kind.chunk, slots)
    block = rows(size, kind=kind)
    for number, start in enumerate(range(0, slots, size)):
        n = min(size, slots - start)
        yield (
            slice(start, start + n),
            {name: array[:n] for name, array in block.items()},
            td_errors(n, 2 + number),
        )


class Updates:
    """Batches of (index, |TD error|) that no call has used before."""

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
