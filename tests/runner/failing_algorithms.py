"""Algorithms that break or dawdle, for the tests of what a run does then."""

import os
import time

import torch

from kary_replay.algorithms import DQN


class Failing(DQN):
    """DQN whose second learner, or only one, has enough after ten updates."""

    name = "failing"

    def update(self, batch):
        if self.n_updates == 10 and self.share.index == self.share.count - 1:
            raise ValueError("diverged")
        return super().update(batch)


class SlowToSave(DQN):
    """DQN that hands out its state when a file is gone, whose name is in the environment."""

    name = "slow-to-save"

    def state_dict(self):
        # the first updates are those that warm up
        while self.n_updates > 10 and os.path.exists(os.environ["SLOW_FILE"]):
            time.sleep(0.01)
        return super().state_dict()


class Collapsing(DQN):
    """DQN without hidden layers that balances CartPole at first, and later only pushes one way."""

    name = "collapsing"

    def update(self, batch):
        error = super().update(batch)
        (linear,) = self.q.advantage
        with torch.no_grad():
            linear.weight.zero_()
            linear.bias.copy_(torch.tensor([0.0, -1.0 if self.n_updates > 40 else 0.0]))
            linear.weight[1] = torch.tensor([0.0, 0.0, 1.0, 1.0]) * (self.n_updates <= 40)
        return error
