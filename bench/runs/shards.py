"""Draws, updates and adds over shards, beside one buffer, Reverb, and a buffer in an actor of Ray.

    make rivals
    python -m bench.runs.shards --output bench/results/shards.json

Here: two shards of half a million rows in this process, and one buffer of a million. Elsewhere: a
server in another process of this machine, reached by its network, with half a million rows;
rivals' servers likewise. Repetitions take turns in an order that rotates. A batch has 256 rows of
HalfCheetah's.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import secrets
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

import kary_replay as kr
from bench.harness.machine import describe
from bench.harness.timing import Contender, calibrate, collector_off, rotated
from bench.rivals.ours import FIELDS
from bench.rivals.remote import MissingRivalError, RemoteRival
from bench.rivals.rows import ALPHA, BETA, Updates, chunks, rows
from kary_replay.shards import RemoteShard, ShardServer, ShardService, SocketTransport

BATCH, ROWS = 256, 1_000_000
ONE, SHARDED = "one buffer", "two shards here"
FAR, AHEAD = "a shard elsewhere", "a shard elsewhere, asked ahead"
BARS = [  # part, who, against whom, at least
    ("sample here", SHARDED, ONE, 1 / 1.5),
    ("sample elsewhere", AHEAD, "Reverb", 3.0),
    ("sample elsewhere", AHEAD, "an actor of Ray with cpprb's buffer", 10.0),
]


def filled(buffer: kr.PrioritizedReplayBuffer, n: int, seed: int = 0) -> Any:
    """Fill a buffer, which may be one for a shard."""
    shards = kr.ShardedReplayBuffer([buffer])  # it fills in what a shard keeps beside the fields
    for _, block, errors in chunks(n):
        shards.add(priority=np.roll(errors, seed) + 1e-6, **block)
    return buffer


def new(n: int, seed: int = 0) -> Any:
    return filled(kr.PrioritizedReplayBuffer(n, FIELDS, alpha=ALPHA, beta=BETA, seed=0), n, seed)


def serve(n: int, token: bytes, pipe: Any) -> None:
    """Be a shard's server until this process is killed."""
    buffer = filled(ShardService.new_buffer(n, FIELDS, alpha=ALPHA, beta=BETA), n)
    server = ShardServer(ShardService(buffer), token)
    pipe.send(server.address)
    signal.pause()


def elsewhere(n: int, leave: ExitStack) -> kr.ShardedReplayBuffer:
    """Return a buffer whose only shard is in another process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    token = secrets.token_bytes(32)
    process = context.Process(target=serve, args=(n, token, theirs), daemon=True)
    process.start()
    leave.callback(process.kill)
    shard = RemoteShard(SocketTransport(ours.recv(), token))
    return kr.ShardedReplayBuffer([shard], beta=BETA, seed=0)


def sampling(name: str, buffer: Any) -> Contender:
    return Contender(name, buffer.sample, lambda n: [(BATCH,)] * n, has_threads=True)


def updating(name: str, buffer: Any, settles: bool = False) -> Contender:
    """``settles``: with the wait until the shard has done it."""
    updates = Updates(1 << 16, BATCH)
    handles = [buffer.sample(BATCH).handle for _ in range(64)]
    rng = np.random.default_rng(0)

    def call(handle: Any, errors: Any) -> None:
        buffer.update_priorities(handle, errors)
        if settles:
            buffer.settle()

    return Contender(
        name,
        call,
        lambda n: [
            (handles[i], errors)
            for i, errors in zip(rng.integers(0, 64, n), updates.errors(n), strict=True)
        ],
        has_threads=True,
    )


def adding(name: str, buffer: Any, n_rows: int) -> Contender:
    pool = [rows(n_rows, seed) for seed in range(64)]

    def call(block: Any) -> None:
        buffer.add(**block)

    return Contender(
        name, call, lambda n: [(pool[i % 64],) for i in range(n)], n_rows, has_threads=True
    )


def contenders(
    n_rows: int, leave: ExitStack, notes: dict[str, str]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the parts, and who takes part in each."""
    one = new(n_rows)
    two = kr.ShardedReplayBuffer([new(n_rows // 2, s) for s in range(2)], beta=BETA, seed=0)
    here: list[tuple[str, Any]] = [(ONE, one), (SHARDED, two)]
    yield "sample here", [sampling(*each) for each in here]
    yield "update here", [updating(*each) for each in here]
    far = elsewhere(n_rows // 2, leave)
    ahead = far.batches(BATCH)
    rivals: list[Any] = []
    for environment in ("reverb", "ray"):
        try:
            rivals.append(RemoteRival(environment, n_rows // 2, 16))
            leave.callback(rivals[-1].close)
            notes[rivals[-1].name] = rivals[-1].versions
        except MissingRivalError as error:
            notes[environment] = str(error)
    drawn_ahead = Contender(AHEAD, lambda: next(ahead), lambda n: [()] * n, has_threads=True)
    yield (
        "sample elsewhere",
        [sampling(FAR, far), drawn_ahead, *(rival.sample(BATCH) for rival in rivals)],
    )
    yield (
        "update elsewhere",
        [
            updating(FAR, far, settles=True),
            updating(f"{FAR}, not waited for", far),
            *(rival.update(BATCH) for rival in rivals),
        ],
    )
    yield "add 16 rows elsewhere", [adding(FAR, far, 16), *(rival.add() for rival in rivals)]


def measured(some: list[Any], n_rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of one operation, of every round."""
    found: dict[str, list[float]] = {each.name: [] for each in some}
    with collector_off():
        prepared = {each.name: calibrate(each) for each in some}
        for n_round in range(n_rounds):
            for each in rotated(some, n_round):
                n_calls, before = prepared[each.name]
                seconds, _ = each.timed(n_calls, before)
                found[each.name].append(seconds / (n_calls * each.operations) * 1e6)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--output", type=Path, help="write every repetition there, as JSON")
    options = parser.parse_args(arguments)
    notes: dict[str, str] = {}
    parts: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as leave:
        for part, some in contenders(options.rows, leave, notes):
            parts[part] = found = measured(some, options.rounds)
            print(f"{part}, µs")
            for name, values in found.items():
                low, middle, high = quantiles(values, n=4)
                print(f"  {name:40} {middle:9.2f} [{low:.2f}, {high:.2f}]", flush=True)
    is_met = report_bars(parts)
    for name, note in notes.items():
        print(f"{name}: {note}")
    if options.output:
        record = {"machine": describe(), "rows": options.rows, "notes": notes, "parts": parts}
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    return int(not is_met)


def report_bars(parts: dict[str, dict[str, list[float]]]) -> bool:
    """Say which promises are kept."""
    is_met = True
    for part, who, against, least in BARS:
        found = parts[part]
        if against not in found:
            print(f"{part}: {against} is not here")
            continue
        factor = median(found[against]) / median(found[who])
        is_met &= factor >= least
        print(
            f"{part}: {who} is {factor:.2f} times as fast as {against}, at least {least:.2f} asked"
        )
    return is_met


if __name__ == "__main__":
    sys.exit(main())
