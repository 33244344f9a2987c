"""A training loop of your own: DQN on CartPole-v1 with the native buffer, in one file.

The lines about replay are marked with ``# replay``. Run it with ``python
docs/recipes/native_loop.py`` and watch the mean return of the training episodes rise.
"""

import argparse
import random
from collections import deque

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import kary_replay as kr

GAMMA, BATCH_SIZE, WARM_UP, TARGET_EVERY = 0.99, 64, 500, 250


def q_network(n_inputs: int, n_actions: int) -> nn.Module:
    """Return the network that maps observations to action values."""
    return nn.Sequential(
        nn.Linear(n_inputs, 128),
        nn.ReLU(),
        nn.Linear(128, 128),
        nn.ReLU(),
        nn.Linear(128, n_actions),
    )


def train_step(
    q: nn.Module, target_q: nn.Module, optimizer: torch.optim.Optimizer, batch: kr.Batch
) -> np.ndarray:
    """Make one step of double DQN on a batch; return its TD errors, [B]."""
    observation = torch.from_numpy(batch.observation)
    next_observation = torch.from_numpy(batch.next_observation)
    with torch.no_grad():
        best = q(next_observation).argmax(dim=1, keepdim=True)
        next_value = target_q(next_observation).gather(1, best).squeeze(1)
        discount = GAMMA * (1.0 - torch.from_numpy(batch.terminated).float())
        target = torch.from_numpy(batch.reward) + discount * next_value
    value = q(observation).gather(1, torch.from_numpy(batch.action).unsqueeze(1)).squeeze(1)
    weight = torch.from_numpy(batch.importance_weight)  # replay
    loss = (weight * F.smooth_l1_loss(value, target, reduction="none")).mean()  # replay
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return (target - value).detach().numpy()


def main() -> float:
    """Train; return the mean return of the last 20 episodes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=20_000, help="environment steps (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)

    env = gym.make("CartPole-v1")
    env.action_space.seed(args.seed)
    n_inputs, n_actions = env.observation_space.shape[0], int(env.action_space.n)
    q, target_q = q_network(n_inputs, n_actions), q_network(n_inputs, n_actions)
    target_q.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=5e-4)
    buffer = kr.PrioritizedReplayBuffer.from_spaces(  # replay
        50_000, env.observation_space, env.action_space, alpha=0.6, beta=0.4, seed=args.seed
    )

    returns: deque[float] = deque(maxlen=20)
    episode_return = 0.0
    observation, _ = env.reset(seed=args.seed)
    for step in range(1, args.steps + 1):
        epsilon = max(0.05, 1.0 - step / (0.2 * args.steps))
        if random.random() < epsilon:
            action = int(env.action_space.sample())
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(observation)).argmax())
        next_observation, reward, terminated, truncated, _ = env.step(action)
        buffer.add(  # replay
            observation=observation,
            action=action,
            reward=reward,
            next_observation=next_observation,
            terminated=terminated,
        )
        observation = next_observation
        episode_return += float(reward)
        if terminated or truncated:
            returns.append(episode_return)
            episode_return = 0.0
            observation, _ = env.reset()

        if step >= WARM_UP:
            buffer.beta = 0.4 + 0.6 * step / args.steps  # replay
            batch = buffer.sample(BATCH_SIZE)  # replay
            td_error = train_step(q, target_q, optimizer, batch)
            buffer.update_priorities(batch.handle, td_error)  # replay
        if step % TARGET_EVERY == 0:
            target_q.load_state_dict(q.state_dict())
        if step % 2000 == 0:
            status = f"mean return {np.mean(returns):5.1f}"
            print(f"step {step:6d}: {status}, largest priority {buffer.max_priority:.2f}")
    return float(np.mean(returns))


if __name__ == "__main__":
    main()
