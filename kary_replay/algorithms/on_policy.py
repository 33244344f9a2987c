"""What algorithms share that learn from rollouts of their own policy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..fields import fields_of_space, map_leaves
from ..types import Field
from ..validation import as_count, as_fraction, as_real
from .algorithm import Algorithm, Options, Tensors, check_bool, check_finite, check_positive
from .distributions import distribution_of
from .networks import ACTIVATIONS, MLP, Encoder, initialize
from .recurrence import LSTM, parts_of, sequences
from .returns import generalized_advantages, vtrace
from .spaces import action_field, check_actions_are_known
from .updates.recorded import recorded
from .updates.replayed import Replayed

__all__ = ["OnPolicy", "OnPolicyOptions", "PolicyAndValue"]

ROWS = "observation", "action", "log_prob", "advantage", "return_", "value"
LEARNED = "before", "return_", "value"
LOG_STD_MIN = -10.0


@dataclass(frozen=True)
class OnPolicyOptions(Options):
    """Hyperparameters of algorithms that learn from rollouts."""

    hidden: tuple[int, ...] = (64, 64)
    adam_epsilon: float = 1e-5  # Andrychowicz et al. (2021), arXiv:2006.05990
    learning_rate: float = 3e-4
    activation: Literal["tanh", "relu"] = "tanh"
    """What is between the layers."""
    lstm_hidden_size: int | None = None
    """Units of an LSTM that remembers the episode, before the layers; None: there is none."""
    n_envs: int = 8
    """Environments, over all actors."""
    rollout_length: int = 128
    """Steps of each environment that an update learns from, together with the other ones'."""
    envs_per_update: int | None = None
    """Environments whose rollouts an update learns from, the oldest ones; None: all of them.

    With fewer, learners do not wait for the slowest actors."""
    gae_lambda: float = 0.95
    """Weight of each later TD error in an advantage, 0 (the first alone) to 1 (all alike)."""
    vtrace: bool = False
    """Correct for the age of the policy that has acted, by importance ratios of the actions."""
    rho_bar: float = 1.0
    """V-trace: bound of the ratios by which TD errors count, and the policy's gradient."""
    c_bar: float = 1.0
    """V-trace: bound of the ratios by which later TD errors count."""
    ent_coef: float = 0.0
    """Worth of a nat of the policy's entropy."""
    vf_coef: float = 0.5
    """Weight of the values' squared error in the loss."""
    max_gradient_norm: float = 0.5
    """Longer gradients are scaled down to this length."""
    log_std: float = 0.0
    """Logarithm of the policy's standard deviation at first, where actions go from -1 to 1."""
    orthogonal_init: bool = True
    """Begin with orthogonal weights and a nearly even policy; False: with torch's weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n_envs", "rollout_length"):
            as_count(name, getattr(self, name))
        if self.lstm_hidden_size is not None:
            as_count("lstm_hidden_size", self.lstm_hidden_size)
        if self.envs_per_update is not None:
            as_count("envs_per_update", self.envs_per_update)
            if self.envs_per_update > self.n_envs:
                raise ValueError(
                    f"envs_per_update must be at most n_envs={self.n_envs}, "
                    f"got {self.envs_per_update}"
                )
        for name in ("vtrace", "orthogonal_init"):
            check_bool(name, getattr(self, name))
        for name in ("rho_bar", "c_bar"):
            check_positive(name, getattr(self, name))
        if not self.vtrace and (self.rho_bar, self.c_bar) != (1.0, 1.0):
            raise ValueError(
                f"rho_bar={self.rho_bar} and c_bar={self.c_bar} need vtrace=True: they are the "
                "bounds of its weights"
            )
        if self.c_bar > self.rho_bar:
            raise ValueError(
                f"c_bar must be at most rho_bar={self.rho_bar}, got {self.c_bar}: with a greater "
                "one V-trace need not converge"
            )
        as_fraction("gae_lambda", self.gae_lambda)
        for name in ("ent_coef", "vf_coef"):
            check_finite(name, getattr(self, name))
        if not LOG_STD_MIN <= as_real("log_std", self.log_std) <= 20:
            raise ValueError(
                f"log_std must be from {LOG_STD_MIN:g} to 20, got {self.log_std}: it is the "
                "logarithm of what the noise begins with, as a share of the actions' range; of "
                "less noise float32 rounds a part"
            )
        check_positive("max_gradient_norm", self.max_gradient_norm)
        if not isinstance(self.activation, str) or self.activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}"
            )

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any]) -> Any:
        # Less was not refused at first; what a run goes on with is what it has learned.
        log_std = max(as_real("log_std", saved["log_std"]), LOG_STD_MIN)
        return super().from_saved({**saved, "log_std": log_std})

    @property
    def rows_per_update(self) -> int:
        """Steps that an update learns from."""
        return (self.envs_per_update or self.n_envs) * self.rollout_length


class PolicyAndValue(nn.Module):
    """A policy and the value of observations, each with layers of its own.

    Images are encoded once for both. An LSTM between the encoder and the layers, if there is one,
    remembers for both; then what is evaluated are `sequences` of ``rollout_length`` steps.
    """

    def __init__(self, observation_space: Any, action_space: Any, options: OnPolicyOptions) -> None:
        super().__init__()
        self.encoder = Encoder(observation_space, options.image_network)
        self.distribution = distribution_of(action_space, options.log_std)
        n_features, hidden = self.encoder.n_features, options.hidden
        self.memory, self.length = None, options.rollout_length
        if options.lstm_hidden_size:
            self.memory = LSTM(n_features, options.lstm_hidden_size)
            n_features = options.lstm_hidden_size
        n_outputs = self.distribution.n_outputs
        self.pi = MLP(n_features, hidden, n_outputs, options.activation)
        self.v = MLP(n_features, hidden, 1, options.activation)
        if options.orthogonal_init:
            initialize(self, 2**0.5)
            if self.memory is not None:
                initialize(self.memory, 1.0)
            initialize(self.pi[-1], 0.01)
            initialize(self.v[-1], 1.0)

    def forward(self, observation: Any) -> tuple[Tensor, Tensor]:
        """Return the parameters of the distribution of actions, [B, n_outputs], and values, [B]."""
        return self.heads(self.features(observation)[0])

    def heads(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the parameters of the distribution of actions, and values, by `features`."""
        return self.pi(features), self.v(features).squeeze(1)

    def features(self, observation: Any) -> tuple[Tensor, ...]:
        """Return what both layers read, [B, n]; with memory also the states, [B, state_size].

        These are what is remembered after each row.
        """
        if self.memory is None:
            return (self.encoder(observation),)
        seen, state, goes_on = parts_of(observation, self.encoder.keys)
        n_sequences = len(goes_on) // self.length
        found: tuple[Tensor, ...] = self.memory(self.encoder(seen), state[:n_sequences], goes_on)
        return found

    def value(self, observation: Any, state: Tensor | None = None) -> Tensor:
        """Return the values of single observations, [B]; with memory by states [B, state_size]."""
        features = self.encoder(observation)
        if self.memory is not None:
            features, _ = self.memory(features, state)
        value: Tensor = self.v(features)
        return value.squeeze(1)

    def numpy(
        self, observation: Any, state: npt.NDArray[np.float32] | None = None
    ) -> tuple[npt.NDArray[Any], Any]:
        """Return the parameters of the distribution, [N, n_outputs], and the next state.

        Of single observations, without gradients; with memory by states [N, state_size], or zeros.
        """
        features = self.encoder.numpy(observation)
        if self.memory is not None:
            if state is None:
                state = np.zeros((len(features), self.memory.state_size), np.float32)
            features, state = self.memory.numpy(features, state)
        return self.pi.numpy(features), state


