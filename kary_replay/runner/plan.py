"""What every worker is given: the configuration, the spaces, the streams. Small, and picklable to other processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..algorithms import Algorithm, Share
from ..buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from .config import ConfigError, RunnerConfig
from .environments.env_factory import Maker
from .streams.board import Board
from .streams.inference import published
from .streams.parameters import ParameterStream
from .streams.replay import ReplayStream, fields_for

__all__ = ["Ended", "Evaluated", "Evaluation", "Plan", "Problem", "Ready"]

KINDS = {"actor": 0, "learner": 1, "evaluator": 2}


@dataclass
class Plan:
    """A run, as its workers know it."""

    config: RunnerConfig
    make: Maker
    observation_space: Any
    action_space: Any
    replay: ReplayStream
    board: Board
    n_actors: int
    parameters: ParameterStream = field(init=False)
    seconds_before: float = 0.0
    """How long the run took before it was resumed."""

    @classmethod
    def new(
        cls,
        config: RunnerConfig,
        made: tuple[Maker, Any, Any],
        n_actors: int,
        states: Path | None,
        counters: Mapping[str, Any],
    ) -> Plan:
        """Return the plan of a run, its streams new or as they were saved.

        Parameters
        ----------
        config : RunnerConfig
            Of the run; its backend says whether other processes take part.
        made : (Maker, space, space)
            What `making.maker` returned.
        n_actors : int
            How many actors there will be.
        states : Path or None
            The folder of the checkpoint that the run goes on from.
        counters : mapping
            Of that checkpoint; empty for a new run.

        Raises
        ------
        ConfigError
            If there is not enough memory for the buffer.
        OSError, ValueError, KeyError
            If what was saved cannot be read.
        """
        make, observation_space, action_space = made
        shared = config.backend != "serial"
        try:
            if states is not None:
                buffer = PrioritizedReplayBuffer.load(states / "replay", shared=shared)
            else:
                fields = fields_for(observation_space, action_space)
                buffer = PrioritizedReplayBuffer(
                    config.buffer_capacity,
                    fields,
                    alpha=config.alpha,
                    beta=config.beta,
                    seed=config.seed,
                    shared=shared,
                )
        except (MemoryError, OSError, ValueError) as cause:
            if states is not None and not isinstance(cause, MemoryError):
                raise
            raise ConfigError(
                f"buffer_capacity={config.buffer_capacity} is more than memory has room for: {cause}"
            ) from None
        moved = config.envs_per_actor // config.groups * config.samples_per_insert
        # Room for pauses of the operating system, but for no more than one per cent of the run.
        slack = (
            0.0
            if config.backend == "serial"
            else 0.01 * config.total_env_steps * config.samples_per_insert
        )
        error = max(
            config.options.batch_size, 2 * moved, min(32 * config.options.batch_size, slack)
        )
        error = config.samples_per_insert_error or error
        origin = counters.get("origin")
        # A full buffer has fewer rows than its capacity while some are being overwritten.
        min_size = min(
            config.learning_starts,
            max(1, config.buffer_capacity - n_actors * config.envs_per_actor),
        )
        replay = ReplayStream(
            buffer, config.samples_per_insert, min_size, error, origin and tuple(origin)
        )
        board = Board(
            n_actors, config.learners, multiprocessing.get_context("spawn") if shared else None
        )
        for index, steps in enumerate(counters.get("actor_env_steps", ())):
            # somebody may have set another number in config.json
            board.row("actor", index % n_actors).env_steps += steps
        for index in range(config.learners):
            board.row("learner", index).updates = counters.get("updates", 0)
        plan = cls(config, make, observation_space, action_space, replay, board, n_actors)
        plan.seconds_before = float(counters.get("seconds", 0.0))
        n_parameters = sum(
            tensor.numel() for tensor in published(plan.algorithm(), config.publishes_all)
        )
        plan.parameters = ParameterStream(n_parameters, shared)
        return plan

    def close(self) -> None:
        """Let go of the streams' memory."""
        self.replay.close()
        self.parameters.close()

    def algorithm(self, device: str = "cpu", share: Share | None = None) -> Algorithm:
        """Return the algorithm, with the weights that every worker begins with."""
        config = self.config
        return config.algorithm_class(
            self.observation_space,
            self.action_space,
            config.options,
            seed=config.seed,
            device=device,
            share=share,
        )

    def rng(self, kind: str, index: int, *history: int) -> np.random.Generator:
        """Return a worker's own random stream, another one after every new start."""
        return np.random.default_rng([self.config.seed, KINDS[kind], index, *history])

    @property
    def seconds(self) -> float:
        """Since the run's first step of an environment, over all sessions."""
        return self.seconds_before + self.board.seconds

    @property
    def is_complete(self) -> bool:
        """Whether all steps are done, and the updates that they allow."""
        is_over = self.board.env_steps >= self.config.total_env_steps
        return is_over and self.replay.limiter.allowed_samples() < self.config.options.batch_size

    @property
    def n_workers(self) -> dict[str, int]:
        """How many workers of each kind there are; learners come first, whose parameters the others begin with."""
        config = self.config
        return {
            "learner": config.learners,
            "actor": self.n_actors,
            "evaluator": int(config.evaluate != "never"),
        }


class Ended(NamedTuple):
    """A report: an episode has ended."""

    env_steps: int
    episode_return: float
    length: int


class Evaluation(NamedTuple):
    """A report: the policy has been evaluated, by episodes that have the same seeds every time, without exploring.

    ``env_steps``, ``updates`` and ``wall_seconds`` are those at which its parameters were taken;
    ``returns`` has the return of each episode, of ``n_cut`` of them only until they were cut off
    after ``evaluation_max_steps``.
    """

    env_steps: int
    updates: int
    wall_seconds: float
    mean_return: float
    returns: tuple[float, ...]
    n_cut: int = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Evaluation:
        """Return the evaluation of which a file says this; ValueError or TypeError if it says something else."""
        one = cls(**{**record, "returns": tuple(record["returns"])})
        if not all(
            type(count) is int and count >= 0 for count in (one.env_steps, one.updates, one.n_cut)
        ):
            raise ValueError(f"its counts are {one.env_steps!r}, {one.updates!r} and {one.n_cut!r}")
        if not all(
            type(number) in (int, float)
            for number in (one.wall_seconds, one.mean_return, *one.returns)
        ):
            raise ValueError(f"its returns are {one.mean_return!r} and {one.returns!r}")
        return one


class Evaluated(NamedTuple):
    """A report: an evaluation, and the parameters that were evaluated, as `streams.parameters.as_vector` makes them."""

    evaluation: Evaluation
    parameters: npt.NDArray[np.float32]


class Problem(NamedTuple):
    """A report: a worker ends, for this reason; its environment's fault, or that training has diverged."""

    worker: str
    message: str
    is_environment: bool = False
    has_diverged: bool = False


class Ready(NamedTuple):
    """A report: a worker has saved its state, unless it says why it could not; or, with no path, is about to begin."""

    worker: str
    path: str
    refusal: str = ""
