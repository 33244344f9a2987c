"""Kills workers at random moments of one run.

Of actors, the run must solve its task after the last kill. DQN may forget on CartPole what it has
learned, with actors killed or not. So the best evaluation counts that was recorded after the last
kill, and not that of the end.

Of policy workers, the run must do all of its updates, and every step that was taken must have been
learned from once, or be dropped and counted, or wait. The learner checks each step, and with PPO
that its own networks have chosen the action: audit.py.

python tests/runner/kill_workers.py --kills 50
python tests/runner/kill_workers.py --kills 50 --kind policy_worker
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import audit
from rich.console import Console

from kary_replay.algorithms import IMPALAOptions, PPOOptions
from kary_replay.runner import Runner, RunnerConfig

HANG_SECONDS = 300.0  # a run with killed policy workers that takes longer waits for something
N_ENVS, LENGTH = 8, 16
# Actors wait for each update; or they do not, and so few updates may lie between choosing and
# learning that many rollouts are dropped.
AUDITED = {
    "ppo": (PPOOptions, {"batch_size": 64, "n_epochs": 2}, 0),
    "impala": (IMPALAOptions, {"envs_per_update": 4}, 1),
}


def working(kind, supervisor):
    """The processes of workers of a kind that work, among the descendants of a process."""
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
    return [pid for pid in workers if names[pid].startswith(f"{kind}-")]


def evaluations(directory):
    path = directory / "evaluations.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def kill_some(kind, n_kills, ended, killed, seed, longest_pause):
    rng = random.Random(seed)
    while len(killed) < n_kills and not ended.is_set():
        time.sleep(rng.uniform(0.0, longest_pause))
        # one that was killed may not have ended yet, or ends now
        alive = [pid for pid in working(kind, os.getpid()) if pid not in killed]
        if alive:
            pid = rng.choice(alive)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)


def run_and_kill(runner, kill):
    """Return the result of a run during which a thread kills."""
    ended = threading.Event()
    killer = threading.Thread(target=kill, args=(ended,))
    killer.start()
    try:
        return runner.run()
    finally:
        ended.set()
        killer.join()


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
    killed, n_before = [], [0]

    def kill(ended):
        kill_some("actor", kills, ended, killed, seed, longest_pause)
        n_before[0] = evaluations(directory)

    result = run_and_kill(Runner(config), kill)
    return result, len(killed), result.evaluations[n_before[0] :]


def audited(algorithm, directory, total_env_steps, **settings):
    """The settings of a run whose learner checks what it learns from."""
    options, own, max_staleness = AUDITED[algorithm]
    return RunnerConfig(
        f"audit:Audited{algorithm.upper()}",
        audit.Counted,
        options=options(hidden=(32, 32), n_envs=N_ENVS, rollout_length=LENGTH, **own),
        total_env_steps=total_env_steps,
        max_staleness=max_staleness,
        inference="worker",
        evaluate="never",
        max_restarts=1_000,  # in a row, should most be killed before they have answered
        directory=str(directory),
        **{"actors": 2, "backend": "process", **settings},
    )


def kill_policy_workers(algorithm, kills, total_env_steps, seed, folder, longest_pause, **settings):
    """Return how many policy workers were killed in a run, and where its steps are."""
    directory, found = folder / "run", folder / "audit.json"
    os.environ[audit.FILE] = str(found)
    all_killed = folder / "all_killed"
    dawdles = {"dawdles_after": total_env_steps * 9 // 10 // N_ENVS, "until": str(all_killed)}
    settings = {"env_options": dawdles, "seed": seed, **settings}
    config = audited(algorithm, directory, total_env_steps, **settings)
    runner, killed = Runner(config, console=Console(quiet=True)), []

    def kill(ended):
        begun = time.monotonic()
        kill_some("policy_worker", kills, ended, killed, seed, longest_pause)
        all_killed.touch()
        if not ended.wait(HANG_SECONDS - (time.monotonic() - begun)):
            runner.stop()

    result = run_and_kill(runner, kill)
    assert not result.interrupted, f"not over after {HANG_SECONDS:.0f} s"
    steps = audit.check(directory, config.rows_per_update, json.loads(found.read_text()))
    assert result.env_steps >= total_env_steps
    left = steps["waiting"] + steps["dropped"]
    if config.max_staleness == 0:
        assert left < config.rows_per_update and steps["dropped"] == 0, steps
    return len(killed), steps


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("actor", "policy_worker"), default="actor")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--env-steps", type=int)
    parser.add_argument("--threshold", type=float, default=475.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.kind == "actor":
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder) / "run"
            result, killed, after = main(args.kills, args.env_steps or 400_000, args.seed, where)
        best = max((found.mean_return for found in after), default=float("-inf"))
        print(
            f"{killed} actors killed; best of {len(after)} evaluations after that {best:.1f}; "
            f"{result.env_steps} steps"
        )
        sys.exit(not (killed >= args.kills and best >= args.threshold))
    enough = True
    for algorithm, policy_workers, groups in itertools.product(AUDITED, (1, 2), (1, 2)):
        settings = {"policy_workers": policy_workers, "groups": groups}
        with tempfile.TemporaryDirectory() as folder:
            killed, steps = kill_policy_workers(
                algorithm,
                args.kills,
                args.env_steps or 150_000,
                args.seed,
                Path(folder),
                0.4,
                **settings,
            )
        print(f"{algorithm}, {settings}: {killed} policy workers killed; {steps}", flush=True)
        enough &= killed >= args.kills
    sys.exit(not enough)
