"""Algorithms that break or dawdle, for the tests of what a run does then."""

import os
import time

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
