"""The process that answers for a shard is killed at any moment; its memory lives on."""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from shards import new_shard, reserved_port, rows

import kary_replay as kr
from kary_replay.shards import RemoteShard, ShardServer, ShardService, SocketTransport

N_KILLS = 8


def serve(descriptor: Any, token: bytes, port: int, address: Any) -> None:
    """Answer for a shard, in a process of its own, until it is killed."""
    buffer = kr.PrioritizedReplayBuffer.attach(descriptor)
    server = ShardServer(ShardService(buffer), token, port=port)
    address.send(server.address)
    signal.pause()


@pytest.fixture
def port() -> Iterator[int]:
    with reserved_port() as one:
        yield one


def test_no_row_is_lost_and_none_is_doubled(
    rng: np.random.Generator, run_threaded: Any, port: int
) -> None:
    context = multiprocessing.get_context("spawn")
    buffer = new_shard(50_000, shared=True)
    token = secrets.token_bytes(32)

    def start(port: int) -> tuple[Any, tuple[str, int]]:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(buffer.descriptor, token, port, theirs))
        process.start()
        theirs.close()  # so that its end is noticed
        return process, ours.recv()

    process, address = start(port)
    shard = RemoteShard(SocketTransport(address, token), patience_seconds=60.0)
    many = kr.ShardedReplayBuffer([shard], seed=0)
    n_added, n_drawn, is_over = 0, 0, threading.Event()

    def use() -> None:
        nonlocal n_added, n_drawn
        while not is_over.is_set():
            for _ in range(10):
                if n_added < 45_000:
                    many.add(**rows(np.arange(n_added, n_added + 5)))
                    n_added += 5
            batch = many.sample(32)
            np.testing.assert_array_equal(batch.row[:, 0], batch.number)
            many.update_priorities(batch.handle, rng.gamma(1.0, size=32))
            n_drawn += 1

    def kill() -> None:
        nonlocal process
        try:
            for _ in range(N_KILLS):
                before = n_drawn
                while n_drawn < before + 5:
                    is_over.wait(0.01)
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                process, _ = start(address[1])
        finally:
            is_over.set()

    try:
        run_threaded([use, kill])
        many.settle()
        slots = buffer._slots.by_age()[0]
        assert buffer.field_view("number")[slots].tolist() == list(range(n_added))
        assert many.lost == []
        buffer.check_invariants()
    finally:
        process.kill()
        process.join()
