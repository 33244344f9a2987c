"""Stacks of four frames of 84 × 84 pixels: every frame once, against whole stacks twice."""

from __future__ import annotations

import numpy as np

import kary_replay as kr
from bench.harness.timing import Contender

STACK, N_ENVS, CHUNK, EPISODE = 4, 8, 1_000, 1_000
PIXELS = (84, 84)
ONCE, TWICE = "FrameReplayBuffer", "PrioritizedReplayBuffer of whole stacks"
ACTION = {"action": kr.Field((), "int64")}


class Once:
    """FrameReplayBuffer, filled for eight environments with episodes of a thousand steps."""

    def __init__(self, slots: int, n_step: int = 1) -> None:
        self.name = ONCE if n_step == 1 else f"{ONCE}, n_step={n_step}"
        self.buffer = kr.FrameReplayBuffer(
            slots, kr.Field(PIXELS, "uint8"), ACTION, STACK, n_step, seed=0
        )
        writer = kr.FrameStackWriter(self.buffer, N_ENVS, 0.99)
        frames = np.random.default_rng(1).integers(256, size=(16, N_ENVS, *PIXELS), dtype=np.uint8)
        step = {
            "action": np.zeros(N_ENVS, np.int64),
            "reward": np.ones(N_ENVS),
            "terminated": np.zeros(N_ENVS, bool),
        }
        ends = np.zeros(N_ENVS, bool), np.ones(N_ENVS, bool)
        writer.reset(frames[0])
        for t in range(1, slots // N_ENVS + EPISODE):
            last = t % EPISODE == 0
            writer.add(next_frame=frames[t % 16], truncated=ends[last], **step)
            if last:
                writer.reset(frames[t % 16])

    def add(self) -> Contender:
        """One step of eight environments."""
        writer = kr.FrameStackWriter(self.buffer, N_ENVS, 0.99)
        frames = np.random.default_rng(1).integers(256, size=(16, N_ENVS, *PIXELS), dtype=np.uint8)
        writer.reset(frames[0])
        action, reward, no = np.zeros(N_ENVS, np.int64), np.ones(N_ENVS), np.zeros(N_ENVS, bool)

        def call(frame: np.ndarray) -> None:
            writer.add(action=action, reward=reward, next_frame=frame, terminated=no, truncated=no)

        return Contender(self.name, call, lambda n: [(frames[i % 16],) for i in range(n)])


class Twice:
    """PrioritizedReplayBuffer whose rows have both stacks."""

    name = TWICE

    def __init__(self, slots: int) -> None:
        stack = kr.Field((STACK, *PIXELS), "uint8")
        scalar = kr.Field((), "float32")
        fields = {
            "observation": stack,
            **ACTION,
            "reward": scalar,
            "next_observation": stack,
            "terminated": kr.Field((), "bool"),
        }
        self.buffer = kr.PrioritizedReplayBuffer(slots, fields, seed=0)
        n = min(CHUNK, slots)
        stacks = np.random.default_rng(1).integers(256, size=(n, STACK, *PIXELS), dtype=np.uint8)
        self._rows = {
            "observation": stacks,
            "action": np.zeros(n, np.int64),
            "reward": np.ones(n, np.float32),
        }
        self._rows |= {"next_observation": stacks, "terminated": np.zeros(n, bool)}
        for _ in range(slots // n):
            self.buffer.add(**self._rows)

    def add(self) -> Contender:
        """One step of eight environments."""
        rows = {name: column[:N_ENVS] for name, column in self._rows.items()}

        def call() -> None:
            self.buffer.add(**rows)

        return Contender(self.name, call, lambda n: [()] * n)
