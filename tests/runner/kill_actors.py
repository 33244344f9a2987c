"""Kills actors at random moments of one run, which must solve its task after the last of them.

DQN may forget on CartPole what it has learned, with actors killed or not. So the best evaluation
counts that was recorded after the last kill, and not that of the end.

python tests/runner/kill_actors.py --kills 50
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from kary_replay.runner import Runner, RunnerConfig


def actors(supervisor):
    """The processes of actors that work, among the descendants of a process."""
    names, children = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = path.read_text().split("(", 1)[1].rsplit(")", 1)
        except (OSError, IndexError):
            continue
        state, parent = rest.split()[:2]
        pid = int(path.parent.name)
        if state != "Z":
            names[pid] = name
            children.setdefault(int(parent), []).append(pid)
    # The parent of a worker is the fork server, a child of the supervisor.
    servers = children.get(supervisor, [])
    workers = [pid for server in servers for pid in children.get(server, [])]
    return [pid for pid in workers if names[pid].startswith("actor-")]


def evaluations(directory):
    path = directory / "evaluations.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def kill_some(n_kills, ended, killed, seed, longest_pause):
    rng = random.Random(seed)
    while len(killed) < n_kills and not ended.is_set():
        time.sleep(rng.uniform(0.0, longest_pause))
        alive = actors(os.getpid())
        if alive:
            pid = rng.choice(alive)
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)


def main(kills, total_env_steps, seed, directory, longest_pause=1.0):
    """Return the result of a run, how many actors were killed, and what it evaluated then."""
    config = RunnerConfig(
        "dqn",
        "CartPole-v1",
        actors=2,
        seed=seed,
        total_env_steps=total_env_steps,
        samples_per_insert=32.0,
        evaluation_interval=5_000,
        directory=str(directory),
    )
    ended, killed = threading.Event(), []
    n_before = [0]

    def kill():
        kill_some(kills, ended, killed, seed, longest_pause)
        n_before[0] = evaluations(directory)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        result = Runner(config).run()
    finally:
        ended.set()
        killer.join()
    return result, len(killed), result.evaluations[n_before[0] :]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--env-steps", type=int, default=400_000)
    parser.add_argument("--threshold", type=float, default=475.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result, killed, after = main(args.kills, args.env_steps, args.seed, Path(folder) / "run")
    best = max((found.mean_return for found in after), default=float("-inf"))
    print(
        f"{killed} actors killed; best of {len(after)} evaluations after that {best:.1f}; "
        f"{result.env_steps} steps"
    )
    sys.exit(not (killed >= args.kills and best >= args.threshold))
