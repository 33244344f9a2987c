"""FrameStackWriter against a reference that keeps whole stacks, in a ring that wraps."""

import numpy as np
import pytest
from frame_writers import (
    BOTH,
    FAULTS,
    NOT,
    TERMINATED,
    TRUNCATED,
    FollowsSlots,
    drawable,
    make,
    step,
)
from hypothesis import given
from hypothesis import strategies as st
from reference import reference_n_step

import kary_replay as kr

EVENTS = {"step": NOT, "terminated": TERMINATED, "truncated": TRUNCATED, "both": BOTH}
EVENT = st.sampled_from(["step"] * 8 + ["skip", "crash", "terminated", "truncated", "both"])


class Reference:
    """Every transition with both its stacks, in the order of rows; and the row of each frame."""

    def __init__(self, stack, n_step, gamma, n_envs, padding):
        self.stack, self.n_step, self.gamma, self.padding = stack, n_step, gamma, padding
        self.episodes = [{"frames": [], "log": []} for _ in range(n_envs)]
        self.n_written = [0] * n_envs  # transitions of the current episode
        self.n_rows = 0
        self.row_of = {}  # frame -> the row that others refer to
        self.transitions = []  # (row, frames needed from other rows, what a batch has)

    def reset(self, env, frame):
        self.episodes[env] = {"frames": [frame], "log": []}
        self.n_written[env] = 0
        self.row_of[frame] = self.n_rows
        self.n_rows += 1

    def add(self, envs, frames, rewards, ends):
        """Transitions first, by environment; then the frames that no transition led to."""
        alone = []
        for env, frame, reward, (terminated, truncated) in zip(
            envs, frames, rewards, ends, strict=True
        ):
            episode = self.episodes[env]
            episode["frames"].append(frame)
            episode["log"].append(
                {
                    "t": len(episode["log"]),
                    "reward": reward,
                    "terminated": terminated,
                    "truncated": truncated,
                }
            )
            windows = reference_n_step(episode["log"], self.n_step, self.gamma)[
                self.n_written[env] :
            ]
            for window, exact, discount in windows:
                first, last = window[0]["t"], window[-1]["t"] + 1
                before, after = (
                    self.observe(episode["frames"], first),
                    self.observe(episode["frames"], last),
                )
                needed = {one for one in (*before, *after) if one not in (0, frame)}
                self.row_of[frame] = self.n_rows
                self.transitions.append(
                    (self.n_rows, needed, (before, after, float(exact), float(discount)))
                )
                self.n_rows += 1
            self.n_written[env] += len(windows)
            if not windows:
                alone.append(frame)
        for frame in alone:
            self.row_of[frame] = self.n_rows
            self.n_rows += 1

    def observe(self, frames, t):
        missing = max(self.stack - 1 - t, 0)
        first = 0 if self.padding == "zeros" else frames[0]
        return (first,) * missing + tuple(frames[max(t - self.stack + 1, 0) : t + 1])

    def drawable(self, capacity):
        """What has all its frames among the last rows, by slot."""
        oldest = self.n_rows - capacity
        left = [
            (row % capacity, content)
            for row, needed, content in self.transitions
            if row >= oldest and all(self.row_of[frame] >= oldest for frame in needed)
        ]
        return [content for _, content in sorted(left)]


def check_against_reference(
    events, stack, n_step, padding="repeat", gamma=0.5, capacity=1000, writer=kr.FrameStackWriter
):
    """Play events: lists, one per round, of what happens to each environment.

    An environment without an episode begins one instead.
    """
    n_envs = len(events[0])
    capacity = max(capacity, n_envs * (stack + n_step))
    buffer, writer = make(
        stack, n_step, n_envs, capacity=capacity, padding=padding, writer=writer, gamma=gamma
    )
    reference = Reference(stack, n_step, gamma, n_envs, padding)
    number, has_begun = 0, [False] * n_envs
    for happens in events:
        begins = [
            env
            for env in range(n_envs)
            if happens[env] == "crash" or (not has_begun[env] and happens[env] != "skip")
        ]
        steps = [env for env in range(n_envs) if happens[env] in EVENTS and has_begun[env]][::-1]
        if begins:
            frames = np.arange(len(begins)) + number + 1
            number += len(begins) + 1
            writer.reset(frames, env=begins)
            for env, frame in zip(begins, frames.tolist(), strict=True):
                reference.reset(env, frame)
                has_begun[env] = True
        ends = [EVENTS[happens[env]] for env in steps]
        frames = np.arange(len(steps)) + number + 1
        number += len(steps) + 1
        rewards = frames % 7 - 3.0
        writer.add(**step(frames, rewards, np.array(ends, bool).reshape(-1, 2)), env=steps)
        reference.add(steps, frames.tolist(), rewards.tolist(), ends)
        for env, end in zip(steps, ends, strict=True):
            has_begun[env] = not any(end)
    assert drawable(buffer) == reference.drawable(capacity)
    assert buffer.n_added == len(reference.transitions) and len(buffer) == min(
        reference.n_rows, capacity
    )


ROUNDS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(EVENT, min_size=n, max_size=n), min_size=1, max_size=30)
)
SIZES = {
    "stack": st.integers(1, 5),
    "n_step": st.integers(1, 5),
    "padding": st.sampled_from(["repeat", "zeros"]),
}


@given(events=ROUNDS, gamma=st.sampled_from([0.0, 0.25, 0.5, 1.0]), **SIZES)
def test_any_streams_against_the_reference(events, gamma, **sizes):
    check_against_reference(events, gamma=gamma, **sizes)


@given(events=ROUNDS, capacity=st.integers(2, 60), **SIZES)
def test_a_ring_that_wraps_against_the_reference(events, capacity, **sizes):
    check_against_reference(events, capacity=capacity, **sizes)


EXAMPLE = [
    ["step", "step"],
    ["step", "step"],
    ["step", "terminated"],
    ["crash", "step"],
    ["step", "step"],
    ["truncated", "step"],
    ["step", "step"],
    *[["step", "step"]] * 4,
    *[["step", "skip"]] * 20,
    *[["step", "step"]] * 3,
]


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("fault", [*FAULTS, FollowsSlots])
def test_the_reference_rejects_planted_faults(fault, n_step):
    check_against_reference(EXAMPLE, 3, n_step, capacity=16)
    with pytest.raises(AssertionError):
        check_against_reference(
            EXAMPLE, 3, n_step, capacity=16 if fault is FollowsSlots else 1000, writer=fault
        )
