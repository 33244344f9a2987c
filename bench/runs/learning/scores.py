"""What the runs of a campaign show: scores of tasks and buffers, and intervals around them.

Intervals are those of rliable (Agarwal et al. 2021, arXiv:2108.13264): seeds are drawn anew from
those of each task and each buffer, 2,000 times, and 95 % of what comes out lies in the interval.
Tasks may have different numbers of seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from rliable.library import get_interval_estimates

from bench.runs.learning.results import Document
from bench.runs.learning.tasks import TASKS

LAST = 5  # evaluations that make the final return
MEASURES = {
    f"last {LAST} evaluations": lambda returns: float(np.mean(returns[-LAST:])),
    "all evaluations": lambda returns: float(np.mean(returns)),
}
DRAWS = 2_000  # of the bootstrap
ENOUGH = 5  # seeds of each buffer, with which a verdict is given
ABOVE, LIKE, BELOW, TOO_FEW = "above", "like", "below", "too few seeds"

Scores = dict[int, float]  # by seed


class Estimate(NamedTuple):
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float


class Comparison(NamedTuple):
    """A buffer against uniform replay on one task."""

    improvement: Estimate  # the probability that a run of it is better than a uniform one
    difference: Estimate  # of the interquartile means
    n_seeds: int  # of the one that has fewer

    @property
    def verdict(self) -> str:
        """Say whether the buffer is above or below uniform replay, beyond the intervals."""
        if self.n_seeds < ENOUGH:
            return TOO_FEW
        if self.improvement.high < 0.5 or self.difference.high < 0:
            return BELOW
        return ABOVE if self.improvement.low > 0.5 else LIKE


def buffers_of(documents: Mapping[str, Document]) -> list[str]:
    """Return the buffers that runs were made with, in order of appearance."""
    return list(
        dict.fromkeys(run["buffer"] for document in documents.values() for run in document["runs"])
    )


def scores_of(document: Document, buffer: str, measure: str) -> Scores:
    """Return the score of every seed that was run with a buffer."""
    reduce = MEASURES[measure]
    return {
        run["seed"]: reduce(run["returns"])
        for run in sorted(document["runs"], key=lambda run: run["seed"])
        if run["buffer"] == buffer
    }


def at_evaluations(document: Document, buffer: str, what: str) -> np.ndarray:
    """Return a record of the runs with a buffer, float64 [seeds, evaluations]; NaN: not known."""
    runs = [run for run in document["runs"] if run["buffer"] == buffer and run.get(what)]
    return np.array([run[what] for run in runs], dtype=np.float64)


def n_alike(document: Document, ours: str, theirs: str) -> tuple[int, int]:
    """Return how many seeds have the same evaluations with both buffers, and how many have both.

    They are the same if they are so to within the rounding of the records.
    """
    returns: dict[str, dict[int, list[float]]] = {ours: {}, theirs: {}}
    for run in document["runs"]:
        if run["buffer"] in returns:
            returns[run["buffer"]][run["seed"]] = run["returns"]
    both = returns[ours].keys() & returns[theirs].keys()
    alike = [np.allclose(returns[ours][i], returns[theirs][i], rtol=0, atol=0.006) for i in both]
    return sum(alike), len(both)


def interquartile_mean(scores: np.ndarray) -> float:
    """Return the mean of the middle half of a task's scores, as `rliable.metrics` computes it."""
    cut = len(scores) // 4
    return float(np.sort(scores)[cut : len(scores) - cut].mean())


def interquartile_mean_of_tasks(samples: Mapping[str, np.ndarray]) -> float:
    """Return the mean of the middle half of the scaled scores of all tasks, which count alike.

    If all tasks have as many seeds, and the runs are a multiple of 4, it is that of rliable.
    """
    scaled = np.concatenate([TASKS[name].scaled(sample) for name, sample in samples.items()])
    weight = np.concatenate([np.full(len(one), 1 / len(one)) for one in samples.values()])
    order = np.argsort(scaled)
    share = np.clip(np.cumsum(weight[order]) / len(samples), 0.25, 0.75)
    return float(2 * scaled[order] @ np.diff(share, prepend=0.25))


