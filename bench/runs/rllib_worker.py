"""One run of RLlib in a process of its own: `python -m bench.runs.rllib_worker JOB`."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer as RllibBuffer
from scipy import signal

from bench.harness import machine
from bench.harness.machine import resident_bytes
from bench.runs.convergence import rllib_rival
from bench.runs.convergence.tasks import TASKS
from bench.runs.rllib_training import MEMORY, NOTHING, OURS, PARTS, STOCK
from kary_replay.adapters.rllib import PrioritizedEpisodeReplayBuffer

WEIGHED = 50_000  # steps
LIFETIME = "num_env_steps_sampled_lifetime"
STEPS_OF_A_TRAINING_STEP = 5  # as many as n_step=(2, 5) lets an EnvRunner take at once


def episodes(env_id: str, n_steps: int, seed: int) -> Any:
    """Yield whole episodes of random actions, until there are so many steps."""
    env = gym.make(env_id)
    env.action_space.seed(seed)
    added = 0
    while added < n_steps:
        episode = SingleAgentEpisode(
            observation_space=env.observation_space, action_space=env.action_space
        )
        observation, info = env.reset(seed=seed + added)
        episode.add_env_reset(np.asarray(observation, np.float32), info)
        while not episode.is_done and added < n_steps:
            action = env.action_space.sample()
            observation, reward, terminated, truncated, info = env.step(action)
            episode.add_env_step(
                np.asarray(observation, np.float32),
                action,
                float(reward),
                terminated=terminated,
                truncated=truncated,
            )
            added += 1
        yield episode.to_numpy()


def weigh(job: dict[str, Any]) -> dict[str, Any]:
    """Return the growth of this process over the steps that are added, one by one."""
    kind = PrioritizedEpisodeReplayBuffer if job["buffer"] == OURS else RllibBuffer
    buffer = kind(capacity=WEIGHED + WEIGHED // 8, alpha=0.6)
    made = list(episodes(job["case"], WEIGHED, job["seed"]))
    buffer.add(SingleAgentEpisode.from_state(made[0].get_state()))
    before = resident_bytes()
    for episode in made[1:]:
        for first in range(len(episode)):
            buffer.add(episode[first : first + 1])
        buffer.get_metrics()
    n_steps = len(buffer) - len(made[0])
    return {"bytes_per_step": (resident_bytes() - before) / n_steps}


def do_nothing(buffer: Any, n_rows: int, n_step: tuple[int, int]) -> None:
    """Let a buffer return the same rows from now on, and take no time."""
    rows = buffer.sample(n_rows, n_step=n_step)
    buffer.sample = lambda *_, **__: rows
    buffer.add = buffer.update_priorities = lambda *_, **__: None
    buffer.get_metrics = dict


def train(job: dict[str, Any]) -> dict[str, Any]:
    """Return the steps per second of one call of `train`, and RLlib's timers."""
    ray.init(
        include_dashboard=False, log_to_driver=False, num_cpus=1, object_store_memory=200_000_000
    )
    signal.lfilter([1], [1, -0.9], [1.0])  # RLlib's buffer imports it when it first draws
    task = replace(TASKS[job["task"]], snapshot_every=job["steps"])
    settings = rllib_rival.settings(job["task"], job["units"])
    settings["train_batch_size_per_learner"] = job["batch"]
    settings["num_steps_sampled_before_learning_starts"] = job["batch"]
    settings["plugged_in"] = job["buffer"] != STOCK
    algorithm = rllib_rival.build(task, settings, job["seed"])
    for episode in episodes(task.env_id, job["filled"], job["seed"]) if job["filled"] else ():
        algorithm.local_replay_buffer.add(episode)
    n_before = 2 * job["batch"] // STEPS_OF_A_TRAINING_STEP
    for _ in range(max(n_before, 50)):
        algorithm.training_step()  # learning has begun, and everything has run
    if job["buffer"] == NOTHING:
        do_nothing(algorithm.local_replay_buffer, job["batch"], tuple(settings["n_step"]))
    before = algorithm.metrics.peek(("env_runners", LIFETIME))
    begin = time.perf_counter()
    result = algorithm.train()
    seconds = time.perf_counter() - begin
    timers = {**result["timers"]}
    connectors = result["learners"]["__all_modules__"]["learner_connector"]
    timers["connectors"] = connectors["connector_pipeline_timer"]
    timers["learner_update_timer"] -= timers["connectors"]
    algorithm.stop()
    ray.shutdown()
    return {
        # what RLlib says of the iteration alone would have the steps before it
        "steps_per_second": (result["env_runners"][LIFETIME] - before) / seconds,
        "parts": {name: round(timers[key] * 1e6, 1) for key, name in PARTS.items()},
    }


def main() -> None:
    """Do the job, and write the outcome where it says."""
    job = json.loads(sys.argv[1])
    outcome = weigh(job) if job["kind"] == MEMORY else train(job)
    outcome["versions"] = machine.versions()
    Path(job["output"]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
