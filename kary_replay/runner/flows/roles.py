"""What all flows here have in common: roles, and the streams between them."""

from __future__ import annotations

from typing import Any

from ..config import RunnerConfig
from ..flow import Flow, Role
from ..streams import (
    GradientStream,
    LocalInferenceStream,
    ParameterStream,
    StatisticsStream,
    Stream,
)
from ..streams.parameters import published
from ..workers import Actor, Evaluator, Learner

__all__ = ["assembled"]


def assembled(config: RunnerConfig, algorithm: Any, experience: Stream, n_actors: int) -> Flow:
    """Return the flow around a stream of experience from actors to learners.

    Learners come first: the others begin with their parameters.
    """
    streams: dict[str, Stream] = {
        "experience": experience,
        "parameters": ParameterStream(
            sum(vector.numel() for vector in published(algorithm, config.publishes_all))
        ),
        "inference": LocalInferenceStream(config.publishes_all),
        "gradients": GradientStream(config.learners),
    }
    statistics: tuple[str, ...] = ()
    if algorithm.normalization is not None:
        statistics = ("statistics",)
        streams["statistics"] = StatisticsStream(algorithm.normalization.n_numbers, n_actors)
    learner = Role(
        "learner",
        Learner,
        random_stream=1,
        count=config.learners,
        reads=("experience", *statistics),
        writes=("parameters", "gradients"),
        device=config.device,
        threads=config.learner_threads,
        on_failure="end",
        saved="first",
    )
    actor = Role(
        "actor",
        Actor,
        random_stream=0,
        count=n_actors,
        reads=("inference", "parameters"),
        writes=("experience", *statistics),
        steps_environments=True,
        is_anywhere=True,
    )
    waits = config.evaluate == "after"
    evaluator = Role(
        "evaluator",
        Evaluator,
        random_stream=2,
        count=int(config.evaluate != "never"),
        reads=("parameters",),
        on_failure="continue",
        steps_environments=True,
        saved="each" if waits else "at once",
        provides="evaluations",
        holds="the policies that wait for their evaluation" if waits else "",
    )
    return Flow(streams, (learner, actor, evaluator))
