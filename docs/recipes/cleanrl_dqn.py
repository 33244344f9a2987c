"""DQN on CartPole-v1 in the manner of CleanRL, with our prioritized buffer in place of SB3's.

The lines that differ from a CleanRL script are marked with ``# prioritized``. The loss stays as it
is: the rewards of a sampled batch carry the importance weights into it and its TD errors back out
(docs/sb3.md). Run it with ``python docs/recipes/cleanrl_dqn.py``.
"""

import argparse
import random

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim

from kary_replay.adapters.sb3 import PrioritizedReplayBuffer  # prioritized


def parse_args() -> argparse.Namespace:
    """Read the hyperparameters, which are CleanRL's with fewer steps and an earlier start."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--buffer-size", type=int, default=10_000)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--target-network-frequency", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--end-e", type=float, default=0.05)
    parser.add_argument("--exploration-fraction", type=float, default=0.5)
    parser.add_argument("--learning-starts", type=int, default=1_000)
    parser.add_argument("--train-frequency", type=int, default=10)
    return parser.parse_args()


class QNetwork(nn.Module):
    """The network that maps observations to action values."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__()
        n_inputs, n_actions = int(np.prod(env.observation_space.shape)), int(env.action_space.n)
        self.network = nn.Sequential(
            nn.Linear(n_inputs, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, n_actions),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, n_actions]."""
        return self.network(x)


def main() -> list[float]:
    """Train; return the returns of all episodes."""
    args = parse_args()
    random.seed(args.seed)
    # CleanRL seeds the global stream, from which the buffer takes its seed.
    np.random.seed(args.seed)  # noqa: NPY002
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    device = torch.device("cpu")

    env = gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))
    env.action_space.seed(args.seed)
    q_network = QNetwork(env).to(device)
    target_network = QNetwork(env).to(device)
    target_network.load_state_dict(q_network.state_dict())
    optimizer = optim.Adam(q_network.parameters(), lr=args.learning_rate)
    rb = PrioritizedReplayBuffer(  # prioritized
        args.buffer_size,
        env.observation_space,
        env.action_space,
        device,
        handle_timeout_termination=False,
    )

    returns: list[float] = []
    obs, _ = env.reset(seed=args.seed)
    for global_step in range(args.total_timesteps):
        epsilon = max(
            args.end_e, 1.0 - global_step / (args.exploration_fraction * args.total_timesteps)
        )
        if random.random() < epsilon:
            action = int(env.action_space.sample())
        else:
            with torch.no_grad():
                action = int(q_network(torch.as_tensor(obs, device=device)).argmax())
        next_obs, reward, termination, truncation, info = env.step(action)
        row = (obs, next_obs, np.array([action]), np.array([reward]), np.array([termination]))
        rb.add(*row, [{}])  # prioritized: a list of one dict per environment
        obs = next_obs
        if termination or truncation:
            returns.append(float(info["episode"]["r"]))
            obs, _ = env.reset()
            if len(returns) % 50 == 0:
                mean_return = np.mean(returns[-50:])
                print(f"global_step={global_step}, mean return of 50 episodes={mean_return:.1f}")

        if global_step > args.learning_starts and global_step % args.train_frequency == 0:
            data = rb.sample(args.batch_size)
            with torch.no_grad():
                target_max, _ = target_network(data.next_observations).max(dim=1)
                next_value = target_max * (1 - data.dones.flatten())
                td_target = data.rewards.flatten() + args.gamma * next_value
            old_val = q_network(data.observations).gather(1, data.actions).squeeze()
            # The rewards in the target weight this loss and note its TD errors.
            loss = F.mse_loss(td_target, old_val)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if global_step % args.target_network_frequency == 0:
            target_network.load_state_dict(q_network.state_dict())
    return returns


if __name__ == "__main__":
    main()
