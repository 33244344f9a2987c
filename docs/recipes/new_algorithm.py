"""An algorithm of your own, Munchausen DQN, and a loop that trains it on CartPole-v1.

``python docs/recipes/new_algorithm.py`` takes half a minute; returns rise from 20 to above 150.
"""

import argparse
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch.nn import functional as F

import kary_replay as kr
from kary_replay.algorithms import MLP, OffPolicy, OffPolicyOptions, UnsuitableSpaceError, register

ROWS = "observation", "action", "reward", "next_observation", "discount"


@dataclass(frozen=True)
class MunchausenOptions(OffPolicyOptions):
    """Hyperparameters; those of `OffPolicyOptions` are there as well."""

    tau: float = 0.01
    temperature: float = 0.03
    """How much worse an action is that is chosen e times more rarely."""
    scale: float = 0.9
    """Share of an action's own log-probability that is added to its reward."""
    lowest: float = -1.0
    """The least that is added."""

    def __post_init__(self):
        super().__post_init__()
        if self.n_step != 1:
            got = f"got {self.n_step}: of more rewards a row knows only the first one's action"
            raise ValueError(f"n_step must be 1, {got}")


@register
class MunchausenDQN(OffPolicy):
    """Q-learning with a soft policy: Vieillard et al. (2020), arXiv:2007.14430."""

    name = "munchausen-dqn"
    paper = "https://arxiv.org/abs/2007.14430"
    options_class = MunchausenOptions

    @classmethod
    def check_spaces(cls, observation_space, action_space):
        super().check_spaces(observation_space, action_space)
        if not isinstance(action_space, gym.spaces.Discrete) or len(observation_space.shape) != 1:
            got = f"{observation_space}, {action_space}"
            raise UnsuitableSpaceError(f"{cls.name} needs vectors and discrete actions, got {got}")

    def build(self):
        shape = self.observation_space.shape[0], self.options.hidden, int(self.action_space.n)
        self.q, self.q_target = MLP(*shape).to(self.device), MLP(*shape).to(self.device)
        self.minimize("q", self.q, self.loss)
        self.add_target("q", self.q_target)
        self.policy = self.q

    def loss(self, observation, action, reward, next_observation, discount, weight):
        q, y = self.values(self.q_target, observation, action, reward, next_observation, discount)
        return (weight * F.smooth_l1_loss(q, y, reduction="none")).mean(), (q - y).abs()

    def values(self, network, observation, action, reward, next_observation, discount):
        temperature, action = self.options.temperature, action.unsqueeze(1)
        with torch.no_grad():
            log_policy = (network(observation) / temperature).log_softmax(1)
            log_pi = log_policy.gather(1, action).squeeze(1)
            bonus = self.options.scale * (temperature * log_pi).clamp(self.options.lowest, 0)
            # A soft policy makes their soft maximum of the next values, its entropy included.
            soft_maximum = (network(next_observation) / temperature).logsumexp(1)
            y = reward + bonus + discount * temperature * soft_maximum
        return self.q(observation).gather(1, action).squeeze(1), y

    def steps(self, batch, due):
        rows = [batch[name] for name in ROWS]
        (td_error,) = self.minimizers["q"].step(*rows, batch["importance_weight"])
        return td_error

    @torch.no_grad()
    def td_error(self, batch):
        q, y = self.values(self.q, *[batch[name] for name in ROWS])  # actors have no q_target
        return (q - y).abs()

    def outputs(self, observation):
        return self.q.numpy(np.asarray(observation))

    def decide(self, outputs, exploration, rng):
        at_random = rng.random(len(outputs)) < exploration
        drawn = rng.integers(self.action_space.n, size=len(outputs))
        return {"action": np.where(at_random, drawn, outputs.argmax(1))}

    def exploration(self, progress):
        return max(0.05, 1 - 5 * progress)


def main():
    """Train; return the mean return of the last 20 episodes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=20_000, help="environment steps (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)

    env, rng = gym.make("CartPole-v1"), np.random.default_rng(args.seed)
    options = MunchausenOptions(hidden=(64, 64), batch_size=64)
    algorithm = MunchausenDQN(env.observation_space, env.action_space, options, seed=args.seed)
    buffer = kr.PrioritizedReplayBuffer.from_spaces(
        50_000, env.observation_space, env.action_space, seed=args.seed
    )

    returns, episode_return = [], 0.0
    observation, _ = env.reset(seed=args.seed)
    for step in range(1, args.steps + 1):
        exploration = np.full(1, algorithm.exploration(step / args.steps), np.float32)
        action = int(algorithm.act(observation[None], exploration, rng)[0])
        next_observation, reward, terminated, truncated, _ = env.step(action)
        buffer.add(
            observation=observation,
            action=action,
            reward=reward,
            next_observation=next_observation,
            terminated=terminated,
        )
        observation, episode_return = next_observation, episode_return + float(reward)
        if terminated or truncated:
            returns.append(episode_return)
            episode_return = 0.0
            observation, _ = env.reset()
        if step >= 500:
            batch = buffer.sample(options.batch_size)
            names = "observation", "action", "reward", "next_observation", "importance_weight"
            tensors = {name: torch.from_numpy(batch[name]) for name in names}
            tensors["discount"] = options.gamma * (1.0 - torch.from_numpy(batch.terminated).float())
            buffer.update_priorities(batch.handle, algorithm.update(tensors))
        if step % 2000 == 0:
            print(f"step {step:6d}: mean return {np.mean(returns[-20:]):5.1f}")
    return float(np.mean(returns[-20:]))


if __name__ == "__main__":
    main()
