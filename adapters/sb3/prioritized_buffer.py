"""The common base of the prioritized buffers for SB3, whose rows lie in a native buffer.

A batch is drawn by the priorities of the native buffer. The TD errors of its losses return to these
priorities before the next batch is drawn or the next transition is added.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, Literal

import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

import kary_replay
from kary_replay.adapters.sb3.arguments import check_count
from kary_replay.adapters.sb3.arrays import (
    StoredArray,
    StoredParts,
    field_of_row,
    map_arrays,
    warn_if_larger_than_memory,
)
from kary_replay.adapters.sb3.prioritized_loss import PrioritizedTensor
from kary_replay.adapters.sb3.priority_updates import PriorityUpdates
from kary_replay.adapters.sb3.step_shapes import StepShapes
from kary_replay.types import UniformShare

BetaSchedule = Callable[[int], float]
PrioritizeBy = Literal["td_error", "gradient"]

# The native field that holds each of SB3's arrays. A transition that ends an episode by time has
# both episode_end and truncated set.
_FIELDS = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next_observation",
    "dones": "episode_end",
    "timeouts": "truncated",
}
randint = np.random.randint  # of the global stream, which SB3 seeds and draws from
_LARGEST_BATCH = 1 << 30  # rows; the native buffer refuses larger ones
_FORMAT = 2  # of pickles
_CPU = torch.device("cpu")
# SB3's own buffers make their batches with these methods. Ours draw, weight and mark a batch as a
# whole, and call none of them.
_NOT_CALLED = ("_get_samples", "to_torch", "_get_real_samples", "_get_virtual_samples")
_STOCK = ("kary_replay", "stable_baselines3", "sb3_contrib")
# Version 0.1.0 reads these entries of a pickle. They say that no batch is remembered.
_NO_BATCHES = {"_last_batch": None, "_pending": [], "_n_unseen": 0, "_warned": False}


class PrioritizedBuffer(ReplayBuffer):
    """The common base of the prioritized buffers for SB3.

    A subclass calls `_move_to_native` at the end of its constructor. It overrides `sample` where a
    batch is more than the rows that were drawn.
    """

    _native: kary_replay.PrioritizedReplayBuffer
    # Whether uniform draws are those of SB3's own buffer; those of pickles without it are not.
    _draws_as_stock: bool = False
    _n_added_before = 0  # the rows that the native buffer had got when it was reset last

    observations: Any = StoredArray()
    actions: Any = StoredArray()
    rewards: Any = StoredArray()
    next_observations: Any = StoredArray()
    dones: Any = StoredArray()
    timeouts: Any = StoredArray()

    # --------------------------------------------------------------------------------- construction

    def _check_sizes(self, buffer_size: int, n_envs: int) -> None:
        """Raise unless these are sizes, and the class overrides only methods that are called."""
        self._refuse_ignored_methods()
        check_count("buffer_size", buffer_size)
        check_count("n_envs", n_envs)

    @classmethod
    def _refuse_ignored_methods(cls) -> None:
        """Raise TypeError if a class derived from ours overrides a method that is never called."""
        for name in _NOT_CALLED:
            if _is_overridden(cls, name) and not _is_overridden(cls, "sample"):
                raise TypeError(
                    f"{cls.__name__} overrides {name}, which a prioritized buffer does not call: "
                    "override sample(batch_size, env) instead, and change what super().sample "
                    "returns, for instance by samples._replace(observations=…)"
                )

    def _move_to_native(
        self,
        buffer_size: int,
        alpha: float,
        beta: float | BetaSchedule,
        priority_epsilon: float,
        seed: int | None,
        uniform_share: UniformShare,
        prioritize_by: PrioritizeBy,
    ) -> None:
        """Make the native buffer, with the real size and with the fields that SB3 has chosen.

        Until this call SB3's arrays have one row. It shows the shapes and dtypes of the fields.
        """
        self.prioritize_by = prioritize_by
        self._refuse_empty_observations()
        fields = {
            ours: map_arrays(field_of_row, getattr(self, theirs)) for theirs, ours in self._arrays()
        }
        self.buffer_size = max(buffer_size // self.n_envs, 1)
        warn_if_larger_than_memory(type(self).__name__, self.buffer_size * self.n_envs, fields)
        self._draws_as_stock = seed is None
        self._native = kary_replay.PrioritizedReplayBuffer(
            self.buffer_size * self.n_envs,  # slot = row * n_envs + environment
            fields,
            alpha=alpha,
            beta=0.0,
            priority_epsilon=priority_epsilon,
            seed=_seed_from_global_streams() if seed is None else seed,
            uniform_share=uniform_share,
        )
        self.n_sampled = 0
        self.beta = beta
        self._remember_no_batch()
        self._show_rows()

    def _refuse_empty_observations(self) -> None:
        """Raise ValueError if the observation, or a part of it, has an axis of length 0."""
        shapes = self.obs_shape if isinstance(self.obs_shape, dict) else {None: self.obs_shape}
        for key, shape in shapes.items():
            if 0 in shape:
                part = "" if key is None else f"[{key!r}]"
                raise ValueError(
                    f"observation_space{part} has the shape {tuple(shape)}, which holds nothing to "
                    "store: leave it out (gymnasium.wrappers.FilterObservation)"
                )

    def _remember_no_batch(self) -> None:
        """Begin without a batch whose TD errors are still to come."""
        is_by_gradient = self.prioritize_by == "gradient"
        self._updates = PriorityUpdates(self._native, type(self).__name__, is_by_gradient)

    def _arrays(self) -> list[tuple[str, str]]:
        """Return the names of SB3's arrays in this buffer, with the fields that hold them."""
        return [(theirs, ours) for theirs, ours in _FIELDS.items() if hasattr(self, theirs)]

    def _show_rows(self) -> None:
        """Let SB3's array attributes be views of the native rows."""

        def of_environments(rows: np.ndarray) -> np.ndarray:
            # splitting the leading axis never copies
            return rows.reshape(self.buffer_size, self.n_envs, *rows.shape[1:])

        for theirs, ours in _FIELDS.items():
            if ours in self._native.fields:
                rows = map_arrays(of_environments, self._native.field_view(ours))
                self.__dict__[theirs] = StoredParts(rows) if isinstance(rows, dict) else rows

    # ----------------------------------------------------------------------------------- priorities

    @property
    def native(self) -> kary_replay.PrioritizedReplayBuffer:
        """The native buffer, after all TD errors have been written back to its priorities."""
        self.flush_priorities()
        return self._native

    @property
    def alpha(self) -> float:
        """The exponent of the priorities, in [0, 1]. Setting it recomputes every mass."""
        return self._native.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self.native.alpha = value

    @property
    def beta(self) -> float:
        """The present exponent of the importance weights, in [0, 1].

        It can be set to a number, or to a schedule: a function of the transitions drawn so far.
        """
        return self._native.beta

    beta_schedule: BetaSchedule | None = None  # the schedule of beta; `beta` sets it

    @beta.setter
    def beta(self, value: float | BetaSchedule) -> None:
        # The native buffer refuses a number out of range before the schedule changes.
        self._native.beta = value(self.n_sampled) if callable(value) else value
        if isinstance(value, FunctionType):
            _warn_if_not_saved(value)
        self.beta_schedule = value if callable(value) else None
        self.first_beta = self._native.beta

    first_beta: float  # what `beta` was set to, where annealing begins

    def anneal_beta(self, value: float) -> None:
        """Set beta to a number on its way from what it was set to, which stays `first_beta`."""
        self._native.beta = value

    @property
    def prioritize_by(self) -> PrioritizeBy:
        """What priorities are: "td_error", or "gradient", the size of the loss's gradient.

        Setting it changes that for the batches sampled from then on.
        """
        # version 0.1.0, whose pickles do not say, had TD errors alone
        return self.__dict__.get("prioritize_by", "td_error")

    @prioritize_by.setter
    def prioritize_by(self, value: PrioritizeBy) -> None:
        if not isinstance(value, str) or value not in ("td_error", "gradient"):
            raise ValueError(f"prioritize_by must be 'td_error' or 'gradient', got {value!r}")
        self.__dict__["prioritize_by"] = value
        if "_updates" in self.__dict__:
            self._updates.is_by_gradient = value == "gradient"

    @property
    def uniform_share(self) -> float:
        """The present share of draws that go to all transitions alike, in [0, 1].

        It can be set to a number, or to "auto", after which it adapts.
        """
        return self.native.uniform_share

    @uniform_share.setter
    def uniform_share(self, value: UniformShare) -> None:
        self.native.uniform_share = value

    @property
    def relative_noise(self) -> float:
        """How noisy batches are, as a share of the noise of uniform replay.

        Below 1, priorities pay. It is NaN before priorities were updated; see
        `kary_replay.PrioritizedReplayBuffer`.
        """
        return self.native.relative_noise

    @property
    def least_noise(self) -> float:
        """How noisy batches would be at best, as a share of the noise of uniform replay.

        It is near 0 if few rows have most of the error, and 1 if there is nothing to prioritize;
        see `kary_replay.PrioritizedReplayBuffer`.
        """
        return self.native.least_noise

    def update_priorities(self, td_errors: np.ndarray | torch.Tensor) -> None:
        """Set the priorities of the batch sampled last by hand, for losses that are not recognized.

        Parameters
        ----------
        td_errors : array or torch.Tensor
            The TD errors, [B] or [B, 1], of any sign. They replace those that a recognized loss may
            have noted for the batch, and no loss replaces them later.

        Raises
        ------
        ValueError, TypeError
            If no batch was sampled yet, the length is not B, or a value is not a finite number. No
            priority has changed then.
        """
        self._updates.set_by_hand(td_errors)
        self.flush_priorities()

    def flush_priorities(self) -> None:
        """Write the TD errors noted so far into the tree.

        The methods `add` and `sample` and the property `native` call this first. So does pickling,
        which warns where this raises. Rows that were overwritten since their batch was sampled keep
        their priorities.

        Raises
        ------
        ValueError
            If a TD error is NaN or infinite. That batch is dropped without a change of any
            priority, so that the buffer can still be saved and examined.
        """
        self._updates.flush(hides_rows=self._hides_rows())

    def _hides_rows(self) -> bool:
        """Tell whether some rows must not be drawn. Such a row has mass 0, and must keep it."""
        return self.optimize_memory_usage

    # ------------------------------------------------------------------------------ rows in and out

    @property
    def pos(self) -> int:
        """The row that the next step is stored in. Only `add`, `extend` and `reset` move it."""
        return self._n_steps_added() % self.buffer_size

    @pos.setter
    def pos(self, value: int) -> None:
        self._refuse_to_move("pos", value, self.pos)

    @property
    def full(self) -> bool:
        """Whether every row has a step."""
        return self._n_steps_added() >= self.buffer_size

    @full.setter
    def full(self, value: bool) -> None:
        self._refuse_to_move("full", value, self.full)

    def _n_steps_added(self) -> int:
        """Return how many steps were added since the last reset, as the native buffer counts.

        So the two agree even after an interrupt (Ctrl-C) between the native call and the next line.
        """
        if "_native" not in self.__dict__:
            return 0
        return (self._native.n_added - self._n_added_before) // self.n_envs

    def _refuse_to_move(self, name: str, value: Any, present: Any) -> None:
        if value != present:
            raise AttributeError(
                f"{name} is {present} and cannot be set to {value!r}, because it says where the "
                "stored rows are: reset() forgets all rows; add and extend store new ones"
            )

    def add(
        self,
        obs: np.ndarray | dict[str, np.ndarray],
        next_obs: np.ndarray | dict[str, np.ndarray],
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Sequence[dict[str, Any]],
    ) -> None:
        """Add one transition per environment, at the largest priority seen so far, at least 1.

        Parameters
        ----------
        obs, next_obs, action, reward, done : np.ndarray
            The step, with a leading axis n_envs. Observations of a Dict space are dicts of arrays.
        infos : sequence of dict
            One dict for each environment. Its "TimeLimit.truncated" says whether the episode ended
            by time; it is ignored if ``handle_timeout_termination`` is off.

        Raises
        ------
        kary_replay.errors.FieldError
            If an array has a shape or a dtype that does not fit. Nothing has been added then.
        ValueError, TypeError
            If ``infos`` has another length, or a value is not a number. Nothing has been added
            then.
        """
        if self._updates.pending:
            self.flush_priorities()
        n = self.n_envs
        if len(infos) != n:
            raise ValueError(
                f"infos must have one dict per environment, {n}, got {len(infos)}: "
                "was the buffer made or saved with another number of environments?"
            )
        timeouts = self.handle_timeout_termination
        ends = [info.get("TimeLimit.truncated", False) if timeouts else False for info in infos]
        try:
            all_go_on = ends.count(False) == n
            columns = {
                "observation": obs,
                "action": action.reshape(n, self.action_dim) if len(action) == n else action,
                "reward": reward,
                "episode_end": done.astype(np.float32),
                "truncated": np.zeros(n, np.float32) if all_go_on else np.asarray(ends),
            }
            if not self.optimize_memory_usage:
                columns["next_observation"] = next_obs
            self._native.add(**columns)
        except (kary_replay.errors.FieldError, AttributeError, TypeError, ValueError, RuntimeError):
            # The shapes are not those of the fields, which is rare: reshape, or say what is wrong.
            self._native.add(**self._reshaped(obs, next_obs, action, reward, done, ends))

    def _reshaped(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, ends: list[Any]
    ) -> dict[str, Any]:
        """Return one step in the shapes of the native fields; raise if an array does not fit."""
        shapes = self._step_shapes()
        columns = {
            "observation": shapes.observation("obs", obs),
            "action": shapes.action(action),
            "reward": shapes.scalar("reward", reward),
            "episode_end": shapes.scalar("done", done).astype(np.float32, copy=False),
            "truncated": shapes.scalar("TimeLimit.truncated", ends).astype(np.float32, copy=False),
        }
        if not self.optimize_memory_usage:
            columns["next_observation"] = shapes.observation("next_obs", next_obs)
        return columns

    def _step_shapes(self) -> StepShapes:
        return StepShapes(self.n_envs, self.obs_shape, self.action_dim)

    def sample(
        self, batch_size: int, env: VecNormalize | None = None
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """Write back the TD errors of the last batch, and draw one in proportion to the masses.

        Parameters
        ----------
        batch_size : int
            The number of rows B, at least 1.
        env : VecNormalize, optional
            The environment that normalizes observations and rewards.

        Returns
        -------
        ReplayBufferSamples or DictReplayBufferSamples
            Tensors of the same dtypes and shapes as from SB3's own buffer. The rewards weight the
            loss that they enter, and note its TD errors.

        Raises
        ------
        ValueError
            If the buffer is empty, the batch size is below 1, or the TD errors to be written back
            are not finite (see `flush_priorities`).

        Warns
        -----
        UserWarning
            Once, if no loss was seen for three batches in a row, or for 1,000 after one that was.
            Their priorities have not changed.
        """
        batch = self._draw(batch_size)
        return self._samples(
            batch,
            self._next_observation(batch),
            batch.episode_end * (1 - batch.truncated),
            self._normalize_reward(batch.reward.reshape(-1, 1), env),
            env,
        )

    def _draw(self, batch_size: int, **options: Any) -> kary_replay.Batch:
        """Draw rows, and remember them as the last batch."""
        if self._updates.pending:
            self.flush_priorities()
        self._updates.warn_of_unseen_loss()
        if self.beta_schedule is not None:
            self._native.beta = self.beta_schedule(self.n_sampled)
        importance_weight = None
        batch = self._stock_batch(batch_size)
        if batch is None:
            batch = self._native.sample(batch_size, **options)
            importance_weight = self._tensor(batch.importance_weight.reshape(-1, 1))
        self.n_sampled += batch_size
        self._updates.remember(batch.handle, importance_weight)
        return batch

    def _stock_batch(self, batch_size: int) -> kary_replay.Batch | None:
        """Draw the rows that SB3's own buffer would draw, where draws are uniform; weights are 1.

        Return None if they are not, if there are no rows, if one was taken out by hand, or if the
        batch size is wrong: the native buffer knows what to draw then, or what to say.
        """
        if not self._draws_as_stock or self._native.uniform_share < 1:
            return None
        is_integer = isinstance(batch_size, (int, np.integer)) and not isinstance(batch_size, bool)
        if not is_integer or batch_size > _LARGEST_BATCH:
            return None
        try:
            return self._native.take(self._stock_slots(batch_size))
        except (ValueError, TypeError):
            return None

    def _stock_slots(self, batch_size: int) -> np.ndarray:
        """Draw slots as SB3's own buffer does, from the same stream of random numbers."""
        if self.optimize_memory_usage and self.full:
            rows = (randint(1, self.buffer_size, batch_size) + self.pos) % self.buffer_size
        else:
            rows = randint(0, self.size(), batch_size)
        if self.n_envs == 1:
            return rows  # to choose among one environment draws no random number
        return rows * self.n_envs + randint(0, self.n_envs, batch_size)

    def _next_observation(self, batch: kary_replay.Batch) -> Any:
        return batch.next_observation

    def _samples(
        self,
        batch: kary_replay.Batch,
        next_observation: Any,
        dones: np.ndarray,  # [B]
        rewards: np.ndarray,  # [B, 1], normalized
        env: VecNormalize | None,
        **more: torch.Tensor,
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """Return the samples that `train()` gets. All arrays are fresh, so tensors share them."""
        is_dict = isinstance(self.obs_shape, dict)
        return (DictReplayBufferSamples if is_dict else ReplayBufferSamples)(
            observations=map_arrays(self._tensor, self._normalize_obs(batch.observation, env)),
            actions=self._tensor(batch.action),
            next_observations=map_arrays(self._tensor, self._normalize_obs(next_observation, env)),
            dones=self._tensor(dones.reshape(-1, 1)),
            rewards=self._mark(self._tensor(rewards)),
            **more,
        )

    def _mark(self, rewards: torch.Tensor) -> PrioritizedTensor:
        return self._updates.last_batch.mark(rewards)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device == _CPU else tensor.to(self.device)

    # ----------------------------------------------------------------------------------- as a whole

    def reset(self) -> None:
        """Forget all rows and priorities."""
        self._remember_no_batch()
        self._native.reset()
        self._n_added_before = self._native.n_added
        super().reset()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without views and batches.

        `__setstate__` makes the views again. Batches belong to the process that drew them.
        """
        while self._updates.pending:
            try:
                self.flush_priorities()
            except ValueError as refusal:  # SB3 has emptied the file of the save before by now
                warnings.warn(f"saved without the priorities of a batch: {refusal}", stacklevel=2)
        left_out = {*_FIELDS, "_updates"}
        state = {name: value for name, value in self.__dict__.items() if name not in left_out}
        position = {"pos": self.pos, "full": self.full}  # for version 0.1.0
        written_by = {"_format": _FORMAT, "_version": kary_replay.__version__}
        return state | position | _NO_BATCHES | written_by

    def __setstate__(self, state: dict[str, Any]) -> None:
        found, version = state.get("_format", 1), state.get("_version", "before 0.1.0")
        if found != _FORMAT:
            raise ValueError(
                f"this {type(self).__name__} was saved by kary-replay {version} in format {found}; "
                f"kary-replay {kary_replay.__version__} reads format {_FORMAT}: "
                f"load it with kary-replay {version}"
            )
        self._refuse_ignored_methods()
        left_out = {*_NO_BATCHES, "_format", "_version", "pos", "full"}
        self.__dict__.update({name: value for name, value in state.items() if name not in left_out})
        if "_n_added_before" not in state:  # of a version that counted by itself
            n_rows = (state["pos"] + self.buffer_size * state["full"]) * self.n_envs
            self._n_added_before = self._native.n_added - n_rows
            self.first_beta = self._native.beta
        self._remember_no_batch()
        self._show_rows()


def _seed_from_global_streams() -> list[int]:
    """Return a seed that follows from the states of NumPy's and torch's global streams.

    SB3 has seeded them by the time it makes its buffer. They stay as they are: a run draws from
    them later what a run with SB3's own buffer does. Models made one after the other without a seed
    begin with other networks, so with other states of torch's.
    """
    numpys = np.random.Generator(copy.deepcopy(np.random.get_bit_generator()))
    torchs = torch.Generator().set_state(torch.get_rng_state())
    drawn = torch.randint(2**31, (), generator=torchs, device="cpu")  # whatever the default is
    return [int(numpys.integers(2**31)), int(drawn)]


def _warn_if_not_saved(schedule: FunctionType) -> None:
    """Warn if a function cannot be pickled: SB3 empties a file before it finds that out."""
    try:
        pickle.dumps(schedule)
    except Exception as refusal:
        warnings.warn(
            "beta follows a schedule that cannot be pickled, so save_replay_buffer will fail: pass "
            f"a function of a module, or a kary_replay.LinearSchedule ({refusal})",
            stacklevel=4,
        )


def _is_overridden(cls: type, name: str) -> bool:
    """Tell whether a class has a method that is neither SB3's nor ours."""
    owner = next((one for one in cls.__mro__ if name in vars(one)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in _STOCK


Prioritized = PrioritizedBuffer  # the former name of the class, which programs may still import
