"""A second opinion: SB3's DQN, its loss weighted by hand, which shares no code with ours."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from stable_baselines3 import DQN


class WeightedDQN(DQN):
    """DQN that weights each row's loss by its importance weight and hands TD errors back."""

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        for _ in range(gradient_steps):
            batch = self.replay_buffer.sample(batch_size)
            with torch.no_grad():
                next_value = (
                    self.q_net_target(batch.next_observations).max(dim=1, keepdim=True).values
                )
                target = batch.rewards + (1 - batch.dones) * self.gamma * next_value
            value = self.q_net(batch.observations).gather(1, batch.actions.long())
            loss = (batch.weights * F.smooth_l1_loss(value, target, reduction="none")).mean()
            self.replay_buffer.update_priorities(
                batch.indices, (target - value).detach().numpy().ravel()
            )
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
        self._n_updates += gradient_steps
