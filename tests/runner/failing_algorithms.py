"""An algorithm that breaks, for the tests of what a run does then."""

from kary_replay.algorithms import DQN


class Failing(DQN):
    """DQN whose second learner, or only one, has enough after ten updates."""

    name = "failing"

    def update(self, batch):
        if self.n_updates == 10 and self.share.index == self.share.count - 1:
            raise ValueError("diverged")
        return super().update(batch)
