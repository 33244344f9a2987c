"""Learning curves of stock SB3 algorithms with one replay buffer or another, all else the same.

    python -m bench.runs.learning.curves cartpole lunarlander --seeds 10 --minutes 60

It writes bench/results/learning/cartpole.json and so on, after every run, and goes on with the runs
that are missing: a campaign of many hours can be made in pieces, and a kill costs only the runs
that were going. What the tasks are, `tasks` says. Every so often the greedy policy is evaluated on
environments of its own.
"""

from __future__ import annotations

import argparse
import inspect
import multiprocessing
import os
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from importlib import metadata
from math import isnan
from multiprocessing import connection
from pathlib import Path
from threading import Thread
from time import monotonic, perf_counter
from typing import Any

from bench.harness.campaign import stamp
from bench.runs.learning import results
from bench.runs.learning.tasks import TASKS, Task, environments

UNIFORM, FIRST, NOW = "uniform", "prioritized", "where it pays"
HALF, BY_GRADIENT = "half prioritized", "half by gradient"
PLAIN = "prioritized, in plain Python"
COMPARED = UNIFORM, FIRST, NOW
LIBRARIES = ("kary-replay", "stable-baselines3", "torch", "gymnasium", "numpy")


@dataclass(frozen=True)
class Replay:
    """What replays: the options of the prioritized buffer, or None for SB3's own."""

    options: dict[str, Any] | None = None
    n_steps: int = 1  # rewards in a return


AS_0_1_0 = {"alpha": 0.6, "beta": 0.4, "uniform_share": 0.0, "prioritize_by": "td_error"}
HALVES = {"alpha": 1.0, "beta": 1.0, "uniform_share": 0.5}
BUFFERS = {
    UNIFORM: Replay(),
    FIRST: Replay(AS_0_1_0),
    NOW: Replay({}),  # the defaults
    HALF: Replay({**HALVES, "prioritize_by": "td_error"}),
    BY_GRADIENT: Replay({**HALVES, "prioritize_by": "gradient"}),
    "beta = 1": Replay({**AS_0_1_0, "beta": 1.0}),
    PLAIN: Replay({"alpha": 0.6, "beta": 0.4}),
}
BUFFERS |= {f"{name}, n = 3": replace(BUFFERS[name], n_steps=3) for name in COMPARED}


def can_replay(task: Task, buffer: str) -> bool:
    """Say whether there is a buffer of that kind for a task: hindsight has no n-step returns."""
    return task.hindsight is None or (BUFFERS[buffer].n_steps == 1 and buffer != PLAIN)


def buffer_of(task: Task, buffer: str) -> tuple[Any, dict[str, Any]]:
    """Return the class of a task's buffer and its options; None: the algorithm's own class."""
    import stable_baselines3

    from kary_replay.adapters import sb3

    replay = BUFFERS[buffer]
    if buffer == PLAIN:
        from bench.rivals.python_sum_tree import PythonPrioritizedReplayBuffer

        return PythonPrioritizedReplayBuffer, dict(replay.options or {})
    if replay.options is None:
        hindsight = None if task.hindsight is None else stable_baselines3.HerReplayBuffer
        return hindsight, dict(task.hindsight or {})
    if task.hindsight is not None:
        return sb3.PrioritizedHerReplayBuffer, {**task.hindsight, **replay.options}
    if replay.n_steps == 1:
        return sb3.PrioritizedReplayBuffer, dict(replay.options)
    gamma = task.settings.get("gamma", 0.99)
    n_step = {"n_steps": replay.n_steps, "gamma": gamma}
    return sb3.PrioritizedNStepReplayBuffer, {**n_step, **replay.options}


