"""What a run has learned, for those who only use it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...algorithms import Algorithm
from ..config import ConfigError, RunnerConfig
from ..environments.env_factory import Maker, maker
from ..plan import Evaluation
from ..records.run_directory import PolicyName, RunDirectory, load_state
from ..streams.inference import as_tensors, published
from ..streams.parameters import load_vector

__all__ = ["Trained", "saved_algorithm", "trained"]


class Trained(NamedTuple):
    """A run's algorithm with the parameters of a policy that was kept, on the CPU."""

    path: Path
    config: RunnerConfig
    make: Maker
    algorithm: Algorithm
    evaluation: Evaluation | None
    """Of the policy; None if there was none, and it is that of the last checkpoint."""

    def act(self, observation: Any) -> npt.NDArray[Any]:
        """Choose what seems best for observations [N, ...], as algorithms choose it."""
        n = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        return self.algorithm.act(
            as_tensors(observation), np.zeros(n, np.float32), np.random.default_rng(0)
        )

    @property
    def described(self) -> str:
        """Say which policy it is."""
        if self.evaluation is None:
            return "the policy of the last checkpoint, for none was evaluated"
        evaluation = self.evaluation
        n = len(evaluation.returns)
        return f"the policy of step {evaluation.env_steps:,}, evaluated at {evaluation.mean_return:.1f} in {n} episodes"


def trained(
    directory: str | os.PathLike[str], policy: PolicyName = "best", *, whole: bool = False
) -> Trained:
    """Read a policy of a run, or that of its last checkpoint if none was evaluated; ConfigError if there is neither.

    Networks that are not part of the policy are those of the last checkpoint; only ``whole``
    insists on having them.
    """
    found, config = RunDirectory.existing(Path(directory))
    evaluated = found.policy(policy)
    needs_checkpoint = whole or evaluated is None or found.has_checkpoint
    folder = found.checkpoint(config)[0] if needs_checkpoint else None
    made = maker(config)
    algorithm = (
        _algorithm(config, made) if folder is None else saved_algorithm(folder, config, made)
    )
    if evaluated is not None:
        tensors, name = (
            published(algorithm, config.publishes_all),
            f"{found.path / policy}_policy.pt",
        )
        if sum(tensor.numel() for tensor in tensors) != len(evaluated.parameters):
            raise _other_networks(name, "another number of parameters")
        load_vector(tensors, evaluated.parameters)
    return Trained(found.path, config, made[0], algorithm, evaluated and evaluated.evaluation)


def saved_algorithm(folder: Path, config: RunnerConfig, made: tuple[Maker, Any, Any]) -> Algorithm:
    """Return the algorithm of a checkpoint, on the CPU; ConfigError if that has other networks than the configuration says."""
    algorithm = _algorithm(config, made)
    try:
        algorithm.load_state_dict(load_state(folder / "learner-0.pt")["algorithm"])
    except (KeyError, TypeError, ValueError) as error:
        raise _other_networks(f"the checkpoint {folder}", error) from None
    return algorithm


def _algorithm(config: RunnerConfig, made: tuple[Maker, Any, Any]) -> Algorithm:
    _, observation_space, action_space = made
    return config.algorithm_class(observation_space, action_space, config.options, seed=config.seed)


def _other_networks(what: str, reason: object) -> ConfigError:
    return ConfigError(
        f"{what} is of other networks than config.json and the environment make ({reason}): set back what was changed, or "
        f"begin a run of its own"
    )