class OnPolicy(Algorithm):
    """An algorithm that trains on rollouts, each of which it uses in one update.

    Notes
    -----
    A batch has observation, action, reward, terminated, truncated, log_prob (of the action, when it
    was chosen), and next_observation, which is there where an episode was cut off and after the
    last step, all [T, N, ...]: T steps of N environments. With memory it also has the state before
    the first step, [1, N, state_size]; the networks read sequences from there on, and begin anew
    where episodes do. A subclass says in `loss` what a step of the minimizer does, and in `pieces`
    what rows there are in each.
    """

    options_class: ClassVar[type[Options]] = OnPolicyOptions
    flow: ClassVar[str] = "kary_replay.runner.flows.on_policy:on_policy"
    learns_from: ClassVar[Literal["replay", "rollouts"]] = "rollouts"
    settings_interval: ClassVar[int] = 1
    options: OnPolicyOptions
    network: PolicyAndValue
    log_pi: Tensor
    """log pi(a|s) of the rows of the last step of the minimizer, [B], before that step."""
    learned: Tensors | None = None
    """What rows were before the last update, [T * N]: log pi(a|s) is ``before``, and there are
    ``value`` and ``return_``."""

    @classmethod
    def check_spaces(cls, observation_space: Any, action_space: Any) -> None:
        super().check_spaces(observation_space, action_space)
        check_actions_are_known(cls.name, action_space)

    def columns(self) -> dict[str, Any]:
        observation = fields_of_space(self.observation_space, "observation_space")
        return {
            "observation": observation,
            "action": action_field(self.action_space),
            "reward": Field((), np.float32),
            "terminated": Field((), np.bool_),
            "truncated": Field((), np.bool_),
            "log_prob": Field((), np.float32),
            "next_observation": observation,
        }

    def writer(self, target: Any, n_envs: int, priority: Any = None) -> Any:
        """Return the target: rows are steps, as they are."""
        return target

    def build(self) -> None:
        options, spaces = self.options, (self.observation_space, self.action_space)
        self.network = PolicyAndValue(*spaces, options).to(self.device)
        norm = options.max_gradient_norm
        self.minimize("policy_and_value", self.network, self.loss, norm)
        self.policy = self.network
        self.state_size = 0 if self.network.memory is None else self.network.memory.state_size
        self._replayed = Replayed(self._step)
        self._evaluate = recorded(self._evaluation, self.device)

    @abstractmethod
    def loss(
        self,
        observation: Any,
        action: Tensor,
        log_prob: Tensor,
        advantage: Tensor,
        return_: Tensor,
        value: Tensor,
        *schedules: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return what to minimize, and log pi(a|s) of each row, [B].

        Values are those of the networks before the update, and returns are what they should be.
        """

    def schedules(self) -> tuple[Tensor, ...]:
        """Return numbers [1] of the loss that change in the course of the training."""
        return ()

    @abstractmethod
    def pieces(self, rows: Tensors) -> Iterator[Tensors]:
        """Yield the rows of each step of the minimizer; stop if an update is to end early."""

    def update(self, batch: Tensors) -> Tensor:
        """Train on rollouts [T, N, ...]; return |return - value| of each row, [T * N]."""
        self.n_updates += 1
        rows = self.evaluated(batch)
        self.learned = {name: rows[name] for name in LEARNED}
        for piece in self.pieces(rows):
            self.log_pi = self._replayed(piece)
        error: Tensor = (rows["return_"] - rows["value"]).abs()
        return error

    def _step(self, rows: Tensors) -> Tensor:
        inputs = [rows[name] for name in ROWS]
        (log_pi,) = self.minimizers["policy_and_value"].step(*inputs, *rows["schedules"].values())
        return log_pi

    def _evaluation(self, observation: Any, action: Tensor) -> tuple[Tensor, ...]:
        """Return values and log pi(a|s), [B], and with memory the states after each row."""
        features, *states = self.network.features(observation)
        outputs, value = self.network.heads(features)
        return value, self.network.distribution.log_prob(outputs, action), *states

    @torch.no_grad()
    def evaluated(self, batch: Tensors) -> dict[str, Any]:
        """Return the rows of rollouts, [T * N, ...], with what their actions were worth."""
        shape = batch["reward"].shape
        columns = dict(batch)
        next_observation = columns.pop("next_observation")
        rows = map_leaves(columns, flat)
        if self.state_size:
            goes_on = torch.ones(shape, device=self.device)
            goes_on[1:] -= (batch["terminated"] | batch["truncated"])[:-1].float()
            rows["observation"] = sequences(rows["observation"], rows["state"], flat(goes_on))
        log_ratio = None
        found = self._evaluate(rows["observation"], rows["action"])
        # which the next call overwrites
        value, rows["before"], *states = [tensor.clone() for tensor in found]
        if self.options.vtrace:
            log_ratio = (rows["before"] - rows["log_prob"]).cpu().numpy().reshape(shape)
            # From here on the policy is compared with what it was before the update: that it has
            # not acted itself is what V-trace corrects.
            rows["log_prob"] = rows["before"]
        values = value.cpu().numpy().reshape(shape)
        terminated, truncated = (batch[name].cpu().numpy() for name in ("terminated", "truncated"))
        next_value = np.concatenate([values[1:], np.zeros_like(values[:1])])
        cut = truncated & ~terminated
        cut[-1] = ~terminated[-1]
        (after,) = np.nonzero(cut.reshape(-1))
        if len(after):
            index = torch.from_numpy(after).to(self.device)
            observation = map_leaves(next_observation, lambda column: flat(column)[index])
            before = (state[index] for state in states)
            next_value[cut] = self.network.value(observation, *before).cpu().numpy()
        options, reward = self.options, batch["reward"].cpu().numpy()
        steps = reward, values, next_value, terminated, truncated
        discounts = options.gamma, options.gae_lambda
        if log_ratio is None:
            advantage = generalized_advantages(*steps, *discounts)
            return_ = values + advantage
        else:
            bounds = options.rho_bar, options.c_bar
            advantage, return_ = vtrace(log_ratio, *steps, *discounts, *bounds)
        rows["value"] = value
        for name, worth in (("advantage", advantage), ("return_", return_)):
            rows[name] = torch.from_numpy(worth.reshape(-1)).to(self.device)
        return {name: rows[name] for name in (*ROWS, "before")}

    def order(self, n_rows: int, size: int) -> Tensor:
        """Return the rows in a random order, of which each step of the minimizer gets ``size``.

        With memory these are whole sequences, step by step as `sequences` has them.
        """
        if not self.state_size:
            return torch.randperm(n_rows, generator=self.generator)
        length = self.network.length
        n_envs = n_rows // length
        envs = torch.randperm(n_envs, generator=self.generator).reshape(-1, 1, size // length)
        return (n_envs * torch.arange(length).unsqueeze(1) + envs).reshape(-1)

    def warm_up(self, batch: Tensors) -> None:
        """Record what a step of the minimizer needs; nothing is learned from this batch."""
        state = self.state_dict()
        for piece in self.pieces(self.evaluated(batch)):
            for _ in range(2):  # the second is written down
                self.log_pi = self._replayed(piece)
            break
        self.load_state_dict(state)

    def outputs(self, observation: Any) -> npt.NDArray[np.float32]:
        """Return the parameters of the distribution of actions, [N, k]; with memory, at first."""
        outputs, _ = self.network.numpy(observation)
        return self.network.distribution.parameters_of(outputs)

    def outputs_and_state(
        self, observation: Any, state: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        outputs, next_state = self.network.numpy(observation, state)
        return self.network.distribution.parameters_of(outputs), next_state

    def decide(
        self,
        outputs: npt.NDArray[np.float32],
        exploration: npt.NDArray[np.float32],
        rng: np.random.Generator,
    ) -> dict[str, npt.NDArray[Any]]:
        distribution = self.network.distribution
        if exploration.any():
            action, log_prob = distribution.draw(outputs, rng)
            return {"action": action, "log_prob": log_prob}
        return {"action": distribution.mode(outputs)}

    def exploration(self, progress: float) -> float:
        return 1.0

    @torch.no_grad()
    def figures(self, batch: Tensors) -> dict[str, float]:
        """Return how training goes: also how far the last update has moved the policy.

        After an update ``batch`` must be the one that it learned from.

        ``kl`` is the mean of r - 1 - log r, Schulman (2020), http://joschu.net/blog/kl-approx.html,
        where r is how much more probable an action is than before the update.
        ``explained_variance`` is of returns by the values of before the update: 1 is best, and 0 no
        better than a constant.
        """
        rows = self.evaluated(batch)
        outputs, value = self.network(rows["observation"])
        distribution = self.network.distribution
        learned = rows if self.learned is None else self.learned
        change = distribution.log_prob(outputs, rows["action"]) - learned["before"]
        variance = learned["return_"].var(unbiased=False)
        unexplained = (learned["return_"] - learned["value"]).var(unbiased=False)
        found = {
            "entropy": distribution.entropy(outputs).mean(),
            "kl": divergence_of(change),
            "explained_variance": 1 - unexplained / variance.clamp(min=1e-12),
            "value": value.mean(),
        }
        return {**super().figures(batch), **{name: float(number) for name, number in found.items()}}


def divergence_of(change: Tensor) -> Tensor:
    """Return the estimated KL divergence of policies, by how log pi(a|s) of actions has changed."""
    change = change.double()
    return (change.exp() - 1 - change).mean()


def squared(error: Tensor) -> Tensor:
    """Return squares, whose gradient is one of the operations that native programs have."""
    return error * error


def flat(column: Tensor) -> Tensor:
    """Return [T, N, ...] as [T * N, ...]."""
    return column.reshape(-1, *column.shape[2:])


def n_bytes(column: Any) -> int:
    """Return the size of a column, or of all in a dict."""
    if isinstance(column, dict):
        return sum(map(n_bytes, column.values()))
    size: int = column.nbytes
    return size
