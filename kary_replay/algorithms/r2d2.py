"""Q-learning with networks that remember the episode, from replayed stretches of it (R2D2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..fields import fields_of_space, map_leaves
from ..types import Field
from ..validation import as_count, as_fraction
from ..writers.recurrent_steps import RecurrentStepWriter
from ..writers.sequence_writer import SequenceWriter
from ..writers.sequences import as_burn_in, sequence_fields
from .algorithm import Tensors, check_bool
from .networks import MLP, Encoder
from .q_learning import QLearning, QLearningOptions, dueling, of_actions
from .recurrence import LSTM
from .spaces import action_field

__all__ = ["R2D2", "R2D2Options"]

EPSILON = 1e-3  # of the value rescaling: what is left of the slope where values are large


@dataclass(frozen=True)
class R2D2Options(QLearningOptions):
    """Hyperparameters of R2D2."""

    hidden: tuple[int, ...] = (64,)
    """Units of each hidden layer behind the LSTM."""
    batch_size: int = 64
    """Sequences of one update, over all learners."""
    n_step: int = 5
    gamma: float = 0.997
    dueling: bool = True
    exploration_final: float = 0.4
    lstm_hidden_size: int = 64
    """Units of the LSTM that remembers the episode."""
    sequence_length: int = 80
    """Steps of a row: its burn-in, those that are learned from, and n_step that these look at."""
    burn_in: int = 8
    """First steps of a row that only bring the LSTM's state up to date.

    The first row of an episode begins with so many steps of padding, and its LSTM behind them."""
    sequence_period: int | None = None
    """Steps from the start of one row to that of the next.

    None: as many as a row is learned from, so that no step is learned from in two rows."""
    stored_state: bool = True
    """Begin a row with the state that the actor had there; False: with zeros."""
    eta: float = 0.9
    """Share of the largest TD error in a row's priority; the rest is their mean."""
    rescaling: bool = True
    """Learn values on a scale that flattens large ones."""

    def __post_init__(self) -> None:
        super().__post_init__()
        as_count("lstm_hidden_size", self.lstm_hidden_size)
        as_count("sequence_length", self.sequence_length)
        as_burn_in(self.burn_in, self.sequence_length)
        as_fraction("eta", self.eta)
        for name in ("stored_state", "rescaling"):
            check_bool(name, getattr(self, name))
        if self.n_learned < 1:
            raise ValueError(
                f"sequence_length must be above burn_in + n_step = {self.burn_in + self.n_step}, "
                f"got {self.sequence_length}: there would be nothing to learn from"
            )
        if self.sequence_period is not None:
            as_count("sequence_period", self.sequence_period)
            if self.sequence_period > self.n_learned:
                raise ValueError(
                    "sequence_period must be at most sequence_length - burn_in - n_step = "
                    f"{self.n_learned}, got {self.sequence_period}: "
                    "the steps in between would never be learned from"
                )

    @property
    def n_learned(self) -> int:
        """Steps of a whole row that are learned from."""
        return self.sequence_length - self.burn_in - self.n_step


