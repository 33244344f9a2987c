"""What algorithms that learn from replay share: target networks, TD errors, n-step rows."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from ..buffers.frame_replay_buffer import FrameReplayBuffer
from ..fields import fields_of_space
from ..types import Field
from ..validation import as_count, as_fraction
from ..writers.frame_stack_writer import FrameStackWriter
from ..writers.n_step import NStepWriter
from ..writers.stacked_steps import StackedStepWriter
from .algorithm import Algorithm, Options, Tensors, check_positive
from .spaces import action_field
from .updates.minimizer import flatten, move_towards, parameters_of, place, take_up
from .updates.replayed import Replayed

__all__ = ["OffPolicy", "OffPolicyOptions"]

TARGETS, NOTHING = frozenset({"targets"}), frozenset[str]()


@dataclass(frozen=True)
class OffPolicyOptions(Options):
    """Hyperparameters of algorithms that learn from replay."""

    batch_size: int = 256
    """Rows of one update, over all learners."""
    n_step: int = 1
    """Environment steps whose rewards are summed up in one row."""
    tau: float = 0.005
    """Share by which target networks move towards the trained ones, each target_interval."""
    target_interval: int = 1
    """Updates between two moves of the target networks."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch_size", "n_step", "target_interval"):
            as_count(name, getattr(self, name))
        check_positive("tau", self.tau)
        as_fraction("tau", self.tau)


class OffPolicy(Algorithm):
    """An algorithm that trains on batches from prioritized replay.

    Notes
    -----
    A batch has observation, action, reward, next_observation, discount = gamma^k · (1 -
    terminated), and importance_weight. A subclass says in `steps` what an update does, and lets
    target networks follow the trained ones by `add_target`.
    """

    options_class: ClassVar[type[Options]] = OffPolicyOptions
    flow: ClassVar[str] = "kary_replay.runner.flows.off_policy:off_policy"
    targets: dict[str, Tensor]
    """The flat parameters of target networks, by the name of the minimizer they follow."""
    _followers: dict[str, nn.Module]

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.targets, self._followers = {}, {}
        self._replayed = Replayed(self._all_steps, self._trained)
        super().__init__(*arguments, **keywords)

    @abstractmethod
    def steps(self, batch: Tensors, due: frozenset[str]) -> Tensor:
        """Take the steps of an update, and return |TD error| of each row, float [B].

        What it does depends on the arguments and on what is trained, and on nothing else: native
        steps are written down, and made again for the next batch without calling it (`Replayed`).

        Parameters
        ----------
        batch : dict of tensors
            Its columns, and those of `noises`.
        due : frozenset of str
            What `due` returned.
        """

    def due(self) -> frozenset[str]:
        """Return what of an update is due in the ``n_updates``-th one: "targets", or nothing."""
        return TARGETS if self.n_updates % self.options.target_interval == 0 else NOTHING

    def noises(self, n_rows: int) -> Tensors:
        """Return the random numbers that the steps for so many rows need, by name."""
        return {}

    def update(self, batch: Tensors) -> Tensor:
        """Train on a batch: `steps`, and then move the target networks if that is due."""
        self.n_updates += 1
        noises = self.noises(len(batch["importance_weight"]))
        return self._replayed({**batch, **noises}, self.due())

    def _trained(self) -> tuple[object, ...]:
        return *self.minimizers.values(), *self.targets.values()

    def _all_steps(self, batch: Tensors, due: frozenset[str]) -> Tensor:
        td_error = self.steps(batch, due)
        if "targets" in due:
            for name, target in self.targets.items():
                move_towards(target, self.minimizers[name].flat, self.options.tau)
        return td_error

    @abstractmethod
    def td_error(self, batch: Tensors) -> Tensor:
        """Return |TD error| of each row, float [B], by the trained networks, without gradients.

        Actors ask for it, before a row has an importance_weight, in order to give new rows their
        priorities. It must be what `update` returns, on the same scale, where the target networks
        have caught up with the trained ones: learners replace the one by the other.
        """

    def columns(self) -> dict[str, Any]:
        observation = fields_of_space(self.observation_space, "observation_space")
        columns = {
            "observation": observation,
            "action": action_field(self.action_space),
            "reward": Field((), np.float32),
            "next_observation": observation,
            "discount": Field((), np.float32),
        }
        if self.state_size:
            columns["state"] = Field((self.state_size,), np.float32)
        return columns

    def writer(self, target: Any, n_envs: int, priority: Any = None) -> Any:
        if isinstance(target, FrameReplayBuffer):
            frames = FrameStackWriter(target, n_envs, self.options.gamma, priority)
            return StackedStepWriter(frames)
        return NStepWriter(target, n_envs, self.options.n_step, self.options.gamma, priority)

    def add_target(self, name: str, module: nn.Module) -> None:
        """Let a network follow those that a minimizer trains; it begins as their copy."""
        self.targets[name], self._followers[name] = flatten([module]), module
        self.targets[name].copy_(self.minimizers[name].flat)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name, module in self._followers.items():
            place(parameters_of([module]), self.targets[name])  # those of copies lie apart

    def state_dict(self) -> dict[str, Any]:
        targets = {name: target.clone() for name, target in self.targets.items()}
        return {**super().state_dict(), "targets": targets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        take_up(self.targets, state["targets"])
