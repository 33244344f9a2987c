"""Sharded buffers for tests, and a reader that can be told something else than what is so."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import kary_replay as kr
from kary_replay.shards import LocalTransport, RemoteShard, ShardService

FIELDS = {"number": kr.Field((), np.int64), "row": kr.Field((3,), np.float32)}
DYADIC = 2.0**-20  # sums of multiples of it are exact


def rows(number: Any) -> dict[str, np.ndarray]:
    """Return rows that tell their numbers in both fields."""
    number = np.asarray(number, np.int64)
    return {"number": number, "row": np.repeat(number[:, None], 3, axis=1).astype(np.float32)}


def new_shard(capacity: int, **options: Any) -> kr.PrioritizedReplayBuffer:
    """Return an empty buffer that can be a shard anywhere."""
    return ShardService.new_buffer(capacity, FIELDS, **{"alpha": 1.0, **options})


def add_rows(shard: kr.PrioritizedReplayBuffer, number: Any, priority: Any = None) -> None:
    """Add rows as their owner does."""
    n = len(number)
    hidden = {"_writer": np.zeros(n, np.uint64), "_sequence": np.arange(n, dtype=np.uint64)}
    shard.add(**rows(number), **hidden, priority=priority)


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Keep a port from those who ask for any one; servers may listen there, one after another."""
    with socket.socket() as kept:
        if sys.platform == "linux":  # elsewhere it would keep it from servers, too
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind(("127.0.0.1", 0))
            yield kept.getsockname()[1]
        else:
            yield 0


def far(shard: kr.PrioritizedReplayBuffer) -> RemoteShard:
    """Return a shard of this process that is spoken to in messages."""
    return RemoteShard(LocalTransport(ShardService(shard)))


def sharded(
    masses: Sequence[Any], are_far: Sequence[bool] | None = None, seed: int = 0, **options: Any
) -> tuple[kr.ShardedReplayBuffer, list[kr.PrioritizedReplayBuffer]]:
    """Return a buffer of shards whose rows, numbered throughout, have these masses."""
    shards, first = [], 0
    for mass in masses:
        n = len(mass)
        shard = new_shard(max(n, 4))
        if n:
            add_rows(shard, np.arange(first, first + n))
            shard.tree.set(np.arange(n), np.asarray(mass, float))
        shards.append(shard)
        first += n
    are_far = are_far or [False] * len(shards)
    parts = [far(one) if is_far else one for one, is_far in zip(shards, are_far, strict=True)]
    return kr.ShardedReplayBuffer(parts, seed=seed, **options), shards


def one_buffer(masses: Sequence[Any], seed: int = 0, **options: Any) -> kr.PrioritizedReplayBuffer:
    """Return one buffer with the rows of `sharded`."""
    mass = np.concatenate([np.asarray(one, float) for one in masses])
    one = kr.PrioritizedReplayBuffer(len(mass), FIELDS, seed=seed, **{"alpha": 1.0, **options})
    one.add(**rows(np.arange(len(mass))))
    one.tree.set(np.arange(len(mass)), mass)
    return one


class Deceived:
    """A reader of shards that knows totals which are some looks old, or plainly wrong."""

    def __init__(self, buffer: kr.ShardedReplayBuffer, age: int, equal: bool = False) -> None:
        self._reader, self._age, self._equal = buffer._reader, age, equal
        self._epochs = buffer._epochs
        self._capacities = [int(shard.vitals["capacity"]) for shard in buffer._shards]
        self._seen: list[Any] = []
        buffer._reader = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def look(self) -> None:
        """Learn what was so as many looks ago."""
        self._reader.look()
        self._seen.append(self._reader.known())
        totals, n_rows = self._seen[max(0, len(self._seen) - 1 - self._age)]
        if self._equal:
            totals = np.where(n_rows > 0, 1.0, 0.0)
        for s, (total, n) in enumerate(zip(totals, n_rows, strict=True)):
            self._reader.learn(s, total, n, self._capacities[s], self._epochs[s])
