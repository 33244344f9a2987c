"""FrameStackWriter beside gymnasium's frame stacking: what is drawn is what the agent saw."""

import itertools

import numpy as np
import pytest
from frame_writers import FIELDS, NUMBER

import kary_replay as kr

gymnasium = pytest.importorskip("gymnasium")
from gymnasium import spaces  # noqa: E402

STACK, N_ENVS = 4, 3


class Counter(gymnasium.Env):
    """Every frame has a number of its own; episodes take 1 to 6 steps, and end or are cut off."""

    observation_space = spaces.Box(0, np.inf, (), np.int64)
    action_space = spaces.Discrete(2)
    numbers = itertools.count(1)

    def reset(self, **_):
        self.left = int(self.np_random.integers(1, 7))
        return np.array(next(self.numbers)), {}

    def step(self, _):
        self.left -= 1
        terminated = self.left == 0 and bool(self.np_random.random() < 0.5)
        return np.array(next(self.numbers)), 1.0, terminated, self.left == 0 and not terminated, {}


@pytest.mark.parametrize(("padding", "theirs"), [("repeat", "reset"), ("zeros", "zero")])
def test_stacks_are_those_of_the_wrapper(padding, theirs):
    """In next-step autoreset mode, with the loop of docs/frames.md."""

    def make():
        return gymnasium.wrappers.FrameStackObservation(Counter(), STACK, padding_type=theirs)

    envs = gymnasium.vector.SyncVectorEnv([make] * N_ENVS)
    buffer = kr.FrameReplayBuffer(2_000, NUMBER, FIELDS, STACK, padding=padding, alpha=0.0, seed=0)
    writer = kr.FrameStackWriter(buffer, N_ENVS, 0.5)
    stacks, _ = envs.reset(seed=1)
    writer.reset(stacks[:, -1])
    begins, expected = np.zeros(N_ENVS, bool), {}
    for _ in range(200):
        before, action = stacks, np.ones(N_ENVS, np.int64)
        stacks, reward, terminated, truncated, _ = envs.step(action)
        old, new = np.flatnonzero(~begins), np.flatnonzero(begins)
        step = {
            "action": action,
            "reward": reward,
            "next_frame": stacks[:, -1],
            "terminated": terminated,
            "truncated": truncated,
        }
        index = writer.add(**{name: column[old] for name, column in step.items()}, env=old)
        writer.reset(stacks[new, -1], env=new)
        begins = (terminated | truncated) & ~begins
        expected |= {
            slot: (before[env], stacks[env], terminated[env])
            for slot, env in zip(index.tolist(), old, strict=True)
        }
    batch = buffer.sample(4 * buffer.capacity)
    assert set(batch.index.tolist()) == set(expected) and len(expected) > 300
    for i, slot in enumerate(batch.index.tolist()):
        observation, next_observation, terminated = expected[slot]
        assert batch.observation[i].tolist() == observation.tolist()
        assert batch.next_observation[i].tolist() == next_observation.tolist()
        assert batch.discount[i] == 0.5 * (not terminated)
