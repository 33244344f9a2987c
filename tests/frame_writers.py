"""What tests of FrameStackWriter share: numbered frames, what can be drawn, planted faults."""

import numpy as np

import kary_replay as kr
from kary_replay.core import snapshots

NUMBER = kr.Field((), "int64")
FIELDS = {"action": NUMBER, "reward": kr.Field((), "float64"), "discount": kr.Field((), "float64")}
NOT, TERMINATED, TRUNCATED, BOTH = (False, False), (True, False), (False, True), (True, True)


class KeepsTheOldStack(kr.FrameStackWriter):
    """Planted fault: the first observations of an episode reach back into the one before."""

    def reset(self, frame, env=None):
        before = self._history.copy()
        super().reset(frame, env)
        streams = np.arange(self.n_envs) if env is None else np.atleast_1d(env)
        seen = before[streams][:, -1, 1] > 0
        self._history[streams[seen], :-1] = before[streams[seen], 1:]


class PadsWithTheNextFrame(kr.FrameStackWriter):
    """Planted fault: the first frame is not repeated, what comes after it is."""

    def add(self, **step):
        streams = (
            np.arange(self.n_envs)
            if step.get("env") is None
            else np.atleast_1d(step["env"]).astype(np.int64)
        )
        fresh = streams[(self._history[streams] == self._history[streams][:, -1:]).all(axis=(1, 2))]
        index = super().add(**step)
        self._history[fresh, :-1] = self._history[fresh, -1:]
        return index


class SwapsEnvironments(kr.FrameStackWriter):
    """Planted fault: the environments' histories are mixed up."""

    def add(self, **step):
        index = super().add(**step)
        self._history = self._history[::-1].copy()
        return index


class SkipsAFrame(kr.FrameStackWriter):
    """Planted fault: the second newest frame of an observation is the newest once more."""

    def add(self, **step):
        index = super().add(**step)
        if self._history.shape[1] > 1:
            self._history[:, -2] = self._history[:, -1]
        return index


class FollowsSlots(kr.FrameStackWriter):
    """Planted fault: links are slots alone, and take whatever frame is there later."""

    def add(self, **step):
        slots = self._buffer._slots
        rows = np.zeros(slots.capacity * slots.row_nbytes, np.uint8)
        snapshots.copy_rows(slots, 0, rows)
        generation = rows.reshape(self._buffer.capacity, -1)[:, :8].copy().view(np.int64)[:, 0]
        known = self._history[..., 1] > 0
        self._history[..., 1][known] = generation[self._history[..., 0][known]] // 2 * 2
        return super().add(**step)


FAULTS = [KeepsTheOldStack, PadsWithTheNextFrame, SwapsEnvironments, SkipsAFrame]


def make(
    stack,
    n_step=1,
    n_envs=1,
    *,
    capacity=1000,
    padding="repeat",
    writer=kr.FrameStackWriter,
    gamma=0.5,
    **options,
):
    """Return a uniform buffer for frames that are numbers, and a writer to it."""
    buffer = kr.FrameReplayBuffer(
        capacity, NUMBER, FIELDS, stack, n_step, padding, alpha=0.0, seed=0, **options
    )
    return buffer, writer(buffer, n_envs, gamma)


def step(frame, reward=1.0, end=NOT, **more):
    """One step of one environment, or of several if lists are given.

    The action is the frame before, if the frames count on.
    """
    terminated, truncated = np.moveaxis(np.array(end), -1, 0)
    number = np.asarray(frame)
    return {
        "action": number - 1,
        "reward": reward,
        "next_frame": number,
        "terminated": terminated,
        "truncated": truncated,
        **more,
    }


def drawable(buffer):
    """Return (observation, next_observation, reward, discount) of what can be drawn, by slot."""
    found = {}
    for _ in range(2):  # the first time takes the mass of what cannot
        try:
            # All masses are 1, and there are several strata for each: nothing is left out.
            batch = buffer.sample(4 * buffer.capacity)
        except kr.errors.EmptyBufferError:
            return []
        for i, slot in enumerate(batch.index.tolist()):
            stacks = tuple(batch.observation[i].tolist()), tuple(batch.next_observation[i].tolist())
            row = (*stacks, float(batch.reward[i]), float(batch.discount[i]))
            assert found.setdefault(slot, row) == row
    assert buffer.total_mass == len(found)
    buffer.check_invariants()
    return [found[slot] for slot in sorted(found)]
