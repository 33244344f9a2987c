"""Tianshou 1's policies with our buffer; under Tianshou 2 its algorithms are tested instead."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from tianshou.data import Collector
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou_rows import TIANSHOU_1

from kary_replay.adapters.tianshou import PrioritizedVectorReplayBuffer

pytestmark = pytest.mark.skipif(not TIANSHOU_1, reason="needs Tianshou 1")


class Overheard(PrioritizedVectorReplayBuffer):
    """Ours, with what was handed out and back."""

    def sample(self, batch_size):
        batch, index = super().sample(batch_size)
        self.handed_out = self.__dict__.get("handed_out", 0) + 1
        mass = self.weight[index]
        np.testing.assert_allclose(batch.weight, (mass / mass.min()) ** -self._beta)
        return batch, index

    def update_weight(self, index, new_weight):
        super().update_weight(index, new_weight)
        last = dict(zip(index.tolist(), np.abs(new_weight.detach().numpy()), strict=True))
        np.testing.assert_allclose(
            self.weight[np.array(list(last))], np.array(list(last.values())) ** 0.6, rtol=1e-3
        )


def test_dqn_trains():
    from tianshou.policy import DQNPolicy
    from tianshou.trainer import OffpolicyTrainer

    torch.manual_seed(0)
    env = DummyVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(2)])
    net = Net(state_shape=(4,), action_shape=2, hidden_sizes=[16])
    optim = torch.optim.Adam(net.parameters(), lr=1e-3)
    policy = DQNPolicy(
        model=net, optim=optim, action_space=env.action_space[0], target_update_freq=50
    )
    buffer = Overheard(50, 2, alpha=0.6, beta=0.4)
    collector = Collector(policy, env, buffer, exploration_noise=True)
    collector.reset()
    collector.collect(n_step=40, random=True)
    trainer = OffpolicyTrainer(
        policy=policy,
        train_collector=collector,
        test_collector=None,
        max_epoch=1,
        step_per_epoch=60,
        step_per_collect=8,
        update_per_step=0.5,
        episode_per_test=1,
        batch_size=16,
        verbose=False,
        show_progress=False,
    )
    assert trainer.run().gradient_step == buffer.handed_out == 32
    assert len(np.unique(buffer.weight[np.arange(50)])) > 20