def settings_of_replay(task: Task, buffer: str) -> dict[str, Any]:
    """Return the settings of a buffer, those included that it has by default."""
    kind, options = buffer_of(task, buffer)
    if BUFFERS[buffer].options is None:
        return {"n_steps": BUFFERS[buffer].n_steps}
    defaults = {
        parameter.name: parameter.default
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    found = {"n_steps": 1, **defaults, **options}
    of_the_task = {"seed", "gamma", *(task.hindsight or {})}
    return {name: value for name, value in found.items() if name not in of_the_task}


def built(task: Task, buffer: str, seed: int) -> Any:
    """Return the untrained model of a task with a buffer."""
    import numpy as np
    import stable_baselines3
    from stable_baselines3.common.noise import NormalActionNoise

    arguments = dict(task.settings)
    algorithm = getattr(stable_baselines3, task.algorithm)
    env = environments(task, 1, seed)
    if "action_noise" in arguments:
        shape, scale = env.action_space.shape, arguments["action_noise"]
        arguments["action_noise"] = NormalActionNoise(np.zeros(shape), np.full(shape, scale))
    if buffer == PLAIN:
        from bench.runs.learning.plain_dqn import WeightedDQN

        algorithm = WeightedDQN
    kind, options = buffer_of(task, buffer)
    if kind is None:
        arguments["n_steps"] = BUFFERS[buffer].n_steps
    return algorithm(
        task.policy,
        env,
        seed=seed,
        device="cpu",
        replay_buffer_class=kind,
        replay_buffer_kwargs=options,
        **arguments,
    )


def train(name: str, steps: int, buffer: str, seed: int) -> dict[str, Any]:
    """One run: the steps at which the policy was evaluated, and its mean returns."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    from kary_replay.adapters.sb3.prioritized_buffer import PrioritizedBuffer

    task = TASKS[name]
    torch.set_num_threads(1)
    model = built(task, buffer, seed)
    evaluation = environments(task, task.episodes, 1000 + seed)
    at: list[int] = []
    returns: list[float] = []
    # what a learner believes the first stored observations are worth: shows whether it diverges
    values: list[float] = []
    # what the buffer had learned: the share of uniform draws, and whether priorities pay
    shares: list[float] = []
    least_noise: list[float | None] = []
    shows_values = task.policy == "MlpPolicy"

    def value() -> float:
        rows = torch.from_numpy(model.replay_buffer.observations[: model.num_timesteps, 0][:1000])
        with torch.no_grad():
            if task.algorithm == "DQN":
                best = model.q_net(rows).max(dim=1).values
            else:
                actions = model.policy._predict(rows, deterministic=True)
                best = torch.cat(model.critic(rows, actions), dim=1).amin(dim=1)
            return float(best.mean())

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % task.evaluate_every == 0:
                at.append(self.num_timesteps)
                mean_return, _ = evaluate_policy(model, evaluation, task.episodes)
                returns.append(round(float(mean_return), 4))
                if isinstance(model.replay_buffer, PrioritizedBuffer):
                    shares.append(model.replay_buffer.uniform_share)
                    noise = model.replay_buffer.least_noise
                    least_noise.append(None if isnan(noise) else round(noise, 3))
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
        "uniform_shares": shares,
        "least_noise": least_noise,
        "seconds": round(perf_counter() - start, 1),
        "replay": settings_of_replay(task, buffer),
        "versions": {library: metadata.version(library) for library in LIBRARIES},
        **stamp(),
    }


def _train(folder: Path, name: str, steps: int, buffer: str, seed: int) -> str:
    """Make a run and write it down; return a line about it."""
    run = train(name, steps, buffer, seed)
    results.add(results.path_of(folder, name), name, steps, run)
    last = run["returns"][-1] if run["returns"] else float("nan")
    return f"{last:8.1f} at the end, {run['seconds']:.0f} s"


def end_with_the_campaign() -> None:
    """Let this process end when the one that began it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    Thread(target=watch, daemon=True).start()


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
        default=results.RESULTS,
        help="folder of the results (default: bench/results/learning)",
    )
    arguments = parser.parse_args()
    for name in ("seeds", "steps", "processes"):
        value = getattr(arguments, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    begun, folder = monotonic(), arguments.output
    steps = {name: arguments.steps or TASKS[name].steps for name in arguments.tasks}
    there = {}
    for name in arguments.tasks:
        path = results.path_of(folder, name)
        results.check(path, name, steps[name])
        there[name] = set() if arguments.anew else results.recorded(path)
        for buffer in arguments.buffers:
            if not can_replay(TASKS[name], buffer):
                print(f"{name}: there is no buffer {buffer!r} for it")

    # a seed of every task and buffer, then the next: a campaign that is cut off has some of all
    jobs = [
        (folder, name, steps[name], buffer, seed)
        for seed in range(arguments.seeds)
        for name in arguments.tasks
        for buffer in arguments.buffers
        if (buffer, seed) not in there[name] and can_replay(TASKS[name], buffer)
    ]
    context = multiprocessing.get_context("spawn")
    n_failed = 0
    with ProcessPoolExecutor(
        arguments.processes, context, end_with_the_campaign, max_tasks_per_child=1
    ) as pool:
        going: dict[Future[str], str] = {}
        while jobs or going:
            is_late = arguments.minutes and monotonic() - begun > 60 * arguments.minutes
            while jobs and len(going) < arguments.processes and not is_late:
                job = jobs.pop(0)
                _, name, _, buffer, seed = job
                going[pool.submit(_train, *job)] = f"{name:<12} {buffer:<12} seed {seed}"
            if not going:
                print(f"{len(jobs)} runs are still to be made")
                break
            for future in wait(going, return_when=FIRST_COMPLETED).done:
                who, error = going.pop(future), future.exception()
                n_failed += error is not None
                outcome = repr(error) if error else future.result()
                print(f"{who}: {outcome}", flush=True)
    if n_failed:
        raise SystemExit(f"{n_failed} runs failed, and are to be made again")


if __name__ == "__main__":
    main()
