"""How long a run takes to start, beside Stable-Baselines3: ``python -m bench.runs.startup``.

Each command is timed from outside, in a process of its own, less the seconds that it says it
trained: what is left is the interpreter, imports, measurements, processes, and the end. The
commands take turns, so that a change of the machine's load hits all of them. For Stable-Baselines3
it is the import, a DQN model on CartPole-v1, and the first step of ``learn``.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time

SB3 = (
    "from stable_baselines3 import DQN; DQN('MlpPolicy', 'CartPole-v1').learn(1); "
    "print('done: and 0.0 s')"
)
TASK = ["-m", "kary_replay", "train", "dqn", "CartPole-v1"]
TRAIN = [*TASK, "--total-env-steps", "500", "--evaluate", "never"]
CASES = {
    "--actors 1": [*TRAIN, "--actors", "1"],
    "--actors auto": [*TRAIN, "--actors", "auto"],
    "Stable-Baselines3": ["-c", SB3],
}


def seconds_of(command: list[str]) -> float:
    """Return how long one command takes, without the seconds that it trained."""
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, check=True, capture_output=True, text=True
        )
        whole = time.perf_counter() - begun
    trained = re.search(r"done: .*and ([\d.]+) s", done.stdout)
    assert trained is not None, done.stdout
    return whole - float(trained[1])


def main() -> None:
    """Time each case several times, and print medians and extremes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print every repetition as JSON")
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(args.repetitions):
        for name, command in CASES.items():
            found[name].append(seconds_of(command))
    if args.json:
        print(json.dumps(found))
        return
    for name, seconds in found.items():
        median = statistics.median(seconds)
        print(f"{name:18} {median:5.2f} s ({min(seconds):.2f} … {max(seconds):.2f})")


if __name__ == "__main__":
    main()
