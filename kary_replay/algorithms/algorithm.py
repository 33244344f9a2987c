"""What every algorithm is: networks, an update on a batch, and a way to act.

An algorithm knows nothing of processes. To add one, write a class like those beside this file,
derived from `OffPolicy` where it trains on batches from replay, and `register` it or name it as
"module:Class".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..validation import as_count, as_fraction, as_positive, as_real
from .networks import IMAGE_NETWORKS
from .normalization import Normalization
from .spaces import check_observations
from .updates.minimizer import Minimizer, Share
from .updates.recorded import Function

__all__ = ["Algorithm", "Options", "Tensors", "check_bool", "check_finite", "check_positive"]

# Some parts of an update are done only every few updates (TD3's policy_delay is 2 by default).
WARM_UPDATES = 4
FLOAT32 = torch.finfo(torch.float32)  # what networks compute with
Tensors = Mapping[str, Any]
"""The columns of a batch: tensors [B, ...]; an observation may be a dict of them."""


@dataclass(frozen=True)
class Options:
    """Hyperparameters that every algorithm has."""

    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer."""
    learning_rate: float = 1e-3
    """Learning rate of Adam, for all networks."""
    learning_rate_final_share: float = 1.0
    """Share of the learning rate, 0 to 1, to which it falls linearly over the training."""
    adam_epsilon: float = 1e-8
    """What Adam adds to the root of the mean squared gradient: it damps steps along small ones."""
    gamma: float = 0.99
    """Discount of one step, 0 to 1."""
    image_network: Literal["nature", "data_efficient"] = "nature"
    """Convolutions for images: those of Mnih et al. (2015), or the smaller ones of van Hasselt,
    Hessel & Aslanides (2019). Without images there are none."""

    def __post_init__(self) -> None:
        if self.image_network not in tuple(IMAGE_NETWORKS):
            raise ValueError(
                f"image_network must be one of {', '.join(IMAGE_NETWORKS)}, "
                f"got {self.image_network!r}"
            )
        if not isinstance(self.hidden, (tuple, list)):
            raise TypeError(
                f"hidden must be a tuple of widths, such as (64, 64), got {self.hidden!r}"
            )
        for width in self.hidden:
            as_count("a width in hidden", width)
        as_fraction("gamma", self.gamma)
        check_positive("learning_rate", self.learning_rate)
        # steps of Adam take what is smaller for 0
        check_finite("adam_epsilon", self.adam_epsilon, FLOAT32.tiny)
        as_fraction("learning_rate_final_share", self.learning_rate_final_share)

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> Any:
        """Return the hyperparameters of a run, of which ``config.json`` has these.

        A class that refuses, or names otherwise, what it took in former runs overrides this.
        """
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in saved.items()
        }
        return cls(**values)


def check_bool(name: str, value: Any) -> None:
    """Raise TypeError unless a switch is True or False: "no" would be as good as True."""
    if type(value) is not bool:
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_finite(name: str, value: Any, least: float = 0.0) -> None:
    """Raise ValueError unless a hyperparameter is a finite number of at least ``least``."""
    number = as_real(name, value)
    if not (math.isfinite(number) and number >= least):
        wanted = f"finite and at least {least:g}" if math.isfinite(least) else "finite"
        raise ValueError(f"{name} must be {wanted}, got {value}")
    _check_held(name, number, -FLOAT32.max)


def check_positive(name: str, value: Any) -> None:
    """Raise ValueError unless a hyperparameter is finite and above 0, in float32, too."""
    _check_held(name, as_positive(name, value), FLOAT32.tiny)


def _check_held(name: str, number: float, least: float) -> None:
    if not least <= number <= FLOAT32.max:
        raise ValueError(
            f"{name} must be from {least:.3g} to {FLOAT32.max:.3g}, which float32 holds, "
            f"got {number}"
        )


