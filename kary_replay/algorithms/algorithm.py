"""What an algorithm is: networks, an update on a batch, and a way to act. It knows nothing of processes.

To add one, write a class like those beside this file, and `register` it or name it as
"module:Class".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..validation import as_count, as_exponent, as_real
from .spaces import check_observations
from .updates.minimizer import Minimizer, Share, flatten, take_up

__all__ = ["Algorithm", "Batch", "Options", "check_above_0", "check_finite"]

# enough for what is done only in some updates, as TD3's policy_delay has it by default
WARM_UPDATES = 4
Batch = Mapping[str, Any]  # of tensors with a leading axis B; observations may be dicts of them


@dataclass(frozen=True)
class Options:
    """Hyperparameters that every algorithm has."""

    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer."""
    learning_rate: float = 1e-3
    """Learning rate of Adam, for all networks."""
    batch_size: int = 256
    """Rows of one update, over all learners."""
    gamma: float = 0.99
    """Discount of one step, 0 to 1."""
    n_step: int = 1
    """Environment steps whose rewards are summed up in one row."""
    tau: float = 0.005
    """Share by which target networks move towards the trained ones, after every target_interval updates."""
    target_interval: int = 1
    """Updates between two moves of the target networks."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "n_step", "target_interval"):
            as_count(name, getattr(self, name))
        if not isinstance(self.hidden, (tuple, list)):
            raise TypeError(
                f"hidden must be a tuple of widths, such as (64, 64), got {self.hidden!r}"
            )
        for width in self.hidden:
            as_count("a width in hidden", width)
        as_exponent("gamma", self.gamma)
        for name in ("learning_rate", "tau"):
            check_above_0(name, getattr(self, name))
        as_exponent("tau", self.tau)


def check_above_0(name: str, value: Any) -> None:
    """Raise ValueError unless a hyperparameter is a finite number above 0."""
    if not 0 < as_real(name, value) < math.inf:
        raise ValueError(f"{name} must be finite and above 0, got {value}")


def check_finite(name: str, value: Any, least: float = 0.0) -> None:
    """Raise ValueError unless a hyperparameter is a finite number of at least ``least``."""
    if not (math.isfinite(as_real(name, value)) and value >= least):
        wanted = f"finite and at least {least:g}" if math.isfinite(least) else "finite"
        raise ValueError(f"{name} must be {wanted}, got {value}")


class Algorithm(ABC):
    """Networks trained on batches from replay, off-policy.

    Parameters
    ----------
    observation_space, action_space : gymnasium.Space
        Of one environment.
    options : Options
        Of the class's own kind.
    seed : int
        Of the initial weights and of whatever noise an update needs. All actors and learners of a
        run give the same.
    device : str
        Where the networks are.
    share : Share
        With several learners, which one this is.

    Raises
    ------
    UnsuitableSpaceError
        If the algorithm cannot handle such spaces.

    Notes
    -----
    A batch has observation, action, reward, next_observation, discount = gamma^k · (1 -
    terminated), and importance_weight. A subclass makes its networks and `Minimizer`s in ``build``,
    and lets target networks follow them by ``add_target``.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    options_class: ClassVar[type[Options]] = Options
    policy: nn.Module
    """What actors need in order to act."""
    minimizers: dict[str, Minimizer]
    """One for each loss, by name; their vectors are all that is trained."""
    targets: dict[str, Tensor]
    """The flat parameters of target networks, by the name of the minimizer they follow."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        options: Any,
        *,
        seed: int = 0,
        device: str = "cpu",
        share: Share | None = None,
    ) -> None:
        self.check_spaces(observation_space, action_space)
        self.observation_space, self.action_space = observation_space, action_space
        self.options, self.device, self.share = options, torch.device(device), share or Share()
        self.n_updates = 0
        self.minimizers, self.targets = {}, {}
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.build()

    @classmethod
    @abstractmethod
    def check_spaces(cls, observation_space: Any, action_space: Any) -> None:
        """Raise UnsuitableSpaceError if the algorithm cannot handle these; this looks at the observations."""
        check_observations(cls.name, observation_space)

    @abstractmethod
    def build(self) -> None:
        """Make ``policy``, ``minimizers`` and ``targets``."""

    @abstractmethod
    def update(self, batch: Batch) -> Tensor:
        """Train on a batch: one step of each loss that is due. Return |TD error| of each row, float [B]."""

    @abstractmethod
    def td_error(self, batch: Batch) -> Tensor:
        """Return |TD error| of each row, float [B], by the trained networks, without gradients.

        Actors ask for it, before a row has an importance_weight, in order to give new rows their
        priorities. It must be what `update` returns, on the same scale, where the target networks
        have caught up with the trained ones: learners replace the one by the other.
        """

    @abstractmethod
    def act(
        self, observation: Any, exploration: npt.NDArray[np.float32], rng: np.random.Generator
    ) -> npt.NDArray[Any]:
        """Choose the actions of N environments.

        Parameters
        ----------
        observation : tensor or array [N, ...], or dict of them
        exploration : float [N]
            How much each explores, in the algorithm's own unit; with 0 it takes what seems best.
        rng : numpy.random.Generator
            For exploring.

        Returns
        -------
        array [N, ...]
            As the buffer stores them: indices from 0, or numbers from -1 to 1.
        """

    @abstractmethod
    def exploration(self, progress: float) -> float:
        """Return how much to explore after this share of the training, 0 to 1."""

    def add_target(self, name: str, module: nn.Module) -> None:
        """Let a network follow those that a minimizer trains; it begins as the same."""
        self.targets[name] = flatten([module])
        self.targets[name].copy_(self.minimizers[name].flat)

    def warm_up(self, batch: Batch) -> None:
        """Have everything recorded that updates on such batches need; nothing is learned from this one.

        Learners that average gradients must all do it.
        """
        state = self.state_dict()
        for _ in range(WARM_UPDATES):
            self.update(batch)
        self.load_state_dict(state)

    def move_targets(self) -> None:
        """Move the target networks towards the trained ones if it is time."""
        self.n_updates += 1
        if self.n_updates % self.options.target_interval == 0:
            with torch.no_grad():
                for name, target in self.targets.items():
                    target.lerp_(self.minimizers[name].flat, self.options.tau)

    def noise(self, n_rows: int, n_columns: int) -> Tensor:
        """Return standard normal numbers for this learner's rows of a batch: its part of what one learner would draw."""
        whole = torch.randn(self.share.count * n_rows, n_columns, generator=self.generator)
        return whole[self.share.rows(n_rows)].to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return all that training goes on from."""
        return {
            "minimizers": {
                name: minimizer.state_dict() for name, minimizer in self.minimizers.items()
            },
            "targets": {name: target.clone() for name, target in self.targets.items()},
            "generator": self.generator.get_state(),
            "n_updates": self.n_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state, in place; ValueError if it is that of networks of other sizes."""
        for name, minimizer in self.minimizers.items():
            minimizer.load_state_dict(state["minimizers"][name])
        take_up(self.targets, state["targets"])
        self.generator.set_state(state["generator"])
        self.n_updates = state["n_updates"]
