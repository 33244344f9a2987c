"""Whether two versions of this project train alike, bit for bit: the same serial runs with both.

    git worktree add --detach ../before COMMIT && (cd ../before && make)
    python tests/runner/compare_commits.py ../before .

Every algorithm is run with several seeds, in a process of its own whose package comes from the
folder, its modules built in place. What is compared: the parameters of all networks and optimizers,
the evaluations and episodes, the rows, masses and counters of the buffer.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ALGORITHMS = {
    "dqn": "CartPole-v1",
    "ddpg": "Pendulum-v1",
    "td3": "Pendulum-v1",
    "sac": "Pendulum-v1",
}
TIMES = ("wall_seconds", "seconds")


def digest_of_tensors(value, into):
    """Feed nested dicts and lists of tensors and numbers to a hash, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        into.update(f"{value.dtype}{tuple(value.shape)}".encode() + value.numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            into.update(str(key).encode())
            digest_of_tensors(value[key], into)
    elif isinstance(value, (list, tuple)):
        for one in value:
            digest_of_tensors(one, into)
    else:
        into.update(repr(value).encode())


def digests_of(directory):
    """Return what a run left, as a digest of each part."""
    import torch

    checkpoint = json.loads((directory / "checkpoint.json").read_text())
    folder = directory / checkpoint["folder"]
    found = {}
    state = torch.load(folder / "learner-0.pt", weights_only=False)
    learner = hashlib.sha256()
    digest_of_tensors(state["algorithm"], learner)
    found["learner"] = learner.hexdigest()
    for name in ("episodes.jsonl", "evaluations.jsonl"):
        lines = (directory / name).read_text().splitlines() if (directory / name).exists() else []
        records = [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]
        found[name] = hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()
        found[f"{name}, lines"] = len(lines)
    replay = folder / "replay"
    manifest = json.loads((replay / "checkpoint.json").read_text())["kary_replay_checkpoint"]
    found["counters"] = {
        name: manifest[name] for name in ("n_added", "n_sampled", "position", "random", "n_started")
    }
    for name, file in manifest["files"].items():
        path = next(p for p in replay.rglob("*") if p.name == name and p.is_file())
        found[name] = [file["nbytes"], hashlib.sha256(path.read_bytes()).hexdigest()]
    return found


def run(algorithm, seed, steps, directory):
    """Train in this process, and print the digests."""
    from rich.console import Console

    import kary_replay
    from kary_replay.algorithms import ALGORITHMS as KNOWN
    from kary_replay.runner import Runner, RunnerConfig

    options = KNOWN[algorithm].options_class(hidden=(32, 32), batch_size=64)
    config = RunnerConfig(
        algorithm,
        ALGORITHMS[algorithm],
        options=options,
        actors=2,
        backend="serial",
        seed=seed,
        envs_per_actor=4,
        groups=2,
        learning_starts=200,
        buffer_capacity=2_000,
        samples_per_insert=8.0 if algorithm == "dqn" else 64.0,  # whatever the presets have
        total_env_steps=steps,
        evaluation_interval=steps // 3,
        evaluation_episodes=3,
        directory=str(directory),
    )
    result = Runner(config, console=Console(quiet=True)).run()
    found = digests_of(Path(directory))
    found["last_return"] = repr(result.last_return)
    found["updates"] = result.updates
    print(json.dumps({"package": kary_replay.__file__, "digests": found}))


def outcome(folder, algorithm, seed, steps):
    """Train with the package of a folder; return its digests."""
    with tempfile.TemporaryDirectory() as directory:
        command = [
            sys.executable,
            __file__,
            "--run",
            algorithm,
            str(seed),
            str(steps),
            directory + "/run",
        ]
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{folder}, {algorithm}, seed {seed}:\n{done.stderr}")
    found = json.loads(done.stdout.splitlines()[-1])
    if not Path(found["package"]).is_relative_to(folder):
        raise SystemExit(f"{folder}: another package was imported, {found['package']}")
    return found["digests"]


def main():
    """Compare, and exit with 1 if there was a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1_200)
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        algorithm, seed, steps, directory = arguments.run
        run(algorithm, int(seed), int(steps), Path(directory))
        return
    before, after = (folder.resolve() for folder in arguments.folders)
    n_different = 0
    for algorithm in ALGORITHMS:
        for seed in range(arguments.seeds):
            one, other = (
                outcome(folder, algorithm, seed, arguments.steps) for folder in (before, after)
            )
            different = [
                name for name in one.keys() | other.keys() if one.get(name) != other.get(name)
            ]
            n_different += bool(different)
            verdict = f"differs in {', '.join(sorted(different))}" if different else "the same bits"
            print(f"{algorithm} seed {seed}: {one['updates']} updates, {verdict}", flush=True)
    sys.exit(n_different > 0)


if __name__ == "__main__":
    main()
