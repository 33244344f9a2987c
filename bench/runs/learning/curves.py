"""Learning curves of stock SB3 algorithms with one replay buffer or another, all else the same.

    python -m bench.runs.learning.curves cartpole lunarlander --seeds 10 --minutes 60

It writes bench/results/learning/cartpole.json and so on, after every run, and goes on with the runs
that are missing: a campaign of many hours can be made in pieces. What the tasks are, `tasks` says.
Every so often the greedy policy is evaluated on environments of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from bench.harness import paths
from bench.harness.campaign import stamp
from bench.runs.learning.tasks import TASKS, Task, environments

RESULTS = paths.RESULTS / "learning"
UNIFORM, FIRST, PLAIN = "uniform", "prioritized", "prioritized, in plain Python"
BUFFERS: dict[str, dict[str, Any] | None] = {
    UNIFORM: None,
    FIRST: {"alpha": 0.6, "beta": 0.4},
    "beta = 1": {"alpha": 0.6, "beta": 1.0},
    PLAIN: {"alpha": 0.6, "beta": 0.4},
}
"""What replays: the options of the prioritized buffer, or None for SB3's own."""
COMPARED = UNIFORM, FIRST
LIBRARIES = ("kary-replay", "stable-baselines3", "torch", "gymnasium", "numpy")


def built(task: Task, buffer: str, seed: int) -> Any:
    """Return the untrained model of a task with a buffer."""
    import numpy as np
    import stable_baselines3
    from stable_baselines3.common.noise import NormalActionNoise

    from kary_replay.adapters import sb3

    options, arguments = BUFFERS[buffer], dict(task.settings)
    algorithm = getattr(stable_baselines3, task.algorithm)
    env = environments(task, 1, seed)
    if "action_noise" in arguments:
        shape, scale = env.action_space.shape, arguments["action_noise"]
        arguments["action_noise"] = NormalActionNoise(np.zeros(shape), np.full(shape, scale))
    if buffer == PLAIN:
        from bench.rivals.python_sum_tree import PythonPrioritizedReplayBuffer
        from bench.runs.learning.plain_dqn import WeightedDQN

        algorithm = WeightedDQN
        arguments["replay_buffer_class"] = PythonPrioritizedReplayBuffer
    elif task.hindsight is not None:
        ours = options is not None
        arguments["replay_buffer_class"] = (
            sb3.PrioritizedHerReplayBuffer if ours else stable_baselines3.HerReplayBuffer
        )
    elif options is not None:
        arguments["replay_buffer_class"] = sb3.PrioritizedReplayBuffer
    arguments["replay_buffer_kwargs"] = {**(task.hindsight or {}), **(options or {})}
    return algorithm(task.policy, env, seed=seed, device="cpu", **arguments)


def train(name: str, steps: int, buffer: str, seed: int) -> dict[str, Any]:
    """One run: the steps at which the policy was evaluated, and its mean returns."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    task = TASKS[name]
    torch.set_num_threads(1)
    model = built(task, buffer, seed)
    evaluation = environments(task, task.episodes, 1000 + seed)
    at: list[int] = []
    returns: list[float] = []
    # what DQN believes the first stored observations are worth: shows whether it diverges
    values: list[float] = []
    shows_values = task.algorithm == "DQN" and task.policy == "MlpPolicy"

    def value() -> float:
        rows = model.replay_buffer.observations[: min(1000, model.num_timesteps), 0]
        with torch.no_grad():
            return float(model.q_net(torch.from_numpy(rows)).max(dim=1).values.mean())

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % task.evaluate_every == 0:
                at.append(self.num_timesteps)
                mean_return, _ = evaluate_policy(model, evaluation, task.episodes)
                returns.append(round(float(mean_return), 4))
                if shows_values:
                    values.append(round(value(), 2))
            return True

    start = perf_counter()
    model.learn(steps, callback=Evaluate())
    return {
        "buffer": buffer,
        "seed": seed,
        "steps": at,
        "returns": returns,
        "values": values,
        "seconds": round(perf_counter() - start, 1),
        "versions": {library: metadata.version(library) for library in LIBRARIES},
        **stamp(),
    }


def _train(job: tuple[str, int, str, int]) -> tuple[str, dict[str, Any]]:
    return job[0], train(*job)


def path_of(folder: Path, name: str) -> Path:
    """Return where the runs of a task are."""
    return folder / f"{name}.json"


def write(path: Path, name: str, steps: int, runs: Sequence[dict[str, Any]]) -> None:
    """Write what there is so far; a crash leaves the old file or the new one."""
    head = {"task": name, **asdict(TASKS[name]), "steps": steps, "buffers": BUFFERS}
    ordered = sorted(runs, key=lambda run: (run["seed"], run["buffer"]))
    lines = ",\n".join(json.dumps(run) for run in ordered)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(head)[:-1] + f', "runs": [\n{lines}\n]}}\n')
    os.replace(fresh, path)


def recorded(path: Path, steps: int) -> list[dict[str, Any]]:
    """Return the runs of as many steps that are there already."""
    document = json.loads(path.read_text()) if path.exists() else {"steps": steps, "runs": []}
    if document["steps"] != steps:
        raise SystemExit(
            f"{path.name} has runs of {document['steps']:,} steps: "
            "name another folder with --output"
        )
    shared = {"versions": document["versions"]} if "versions" in document else {}
    return [{**shared, **run} for run in document["runs"]]


def main() -> None:
    """Train every seed with every buffer where that is missing, and write after each run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--buffers", nargs="+", choices=BUFFERS, default=COMPARED)
    parser.add_argument("--anew", action="store_true", help="replace the runs that there are")
    parser.add_argument("--steps", type=int, help="environment steps (default: the task's)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, help="begin no run after so long")
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        help="folder of the results (default: bench/results/learning)",
    )
    arguments = parser.parse_args()
    begun = monotonic()
    wanted = {(buffer, seed) for buffer in arguments.buffers for seed in range(arguments.seeds)}
    runs: dict[str, list[dict[str, Any]]] = {}
    steps = {name: arguments.steps or TASKS[name].steps for name in arguments.tasks}
    for name in arguments.tasks:
        found = recorded(path_of(arguments.output, name), steps[name])
        kept = [run for run in found if (run["buffer"], run["seed"]) not in wanted]
        runs[name] = kept if arguments.anew else found

    # a seed of every task and buffer, then the next: a campaign that is cut off has some of all
    jobs = [
        (name, steps[name], buffer, seed)
        for seed in range(arguments.seeds)
        for name in arguments.tasks
        for buffer in arguments.buffers
        if not any((run["buffer"], run["seed"]) == (buffer, seed) for run in runs[name])
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.processes, context, max_tasks_per_child=1) as pool:
        going: set[Future[tuple[str, dict[str, Any]]]] = set()
        while jobs or going:
            is_late = arguments.minutes and monotonic() - begun > 60 * arguments.minutes
            while jobs and len(going) < arguments.processes and not is_late:
                going.add(pool.submit(_train, jobs.pop(0)))
            if not going:
                print(f"{len(jobs)} runs are still to be made")
                break
            ended, going = wait(going, return_when=FIRST_COMPLETED)
            for future in ended:
                name, run = future.result()
                runs[name].append(run)
                write(path_of(arguments.output, name), name, steps[name], runs[name])
                last = run["returns"][-1] if run["returns"] else float("nan")
                who = f"{name:<12} {run['buffer']:<12} seed {run['seed']}"
                print(f"{who}: {last:8.1f} at the end, {run['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
