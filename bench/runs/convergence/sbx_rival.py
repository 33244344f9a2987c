"""SBX, Stable-Baselines3's interface in JAX, in an environment of its own.

RL Baselines3 Zoo has no settings of its own for it: its users train it with those of
Stable-Baselines3. Ours are these, with what made it faster: see SETTINGS. XLA compiles before the
clock starts, which is a part of the start-up and recorded beside it.
"""

from __future__ import annotations

from importlib.metadata import version
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.rivals.xla_threads import leave_one_thread

leave_one_thread()

import sbx  # noqa: E402
from stable_baselines3.common.logger import configure  # noqa: E402

from bench.runs.convergence import sb3_rival  # noqa: E402
from bench.runs.convergence.protocol import Act, Course, Outcome  # noqa: E402
from bench.runs.convergence.sb3_rival import from_bounds  # noqa: E402
from bench.runs.convergence.tasks import Task  # noqa: E402

# What differs from Stable-Baselines3's. One call of `train` is one program, whatever the number of
# its updates, so that they gather. Seconds are of one or two seeds with 64 units, on a machine that
# others used, too: enough to tell twice from once.
FASTER: dict[str, dict[str, Any]] = {
    # Nothing: 128 updates gather already, 11.2 and 12.2 s. Twice as many 9.4 s, with 40,448 steps
    # for 31,744. Batches of 64: not solved in 100,000 steps, and 13.8 s.
    "cartpole_dqn": {},
    # As tuned for SB3 not over after 120 s, with 64 updates at a time 13 and 49 s, with 256 21 and
    # 34 s, after more steps.
    "lunarlander_dqn": {"train_freq": 64, "gradient_steps": 64},
    # 32 at a time: 3.7 s; with 1,000 random steps 2.4 and 2.4.
    "pendulum_ddpg": {"train_freq": 32, "gradient_steps": 32, "learning_starts": 1_000},
    # As tuned for SB3 9.8 s, 8 at a time 5.3, 32 at a time 7.6 and 10.1; with 1,000 random steps 8
    # at a time 7.1, 32 at a time 3.9 and 6.9.
    "pendulum_td3": {"train_freq": 32, "gradient_steps": 32, "learning_starts": 1_000},
    # As tuned for SB3 12.9 s, 8 at a time 12.1 and 7.2, 32 at a time 6.4 and 3.2, 64 at a time 4.1
    # and 3.2.
    "pendulum_sac": {"train_freq": 64, "gradient_steps": 64},
    "cartpole_ppo": {},
    "pendulum_ppo": {},
}
SETTINGS = {name: {**sb3_rival.SETTINGS[name], **faster} for name, faster in FASTER.items()}
COMMON = {"sbx": version("sbx-rl"), "jax": version("jax"), **sb3_rival.COMMON}


def settings(name: str, units: int) -> dict[str, Any]:
    """Return everything that is set for a task."""
    return {**COMMON, **SETTINGS[name], "units": units}


def steps_together(model: Any) -> int:
    """Return how many gradient steps one call of `train` has."""
    given: int = model.gradient_steps
    return given if given >= 0 else model.train_freq.frequency * model.n_envs


def compile_programs(model: Any) -> float:
    """Have everything compiled that training calls, leave the model as it was, return the seconds.

    The programs belong to this model's networks and optimizers, so that no other model could do.
    Its states are never changed in place, but replaced.
    """
    start = perf_counter()
    random = np.random.get_state()
    before = [(owner, dict(vars(owner))) for owner in (model, model.policy)]
    if isinstance(model, sbx.PPO):
        model.learn(model.n_steps * model.n_envs, log_interval=None)
        for owner, state in before:
            vars(owner).update(state)
        model.env.reset()
        np.random.set_state(random)
        return perf_counter() - start
    model.set_logger(configure(None, []))
    envs = model.n_envs
    observation = np.zeros((envs, *model.observation_space.shape), np.float32)
    action = np.zeros((envs, *model.action_space.shape), model.action_space.dtype)
    for _ in range(2):
        model.replay_buffer.add(
            observation, observation, action, np.zeros(envs), np.zeros(envs), [{}] * envs
        )
    for _ in range(3):  # what comes out of the first call may have other types than what went in
        model.train(batch_size=model.batch_size, gradient_steps=steps_together(model))
        model.predict(observation)
        if isinstance(model, sbx.DQN):
            model.policy.qf_state = model.soft_update(model.tau, model.policy.qf_state)
    for owner, state in before:
        vars(owner).update(state)
    model.replay_buffer.reset()
    np.random.set_state(random)
    return perf_counter() - start


class Actor:
    """The network that acts, in torch for the evaluations, and how it acts greedily."""

    def __init__(self, model: Any, algorithm: str, units: int) -> None:
        self._policy, self._is_dqn = model.policy, algorithm == "dqn"
        space = model.action_space
        is_discrete = hasattr(space, "n")
        n_outputs = int(space.n) if is_discrete else int(np.prod(space.shape))
        widths = int(np.prod(model.observation_space.shape)), units, units, n_outputs
        first, second, last = map(nn.Linear, widths[:-1], widths[1:])
        layer = nn.Tanh if algorithm == "ppo" else nn.ReLU
        self.network = nn.Sequential(first, layer(), second, layer(), last)
        # The actor of SAC has a fourth layer, of the standard deviation, after that of the mean.
        self.act: Act = (
            (lambda network, observations: network(observations).argmax(dim=1))
            if is_discrete
            else (lambda network, observations: from_bounds(space, network(observations)))
            if algorithm == "ppo"
            else (lambda network, observations: torch.tanh(network(observations)))
        )

    def parameters(self) -> list[torch.Tensor]:
        """Copy the parameters that SBX has now."""
        state = self._policy.qf_state if self._is_dqn else self._policy.actor_state
        layers = state.params["params"]
        arrays = [
            np.asarray(layers[f"Dense_{number}"][what])
            for number in range(3)
            for what in ("kernel", "bias")
        ]
        return [torch.tensor(array.T) for array in arrays]


def train(name: str, task: Task, seed: int, chosen: dict[str, Any]) -> Outcome:
    """Train until the course says that it is enough."""
    arguments = {key: value for key, value in chosen.items() if key not in ("sbx", "jax")}
    model = sb3_rival.build(sbx, task, arguments, seed)
    actor = Actor(model, task.algorithm, chosen["units"])
    course = Course(task, actor.network, actor.act, chosen, actor.parameters)
    course.outcome.compile_seconds = round(compile_programs(model), 3)
    model.learn(sb3_rival.total(task), callback=sb3_rival.Progress(course), log_interval=None)
    return course.outcome
