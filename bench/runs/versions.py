"""Two versions of the package in one run: what has a change cost, or gained?

    git worktree add --detach ../before v0.1.0
    (cd ../before && python setup.py build_ext --inplace)
    python -m bench.runs.versions ../before --output versions.json

Each version lives in a process of its own, pinned to one core. They take turns, the order rotating,
and each repetition is as many calls as take some milliseconds.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import inspect
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BATCH = 256
SECONDS = 0.02  # of one repetition


def calls(
    kr: Any, np: Any, n_rows: int
) -> dict[str, tuple[Callable[..., object], Callable[[], tuple[Any, ...]]]]:
    """Return what is timed: the call, and what makes its arguments outside the clock."""
    rng = np.random.default_rng(0)
    fields = {
        "observation": kr.Field((17,), "float32"),
        "action": kr.Field((6,), "float32"),
        "reward": kr.Field((), "float32"),
        "next_observation": kr.Field((17,), "float32"),
        "terminated": kr.Field((), "bool"),
    }

    def rows(n: int) -> dict[str, Any]:
        return {name: np.zeros((n, *field.shape), field.dtype) for name, field in fields.items()}

    tree = kr.SumTree(n_rows)
    tree.set(np.arange(n_rows), rng.lognormal(size=n_rows))
    buffer = kr.PrioritizedReplayBuffer(n_rows, fields, alpha=0.6, beta=0.4, seed=0)
    uniform = kr.ReplayBuffer(n_rows, fields, seed=0)
    for _ in range(n_rows // 10_000):
        buffer.add(**rows(10_000), priority=rng.lognormal(size=10_000))
        uniform.add(**rows(10_000))
    one, some, many = rows(1), rows(BATCH), rows(4096)
    td_error = rng.lognormal(size=BATCH).astype(np.float32)

    def drawn() -> tuple[Any, Any]:
        return buffer.sample(BATCH).handle, td_error

    def train() -> None:
        buffer.update_priorities(buffer.sample(BATCH).handle, td_error)

    nothing: Callable[[], tuple[Any, ...]] = tuple
    return {
        "tree: draw 256": (lambda: tree.sample(BATCH), nothing),
        "tree: set 256": (
            tree.set,
            lambda: (rng.integers(0, n_rows, BATCH), rng.lognormal(size=BATCH)),
        ),
        "draw 256": (lambda: buffer.sample(BATCH), nothing),
        "draw 256, no row twice": (lambda: buffer.sample(BATCH, unique=True), nothing),
        "update 256": (buffer.update_priorities, drawn),
        "draw and update 256": (train, nothing),
        "add 1": (lambda: buffer.add(**one), nothing),
        "add 256": (lambda: buffer.add(**some), nothing),
        "add 4096": (lambda: buffer.add(**many), nothing),
        "uniform: draw 256": (lambda: uniform.sample(BATCH), nothing),
        "uniform: add 256": (lambda: uniform.add(**some), nothing),
    }


def frameworks_calls() -> dict[str, tuple[Callable[..., object], Callable[[], tuple[Any, ...]]]]:
    """Return what is timed of the adapters and of the learners."""
    import torch

    from bench.calls.test_learner import ours as update_of
    from bench.rivals import sb3_prioritized, tianshou_prioritized

    torch.set_num_threads(1)
    n_rows = 100_000
    sb3 = sb3_prioritized.Buffers("HalfCheetah", n_rows)
    tianshou = tianshou_prioritized.build("HalfCheetah", n_rows, ours=True)
    nothing: Callable[[], tuple[Any, ...]] = tuple
    cycles = {
        "SB3: draw and update 256": sb3.cycles(BATCH)[0],
        "Tianshou: draw and update 256": tianshou_prioritized.cycle(tianshou, n_rows, BATCH, ""),
    }
    return {
        "SB3: add 64 times": (lambda: sb3_prioritized.fill(sb3.ours, 64, block=64), nothing),
        **{
            name: (cycle.call, lambda cycle=cycle: cycle.inputs(1)[0])
            for name, cycle in cycles.items()
        },
        **{
            f"learner: {name} update": (update_of(name, 64, BATCH), nothing)
            for name in ("dqn", "td3", "sac")
        },
    }


def take_package(folder: str) -> Any:
    """Import the package of a folder, its adapters included, whatever is installed."""
    sys.path[:0] = [folder]
    import kary_replay as kr

    found = Path(inspect.getfile(kr))
    assert found.is_relative_to(Path(folder).resolve()), f"{found} is not of {folder}"
    adapters = Path(folder, "adapters")
    spec = importlib.util.spec_from_file_location(
        "kary_replay.adapters",
        adapters / "__init__.py",
        submodule_search_locations=[str(adapters)],
    )
    assert spec is not None and spec.loader is not None
    sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[spec.name])
    sys.path[0] = str(ROOT)  # for the benchmarks' own modules, the same for both versions
    return kr


def serve(folder: str, n_rows: int, chosen: set[str]) -> None:
    """Time what standard input names, with the package of another folder, until it ends.

    Buffers of the core have n_rows rows. What is chosen will be asked for, or anything if nothing
    is.
    """
    kr = take_package(folder)
    import numpy as np

    timed = calls(kr, np, n_rows)
    if not chosen or not chosen <= timed.keys():  # the others need torch, and full buffers
        timed |= frameworks_calls()
    n_calls: dict[str, int] = {}
    gc.disable()
    print(json.dumps(list(timed)), flush=True)
    for line in sys.stdin:
        name = line.strip()
        call, inputs = timed[name]
        for _ in range(2 if name not in n_calls else 1):
            arguments = [inputs() for _ in range(n_calls.get(name, 30))]
            start = perf_counter()
            for argument in arguments:
                call(*argument)
            seconds = (perf_counter() - start) / len(arguments)
            n_calls[name] = n_calls.get(name) or max(1, min(20_000, int(SECONDS / seconds)))
        print(json.dumps(seconds), flush=True)


class Version:
    """A process with one version."""

    def __init__(self, folder: Path, core: int, n_rows: int, chosen: list[str]) -> None:
        program, where = str(Path(__file__).resolve()), str(folder.resolve())
        command = [sys.executable, program, "--serve", where, str(n_rows), *chosen]
        if sys.platform == "linux":
            command = ["taskset", "-c", str(core), *command]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        self.names: list[str] = self._answer()

    def seconds(self, name: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())


def interval(ratios: list[float], rng: random.Random) -> tuple[float, float]:
    """Return where nine in ten medians lie when the ratios are drawn anew."""
    medians = sorted(median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[100], medians[1899]


def compare(
    before: Path, n_rounds: int, n_processes: int, n_rows: int, chosen: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the repetitions of each call that is chosen; of all, if none is.

    By several processes of each version, one pair after the other: where a process finds its memory
    makes more of a difference than many a change.
    """
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    found: dict[str, dict[str, list[float]]] = {}
    for number in range(n_processes):
        versions = {
            side: Version(folder, core, n_rows, chosen)
            for side, folder in (("before", before), ("after", ROOT))
        }
        for name in chosen or versions["after"].names:
            times = found.setdefault(name, {"before": [], "after": []})
            for turn in range(n_rounds + 1):
                for side in sorted(versions, reverse=(turn + number) % 2 == 1):
                    seconds = versions[side].seconds(name)
                    if turn:  # the first one finds out how many calls it takes
                        times[side].append(seconds)
        for version in versions.values():
            version.close()
    for name, times in found.items():
        yield {"call": name, "seconds": times}


