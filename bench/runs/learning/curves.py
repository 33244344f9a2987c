"""Learning curves of stock SB3 algorithms: its uniform buffer against ours, all else the same.

    python -m bench.runs.learning.curves cartpole --seeds 5 --processes 2

It writes bench/results/learning/cartpole.json.

The hyperparameters are those of RL Baselines3 Zoo, tuned there for uniform replay; ours adds alpha
and beta, its defaults. Every so often the greedy policy is evaluated on environments of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.harness import paths
from bench.harness.campaign import stamp

RESULTS = paths.RESULTS / "learning"
PLAIN = "prioritized, in plain Python"
BUFFERS = ("uniform", "prioritized", PLAIN)  # the last one only where it is asked for
PRIORITIZED = {"alpha": 0.6, "beta": 0.4}
LIBRARIES = ("kary-replay", "stable-baselines3", "torch", "gymnasium", "numpy")


@dataclass(frozen=True)
class Task:
    """An algorithm, an environment, and the settings both buffers get."""

    algorithm: str
    env_id: str
    steps: int
    evaluate_every: int
    episodes: int  # of one evaluation
    settings: dict[str, Any] = field(default_factory=dict)
    variant: str = ""  # in what its settings differ from the zoo's


TASKS = {
    "cartpole": Task(
        "DQN",
        "CartPole-v1",
        steps=50_000,
        evaluate_every=2_000,
        episodes=20,
        settings={
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    "pendulum": Task(
        "SAC",
        "Pendulum-v1",
        steps=10_000,
        evaluate_every=500,
        episodes=10,
        settings={"learning_rate": 1e-3},
    ),
    "lunarlander": Task(
        "DQN",
        "LunarLander-v3",
        steps=100_000,
        evaluate_every=5_000,
        episodes=10,
        settings={
            "learning_rate": 6.3e-4,
            "batch_size": 128,
            "buffer_size": 50_000,
            "learning_starts": 0,
            "gamma": 0.99,
            "target_update_interval": 250,
            "train_freq": 4,
            "gradient_steps": -1,
            "exploration_fraction": 0.12,
            "exploration_final_eps": 0.1,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
}
# Prioritized replay repeats the rows with large errors, so its paper takes a quarter of uniform
# replay's step size (section 4). Here both buffers get it.
TASKS["lunarlander_gentle"] = replace(
    TASKS["lunarlander"],
    settings={**TASKS["lunarlander"].settings, "learning_rate": 6.3e-4 / 4},
    variant="a quarter of the zoo's learning rate",
)


def train(name: str, steps: int, buffer: str, seed: int) -> dict[str, Any]:
    """One run: the steps at which the policy was evaluated, and its mean returns."""
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy

    from kary_replay.adapters.sb3 import PrioritizedReplayBuffer

    task = TASKS[name]
    torch.set_num_threads(1)
    arguments: dict[str, Any] = dict(task.settings)
    algorithm = getattr(stable_baselines3, task.algorithm)
    if buffer == "prioritized":
        arguments |= {
            "replay_buffer_class": PrioritizedReplayBuffer,
            "replay_buffer_kwargs": PRIORITIZED,
        }
    elif buffer == PLAIN:
        from bench.rivals.python_sum_tree import PythonPrioritizedReplayBuffer
        from bench.runs.learning.plain_dqn import WeightedDQN

        algorithm = WeightedDQN
        arguments |= {
            "replay_buffer_class": PythonPrioritizedReplayBuffer,
            "replay_buffer_kwargs": PRIORITIZED,
        }
    model = algorithm(
        "MlpPolicy", make_vec_env(task.env_id, seed=seed), seed=seed, device="cpu", **arguments
    )
    evaluation = make_vec_env(task.env_id, n_envs=task.episodes, seed=1000 + seed)
    at: list[int] = []
    returns: list[float] = []
    # what DQN believes the first stored observations are worth: shows whether it diverges
    values: list[float] = []

    def value() -> float:
        observations = torch.from_numpy(
            model.replay_buffer.observations[: min(1000, model.num_timesteps), 0]
        )
        with torch.no_grad():
            return float(model.q_net(observations).max(dim=1).values.mean())

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % task.evaluate_every == 0:
                at.append(self.num_timesteps)
                returns.append(
                    round(float(evaluate_policy(model, evaluation, task.episodes)[0]), 2)
                )
                if task.algorithm == "DQN":
                    values.append(round(value(), 2))
            return True

    start = perf_counter()
    model.learn(steps, callback=Evaluate())
    seconds = round(perf_counter() - start, 1)
    return {
        "buffer": buffer,
        "seed": seed,
        "steps": at,
        "returns": returns,
        "values": values,
        "seconds": seconds,
        **stamp(),
    }


def _train(job: tuple[str, int, str, int]) -> dict[str, Any]:
    return train(*job)


def write(path: Path, name: str, steps: int, runs: Sequence[dict[str, Any]]) -> None:
    """Write what there is so far; a crash leaves the old file or the new one."""
    task = TASKS[name]
    head = {
        "task": name,
        "algorithm": task.algorithm,
        "env": task.env_id,
        "steps": steps,
        "episodes": task.episodes,
        "settings": task.settings,
        "variant": task.variant,
        "prioritized": PRIORITIZED,
        "versions": {library: metadata.version(library) for library in LIBRARIES},
    }
    lines = ",\n".join(
        json.dumps(run) for run in sorted(runs, key=lambda run: (run["seed"], run["buffer"]))
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    fresh.write_text(json.dumps(head)[:-1] + f', "runs": [\n{lines}\n]}}\n')
    os.replace(fresh, path)


def recorded(path: Path, but_for: set[tuple[str, int]], steps: int) -> list[dict[str, Any]]:
    """Return the runs of as many steps that are there already, but for these."""
    document = json.loads(path.read_text()) if path.exists() else {"steps": steps, "runs": []}
    if document["steps"] != steps:
        raise SystemExit(
            f"{path.name} has runs of {document['steps']:,} steps: "
            "name another folder with --output"
        )
    return [run for run in document["runs"] if (run["buffer"], run["seed"]) not in but_for]


def main() -> None:
    """Train every seed with the buffers, and write after each run; other runs stay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--buffers", nargs="+", choices=BUFFERS, default=BUFFERS[:2])
    parser.add_argument("--resume", action="store_true", help="keep the runs that there are")
    parser.add_argument("--steps", type=int, help="environment steps (default: the task's)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--output",
        type=Path,
        default=RESULTS,
        help="folder of the results (default: bench/results/learning)",
    )
    arguments = parser.parse_args()
    steps = arguments.steps or TASKS[arguments.task].steps
    jobs = [
        (arguments.task, steps, buffer, seed)
        for seed in range(arguments.seeds)
        for buffer in arguments.buffers
    ]
    output = arguments.output / f"{arguments.task}.json"
    runs = recorded(output, set() if arguments.resume else {job[2:] for job in jobs}, steps)
    there = {(run["buffer"], run["seed"]) for run in runs}
    jobs = [job for job in jobs if job[2:] not in there]
    with multiprocessing.get_context("spawn").Pool(arguments.processes, maxtasksperchild=1) as pool:
        for run in pool.imap_unordered(_train, jobs):
            runs.append(run)
            write(output, arguments.task, steps, runs)
            last = run["returns"][-1] if run["returns"] else float("nan")
            who, seconds = f"{run['buffer']:<12} seed {run['seed']}", f"{run['seconds']:.0f} s"
            print(f"{who}: {last:8.1f} at the end, {seconds}", flush=True)


if __name__ == "__main__":
    main()
