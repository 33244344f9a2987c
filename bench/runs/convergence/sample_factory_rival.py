"""Sample Factory's APPO as synchronous PPO, in an environment of its own.

It has the settings of Stable-Baselines3 that are tuned for the task, but for what it has no setting
for: its clip range does not fall, and bounds the ratio by 1 / (1 + c) from below. Its batches are
whole rollouts, so that it has no part where they are smaller. Its learner keeps the snapshots,
which are evaluated after the run, as with ours: it may have processes of its own.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from copy import deepcopy
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.model.model_utils import get_rnn_size
from sample_factory.train import make_runner

from bench.runs.convergence import sb3_rival
from bench.runs.convergence.protocol import Judge, Outcome, evaluated, make
from bench.runs.convergence.tasks import Task

# All in one process, which is the fastest here. Environment steps per second of one run on CartPole
# with networks of 64 units, two cores: 1,290, with environments in two halves 1,160; actors and
# learner in processes of their own 910, in two halves 1,000, with two actors 970; the same without
# waiting for each other 1,180 and, with two actors, 930.
COMMON = {
    "sample_factory": version("sample-factory"),
    "serial_mode": True,
    "async_rl": False,
    "num_workers": 1,
    "worker_num_splits": 1,
}
STEPS = {"cartpole_ppo": 100_000}  # of a run, as with ours
CLIPS_NO_VALUES = 1e9


def settings(name: str, units: int) -> dict[str, Any]:
    """Return everything that is set for a task."""
    theirs = sb3_rival.settings(name, units)
    for falls in ("clip_range_final_share", "clip_range_steps"):  # as it cannot here
        theirs.pop(falls, None)
    return {**COMMON, **theirs, "train_for_env_steps": STEPS[name]}


class FirstStep(gym.Wrapper):  # type: ignore[type-arg]
    """Writes down when an environment is stepped for the first time; costs nothing afterwards."""

    def __init__(self, env: Any, folder: Path) -> None:
        super().__init__(env)
        self._folder = folder

    def step(self, action: Any) -> Any:
        times = pickle.dumps((time.time(), time.perf_counter()))
        (self._folder / f"first_{id(self)}.pickle").write_bytes(times)
        self.step = self.env.step  # type: ignore[method-assign]
        return self.env.step(action)


def environment(folder: Path, env_id: str, *_: Any, **__: Any) -> Any:
    """Make an environment, as Sample Factory asks for one."""
    return FirstStep(make(env_id), folder)


class KeepingLearner(Learner):  # type: ignore[misc]
    """Keeps a copy of the policy after every so many steps, and writes all when it is saved."""

    folder: Path
    snapshot_every: int

    def train(self, batch: Any) -> Any:
        before = self.env_steps
        found = super().train(batch)
        kept = self.__dict__.setdefault("kept", [])
        if self.env_steps // self.snapshot_every > before // self.snapshot_every:
            now, updates = time.perf_counter(), int(self.policy_versions_tensor[self.policy_id])
            state = deepcopy(self.actor_critic.state_dict())
            kept.append((self.env_steps, updates, now, state))
        self.trained = self.env_steps, time.perf_counter()
        return found

    def save(self) -> bool:
        with (self.folder / "kept.pickle").open("wb") as file:
            pickle.dump((self.kept, self.trained), file)
        return False


def arguments(task: Task, seed: int, chosen: dict[str, Any], folder: Path) -> list[str]:
    """Return a task's settings as Sample Factory's command line has them."""
    n_envs, length, size = chosen["n_envs"], chosen["n_steps"], chosen["batch_size"]
    named = {
        "algo": "APPO",
        "env": task.env_id,
        "seed": seed,
        "device": "cpu",
        "train_dir": folder,
        "train_for_env_steps": min(chosen["train_for_env_steps"], task.budget),
        "serial_mode": chosen["serial_mode"],
        "async_rl": chosen["async_rl"],
        "num_workers": chosen["num_workers"],
        "num_envs_per_worker": n_envs // chosen["num_workers"],
        "worker_num_splits": chosen["worker_num_splits"],
        "num_batches_to_accumulate": 1,
        "rollout": length,
        "batch_size": size,
        "num_batches_per_epoch": n_envs * length // size,
        "num_epochs": chosen["n_epochs"],
        "learning_rate": chosen["learning_rate"],
        "gamma": chosen["gamma"],
        "gae_lambda": chosen["gae_lambda"],
        "ppo_clip_ratio": chosen["clip_range"],
        "ppo_clip_value": CLIPS_NO_VALUES,
        "exploration_loss_coeff": 0.0,
        "value_bootstrap": True,
        "max_grad_norm": 0.5,
        "adam_eps": 1e-5,
        "normalize_input": False,
        "normalize_returns": False,
        "use_rnn": False,
        "recurrence": 1,
        "nonlinearity": "tanh",
        "actor_critic_share_weights": False,
        # no records and no checkpoints while it learns
        "log_to_file": False,
        "save_every_sec": 10**6,
        "save_best_every_sec": 10**6,
    }
    units = str(chosen["units"])
    flags = [f"--{key}={value}" for key, value in named.items()]
    return [*flags, "--encoder_mlp_layers", units, units]


def actions(n_states: int, network: Any, observations: torch.Tensor) -> torch.Tensor:
    """Return the best actions of a discrete space."""
    seen = network.normalize_obs({"obs": observations})
    outputs = network(seen, torch.zeros(len(observations), n_states))
    return outputs["action_logits"].argmax(1)


def train(name: str, task: Task, seed: int, chosen: dict[str, Any]) -> Outcome:
    """Train for all steps, then evaluate the snapshots in order, up to the first good one."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        argv = arguments(task, seed, chosen, folder)
        cfg = parse_full_cfg(parse_sf_args(argv)[0], argv)
        if "learning_rate_steps" in chosen:  # which its command line refuses, and its learner has
            cfg.lr_schedule = "linear_decay"
        register_env(task.env_id, partial(environment, folder))
        cfg, runner = make_runner(cfg)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            learner = runner.learners[0].learner
            learner.__class__ = KeepingLearner
            learner.folder, learner.snapshot_every = folder, task.snapshot_every
            status = runner.run()
        if status != ExperimentStatus.SUCCESS:
            raise RuntimeError(f"Sample Factory ended with status {status}")
        firsts = [pickle.loads(path.read_bytes()) for path in folder.glob("first_*.pickle")]
        kept, (env_steps, last) = pickle.loads((folder / "kept.pickle").read_bytes())
    started, first = min(firsts)
    outcome = Outcome(started=started, trained_seconds=last - first, settings=chosen)
    judge, spaces = Judge(task.env_id), runner.env_info
    network = create_actor_critic(cfg, spaces.obs_space, spaces.action_space).eval()
    act = partial(actions, get_rnn_size(cfg), network)
    for env_steps, updates, now, state in kept:
        network.load_state_dict(state)
        when = env_steps, updates, now - first
        outcome.add(evaluated(judge, act, when, task.threshold), task.threshold)
        if outcome.solved:
            break
    return outcome