class RecurrentQNetwork(nn.Module):
    """Values of every action of steps, given what there was before in their episodes."""

    def __init__(self, observation_space: Any, n_actions: int, options: R2D2Options) -> None:
        super().__init__()
        self.burn_in = options.burn_in
        self.encoder = Encoder(observation_space, options.image_network)
        self.memory = LSTM(self.encoder.n_features, options.lstm_hidden_size)
        n_features = options.lstm_hidden_size
        self.advantage = MLP(n_features, options.hidden, n_actions)
        self.value = MLP(n_features, options.hidden, 1) if options.dueling else None

    def forward(self, observation: Any, state: Tensor, goes_on: Tensor) -> Tensor:
        """Return the values of all steps but the burn-in, [T * B, n_actions].

        Parameters
        ----------
        observation : Tensor [L * B, ...], or dict of them
            The first steps of all sequences, then the second ones, and so on.
        state : Tensor, float32 [B, state_size]
            What is remembered before the first steps.
        goes_on : Tensor, float32 [(burn_in + 1) * B]
            Of the burn-in and the first step behind it, 0 where the step before is padding, so that
            an episode begins with this one, and 1 elsewhere.
        """
        n_rows = self.burn_in * len(state)
        if n_rows:
            with torch.no_grad():
                before = map_leaves(observation, lambda column: column[:n_rows])
                _, states = self.memory(self.encoder(before), state, goes_on[:n_rows])
                state = states[-len(state) :] * goes_on[n_rows:].unsqueeze(1)
            observation = map_leaves(observation, lambda column: column[n_rows:])
        features, _ = self.memory(self.encoder(observation), state)
        advantage: Tensor = self.advantage(features)
        if self.value is None:
            return advantage
        return dueling(advantage, self.value(features))

    def numpy(
        self, observation: Any, state: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return advantages of single steps, [N, n_actions], and the next state; no gradients."""
        features, next_state = self.memory.numpy(self.encoder.numpy(observation), state)
        return self.advantage.numpy(features), next_state


class R2D2(QLearning):
    """Recurrent Q-learning from prioritized sequences.

    Kapturowski et al. (2019), Recurrent experience replay in distributed reinforcement learning,
    https://openreview.net/forum?id=r1lyTjAqYX: stored states, burn-in, overlapping sequences, value
    rescaling, priorities of the largest and the mean TD error. Networks read no rewards and no
    actions of the past, as theirs do: an environment that wants them remembered shows them.

    Notes
    -----
    A row of the buffer is a sequence of one episode, with a mask where it is longer than that, and
    where it begins before it: nothing comes before the first steps of an episode, which are learned
    from as all others are. These are the steps behind the burn-in with n_step more in the row; and
    where the episode ends in the row, all up to its end, which have n-step returns of what is left.
    What follows the last step of an episode that was cut off is not stored: that step is learned
    from only as what others lead to.
    """

    name = "r2d2"
    paper = "https://openreview.net/forum?id=r1lyTjAqYX"
    options_class = R2D2Options
    options: R2D2Options
    q: RecurrentQNetwork
    q_target: RecurrentQNetwork

    def build(self) -> None:
        super().build()
        self.steps_per_row = self.options.sequence_period or self.options.n_learned
        self.state_size = self.q.memory.state_size

    def network(self) -> RecurrentQNetwork:
        n_actions = int(self.action_space.n)
        return RecurrentQNetwork(self.observation_space, n_actions, self.options)

    def columns(self) -> dict[str, Any]:
        step = {
            "observation": fields_of_space(self.observation_space, "observation_space"),
            "action": action_field(self.action_space),
            "reward": Field((), np.float32),
            "terminated": Field((), np.bool_),
            "truncated": Field((), np.bool_),
        }
        state = Field((self.state_size,), np.float32)
        return sequence_fields(step, self.options.sequence_length, state)

    def writer(self, target: Any, n_envs: int, priority: Any = None) -> Any:
        options = self.options
        sizes = options.sequence_length, self.steps_per_row, options.burn_in
        writer = SequenceWriter(target, n_envs, *sizes, priority, pad_start=True)
        return RecurrentStepWriter(writer)

    def update(self, batch: Tensors) -> Tensor:
        """Train on a batch of sequences; return the priority of each, [B]."""
        self.n_updates += 1
        return self._replayed(self.rows(batch), self.due())

    def warm_up(self, batch: Tensors) -> None:
        """Record what updates need; of the batch all is learned from, so that all is compared."""
        whole = {"mask": torch.ones_like(batch["mask"]), "reward": torch.ones_like(batch["reward"])}
        super().warm_up({**batch, **whole})

    def steps(self, batch: Tensors, due: frozenset[str]) -> Tensor:
        (priority,) = self.minimizers["q"].step(*batch.values())
        return priority

    @torch.no_grad()
    def rows(self, batch: Tensors) -> dict[str, Any]:
        """Return what the networks read of sequences, and what follows from rewards and ends alone.

        Of each step behind the burn-in, [T * B], the first steps of all sequences first: action,
        the ``n_step`` return without what follows, ``discount`` of that, and whether it follows
        ``n_step`` later or else at the ``last`` step of the episode, [B]; whether it is learned
        from, as ``n_learned`` of its sequence are, [B], and how much it weighs in the loss.
        """
        options, burn_in = self.options, self.options.burn_in
        columns = "action", "reward", "terminated", "truncated", "mask"
        action, reward, terminated, truncated, mask = (
            batch[name].t()[burn_in:] for name in columns
        )
        is_real = batch["mask"].t()[:burn_in].float()
        goes_on = torch.cat([torch.ones(1, mask.shape[1], device=mask.device), is_real])
        last = mask.sum(0) - 1
        left = last - torch.arange(len(mask), device=mask.device).unsqueeze(1)  # steps up to it
        terminated, truncated = (
            (flag & (left == 0)).any(0, keepdim=True) for flag in (terminated, truncated)
        )
        # the reward of a last step counts if nothing follows it
        reward = torch.where((left > 0) | ((left == 0) & terminated), reward, 0.0)
        returns = reward.clone()
        for k in range(1, options.n_step):
            returns[:-k] += options.gamma**k * reward[k:]
        is_within = left >= options.n_step
        discount = options.gamma ** left.clamp(0, options.n_step).float()
        is_learned = is_within | (terminated & (left >= 0)) | (truncated & (left > 0))
        learned = is_learned.float()
        weight = learned * batch["importance_weight"] if "importance_weight" in batch else learned
        state = batch["recurrent_state"]
        return {
            "observation": map_leaves(batch["observation"], by_steps),
            "state": state if options.stored_state else torch.zeros_like(state),
            "goes_on": goes_on.reshape(-1),
            "action": action.reshape(-1),
            "returns": returns.reshape(-1),
            "discount": torch.where(is_within | ~terminated, discount, 0.0).reshape(-1),
            "is_within": is_within.float().reshape(-1),
            "last": last.clamp(min=0),
            "is_learned": learned.reshape(-1),
            "n_learned": learned.sum(0).clamp(min=1),
            "weight": weight.reshape(-1),
        }

    def loss(self, *rows: Any) -> tuple[Tensor, Tensor]:
        """Return the weighted loss, and the priority of each sequence, by `rows`."""
        *read, weight = rows
        q, target, priority = self.values(self.q_target, *read)
        loss = F.huber_loss(q, target, reduction="none", delta=self.options.huber_delta)
        return (weight * loss).mean(), priority

    def values(
        self,
        network: RecurrentQNetwork,
        observation: Any,
        state: Tensor,
        goes_on: Tensor,
        action: Tensor,
        returns: Tensor,
        discount: Tensor,
        is_within: Tensor,
        last: Tensor,
        is_learned: Tensor,
        n_learned: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the trained network's values of what was done, their targets, [T * B]; priorities.

        The latter are those of the sequences, [B]. ``network`` values what follows.
        """
        outputs = self.q(observation, state, goes_on)
        q = of_actions(outputs, action)
        with torch.no_grad():
            following = network(observation, state, goes_on)
            is_chosen_by_q = self.options.double or network is self.q
            best = (outputs.detach() if is_chosen_by_q else following).argmax(1)
            following = of_actions(following, best)
            if self.options.rescaling:
                following = unscaled(following)
            target = returns + discount * self.later(following, is_within, last)
            if self.options.rescaling:
                target = scaled(target)
            error = (is_learned * (q.detach() - target).abs()).view(-1, len(last))
            eta = self.options.eta
            priority = eta * error.amax(0) + (1 - eta) * (error.sum(0) / n_learned)
        return q, target, priority

    def later(self, values: Tensor, is_within: Tensor, last: Tensor) -> Tensor:
        """Return for each step the value n_step later, or that of the last step, [T * B]."""
        by_step, n_step = values.view(-1, len(last)), self.options.n_step
        shifted = torch.cat([by_step[n_step:], by_step[:n_step]])
        at_last = by_step.t().gather(1, last.unsqueeze(1)).view(1, -1)
        return torch.where(is_within.view(-1, len(last)) >= 1, shifted, at_last).view(-1)

    @torch.no_grad()
    def td_error(self, batch: Tensors) -> Tensor:
        *read, _ = self.rows(batch).values()
        return self.values(self.q, *read)[2]

    def figures(self, batch: Tensors) -> dict[str, float]:
        rows = self.rows(batch)
        *read, _ = rows.values()
        with torch.no_grad():
            q = self.values(self.q_target, *read)[0]
        n_learned = rows["is_learned"].sum().clamp(min=1)
        mean = (rows["is_learned"] * q).sum() / n_learned
        own = {"q": float(mean), "epsilon": self.exploration(self.progress)}
        return {**super().figures(batch), **own}

    def outputs(self, observation: Any) -> npt.NDArray[np.float32]:
        """Return what is as good as values of all actions, [N, n_actions], as episodes begin."""
        seen = next(iter(observation.values())) if isinstance(observation, dict) else observation
        return self.outputs_and_state(observation, self.initial_state(len(seen)))[0]

    def outputs_and_state(
        self, observation: Any, state: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        return self.q.numpy(observation, state)


def scaled(value: Tensor) -> Tensor:
    """Return values on the scale on which they are learned: h(x), Kapturowski et al., section 2.3.

    h(x) = sign(x) (sqrt(|x| + 1) - 1) + EPSILON x, after Pohlen et al. (2018), arXiv:1805.11593,
    here with x / (sqrt(|x| + 1) + 1) in the place of the first term, which it equals.
    """
    return value / (root(value.abs() + 1) + 1) + EPSILON * value


def unscaled(scaled_value: Tensor) -> Tensor:
    """Return the values that `scaled` was given.

    With x = |h| + 1 + EPSILON these are sign(h) (((sqrt(1 + 4 EPSILON x) - 1) / 2 EPSILON)^2 - 1),
    where the quotient equals 2 x / (sqrt(1 + 4 EPSILON x) + 1), without its rounding errors.
    """
    size = scaled_value.abs()
    x = size + (1 + EPSILON)
    quotient = 2 * x / (root(1 + 4 * EPSILON * x) + 1)
    return scaled_value / size.clamp(min=1e-30) * (quotient * quotient - 1)


def root(x: Tensor) -> Tensor:
    """Return square roots of numbers of at least 1, in operations that native programs have."""
    return (0.5 * x.log()).exp()


def by_steps(column: Tensor) -> Tensor:
    """Return sequences [B, L, ...] step by step, [L * B, ...]."""
    return column.transpose(0, 1).reshape(-1, *column.shape[2:])