def main() -> None:
    """Compare, print a table, and write the repetitions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "before", type=Path, help="a checkout of the other version, its modules built in place"
    )
    parser.add_argument("--rounds", type=int, default=11, help="repetitions by each process")
    parser.add_argument(
        "--processes", type=int, default=7, help="of each version, one after the other"
    )
    parser.add_argument(
        "--rows", type=lambda text: int(float(text)), default=1_000_000, help="in a buffer"
    )
    parser.add_argument("--calls", nargs="+", default=[], help="only these")
    parser.add_argument("--output", type=Path, help="where to write every repetition, as JSON")
    options = parser.parse_args()
    from bench.harness.machine import describe

    rng = random.Random(0)
    results = []
    print(f"{'call':>24}  {'before':>9}  {'after':>9}  after takes")
    measured = compare(
        options.before, options.rounds, options.processes, options.rows, options.calls
    )
    for result in measured:
        before, after = result["seconds"]["before"], result["seconds"]["after"]
        ratios = [one / other for one, other in zip(after, before, strict=True)]
        low, high = interval(ratios, rng)
        result["ratio"] = {"median": median(ratios), "low": low, "high": high}
        print(
            f"{result['call']:>24}  "
            f"{1e6 * median(before):6.2f} µs  {1e6 * median(after):6.2f} µs  "
            f"{median(ratios):.3f} of before [{low:.3f}–{high:.3f}]",
            flush=True,
        )
        results.append(result)
    if options.output:
        commit = ["git", "-C", str(options.before), "rev-parse", "HEAD"]
        before_commit = subprocess.run(commit, capture_output=True, text=True).stdout.strip()
        content = {
            "machine": describe(),
            "before": before_commit,
            "processes": options.processes,
            "rows": options.rows,
            "results": results,
        }
        options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], int(sys.argv[3]), set(sys.argv[4:]))
    else:
        main()