def probability_of_improvement(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return how likely a run of ours is better than one of theirs; ties count half."""
    difference = ours[:, None] - theirs
    return float(np.mean((difference > 0) + 0.5 * (difference == 0)))


def estimates(samples: Sequence[np.ndarray], figures: Callable[..., np.ndarray]) -> list[Estimate]:
    """Return figures of samples and their intervals; each sample is drawn from by itself."""
    columns = [np.asarray(sample, float)[:, None] for sample in samples]
    with _seeded():
        values, intervals = get_interval_estimates(
            {"": columns}, lambda *drawn: figures(*(one[:, 0] for one in drawn)), reps=DRAWS
        )
    return [Estimate(*map(float, three)) for three in zip(values[""], *intervals[""], strict=True)]


@contextmanager
def _seeded() -> Iterator[None]:
    """Seed NumPy's global generator, which rliable draws from, and put it back."""
    state = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(state)


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the mean of values and its interval."""
    array = np.asarray(values, float)
    drawn = np.random.default_rng(0).integers(0, len(array), (10_000, len(array)))
    low, high = np.quantile(array[drawn].mean(axis=1), [0.025, 0.975])
    return Estimate(float(array.mean()), float(low), float(high))


def paired_difference(ours: Scores, theirs: Scores) -> tuple[Estimate, int] | None:
    """Return the mean difference over the seeds that both have, and their number."""
    both = sorted(ours.keys() & theirs.keys())
    return (mean_of([ours[seed] - theirs[seed] for seed in both]), len(both)) if both else None


def middle(scores: Scores) -> Estimate:
    """Return the interquartile mean of a task's scores and its interval."""
    sample = np.array(list(scores.values()))
    return estimates([sample], lambda drawn: np.array([interquartile_mean(drawn)]))[0]


class Aggregate(NamedTuple):
    """A buffer against uniform replay over the tasks that have runs of both."""

    tasks: list[str]
    n_runs: int
    improvement: Estimate  # the mean over tasks
    middle: Estimate  # interquartile mean of the scaled scores
    uniform: Estimate  # that of uniform replay on these tasks


def compare(
    documents: Mapping[str, Document], buffer: str, uniform: str, measure: str
) -> dict[str, Comparison]:
    """Compare a buffer with uniform replay on every task that has runs of both."""
    names, samples = _samples(documents, buffer, uniform, measure)

    def figures(*drawn: np.ndarray) -> np.ndarray:
        pairs = list(zip(drawn[::2], drawn[1::2], strict=True))
        return np.array(
            [probability_of_improvement(ours, theirs) for ours, theirs in pairs]
            + [interquartile_mean(ours) - interquartile_mean(theirs) for ours, theirs in pairs]
        )

    found = estimates(samples, figures) if names else []
    return {
        name: Comparison(found[i], found[len(names) + i], min(map(len, samples[2 * i : 2 * i + 2])))
        for i, name in enumerate(names)
    }


def aggregate(
    documents: Mapping[str, Document], buffer: str, uniform: str, measure: str
) -> Aggregate | None:
    """Compare a buffer with uniform replay over all tasks that have runs of both."""
    documents = {name: one for name, one in documents.items() if TASKS[name].is_aggregated}
    names, samples = _samples(documents, buffer, uniform, measure)

    def figures(*drawn: np.ndarray) -> np.ndarray:
        ours, theirs = drawn[::2], drawn[1::2]
        pairs = zip(ours, theirs, strict=True)
        return np.array(
            [
                np.mean([probability_of_improvement(*pair) for pair in pairs]),
                interquartile_mean_of_tasks(dict(zip(names, ours, strict=True))),
                interquartile_mean_of_tasks(dict(zip(names, theirs, strict=True))),
            ]
        )

    if not names:
        return None
    return Aggregate(names, sum(map(len, samples[::2])), *estimates(samples, figures))


def _samples(
    documents: Mapping[str, Document], buffer: str, uniform: str, measure: str
) -> tuple[list[str], list[np.ndarray]]:
    """Return the tasks that have runs of both, and the scores of each: ours, theirs, ours, …."""
    names, samples = [], []
    for name, document in documents.items():
        pair = [scores_of(document, kind, measure) for kind in (buffer, uniform)]
        if all(pair):
            names.append(name)
            samples += [np.array(list(scores.values())) for scores in pair]
    return names, samples


def profile(
    documents: Mapping[str, Document], buffer: str, measure: str, levels: np.ndarray
) -> list[Estimate]:
    """Return the share of runs whose scaled score is above each level; all tasks count alike."""
    samples = [
        TASKS[name].scaled(np.array(list(scores_of(document, buffer, measure).values())))
        for name, document in documents.items()
    ]
    return estimates(
        samples,
        lambda *drawn: np.mean([(one[:, None] > levels).mean(axis=0) for one in drawn], axis=0),
    )


def n_diverged(document: Document, name: str, buffer: str) -> tuple[int, int]:
    """Return how many runs with a buffer diverged, and of how many runs values are recorded."""
    recorded = [
        run["values"] for run in document["runs"] if run["buffer"] == buffer and run.get("values")
    ]
    return sum(map(TASKS[name].is_diverged, recorded)), len(recorded)
