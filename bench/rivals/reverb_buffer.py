"""DeepMind's Reverb: a prioritized table in a server of its own process, spoken to by gRPC.

Batches come from its dataset, which draws ahead; that is its fast way. Asking for 256 items by
`Client.sample` is the other one.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import reverb
import tensorflow as tf

from bench.harness.timing import Contender
from bench.rivals.rows import ALPHA, VECTOR, Kind, Updates, chunks, rows

NAME = "Reverb"
TABLE = "replay"
tf.config.threading.set_intra_op_parallelism_threads(1)


def signature(kind: Kind) -> dict[str, tf.TensorSpec]:
    block = rows(1, kind=kind)
    return {name: tf.TensorSpec(array.shape[1:], array.dtype) for name, array in block.items()}


def serve(slots: int, kind: Kind, pipe: Any) -> None:
    """Be the server until the other end closes."""
    table = reverb.Table(
        name=TABLE,
        sampler=reverb.selectors.Prioritized(ALPHA),
        remover=reverb.selectors.Fifo(),
        max_size=slots,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature(kind),
    )
    server = reverb.Server([table], port=None)
    pipe.send(server.port)
    try:
        pipe.recv()
    except EOFError:
        server.stop()


class ReverbBuffer:
    """One table of single steps."""

    name = NAME

    def __init__(self, slots: int, rows_per_add: int = 1, kind: Kind = VECTOR) -> None:
        self._slots, self._rows, self._kind = slots, rows_per_add, kind
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=serve, args=(slots, kind, theirs), daemon=True)
        self._process.start()
        self.address = f"localhost:{self._pipe.recv()}"
        self.client = reverb.Client(self.address)
        for _, block, errors in chunks(slots, kind):
            for i in range(len(errors)):
                row = {name: array[i] for name, array in block.items()}
                self.client.insert(row, {TABLE: float(errors[i])})

    def sample(self, batch: int) -> Contender:
        dataset = reverb.TimestepDataset.from_table_signature(
            self.address, TABLE, max_in_flight_samples_per_worker=2 * batch
        )
        batches = dataset.batch(batch).prefetch(2).as_numpy_iterator()
        next(batches)
        return Contender(NAME, lambda: next(batches), lambda n: [()] * n, has_threads=True)

    def update(self, batch: int) -> Contender:
        dataset = reverb.TimestepDataset.from_table_signature(
            self.address, TABLE, max_in_flight_samples_per_worker=2 * batch
        )
        keys = np.asarray(next(dataset.batch(4096).as_numpy_iterator()).info.key)
        rng, updates = np.random.default_rng(0), Updates(self._slots, batch)

        def inputs(n: int) -> list[tuple[Any, ...]]:
            return [
                (dict(zip(rng.choice(keys, batch).tolist(), errors.tolist(), strict=True)),)
                for errors in updates.errors(n)
            ]

        return Contender(
            NAME,
            lambda priorities: self.client.mutate_priorities(TABLE, priorities),
            inputs,
            has_threads=True,
        )

    def add(self) -> Contender:
        pool = [rows(self._rows, seed, self._kind) for seed in range(64)]

        def call(block: dict[str, np.ndarray]) -> None:
            with self.client.trajectory_writer(1) as writer:
                for i in range(self._rows):
                    writer.append({name: array[i] for name, array in block.items()})
                    last = {name: writer.history[name][-1] for name in block}
                    writer.create_item(TABLE, 1.0, last)
                writer.flush()

        return Contender(
            NAME, call, lambda n: [(pool[i % 64],) for i in range(n)], self._rows, has_threads=True
        )
