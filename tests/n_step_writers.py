"""What tests of NStepWriter share: a buffer, steps, the rows written, planted faults."""

import numpy as np

import kary_replay as kr

FIELDS = {
    "observation": kr.Field((), "int64"),
    "action": kr.Field((), "int64"),
    "reward": kr.Field((), "float64"),
    "next_observation": kr.Field((), "int64"),
    "discount": kr.Field((), "float64"),
    "terminated": kr.Field((), "bool"),
}
NOT, TERMINATED, TRUNCATED, BOTH = (False, False), (True, False), (False, True), (True, True)


class NeverEnds(kr.NStepWriter):
    """Planted fault: windows run across the end of an episode."""

    def add(self, /, *, terminated, truncated, **kwargs):
        return super().add(
            terminated=np.zeros_like(terminated), truncated=np.zeros_like(truncated), **kwargs
        )


class TakesTruncationForTermination(kr.NStepWriter):
    """Planted fault: no bootstrap where an episode was cut off."""

    def add(self, /, *, terminated, truncated, **kwargs):
        return super().add(
            terminated=np.logical_or(terminated, truncated), truncated=truncated, **kwargs
        )


class TakesTerminationForTruncation(kr.NStepWriter):
    """Planted fault: bootstraps from a terminal state."""

    def add(self, /, *, terminated, truncated, **kwargs):
        both = np.logical_or(terminated, truncated)
        return super().add(terminated=np.zeros_like(terminated), truncated=both, **kwargs)


class DropsShortWindows(kr.NStepWriter):
    """Planted fault: what is pending at an episode's end is lost."""

    def add(self, /, *, terminated, truncated, env=None, **kwargs):
        ended = np.logical_or(terminated, truncated)
        no = np.zeros_like(ended)
        index = super().add(terminated=no, truncated=no, env=env, **kwargs)
        streams = np.arange(self.n_envs) if env is None else np.atleast_1d(env)
        self.reset(streams[np.atleast_1d(ended)])
        return index


class ForgetsResets(kr.NStepWriter):
    """Planted fault: windows run across a reset."""

    def reset(self, env=None):
        pass


def make(
    n_step, gamma=0.5, n_envs=1, fields=FIELDS, capacity=1000, writer=kr.NStepWriter, **options
):
    buffer = kr.PrioritizedReplayBuffer(capacity, fields, seed=0)
    return buffer, writer(buffer, n_envs, n_step, gamma, **options)


def step(observation, reward, end=NOT, **more):
    """One step of one environment, or of several if lists are given; next_observation counts on."""
    observation = np.asarray(observation)
    terminated, truncated = np.moveaxis(np.array(end), -1, 0)
    values = {
        "observation": observation,
        "action": -observation,
        "reward": reward,
        "next_observation": observation + 1,
    }
    return {**values, "terminated": terminated, "truncated": truncated, **more}


def rows(buffer, n=None):
    """(observation, next_observation, reward, discount, terminated) of the rows, by slot."""
    names = "observation", "next_observation", "reward", "discount", "terminated"
    columns = [
        buffer.field_view(name)[: len(buffer) if n is None else n].tolist() for name in names
    ]
    assert buffer.field_view("action")[: len(buffer)].tolist() == [-first for first in columns[0]]
    return list(zip(*columns, strict=True))
