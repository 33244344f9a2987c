"""RLlib's PrioritizedEpisodeReplayBuffer, the default of its DQN and SAC.

It holds Python objects and a binary tree in a Python list.

Runs in an environment of its own (requirements-rllib.txt). It stores episodes and returns a list of
episodes of one step, which its learner turns into arrays: that is not timed. It sets priorities of
the rows drawn last and of no others, so that an update by itself is not offered.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer

from bench.harness.timing import Contender
from bench.rivals.rows import ALPHA, BETA, VECTOR, Kind, Updates, rows, td_errors

NAME = "RLlib PrioritizedEpisodeReplayBuffer"
EPISODE = 1_000  # steps, as HalfCheetah's


class RllibBuffer:
    """As its DQN uses it: whole transitions of one step, beta given at every draw."""

    name = NAME

    def __init__(self, slots: int, rows_per_add: int = 1, kind: Kind = VECTOR) -> None:
        self._rows, self._kind, self._slots = rows_per_add, kind, slots
        self.buffer = PrioritizedEpisodeReplayBuffer(slots, alpha=ALPHA)
        length = min(EPISODE, kind.chunk, slots)
        self._block = rows(length, kind=kind)
        for first in range(0, slots, length):
            self.buffer.add(
                self._episode(range(min(length, slots - first)), f"filled {first}", truncated=True)
            )
        masses = np.float64(td_errors(slots)) ** ALPHA
        for tree in (self.buffer._sum_segment, self.buffer._min_segment):
            _fill(tree, masses.tolist())
        self._n_episodes = itertools.count()

    def _episode(self, steps: range, name: str, truncated: bool) -> SingleAgentEpisode:
        """Some consecutive steps of an endless walk through the block."""
        block, n = self._block, len(self._block["reward"])
        return SingleAgentEpisode(
            name,
            observations=[block["observation"][i % n] for i in range(steps.start, steps.stop + 1)],
            actions=[block["action"][i % n] for i in steps],
            rewards=[float(block["reward"][i % n]) for i in steps],
            truncated=truncated,
            t_started=steps.start,
            len_lookback_buffer=0,
        )

    def sample(self, batch: int) -> Contender:
        buffer = self.buffer

        def call() -> None:
            buffer.sample(batch, beta=BETA)

        return Contender(NAME, call, lambda n: [()] * n)

    def cycle(self, batch: int) -> Contender:
        buffer, updates = self.buffer, Updates(self._slots, batch)

        def call(errors: np.ndarray) -> None:
            buffer.sample(batch, beta=BETA)
            buffer.update_priorities(errors)

        return Contender(NAME, call, lambda n: [(errors,) for errors in updates.errors(n)])

    def add(self) -> Contender:
        """Return one step of each environment, as its EnvRunner hands over pieces of episodes.

        Every repetition begins new episodes, which cost a little less than those that go on.
        """

        def inputs(n: int) -> list[tuple[Any, ...]]:
            names = [f"added {next(self._n_episodes)}" for _ in range(self._rows)]
            return [
                ([self._episode(range(t, t + 1), name, truncated=False) for name in names],)
                for t in range(n)
            ]

        return Contender(NAME, self.buffer.add, inputs)


def _fill(tree: Any, masses: list[float]) -> None:
    """Set the first leaves at once: through its own interface it would take a walk up for each."""
    values, first_leaf, combine = tree.value, tree.capacity, tree.operation
    values[first_leaf : first_leaf + len(masses)] = masses
    for node in range(first_leaf - 1, 0, -1):
        values[node] = combine(values[2 * node], values[2 * node + 1])
