"""Buffers under SB3's own interface: ours, one in plain Python, and SB3's uniform one.

All are built as SB3's algorithms build them, for one environment, and filled through their own
`add`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from bench.harness.timing import Contender
from bench.rivals.python_sum_tree import PythonPrioritizedReplayBuffer
from bench.rivals.rows import ALPHA, BETA, Updates, td_errors
from kary_replay.adapters.sb3 import PrioritizedReplayBuffer

torch.set_num_threads(1)

OURS = "kary-replay for SB3"
PYTHON = "plain-Python sum tree"
UNIFORM = "SB3 ReplayBuffer (uniform)"
# Ours prioritizes throughout, as it does by default where that pays. Left to itself it would turn
# to uniform replay, because rows made at random have errors that are nearly alike.
UNIFORM_SHARE = 0.1
ROWS = {
    "HalfCheetah": (
        spaces.Box(-np.inf, np.inf, (17,), np.float32),
        spaces.Box(-1.0, 1.0, (6,), np.float32),
    ),
    "Atari 4×84×84": (spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(4)),
}


def draws(space: spaces.Space[Any], n: int, rng: np.random.Generator) -> np.ndarray:
    """N random elements of a space, unbounded ones normal."""
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, n)
    if np.issubdtype(space.dtype, np.integer):
        return rng.integers(
            space.low.flat[0], space.high.flat[0], (n, *space.shape), space.dtype, endpoint=True
        )
    return np.clip(rng.standard_normal((n, *space.shape)), -1.0, 1.0).astype(space.dtype)


def fill(buffer: ReplayBuffer, n: int, block: int = 512) -> None:
    """Add n transitions, one by one. The rows repeat after `block`: no time depends on them."""
    rng = np.random.default_rng(1)
    observations, next_observations = (
        draws(buffer.observation_space, block, rng) for _ in range(2)
    )
    actions = draws(buffer.action_space, block, rng).reshape(block, 1, -1)
    rewards = rng.standard_normal((block, 1)).astype(np.float32)
    ended, infos = np.zeros(1, bool), [{}]
    for i in range(n):
        j = i % block
        buffer.add(
            observations[j : j + 1],
            next_observations[j : j + 1],
            actions[j],
            rewards[j],
            ended,
            infos,
        )


class Buffers:
    """The three, full of the same rows; ours and the plain-Python one with the same priorities."""

    def __init__(self, rows: str, slots: int) -> None:
        spaces_and_device = (*ROWS[rows], "cpu")
        self._slots = slots
        self.ours = PrioritizedReplayBuffer(
            slots,
            *spaces_and_device,
            alpha=ALPHA,
            beta=BETA,
            uniform_share=UNIFORM_SHARE,
            seed=0,
        )
        self.python = PythonPrioritizedReplayBuffer(
            slots, *spaces_and_device, alpha=ALPHA, beta=BETA
        )
        self.uniform = ReplayBuffer(slots, *spaces_and_device)
        for buffer in (self.ours, self.python, self.uniform):
            fill(buffer, slots)
        masses = np.float64(td_errors(slots)) ** ALPHA
        self.ours.native.tree.set(np.arange(slots), masses)
        self.python.tree.fill(masses.tolist())
        self.python.max_mass = float(masses.max())

    def cycles(self, batch: int) -> list[Contender]:
        """Draw a batch and hand its TD errors back; the uniform buffer takes none."""
        ours, python, uniform = self.ours, self.python, self.uniform
        updates = Updates(self._slots, batch)

        def our_cycle(errors: np.ndarray) -> None:
            ours.sample(batch)
            ours.update_priorities(errors)

        def python_cycle(errors: np.ndarray) -> None:
            python.update_priorities(python.sample(batch).indices, errors)

        def inputs(n: int) -> list[tuple[Any, ...]]:
            return [(errors,) for errors in updates.errors(n)]

        return [
            Contender(OURS, our_cycle, inputs),
            Contender(PYTHON, python_cycle, inputs),
            Contender(UNIFORM, uniform.sample, lambda n: [(batch,)] * n),
        ]
