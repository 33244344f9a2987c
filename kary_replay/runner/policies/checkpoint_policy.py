"""Reads what a run has learned, for those who only use it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Dict

from ...algorithms import Algorithm
from ..config import ConfigError, RunnerConfig
from ..environments.env_factory import EnvFactory, env_factory
from ..environments.vector import action_scale
from ..messages import Evaluation
from ..records.run_directory import PolicyName, RunDirectory, load_state
from ..streams.parameters import load_vector, published
from .player import Player

__all__ = ["CheckpointPolicy", "checkpoint_algorithm", "checkpoint_policy", "saved_algorithm"]


class CheckpointPolicy(NamedTuple):
    """A run's algorithm with the parameters of a policy that was kept, on the CPU."""

    path: Path
    config: RunnerConfig
    env_factory: EnvFactory
    algorithm: Algorithm
    evaluation: Evaluation | None
    """The policy's evaluation; None for the policy of the last checkpoint."""
    missing: str
    """Why this policy stands in for the one that was asked for; empty if it is that one."""

    def act(self, observation: Any) -> npt.NDArray[Any]:
        """Return what seems best for observations [N, ...]: N actions of the environment's own.

        To a policy that remembers they are the first ones of episodes; `player` has the others.
        ValueError if they are not N observations of the environment's space.
        """
        return self.player(_count(observation, self.algorithm.observation_space)).act(observation)

    def player(self, n_envs: int) -> Player:
        """Return what plays episodes with the policy, in some environments side by side.

        Its actions are the environment's own, of its bounds and its dtype.
        """
        return Player(self.algorithm, n_envs, action_scale(self.algorithm.action_space))

    @property
    def described(self) -> str:
        """Say which policy it is."""
        evaluation = self.evaluation
        if evaluation is None:
            return f"the policy of the last checkpoint, for {self.missing}"
        policy = (
            f"the policy of step {evaluation.env_steps:,}, "
            f"evaluated at {evaluation.mean_return:.1f} in {len(evaluation.returns)} episodes"
        )
        return f"{policy}, for {self.missing}" if self.missing else policy


def checkpoint_policy(
    directory: str | os.PathLike[str], which: PolicyName = "best"
) -> CheckpointPolicy:
    """Read a policy of a run, or what stands in for it.

    If it is not there, the other one stands in for it, or that of the last checkpoint. Of the
    algorithm's networks only the policy counts: what the others have learned `checkpoint_algorithm`
    says.

    Raises
    ------
    ConfigError
        If ``which`` is neither best nor last, if the run has neither an evaluated policy nor a
        checkpoint, or if a file is damaged.
    """
    if which not in get_args(PolicyName):
        raise ConfigError(f"which must be best or last, got {which!r}")
    found, config = RunDirectory.existing(Path(directory))
    evaluated, missing = found.policy(which), ""
    if evaluated is None:
        other: PolicyName = "last" if which == "best" else "best"
        evaluated = found.policy(other)
        was_evaluated = evaluated is not None or next(found.evaluations(), None) is not None
        missing = f"{which}_policy.pt is missing" if was_evaluated else "none was evaluated"
    if evaluated is None and not found.has_checkpoint:
        found.checkpoint(config)  # says so before an environment is made
    factory = env_factory(config)
    if evaluated is None:
        algorithm = _last_algorithm(found, config, factory)
    else:
        algorithm = config.new_algorithm(factory)
        vectors = published(algorithm, config.publishes_all)
        if sum(vector.numel() for vector in vectors) != len(evaluated.parameters):
            name = f"{found.path / which}_policy.pt"
            raise _other_networks(name, "another number of parameters")
        load_vector(vectors, evaluated.parameters)
    evaluation = evaluated and evaluated.evaluation
    return CheckpointPolicy(found.path, config, factory, algorithm, evaluation, missing)


def checkpoint_algorithm(policy: CheckpointPolicy) -> Algorithm:
    """Return the algorithm of a run's last checkpoint, with all its networks.

    Raises
    ------
    ConfigError
        If the run has no checkpoint, or one of other networks than the configuration makes.
    """
    directory, config = RunDirectory.existing(policy.path)
    return _last_algorithm(directory, config, policy.env_factory)


def _count(observation: Any, space: Any) -> int:
    """Return N of observations [N, ...]; ValueError if they are not of the space."""
    parts: dict[str, Any] = space.spaces if isinstance(space, Dict) else {"": space}
    given = observation if isinstance(space, Dict) else {"": observation}
    if not isinstance(given, dict) or given.keys() != parts.keys():
        raise ValueError(f"observation must be a dict of {', '.join(parts)}, got {given!r}")
    shapes = {key: np.shape(part) for key, part in given.items()}
    for key, part in parts.items():
        if not shapes[key] or shapes[key][1:] != part.shape:
            raise ValueError(
                f"observation{key and f'[{key!r}]'} must be of the shape [N, "
                f"{', '.join(map(str, part.shape))}], got {list(shapes[key])}: for a single "
                "observation give observation[None], and take the first action"
            )
    return int(next(iter(shapes.values()))[0])


def _last_algorithm(found: RunDirectory, config: RunnerConfig, factory: EnvFactory) -> Algorithm:
    """Return the algorithm of the last checkpoint, which a run may replace meanwhile."""
    return found.read_checkpoint(config, lambda folder: saved_algorithm(folder, config, factory))


def saved_algorithm(folder: Path, config: RunnerConfig, factory: EnvFactory) -> Algorithm:
    """Return the algorithm of a checkpoint, on the CPU.

    Raises
    ------
    ConfigError
        If the checkpoint has other networks than the configuration makes.
    """
    algorithm = config.new_algorithm(factory)
    try:
        algorithm.load_state_dict(load_state(folder / "learner-0.pt")["algorithm"])
    except (KeyError, TypeError, ValueError) as error:
        raise _other_networks(f"the checkpoint {folder}", error) from None
    return algorithm


def _other_networks(what: str, reason: object) -> ConfigError:
    return ConfigError(
        f"{what} is of other networks than config.json and the environment make ({reason}): set "
        "back what was changed, or begin a run of its own"
    )
