"""PPO in one file, as CleanRL has it: environments in turns, torch's own operations, one loop.

Written anew, by the list of details that its authors have published (Huang et al. 2022). It has the
settings of Stable-Baselines3 that are tuned for the task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn
from torch.distributions import Categorical, Normal

from bench.runs.convergence import sb3_rival
from bench.runs.convergence.protocol import Course, Outcome, make
from bench.runs.convergence.tasks import Task


def settings(name: str, units: int) -> dict[str, Any]:
    """Return everything that is set for a task: what Stable-Baselines3 has."""
    return sb3_rival.settings(name, units)


def layer(n_inputs: int, n_outputs: int, gain: float) -> nn.Linear:
    """Return a layer with orthogonal weights and no bias."""
    made = nn.Linear(n_inputs, n_outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    """A policy and a value, each with two layers of its own."""

    def __init__(self, observation_space: Any, action_space: Any, units: int) -> None:
        super().__init__()
        n_inputs, root = int(np.prod(observation_space.shape)), 2**0.5
        self.is_discrete = isinstance(action_space, gym.spaces.Discrete)
        n_outputs = int(action_space.n) if self.is_discrete else int(np.prod(action_space.shape))
        self.pi, self.v = (
            nn.Sequential(
                layer(n_inputs, units, root),
                nn.Tanh(),
                layer(units, units, root),
                nn.Tanh(),
                layer(units, n, gain),
            )
            for n, gain in ((n_outputs, 0.01), (1, 1.0))
        )
        self.log_std = None if self.is_discrete else nn.Parameter(torch.zeros(n_outputs))

    def evaluate(self, observation: Any, action: Any = None) -> tuple[torch.Tensor, ...]:
        """Return the action, its log density, the entropy and the value, each [B, ...]."""
        outputs, value = self.pi(observation), self.v(observation).squeeze(1)
        if self.is_discrete:
            law: Any = Categorical(logits=outputs)
            action = law.sample() if action is None else action
            return action, law.log_prob(action), law.entropy(), value
        law = Normal(outputs, self.log_std.exp())
        action = law.sample() if action is None else action
        return action, law.log_prob(action).sum(1), law.entropy().sum(1), value


def falling(chosen: dict[str, Any], name: str) -> Callable[[int], float]:
    """Return a setting by the environment steps that are done."""
    share, steps = chosen.get(f"{name}_final_share", 1.0), chosen.get(f"{name}_steps", 1)
    first: float = chosen[name]
    return lambda done: first * (1 - min(1.0, done / steps) * (1 - share))


def train(name: str, task: Task, seed: int, chosen: dict[str, Any]) -> Outcome:
    """Train until the course says that it is enough."""
    torch.set_num_threads(chosen["threads"])
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    n_envs, n_steps, size = chosen["n_envs"], chosen["n_steps"], chosen["batch_size"]
    envs = SyncVectorEnv(
        [lambda: make(task.env_id)] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP
    )
    space = envs.single_action_space
    agent = Agent(envs.single_observation_space, space, chosen["units"])
    optimizer = torch.optim.Adam(agent.parameters(), lr=chosen["learning_rate"], eps=1e-5)
    rate, clip_range = falling(chosen, "learning_rate"), falling(chosen, "clip_range")
    gamma, trace = chosen["gamma"], chosen["gae_lambda"]

    def act(network: Any, observations: torch.Tensor) -> torch.Tensor:
        outputs = network.pi(observations)
        return outputs.argmax(1) if agent.is_discrete else sb3_rival.from_bounds(space, outputs)

    course = Course(task, agent, act, chosen)
    shape = n_steps, n_envs
    observations = torch.zeros(*shape, *envs.single_observation_space.shape)
    actions = torch.zeros(*shape, *space.shape, dtype=torch.int64 if agent.is_discrete else None)
    log_probs, rewards, ends, values = (torch.zeros(shape) for _ in range(4))
    course.start()
    observation = torch.tensor(envs.reset(seed=seed)[0], dtype=torch.float32)
    env_steps = updates = 0
    while course.step(env_steps, updates):
        optimizer.param_groups[0]["lr"] = rate(env_steps)
        for t in range(n_steps):
            env_steps += n_envs
            observations[t] = observation
            with torch.no_grad():
                action, log_prob, _, value = agent.evaluate(observation)
            values[t], actions[t], log_probs[t] = value, action, log_prob
            taken = action.numpy()
            if not agent.is_discrete:
                taken = np.clip(taken, space.low, space.high)
            following, reward, terminated, truncated, infos = envs.step(taken)
            rewards[t] = torch.tensor(reward)
            for i in np.flatnonzero(truncated & ~terminated):
                last = torch.tensor(infos["final_obs"][i][None], dtype=torch.float32)
                with torch.no_grad():
                    rewards[t, i] += gamma * agent.v(last)[0, 0]
            ends[t] = torch.tensor(terminated | truncated)
            observation = torch.tensor(following, dtype=torch.float32)
        with torch.no_grad():
            following_value, advantage = agent.v(observation).squeeze(1), torch.zeros(n_envs)
            advantages = torch.zeros(shape)
            for t in reversed(range(n_steps)):
                goes_on = 1 - ends[t]
                error = rewards[t] + gamma * following_value * goes_on - values[t]
                advantages[t] = advantage = error + gamma * trace * goes_on * advantage
                following_value = values[t]
        rows = [part.flatten(0, 1) for part in (observations, actions, log_probs)]
        advantage, returns = advantages.flatten(), (advantages + values).flatten()
        for _ in range(chosen["n_epochs"]):
            order = rng.permutation(len(returns))
            for first in range(0, len(order), size):
                some = torch.from_numpy(order[first : first + size])
                seen, done, before = (part[some] for part in rows)
                _, log_prob, entropy, value = agent.evaluate(seen, done)
                ratio, bound = (log_prob - before).exp(), clip_range(env_steps)
                gain = advantage[some]
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
                bounded = torch.min(gain * ratio, gain * ratio.clamp(1 - bound, 1 + bound))
                loss = 0.5 * (returns[some] - value).square().mean() - bounded.mean()
                loss = loss - chosen.get("ent_coef", 0.0) * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
            updates += 1
    envs.close()
    return course.outcome
