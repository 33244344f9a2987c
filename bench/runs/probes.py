"""Streams of a run that measure what passes through them, and algorithms whose runs have them.

The streams of the package are as they are: a probe wraps the ends that workers get. The process of
the runner finds what was measured in `hosted`, by the names of the streams.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kary_replay.algorithms import DQN, IMPALA, Share
from kary_replay.runner.config import RunnerConfig
from kary_replay.runner.flow import Flow
from kary_replay.runner.flows import off_policy, on_policy
from kary_replay.runner.streams.stream import Hosted

hosted: dict[str, Probe] = {}
"""The probes of the run that was set up last, by the names of their streams."""

N_KEPT = 1 << 17  # answers of a group for which there is room
N_SIZES = 64  # rows together that are told apart


class Probe(Hosted):
    """A hosted stream whose ends are wrapped, and the numbers that these write."""

    def __init__(self, inner: Any, numbers: Any, sink: Callable[..., Any], source: Any) -> None:
        self._inner, self.numbers = inner, numbers
        self._wrap_sink, self._wrap_source = sink, source

    def sink(self) -> Any:
        return self._wrap_sink(self._inner.sink(), self.numbers)

    def source(self) -> Any:
        return self._wrap_source(self._inner.source(), self.numbers)

    def save(self, folder: Any) -> None:
        self._inner.save(folder)

    def counters(self) -> dict[str, Any]:
        return self._inner.counters()

    def figures(self) -> dict[str, float]:
        return self._inner.figures()

    def is_used_up(self) -> bool:
        return self._inner.is_used_up()

    def close(self) -> None:
        self._inner.close()


def as_it_is(end: Any, numbers: Any) -> Any:
    """Wrap nothing."""
    return end


class Probed:
    """A stream that is hosted with a probe.

    Parameters
    ----------
    name : str
        Of the stream in its flow.
    stream : Stream
        What is probed.
    n_numbers : int
        How many the ends write.
    sink, source : function of an end and Numbers
        Wraps the end.
    """

    def __init__(
        self,
        name: str,
        stream: Any,
        n_numbers: int,
        sink: Callable[..., Any] = as_it_is,
        source: Callable[..., Any] = as_it_is,
    ) -> None:
        self._name, self._stream, self._n_numbers = name, stream, n_numbers
        self._ends = sink, source

    def host(self, medium: Any, checkpoint: Any) -> Probe:
        inner = self._stream.host(medium, checkpoint)
        probe = hosted[self._name] = Probe(inner, medium.numbers(self._n_numbers), *self._ends)
        return probe


class Wrapped:
    """An end that does what another one does, but for the methods of a subclass; picklable."""

    def __init__(self, inner: Any, *others: Any) -> None:
        self._inner, self._others = inner, others

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._inner, *self._others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


# --------------------------------------------------------------------------------------- inference


def answers_in(numbers: Any) -> tuple[Any, Any, Any]:
    """Return how many answers each group has collected, these, and how many rows came together.

    An answer is: seconds from request to collection, seconds of these that its actor waited, and
    when it was collected. They are [n_groups], [n_groups, N_KEPT, 3] and [N_SIZES].
    """
    sizes, rest = numbers.array[:N_SIZES], numbers.array[N_SIZES:]
    n_groups = len(rest) // (1 + 3 * N_KEPT)
    return rest[:n_groups], rest[n_groups:].reshape(n_groups, N_KEPT, 3), sizes


class TimedSink(Wrapped):
    """The actors' end of an inference stream."""

    def client(self, seat: Any, algorithm: Any, rng: np.random.Generator) -> TimedClient:
        first = seat.index * seat.config.groups
        (numbers,) = self._others
        return TimedClient(self._inner.client(seat, algorithm, rng), numbers, first)


class TimedClient(Wrapped):
    """What an actor asks for its actions; it writes down how long each answer took."""

    def __init__(self, inner: Any, numbers: Any, first_group: int) -> None:
        super().__init__(inner, numbers, first_group)
        self._counts, self._answers, _ = answers_in(numbers)
        self._first = first_group
        self._asked: dict[int, float] = {}
        self._waited = 0.0

    def request(self, group: int, *what: Any) -> None:
        self._asked[group] = time.perf_counter()
        self._inner.request(group, *what)

    def is_ready(self, group: int, patience_seconds: float) -> bool:
        begun = time.perf_counter()
        is_ready = self._inner.is_ready(group, patience_seconds)
        self._waited += time.perf_counter() - begun
        return is_ready

    def collect(self, group: int) -> Any:
        begun = time.perf_counter()
        chosen = self._inner.collect(group)
        now = time.perf_counter()
        number, waited = self._first + group, self._waited + now - begun
        count = int(self._counts[number])
        if count < N_KEPT:
            self._answers[number, count] = now - self._asked[group], waited, now
        self._counts[number] = count + 1
        self._waited = 0.0
        return chosen


class CountingSource(Wrapped):
    """The policy worker's end of an inference stream; it counts the rows that it answers."""

    def answer(self, worker: int, groups: Any, outputs: Any, *more: Any) -> None:
        self._inner.answer(worker, groups, outputs, *more)
        answers_in(self._others[0])[2][min(len(outputs), N_SIZES - 1)] += 1


