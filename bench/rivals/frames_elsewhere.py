"""Stacks of four frames of 84 × 84 pixels in other buffers, with their thriftiest settings."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

CHUNK = 1_000
STACKED, PIXELS = (4, 84, 84), (84, 84)
EPISODE = 1_000


def stacks(n: int) -> np.ndarray:
    return np.random.default_rng(1).integers(256, size=(n, *STACKED), dtype=np.uint8)


class Sb3:
    """ReplayBuffer with `optimize_memory_usage`: each stack once. Draws by equal chances."""

    name = "SB3 ReplayBuffer, optimize_memory_usage"

    def __init__(self, slots: int) -> None:
        from stable_baselines3.common.buffers import ReplayBuffer

        self.buffer = ReplayBuffer(
            slots,
            spaces.Box(0, 255, STACKED, np.uint8),
            spaces.Discrete(4),
            device="cpu",
            optimize_memory_usage=True,
            handle_timeout_termination=False,
        )
        seen = stacks(16)
        for i in range(slots):
            obs, following = seen[i % 16 : i % 16 + 1], seen[(i + 1) % 16 : (i + 1) % 16 + 1]
            self.buffer.add(obs, following, np.zeros((1, 1)), np.ones(1), np.zeros(1, bool), [{}])


class Tianshou:
    """PrioritizedReplayBuffer with the three options that make it keep each frame once."""

    name = "Tianshou PrioritizedReplayBuffer, frames once"

    def __init__(self, slots: int) -> None:
        from tianshou.data import Batch, PrioritizedReplayBuffer

        options = {"stack_num": 4, "save_only_last_obs": True, "ignore_obs_next": True}
        self.buffer = PrioritizedReplayBuffer(slots, alpha=0.6, beta=0.4, **options)
        seen = stacks(16)
        for i in range(slots):
            end = i % EPISODE == EPISODE - 1
            step = {
                "act": 0,
                "rew": 1.0,
                "terminated": end,
                "truncated": False,
                "obs_next": seen[(i + 1) % 16],
            }
            self.buffer.add(Batch(obs=seen[i % 16], **step))


class Cpprb:
    """PrioritizedReplayBuffer with `next_of` and `stack_compress`: each frame once."""

    name = "cpprb PrioritizedReplayBuffer, frames once"

    def __init__(self, slots: int) -> None:
        from cpprb import PrioritizedReplayBuffer

        fields = {
            "obs": {"shape": (*PIXELS, 4), "dtype": np.uint8},
            "act": {"dtype": np.int64},
            "rew": {},
            "done": {"dtype": np.bool_},
        }
        self.buffer = PrioritizedReplayBuffer(slots, fields, next_of="obs", stack_compress="obs")
        frames = np.random.default_rng(1).integers(256, size=(32, *PIXELS), dtype=np.uint8)
        for i in range(slots):
            window = np.stack([frames[(i + k) % 32] for k in range(5)], axis=-1)
            end = i % EPISODE == EPISODE - 1
            self.buffer.add(obs=window[..., :4], act=0, rew=1.0, next_obs=window[..., 1:], done=end)
            if end:
                self.buffer.on_episode_end()
