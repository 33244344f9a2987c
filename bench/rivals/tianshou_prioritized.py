"""Tianshou's prioritized buffers and ours, filled alike and called alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import tianshou.data
import torch
from tianshou.data import Batch, ReplayBuffer

from bench.harness.timing import Contender
from bench.rivals.rows import ACTION, ALPHA, BETA, OBSERVATION, Updates, rows, td_errors
from kary_replay.adapters import tianshou as adapter

torch.set_num_threads(1)

OURS = "kary-replay for Tianshou"
STOCK = "Tianshou PrioritizedReplayBuffer"
FRAMES = (4, 84, 84)
# As in Tianshou's Atari examples: one frame per row is kept, four are put together when sampled.
ATARI_STACKED = {"stack_num": 4, "ignore_obs_next": True, "save_only_last_obs": True}
KINDS = {  # rows → options of the buffer
    "HalfCheetah": {},
    "HalfCheetah, 10 environments": {},
    "Atari 4×84×84": {},
    "Atari 4×84×84, stack_num=4": ATARI_STACKED,
}


def transitions(kind: str, n: int) -> Batch:
    """N transitions with the dtypes of an environment; an episode ends every 200 rows."""
    ended = np.arange(1, n + 1) % 200 == 0
    flags = {"terminated": ended, "truncated": np.zeros(n, bool), "done": ended}
    if kind.startswith("HalfCheetah"):
        block = rows(n)
        assert block["observation"].shape[1:] == (OBSERVATION,) and block["action"].shape[1:] == (
            ACTION,
        )
        return Batch(
            obs=block["observation"],
            act=block["action"],
            rew=block["reward"],
            obs_next=block["next_observation"],
            **flags,
        )
    rng = np.random.default_rng(1)
    obs, obs_next = (rng.integers(0, 255, (n, *FRAMES), np.uint8) for _ in range(2))
    return Batch(
        obs=obs, act=rng.integers(0, 4, n), rew=rng.standard_normal(n), obs_next=obs_next, **flags
    )


def fill(buffer: ReplayBuffer, kind: str, slots: int) -> None:
    """Fill by the buffer's own methods, in bulk where it allows that."""
    if kind == "HalfCheetah":
        block = min(slots, 100_000)
        steps = transitions(kind, block)
        names = ("obs", "act", "rew", "terminated", "truncated", "done", "obs_next")
        source = ReplayBuffer.from_data(**{name: steps[name] for name in names})
        for _ in range(slots // block):
            buffer.update(source)
    else:
        n_envs = getattr(buffer, "buffer_num", 1)
        steps = transitions(kind, n_envs * 200)
        for i in range(slots // n_envs):
            first = n_envs * (i % 200)
            buffer.add(steps[first : first + n_envs], np.arange(n_envs))
    assert len(buffer) == slots
    for start in range(0, slots, 100_000):
        stop = min(start + 100_000, slots)
        buffer.update_weight(np.arange(start, stop), td_errors(stop - start, 2 + start))


def build(kind: str, slots: int, ours: bool) -> Any:
    """One full buffer."""
    source = adapter if ours else tianshou.data
    if "environments" in kind:
        buffer = source.PrioritizedVectorReplayBuffer(slots, 10, alpha=ALPHA, beta=BETA)
    else:
        buffer = source.PrioritizedReplayBuffer(slots, alpha=ALPHA, beta=BETA, **KINDS[kind])
    fill(buffer, kind, slots)
    return buffer


def cycle(buffer: Any, slots: int, batch: int, name: str) -> Contender:
    """Draw a batch and hand its TD errors back, as an algorithm does, with a tensor."""
    updates = Updates(slots, batch)

    def call(errors: torch.Tensor) -> None:
        _, index = buffer.sample(batch)
        buffer.update_weight(index, errors)

    return Contender(
        name, call, lambda n: [(torch.from_numpy(errors),) for errors in updates.errors(n)]
    )