class Algorithm(ABC):
    """Networks, how a batch trains them, and how they act.

    Parameters
    ----------
    observation_space, action_space : gymnasium.Space
        The spaces of one environment.
    options : Options
        Hyperparameters, an instance of the class's ``options_class``.
    seed : int
        Seed of the initial weights and of the noise that an update needs. All actors and learners
        of a run give the same seed.
    device : str
        Where the networks are.
    share : Share
        With several learners, which of them this is.

    Raises
    ------
    UnsuitableSpaceError
        If the algorithm cannot handle such spaces.

    Notes
    -----
    A subclass makes its networks in ``build``, and has them trained by `minimize`. It also names
    what a run of it looks like: the columns of the rows that actors write (`columns`), what turns
    steps into such rows (`writer`), and the workers and the streams between them (`flow`).
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    options_class: ClassVar[type[Options]] = Options
    flow: ClassVar[str]
    """Where the function is that returns the flow of a run, as "module:function"."""
    learns_from: ClassVar[Literal["replay", "rollouts"]] = "replay"
    """Which settings a run has: those of a replay buffer, or those of rollouts."""
    settings_interval: ClassVar[int] = 100
    """Updates between two looks at what changes slowly, such as the learning rate."""
    policy: nn.Module
    """What actors need in order to act."""
    minimizers: dict[str, Minimizer]
    """One minimizer for each loss, by name; their vectors are all that is trained."""
    state_size: int = 0
    """Numbers that the policy carries from step to step of an episode; zeros as it begins."""
    steps_per_row: int = 1
    """Environment steps from one row of an environment to the next."""
    progress: float = 0.0
    """The share of the training, 0 to 1, that was done at the last `advance`."""
    normalization: Normalization | None = None
    """By what observations and rewards are normalized, if they are: `Normalized` has one."""

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
        self.minimizers = {}
        self.generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.build()

    @classmethod
    @abstractmethod
    def check_spaces(cls, observation_space: Any, action_space: Any) -> None:
        """Raise UnsuitableSpaceError if the algorithm cannot handle these spaces.

        This method of the base class checks the observations.
        """
        check_observations(cls.name, observation_space)

    @abstractmethod
    def columns(self) -> dict[str, Any]:
        """Return the fields of the rows that actors write, by name."""

    @abstractmethod
    def writer(self, target: Any, n_envs: int, priority: Any = None) -> Any:
        """Return what turns the steps of some environments into rows.

        Parameters
        ----------
        target : object with ``add`` and ``fields``
            Where the rows go.
        n_envs : int
            How many environments are stepped together.
        priority : function of columns, optional
            Returns the initial priorities of new rows.

        Returns
        -------
        object
            It has ``add``, ``reset``, ``state_dict`` and ``load_state_dict`` as
            `kary_replay.NStepWriter` does.
        """

    @abstractmethod
    def build(self) -> None:
        """Make ``policy`` and ``minimizers``."""

    @abstractmethod
    def update(self, batch: Tensors) -> Tensor:
        """Train on a batch: one step of each loss that is due.

        Returns
        -------
        Tensor, float [B]
            The error of each row: |TD error| where the rows come from prioritized replay.
        """

    def minimize(
        self, name: str, module: nn.Module, loss: Function, max_gradient_norm: float | None = None
    ) -> None:
        """Make the `Minimizer` of this name, which trains a network with the options of Adam."""
        self.minimizers[name] = Minimizer(
            [module],
            loss,
            self.options.learning_rate,
            max_gradient_norm=max_gradient_norm,
            share=self.share,
            epsilon=self.options.adam_epsilon,
        )

    @abstractmethod
    def outputs(self, observation: Any) -> npt.NDArray[np.float32]:
        """Return what the policy's networks say of N observations: the work of choosing actions.

        Parameters
        ----------
        observation : tensor or array [N, ...], or dict of them

        Returns
        -------
        array, float32 [N, k]
            Of each row on its own, so that rows of several actors can be computed together.
        """

    def initial_state(self, n: int) -> npt.NDArray[np.float32]:
        """Return what the policy carries as the episodes of n environments begin: zeros."""
        return np.zeros((n, self.state_size), np.float32)

    def outputs_and_state(
        self, observation: Any, state: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return `outputs` by what the policy carries, and what it carries from there on.

        An algorithm overrides it whose policy remembers; this method of the base class passes the
        state on.

        Parameters
        ----------
        observation : tensor or array [N, ...], or dict of them
        state : float32 [N, state_size]
            What the policy has carried to these observations.

        Returns
        -------
        tuple of float32 [N, k] and float32 [N, state_size]
            Of each row on its own, too.
        """
        return self.outputs(observation), state

    @abstractmethod
    def decide(
        self,
        outputs: npt.NDArray[np.float32],
        exploration: npt.NDArray[np.float32],
        rng: np.random.Generator,
    ) -> dict[str, npt.NDArray[Any]]:
        """Choose the actions of N environments by the networks' `outputs`; it may change these.

        Parameters
        ----------
        outputs : float32 [N, k]
        exploration : float [N]
            How much each environment explores, in the algorithm's own unit. With 0 the action is
            the one that seems best.
        rng : numpy.random.Generator
            Draws the exploration.

        Returns
        -------
        dict of arrays [N, ...]
            ``action``, as the buffer stores it: indices from 0, or numbers from -1 to 1. And the
            other `columns` that say how it came to be, if there are any.
        """

    def choose(
        self,
        observation: Any,
        exploration: npt.NDArray[np.float32],
        rng: np.random.Generator,
        state: npt.NDArray[np.float32] | None = None,
    ) -> dict[str, npt.NDArray[Any]]:
        """Choose the actions of N environments: `decide` by the present `outputs`.

        A policy that remembers chooses by its ``state``, float32 [N, state_size]; None: as episodes
        begin. Then the dict also has ``next_state``, which is for what is observed next.
        """
        if state is None:
            state = self.initial_state(len(exploration))
        outputs, next_state = self.outputs_and_state(observation, state)
        chosen = self.decide(outputs, exploration, rng)
        if not isinstance(chosen, dict):
            raise TypeError(
                f"decide of {type(self).__name__} must return a dict of arrays with 'action', got "
                f"{type(chosen).__name__}"
            )
        return {**chosen, "next_state": next_state} if self.state_size else chosen

    def act(
        self, observation: Any, exploration: npt.NDArray[np.float32], rng: np.random.Generator
    ) -> npt.NDArray[Any]:
        """Return the actions that `choose` chooses, [N, ...]."""
        return self.choose(observation, exploration, rng)["action"]

    @abstractmethod
    def exploration(self, progress: float) -> float:
        """Return how much to explore after this share of the training, 0 to 1."""

    def resample_noise(self, seed: Sequence[int]) -> None:  # noqa: B027
        """Draw anew the noise by which the networks explore as they act, if they do.

        Who acts in order to explore calls it for each newer parameters, so that ``seed`` and
        parameters decide on the noise. Without it the networks act without noise.
        """

    def advance(self, progress: float) -> None:
        """Set what changes with the share of the training that is done, 0 to 1: learning rates."""
        self.progress = progress
        fallen = progress * (1 - self.options.learning_rate_final_share)
        for minimizer in self.minimizers.values():
            minimizer.learning_rate_share = 1 - fallen

    def figures(self, batch: Tensors) -> dict[str, float]:
        """Return how training goes, in numbers by name; called every few seconds.

        This method of the base class has the learning rate if there is one for all networks, and
        for each minimizer the loss and the length of the gradient, before it is clipped.
        """
        rates = {minimizer.learning_rate for minimizer in self.minimizers.values()}
        found = {"learning_rate": rates.pop()} if len(rates) == 1 else {}
        for name, minimizer in self.minimizers.items():
            found |= {f"{what}/{name}": value for what, value in minimizer.figures().items()}
        return found

    def warm_up(self, batch: Tensors) -> None:
        """Record all that updates on such batches need; nothing is learned from this batch.

        Learners that average gradients must all call it.
        """
        state = self.state_dict()
        for _ in range(WARM_UPDATES):
            self.update(batch)
        self.load_state_dict(state)

    def noise(self, n_rows: int, n_columns: int) -> Tensor:
        """Return standard normal numbers for this learner's rows of a batch.

        They are this learner's part of what a single learner would draw for the whole batch.
        """
        whole = torch.randn(self.share.count * n_rows, n_columns, generator=self.generator)
        part = whole if self.share.count == 1 else whole[self.share.rows(n_rows)]
        return part.to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Return all that training goes on from."""
        return {
            "minimizers": {
                name: minimizer.state_dict() for name, minimizer in self.minimizers.items()
            },
            "generator": self.generator.get_state(),
            "n_updates": self.n_updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up a state, in place; raise ValueError if its networks have other sizes."""
        for name, minimizer in self.minimizers.items():
            minimizer.load_state_dict(state["minimizers"][name])
        self.generator.set_state(state["generator"])
        self.n_updates = state["n_updates"]
