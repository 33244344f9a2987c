"""What the smallest numbers cost stock Stable-Baselines3: ``python -m bench.runs.flushing``.

Where a unit is off for every row, its parameters get no gradient, and what Adam keeps of the former
ones decays to numbers below 1.2e-38, with which processors of x86 may compute a hundred times more
slowly. ``torch.set_flush_denormal(True)`` takes them for 0. Each run is in a process of its own,
with one thread, and its CPU seconds are counted, imports left out. Runs with and without it take
turns. They have the same seed, so that their parameters can be compared to the bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from bench.harness.machine import describe
from bench.runs.learning import tasks as learning

TASKS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "DQN, CartPole-v1": ("DQN", "CartPole-v1", 30_000, learning.TASKS["cartpole"].settings),
    "SAC, Pendulum-v1": ("SAC", "Pendulum-v1", 6_000, {}),
}


def train(task: str, flushes: bool, seed: int) -> dict[str, Any]:
    """Train in this process; return seconds, the share of small means, and what is learned."""
    import stable_baselines3
    import torch

    torch.set_num_threads(1)
    if not torch.set_flush_denormal(flushes):
        raise SystemExit("this processor cannot take small numbers for 0")
    name, env, n_steps, settings = TASKS[task]
    model = getattr(stable_baselines3, name)("MlpPolicy", env, seed=seed, device="cpu", **settings)
    begun = time.process_time()
    model.learn(n_steps)
    seconds = time.process_time() - begun
    part = model.critic if name == "SAC" else model.policy
    torch.set_flush_denormal(False)  # so that they are seen
    means = torch.cat([one["exp_avg"].flatten() for one in part.optimizer.state.values()]).abs()
    parameters = b"".join(one.numpy().tobytes() for one in model.policy.state_dict().values())
    are_small = (means > 0) & (means < torch.finfo(means.dtype).tiny)
    return {
        "seconds": seconds,
        "small_means": float(are_small.float().mean()),
        "parameters": hashlib.sha256(parameters).hexdigest(),
    }


def in_a_process(task: str, flushes: bool, seed: int) -> dict[str, Any]:
    """Train in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "bench.runs.flushing"]
    given = ["--one", json.dumps([task, flushes, seed])]
    done = subprocess.run([*command, *given], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Train each task several times, and print medians and extremes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print every repetition as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(train(*json.loads(args.one))))
        return
    found: dict[str, list[dict[str, Any]]] = {task: [] for task in TASKS}
    for seed in range(args.repetitions):
        for task, pairs in found.items():
            order = (False, True) if seed % 2 else (True, False)
            pairs.append({str(flushes): in_a_process(task, flushes, seed) for flushes in order})
    if args.json:
        print(json.dumps({"machine": describe(), "found": found}))
        return
    for task, pairs in found.items():
        kept, flushed = ([pair[key] for pair in pairs] for key in ("False", "True"))
        ratios = [
            one["seconds"] / other["seconds"] for one, other in zip(kept, flushed, strict=True)
        ]
        same = sum(
            one["parameters"] == other["parameters"]
            for one, other in zip(kept, flushed, strict=True)
        )
        print(
            f"{task}: {statistics.median(one['seconds'] for one in kept):.1f} s, and "
            f"{statistics.median(one['seconds'] for one in flushed):.1f} s with small numbers "
            f"taken for 0: {statistics.median(ratios):.2f}× [{min(ratios):.2f}–{max(ratios):.2f}]; "
            f"{statistics.median(one['small_means'] for one in kept):.0%} of the means are small; "
            f"the same parameters to the bit in {same} of {len(pairs)} runs"
        )


if __name__ == "__main__":
    main()
