"""What tests of SequenceWriter share: a buffer, steps, rows, the reference, planted faults."""

import numpy as np
from reference import reference_sequences

import kary_replay as kr

STEP = {
    "observation": kr.Field((), "int64"),
    "terminated": kr.Field((), "bool"),
    "truncated": kr.Field((), "bool"),
}
STATE = kr.Field((2,), "float32")
EVENTS = {
    "step": (False, False),
    "terminated": (True, False),
    "truncated": (False, True),
    "both": (True, True),
}


class NeverEnds(kr.SequenceWriter):
    """Planted fault: sequences run across the end of an episode."""

    def add(self, /, *, terminated, truncated, **kwargs):
        return super().add(
            terminated=np.zeros_like(terminated), truncated=np.zeros_like(truncated), **kwargs
        )


class IgnoresTruncation(kr.SequenceWriter):
    """Planted fault: the end of an episode goes unnoticed where it was cut off."""

    def add(self, /, *, truncated, **kwargs):
        return super().add(truncated=np.zeros_like(truncated), **kwargs)


class NeverPads(kr.SequenceWriter):
    """Planted fault: the last steps of an episode are lost."""

    def add(self, /, *, terminated, truncated, env=None, **kwargs):
        ended = np.logical_or(terminated, truncated)
        no = np.zeros_like(ended)
        index = super().add(terminated=no, truncated=no, env=env, **kwargs)
        streams = np.arange(self.n_envs) if env is None else np.atleast_1d(env)
        self.reset(streams[np.atleast_1d(ended)])
        return index


class ForgetsResets(kr.SequenceWriter):
    """Planted fault: sequences run across a reset."""

    def reset(self, env=None):
        pass


def make(length, period, burn_in=0, n_envs=1, capacity=1000, writer=kr.SequenceWriter, **options):
    buffer = kr.PrioritizedReplayBuffer(capacity, kr.sequence_fields(STEP, length, STATE), seed=0)
    return buffer, writer(buffer, n_envs, length, period, burn_in, **options)


def end_of(event):
    return EVENTS[event]


def step(observation, end=(False, False)):
    """One step of one environment, or of several for lists; the state tells which step it is."""
    observation = np.asarray(observation, np.int64)
    terminated, truncated = np.moveaxis(
        np.array(np.broadcast_to(end, (*observation.shape, 2))), -1, 0
    )
    state = np.stack([observation, -observation], axis=-1)
    return {
        "observation": observation,
        "recurrent_state": state,
        "terminated": terminated,
        "truncated": truncated,
    }


def rows(buffer):
    """Every field of the rows in the buffer, by slot."""
    return {name: buffer.field_view(name)[: len(buffer)].tolist() for name in buffer.fields}


def check_against_reference(writer_class, length, period, burn_in, pad_start, events, backwards):
    """Play events: lists, one per round, of what happens to each environment.

    Anything but EVENTS and reset is no step.
    """
    n_envs = len(events[0])
    options = {"writer": writer_class, "pad_start": pad_start}
    buffer, writer = make(length, period, burn_in, n_envs, **options)
    logs, indices, number = [[] for _ in range(n_envs)], [], 0
    for turn, happens in enumerate(events):
        order = [env for env in range(n_envs) if happens[env] in EVENTS]
        order = order[::-1] if backwards else order
        for place, env in enumerate(order):
            number += 1
            terminated, truncated = EVENTS[happens[env]]
            logs[env].append(
                {
                    "number": number,
                    "terminated": terminated,
                    "truncated": truncated,
                    "order": (turn, place),
                }
            )
        ends = np.array([EVENTS[happens[env]] for env in order], bool).reshape(-1, 2)
        indices.append(
            writer.add(
                **step([logs[env][-1]["number"] for env in order], ends),
                env=np.array(order, np.int64),
            )
        )
        for env in range(n_envs):
            if happens[env] == "reset":
                writer.reset(env)
                logs[env].append(None)
    sizes = length, period, burn_in, pad_start
    windows = [window for log in logs for window in reference_sequences(log, *sizes)]
    windows.sort(key=lambda window: window[-1]["order"])
    padding = {"number": 0, "terminated": False, "truncated": False}
    padded = [
        [one or padding for one in window] + [padding] * (length - len(window))
        for window in windows
    ]
    first = [next(one["number"] for one in window if one) for window in windows]
    assert np.concatenate(indices).tolist() == list(range(len(windows)))
    assert rows(buffer) == {
        "observation": [[one["number"] for one in window] for window in padded],
        "terminated": [[one["terminated"] for one in window] for window in padded],
        "truncated": [[one["truncated"] for one in window] for window in padded],
        "mask": [[one["number"] > 0 for one in window] for window in padded],
        "recurrent_state": [[number, -number] for number in first],
    }
    buffer.check_invariants()
