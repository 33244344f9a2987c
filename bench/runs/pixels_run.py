"""One run of DQN on a game in a process of its own: `python -m bench.runs.pixels_run JOB`.

bench.harness.campaign writes the JOB. All have the same game, prepared by gymnasium's wrappers, the
same network (Mnih et al. 2015), batch and number of updates per step, and all cores. "collecting"
acts by the network and never learns. The network of the rivals is on the job's `device`; ours
learns there, and a policy worker, if there is one, has its network there too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.harness.machine import n_cores

ASKING = "kary-replay, policy worker"
GAME, N_ENVS, STACK = "ALE/Pong-v5", 8, 4
BATCH, STEPS_PER_UPDATE, LEARNING_STARTS, SLOTS = 32, 4, 400, 50_000
LEARNING_RATE, GAMMA, EPSILON = 1e-4, 0.99, 0.1
CORES = n_cores()
TARGET = 1_000  # environment steps between two target networks


def game(stack: int | None = None, last_axis: bool = False) -> Any:
    """Return the game: grey frames of 84 × 84, every fourth step; rewards clipped."""
    import ale_py
    import gymnasium as gym
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TransformReward

    gym.register_envs(ale_py)
    made = gym.make(GAME, frameskip=1, disable_env_checker=True)
    made = AtariPreprocessing(made, grayscale_newaxis=last_axis)
    made = TransformReward(made, lambda reward: float(max(-1.0, min(1.0, reward))))
    return made if stack is None else FrameStackObservation(made, stack)


def sb3(job: dict[str, Any]) -> dict[str, Any]:
    """Stock Stable-Baselines3."""
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

    torch.set_num_threads(CORES)
    kind = SubprocVecEnv if job["apart"] else DummyVecEnv
    envs = VecFrameStack(kind([partial(game, last_axis=True)] * N_ENVS), STACK)
    learns = job["kind"] == "learning"
    model = DQN(
        "CnnPolicy",
        envs,
        learning_rate=LEARNING_RATE,
        buffer_size=SLOTS,
        learning_starts=LEARNING_STARTS if learns else 0,
        batch_size=BATCH,
        gamma=GAMMA,
        train_freq=1 if learns else 10**9,
        gradient_steps=N_ENVS // STEPS_PER_UPDATE,
        target_update_interval=TARGET,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        optimize_memory_usage=False,
        seed=job["seed"],
        device=job["device"],
    )

    class Enough(BaseCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps < job["steps"]

    began = perf_counter()
    model.learn(10**9, callback=Enough(), log_interval=None)
    seconds = perf_counter() - began
    outcome = {"env_steps": model.num_timesteps, "updates": model._n_updates, "seconds": seconds}
    envs.close()
    return outcome


def tianshou(job: dict[str, Any]) -> dict[str, Any]:
    """Stock Tianshou, which keeps each frame once, too."""
    import torch
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv, ShmemVectorEnv
    from tianshou.env.atari.atari_network import DQNet, ScaledObsInputActionReprNet
    from tianshou.trainer import OffPolicyTrainer, OffPolicyTrainerParams

    torch.set_num_threads(CORES)
    torch.manual_seed(job["seed"])
    kind = ShmemVectorEnv if job["apart"] else DummyVectorEnv
    envs = kind([partial(game, STACK)] * N_ENVS)
    envs.seed(job["seed"])
    space = envs.action_space[0]
    network = ScaledObsInputActionReprNet(DQNet(STACK, 84, 84, int(space.n))).to(job["device"])
    algorithm: Any = DQN(
        policy=DiscreteQLearningPolicy(model=network, action_space=space, eps_training=EPSILON),
        optim=AdamOptimizerFactory(lr=LEARNING_RATE),
        gamma=GAMMA,
        target_update_freq=TARGET // STEPS_PER_UPDATE,
    )
    once = {"stack_num": STACK, "save_only_last_obs": True, "ignore_obs_next": True}
    collector: Any = Collector(
        algorithm, envs, VectorReplayBuffer(SLOTS, N_ENVS, **once), exploration_noise=True
    )
    collector.reset()
    steps, updates = job["steps"], 0
    began = perf_counter()
    if job["kind"] == "collecting":
        made = collector.collect(n_step=steps).n_collected_steps
    else:
        made = collector.collect(n_step=LEARNING_STARTS).n_collected_steps
        parameters = OffPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=steps - made,
            collection_step_num_env_steps=N_ENVS,
            update_step_num_gradient_steps_per_sample=1 / STEPS_PER_UPDATE,
            batch_size=BATCH,
            show_progress=False,
            verbose=False,
        )
        trainer = OffPolicyTrainer(algorithm, parameters)
        trainer.reset(reset_collectors=False)
        trainer.execute_epoch()
        made += trainer._env_step
        updates = trainer._env_step // STEPS_PER_UPDATE
    seconds = perf_counter() - began
    envs.close()
    return {"env_steps": int(made), "updates": int(updates), "seconds": seconds}


def ours(job: dict[str, Any]) -> dict[str, Any]:
    """Return what the runner does.

    On two cores it has an actor and a learner, or two actors and hardly an update; with more, an
    actor for each environment. The learner may use all cores, too.
    """
    from dataclasses import replace

    from kary_replay.runner import Runner, RunnerConfig

    learns = job["kind"] == "learning"
    actors = next(n for n in (N_ENVS, N_ENVS // 2, 2, 1) if n <= max(1, CORES - learns))
    worker = {"inference": "worker", "inference_device": job["device"]}
    config = RunnerConfig(algorithm="dqn", env=GAME)
    options = {
        "learning_rate": LEARNING_RATE,
        "batch_size": BATCH,
        "gamma": GAMMA,
        "double": False,
        "dueling": False,
        "target_interval": TARGET // STEPS_PER_UPDATE,
        "exploration_initial": EPSILON,
        "exploration_final": EPSILON,
    }
    with tempfile.TemporaryDirectory() as folder:
        result = Runner(
            replace(
                config,
                seed=job["seed"],
                actors=actors,
                envs_per_actor=N_ENVS // actors,
                groups=min(2, N_ENVS // actors),
                device=job["device"],
                learner_threads=CORES if learns and job["device"] == "cpu" else 1,
                **(worker if job["rival"] == ASKING else {}),
                total_env_steps=job["steps"],
                buffer_capacity=SLOTS,
                learning_starts=LEARNING_STARTS,
                samples_per_insert=BATCH / (STEPS_PER_UPDATE if learns else job["steps"]),
                evaluate="never",
                checkpoint_interval_seconds=0.0,
                directory=str(Path(folder) / "run"),
                options=replace(config.options, **options),
            )
        ).run()
    return {
        "env_steps": result.env_steps,
        "updates": result.updates,
        "seconds": result.wall_seconds,
        "waited": result.waited,
    }


RIVALS = {"Stable-Baselines3": sb3, "Tianshou": tianshou, "kary-replay": ours, ASKING: ours}


def main() -> None:
    """Run, and write the outcome where the job says."""
    job = json.loads(sys.argv[1])
    outcome = RIVALS[job["rival"]](job)
    Path(job["output"]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
