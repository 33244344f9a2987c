"""The distance to the limit: the buffer's calls, and loops that only move the same memory.

    python -m bench.runs.limit --output bench/results/limit.json --page docs/limit.md

`bench/ablation/limit_kernels.hpp` has the loops: the fastest ones in C++ that we know for the same
traffic, without a lock, checks, weights, new arrays and Python. Both take turns in one process,
pinned to one core.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import numpy as np

import kary_replay as kr
from bench.ablation.build import load
from bench.harness.machine import describe
from bench.rivals.ours import FIELDS
from bench.rivals.rows import chunks

BATCH = 256
SECONDS = 0.02  # of one repetition
ROWS = (100_000, 1_000_000, 10_000_000)
WHAT = {
    "sample": "draw 256 rows: a descent and a copy",
    "update": "set 256 priorities of rows drawn before",
    "add": "add one row",
}


def filled(n_rows: int) -> kr.PrioritizedReplayBuffer:
    """Return a full buffer of rows like HalfCheetah's."""
    buffer = kr.PrioritizedReplayBuffer(n_rows, FIELDS, alpha=0.6, beta=0.4, seed=0)
    for _, rows, td_error in chunks(n_rows):
        buffer.add(**rows, priority=td_error + buffer.priority_epsilon)
    return buffer


def calls_of(buffer: kr.PrioritizedReplayBuffer) -> dict[str, Callable[[int], float]]:
    """Return what takes so many calls, and says how long one took."""
    td_error = np.random.default_rng(1).lognormal(size=BATCH).astype(np.float32)
    one = {name: np.zeros((1, *field.shape), field.dtype) for name, field in FIELDS.items()}

    def sample(n: int) -> float:
        started = perf_counter()
        for _ in range(n):
            buffer.sample(BATCH)
        return (perf_counter() - started) / n

    def update(n: int) -> float:
        handles = [buffer.sample(BATCH).handle for _ in range(n)]
        started = perf_counter()
        for handle in handles:
            buffer.update_priorities(handle, td_error)
        return (perf_counter() - started) / n

    def add(n: int) -> float:
        started = perf_counter()
        for _ in range(n):
            buffer.add(**one)
        return (perf_counter() - started) / n

    return {"sample": sample, "update": update, "add": add}


def compared(n_rows: int, repetitions: int) -> list[dict[str, Any]]:
    """Return every repetition, in seconds a call."""
    buffer = filled(n_rows)
    calls = calls_of(buffer)
    nbytes = np.array([field.nbytes for field in FIELDS.values()], np.int64)
    limit = load().Limit(n_rows, nbytes)
    found: list[dict[str, Any]] = []
    for name, call in calls.items():
        n = max(1, int(SECONDS / call(20)))
        times: dict[str, list[float]] = {"ours": [], "limit": []}
        for _ in range(repetitions):
            times["ours"].append(call(n))
            times["limit"].append(limit.seconds(name, n))
        found.append({"call": name, "rows": n_rows, "seconds": times})
    return found


def table(results: list[dict[str, Any]]) -> str:
    """Return the medians, and the quartiles of the ratios of neighbours."""
    lines = [
        "| call | rows | limit | ours | ours takes |",
        "| --- | --- | --- | --- | --- |",
    ]
    for result in results:
        ours, limit = result["seconds"]["ours"], result["seconds"]["limit"]
        ratios = [one / other for one, other in zip(ours, limit, strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        lines.append(
            f"| {WHAT[result['call']]} | {result['rows']:,} | {1e6 * median(limit):.2f} µs "
            f"| {1e6 * median(ours):.2f} µs | **{middle:.2f}×** [{low:.2f}–{high:.2f}] |"
        )
    return "\n".join(lines)


PAGE = """# The distance to the limit

How much faster could the calls of a buffer be at best? Each is compared with a loop in C++ that
moves the same memory, of rows like HalfCheetah's, and does nothing else: no lock, no checks, no
importance weights, no new arrays, no Python (`bench/ablation/limit_kernels.hpp`). It descends by
prefix sums in AVX2 registers, which the buffer does not: a tree of such sums is faster to search,
and has to store twice as much in an update.

{table}

Medians; in brackets the quartiles of the ratio. Both took turns in one process on one core, in one
run of `python -m bench.runs.limit` at commit {commit}, on {processor}. The limit of `add` is that
of a loop over rows; the call is one of Python, with five keywords, which alone takes 0.3 µs.
"""


def main() -> None:
    """Compare, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--repetitions", type=int, default=25)
    parser.add_argument("--output", type=Path, help="where to write every repetition, as JSON")
    parser.add_argument("--page", type=Path, help="where to write the page")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    results = [part for n_rows in options.rows for part in compared(n_rows, options.repetitions)]
    print(table(results))
    machine = describe()
    if options.output:
        content = {"machine": machine, "results": results}
        options.output.write_text(json.dumps(content, indent=1) + "\n")
    if options.page:
        commit, processor = machine["commit"], machine["processor"]
        page = PAGE.format(table=table(results), commit=commit[:7], processor=processor)
        options.page.write_text(page)


if __name__ == "__main__":
    main()
