"""What a run has learned, for those who only use it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..algorithms import Algorithm
from .config import ConfigError, RunnerConfig
from .inference import as_tensors
from .making import Maker, maker
from .run_directory import RunDirectory, load_state

__all__ = ["Trained", "saved_algorithm", "trained"]


class Trained(NamedTuple):
    """A run's algorithm as it was at the last checkpoint, on the CPU."""

    path: Path
    config: RunnerConfig
    make: Maker
    algorithm: Algorithm

    def act(self, observation: Any) -> npt.NDArray[Any]:
        """Choose what seems best for observations [N, ...], as algorithms choose it."""
        n = len(next(iter(observation.values())) if isinstance(observation, dict) else observation)
        return self.algorithm.act(as_tensors(observation), np.zeros(n, np.float32), np.random.default_rng(0))


def trained(directory: str | os.PathLike[str]) -> Trained:
    """Read a run's last checkpoint; ConfigError if the directory has none."""
    found, config = RunDirectory.existing(Path(directory))
    folder, _ = found.checkpoint(config)
    made = maker(config)
    return Trained(found.path, config, made[0], saved_algorithm(folder, config, made))


def saved_algorithm(folder: Path, config: RunnerConfig, made: tuple[Maker, Any, Any]) -> Algorithm:
    """Return the algorithm of a checkpoint, on the CPU; ConfigError if that has other networks than the configuration says."""
    _, observation_space, action_space = made
    algorithm = config.algorithm_class(observation_space, action_space, config.options, seed=config.seed)
    try:
        algorithm.load_state_dict(load_state(folder / "learner-0.pt")["algorithm"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the checkpoint {folder} is of other networks than config.json and the environment make ({error}): set back what "
            f"was changed, or begin a run of its own"
        ) from None
    return algorithm