def timed_inference(config: RunnerConfig, env_factory: Any, n_actors: int) -> Flow:
    """Return the flow of an algorithm that learns from rollouts, its inference measured."""
    flow = on_policy.on_policy(config, env_factory, n_actors)
    n_numbers = N_SIZES + n_actors * config.groups * (1 + 3 * N_KEPT)
    stream = flow.streams["inference"]
    probed = Probed("inference", stream, n_numbers, TimedSink, CountingSource)
    return Flow({**flow.streams, "inference": probed}, flow.roles)


class Learning(IMPALA):
    """IMPALA whose inference is measured."""

    name = "learning"
    flow = "bench.runs.probes:timed_inference"


class Acting(Learning):
    """The same, whose learner reads rollouts and learns nothing: all there is to do is to act."""

    name = "acting"
    settings_interval = 1 << 40  # updates between two looks at how training goes

    def update(self, batch: Any) -> torch.Tensor:
        return torch.zeros(batch["reward"].numel())

    def warm_up(self, batch: Any) -> None:
        pass


# ---------------------------------------------------------------------------------------- learners

LEARNER_NUMBERS = (
    "together_seconds",  # in averages with the other learners, or in exchanges
    "updates",
    "between",  # updates of others between two of its exchanges: the sum, and the most
    "most_between",
    "staleness",  # of rows of rollouts: the sum of the means of updates, and the largest
    "most_staleness",
)


class LearnerNumbers:
    """What one learner counts, as attributes; picklable to it."""

    def __init__(self, numbers: Any, index: int) -> None:
        n = len(LEARNER_NUMBERS)
        self.__dict__["_row"] = numbers.array[index * n : (index + 1) * n]

    def __getattr__(self, name: str) -> float:
        return float(self._row[LEARNER_NUMBERS.index(name)])

    def __setattr__(self, name: str, value: float) -> None:
        self._row[LEARNER_NUMBERS.index(name)] = value


class TimedLearning(Wrapped):
    """A learner's end of the stream among learners: how long they are busy with each other."""

    def share(self, index: int, device: str) -> Share:
        self._index, self._mine = index, LearnerNumbers(self._others[0], index)
        share = self._inner.share(index, device)
        if share.average is None:
            return share

        def average(vector: torch.Tensor) -> None:
            begun = time.perf_counter()
            share.average(vector)
            self._mine.together_seconds += time.perf_counter() - begun

        return Share(share.index, share.count, average)

    def begin(self, algorithm: Any) -> None:
        self._inner.begin(algorithm)
        self._mine.together_seconds = 0.0  # without what warming up has taken

    def exchange(self) -> None:
        mine, counts = self._mine, getattr(self._inner, "counts", None)
        before = 0.0 if counts is None else counts[self._index, 1]
        begun = time.perf_counter()
        self._inner.exchange()
        mine.together_seconds += time.perf_counter() - begun
        mine.updates += 1
        if counts is not None:
            between = counts[self._index, 1] - before
            mine.between += between
            mine.most_between = max(mine.most_between, between)


class TimedRollouts(Wrapped):
    """A learner's end of the stream of rollouts: how old its rows are."""

    def prepare(self, *how: Any) -> None:
        self._mine = LearnerNumbers(self._others[0], how[-1])
        self._inner.prepare(*how)

    def draw(self) -> Any:
        batch = self._inner.draw()
        # a batch does not say which parameters have chosen its actions
        versions = self._inner._columns["version"]
        staleness = self._inner._rollouts.n_updates - versions
        self._mine.staleness += float(staleness.mean())
        self._mine.most_staleness = max(self._mine.most_staleness, float(staleness.max()))
        return batch


def _with_learners(flow: Flow, config: RunnerConfig) -> Flow:
    n_numbers = config.learners * len(LEARNER_NUMBERS)
    learning = Probed("learning", flow.streams["learning"], n_numbers, TimedLearning)
    return Flow({**flow.streams, "learning": learning}, flow.roles)


def learners_of_replay(config: RunnerConfig, env_factory: Any, n_actors: int) -> Flow:
    """Return the flow of an algorithm that learns from replay, its learners measured."""
    return _with_learners(off_policy.off_policy(config, env_factory, n_actors), config)


def learners_of_rollouts(config: RunnerConfig, env_factory: Any, n_actors: int) -> Flow:
    """Return the flow of an algorithm that learns from rollouts, its learners measured."""
    flow = _with_learners(on_policy.on_policy(config, env_factory, n_actors), config)
    n_numbers = config.learners * len(LEARNER_NUMBERS)
    rollouts = Probed("experience", flow.streams["experience"], n_numbers, source=TimedRollouts)
    return Flow({**flow.streams, "experience": rollouts}, flow.roles)


class MeasuredDQN(DQN):
    """DQN whose learners are measured."""

    name = "measured-dqn"
    flow = "bench.runs.probes:learners_of_replay"


class MeasuredIMPALA(IMPALA):
    """IMPALA whose learners are measured."""

    name = "measured-impala"
    flow = "bench.runs.probes:learners_of_rollouts"
