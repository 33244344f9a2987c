"""What all flows here have in common: roles, and the streams between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ...fields import fields_of_space
from ..config import ConfigError, RunnerConfig
from ..flow import Flow, Role
from ..streams import (
    GradientStream,
    InferenceStream,
    LocalInferenceStream,
    ParameterStream,
    StatisticsStream,
    Stream,
    WeightStream,
)
from ..streams.parameters import published
from ..streams.weights import weights_of
from ..workers import Actor, Evaluator, Learner, PolicyWorker

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
        "inference": inference(config, algorithm, n_actors),
        "learning": learning(config, algorithm),
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
        writes=("parameters", "learning"),
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
        reads=("parameters",),
        writes=("experience", "inference", *statistics),
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
    policy_worker = Role(
        "policy_worker",
        PolicyWorker,
        random_stream=3,
        count=config.policy_workers or 0,
        reads=("inference", "parameters"),
        device=config.inference_device or "cpu",
        is_everywhere=True,
    )
    return Flow(streams, (learner, policy_worker, actor, evaluator))


def learning(config: RunnerConfig, algorithm: Any) -> Stream:
    """Return the stream among learners."""
    if config.optimization == "synchronous":
        n_weights = max(len(minimizer.flat) for minimizer in algorithm.minimizers.values())
        return GradientStream(config.learners, n_weights)
    n_weights = sum(len(vector) for vector in weights_of(algorithm).values())
    return WeightStream(n_weights, config.learners)


def inference(config: RunnerConfig, algorithm: Any, n_actors: int) -> Stream:
    """Return the stream by which actors get their actions."""
    if not config.policy_workers:
        return LocalInferenceStream(config.publishes_all)
    n_groups = n_actors * config.groups
    if config.policy_workers > n_groups:
        raise ConfigError(
            f"policy_workers must be at most actors · groups = {n_groups}, "
            f"got {config.policy_workers}: there is nothing for more to answer"
        )
    space = algorithm.observation_space
    outputs, _ = algorithm.outputs_and_state(zeros(space), algorithm.initial_state(1))
    return InferenceStream(
        fields_of_space(space, "observation"),
        outputs.shape[1],
        config.n_envs(n_actors) // config.groups,
        n_groups,
        config.policy_workers,
        algorithm.state_size,
    )


def zeros(space: Any) -> Any:
    """Return an observation of zeros, [1, ...], a tensor or a dict of them."""
    spaces = getattr(space, "spaces", None)
    if isinstance(spaces, Mapping):
        return {key: zeros(part) for key, part in spaces.items()}
    return torch.from_numpy(np.zeros((1, *space.shape), space.dtype))
