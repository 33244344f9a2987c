"""What the prioritized buffers for SB3 have in common: the native buffer, its draws, and the way back of the priorities."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

import kary_replay
from kary_replay.adapters.sb3.arrays import (
    as_array,
    field_of_row,
    map_arrays,
    warn_if_larger_than_memory,
)
from kary_replay.adapters.sb3.prioritized_loss import PrioritizedTensor, SampledBatch

BetaSchedule = Callable[[int], float]

# SB3's array → our field. A transition that ends an episode by time has episode_end and truncated
# set.
_FIELDS = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next_observation",
    "dones": "episode_end",
    "timeouts": "truncated",
}
_FORMAT = 2  # of pickles
# What stock buffers make their batches by. Here they are drawn, weighted and marked in one piece.
_NOT_CALLED = ("_get_samples", "to_torch", "_get_real_samples", "_get_virtual_samples")
_STOCK = ("kary_replay", "stable_baselines3", "sb3_contrib")
# batches in a row that no loss was seen for, before that is worth a warning: one may be drawn for
# other ends
_UNSEEN = 3


class Prioritized(ReplayBuffer):
    """The common base. A subclass calls `_move_to_native` at the end of its constructor, and says how it samples."""

    _native: kary_replay.PrioritizedReplayBuffer

    # --------------------------------------------------------------------------------- construction

    def _check_sizes(self, buffer_size: int, n_envs: int) -> None:
        """Raise unless these are sizes, and the class one whose methods will be called."""
        self._refuse_ignored_methods()
        for name, value in (("buffer_size", buffer_size), ("n_envs", n_envs)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")

    @classmethod
    def _refuse_ignored_methods(cls) -> None:
        """Raise TypeError where a class derived from ours overrides what nobody would call."""
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
    ) -> None:
        """Take over a buffer of one row, of which SB3 has decided the shapes and dtypes, and give it its real size."""
        fields = {
            ours: map_arrays(field_of_row, getattr(self, theirs)) for theirs, ours in self._arrays()
        }
        self.buffer_size = max(buffer_size // self.n_envs, 1)
        warn_if_larger_than_memory(type(self).__name__, self.buffer_size * self.n_envs, fields)
        self._native = kary_replay.PrioritizedReplayBuffer(
            self.buffer_size * self.n_envs,  # slot = row * n_envs + environment
            fields,
            alpha=alpha,
            beta=0.0,
            priority_epsilon=priority_epsilon,
            seed=int(np.random.randint(2**31 - 1)) if seed is None else seed,  # noqa: NPY002 - the stream SB3 seeds
        )
        self.n_sampled = 0
        self.beta = beta
        self._last_batch: SampledBatch | None = None
        self._pending: list[SampledBatch] = []  # batches whose TD errors are not in the tree yet
        self._n_unseen = 0  # batches in a row
        self._warned = False
        self._show_rows()

    def _arrays(self) -> list[tuple[str, str]]:
        """SB3's arrays that this buffer has, and the fields that hold them."""
        return [(theirs, ours) for theirs, ours in _FIELDS.items() if hasattr(self, theirs)]

    def _show_rows(self) -> None:
        """Let SB3's array attributes show the native rows. Splitting the leading axis never copies."""
        shape = (self.buffer_size, self.n_envs)
        for theirs, ours in _FIELDS.items():
            if ours in self._native.fields:
                setattr(
                    self,
                    theirs,
                    map_arrays(
                        lambda rows: rows.reshape(*shape, *rows.shape[1:]),
                        self._native.field_view(ours),
                    ),
                )

    # ----------------------------------------------------------------------------------- priorities

    @property
    def native(self) -> kary_replay.PrioritizedReplayBuffer:
        """The buffer underneath, with all TD errors written back: its tree, its masses, its largest priority."""
        self.flush_priorities()
        return self._native

    @property
    def alpha(self) -> float:
        """How much priorities count. Setting it recomputes every mass."""
        return self._native.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self.native.alpha = value

    @property
    def beta(self) -> float:
        """How much the importance weights correct, now. Set it to a number or to a schedule over transitions drawn."""
        return self._native.beta

    beta_schedule: BetaSchedule | None = None  # what beta follows, if it does; set through `beta`

    @beta.setter
    def beta(self, value: float | BetaSchedule) -> None:
        # refuses what is out of range
        self._native.beta = value(self.n_sampled) if callable(value) else value
        self.beta_schedule = value if callable(value) else None

    def update_priorities(self, td_errors: np.ndarray | torch.Tensor) -> None:
        """Set the priorities of the batch sampled last by hand, for losses that are not recognized.

        Parameters
        ----------
        td_errors : array or torch.Tensor
            [B] or [B, 1], of any sign. They take the place of what a loss may have noted for the
            batch.

        Raises
        ------
        ValueError
            If nothing was sampled yet, the length is not B, or a value is not finite.
        """
        batch = self._last_batch
        if batch is None:
            raise ValueError(
                "update_priorities: no batch was sampled yet; call sample(batch_size) first"
            )
        if isinstance(td_errors, torch.Tensor) and td_errors.is_floating_point():
            td_errors = as_array(td_errors)
        errors = np.asarray(td_errors)
        if errors.dtype.kind not in "iuf":
            raise TypeError(
                f"update_priorities: td_errors must be real numbers, got dtype {errors.dtype}"
            )
        if errors.shape not in ((len(batch),), (len(batch), 1)):
            raise ValueError(
                f"update_priorities: td_errors of shape {errors.shape} must hold one value for each of "
                f"the {len(batch)} rows of the last batch, as [B] or [B, 1]"
            )
        if not np.isfinite(errors).all():
            raise ValueError(
                f"update_priorities: td_errors must be finite, got {errors[~np.isfinite(errors)][0]}"
            )
        batch.td_error = None
        batch.record(torch.from_numpy(errors.astype(np.float64).reshape(-1)))
        self.flush_priorities()

    def flush_priorities(self) -> None:
        """Write the TD errors noted so far into the tree. `add`, `sample`, `native` and pickling do so first.

        Rows that were overwritten since their batch was sampled are left alone.

        Raises
        ------
        ValueError
            If a TD error is NaN or infinite. That batch is dropped without touching a priority, so
            that the buffer can still be saved and examined.
        """
        while self._pending:
            self._n_unseen = 0
            batch = self._pending.pop(0)
            handle, td_error = batch.handle, as_array(batch.td_error).reshape(-1)
            drawable = (
                self._native.tree.get(handle["index"]) > 0 if self._hides_rows() else slice(None)
            )
            try:
                self._native.update_priorities(handle[drawable], td_error[drawable])
            except ValueError as refusal:
                rows = np.arange(len(batch))[drawable]
                rows = rows[~np.isfinite(td_error[drawable])]
                if len(rows) == 0:
                    raise
                raise ValueError(
                    f"the loss's TD error is {td_error[rows[0]]} in row {rows[0]} of a batch of {len(batch)} (slot "
                    f"{handle['index'][rows[0]]}): the network, the rewards or the observations are no longer finite. "
                    "The priorities were left as they are; a lower learning rate or scaled rewards may help"
                ) from refusal

    def _hides_rows(self) -> bool:
        """Tell whether slots may hold rows that must not be drawn: those have mass 0 and keep it."""
        return self.optimize_memory_usage

    # ------------------------------------------------------------------------------ rows in and out

    def add(
        self,
        obs: np.ndarray | dict[str, np.ndarray],
        next_obs: np.ndarray | dict[str, np.ndarray],
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Sequence[dict[str, Any]],
    ) -> None:
        """Add one transition per environment, at the largest priority seen so far.

        Parameters
        ----------
        obs, next_obs, action, reward, done : np.ndarray
            Leading axis n_envs; observations of a Dict space as dicts of arrays.
        infos : sequence of dict
            Their "TimeLimit.truncated" says which episodes ended by time, unless
            ``handle_timeout_termination`` is off.

        Raises
        ------
        kary_replay.errors.FieldError
            If an array has a shape or a dtype that does not fit; nothing is added.
        """
        if self._pending:
            self.flush_priorities()
        n = self.n_envs
        if len(infos) != n:
            raise ValueError(
                f"infos must have one dict per environment, {n}, got {len(infos)}: was the buffer made or saved with "
                "another number of environments?"
            )
        timeouts = self.handle_timeout_termination
        ends = [info.get("TimeLimit.truncated", False) if timeouts else False for info in infos]
        try:
            columns = {
                "observation": obs,
                "action": action.reshape(n, self.action_dim) if len(action) == n else action,
                "reward": reward,
                "episode_end": done.astype(np.float32),
                "truncated": np.zeros(n, np.float32)
                if ends.count(False) == n
                else np.asarray(ends),
            }
            if not self.optimize_memory_usage:
                columns["next_observation"] = next_obs
            self._native.add(**columns)
        except (kary_replay.errors.FieldError, AttributeError, TypeError, ValueError, RuntimeError):
            self._native.add(**self._reshaped(obs, next_obs, action, reward, done, ends))
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def _reshaped(
        self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, ends: list[Any]
    ) -> dict[str, Any]:
        """Return what `add` got as the native buffer takes it, where SB3 would have it broadcast; or say what is wrong."""
        columns = {
            "observation": self._observations("obs", obs),
            "action": self._per_environment("action", action, (self.action_dim,)),
            "reward": self._per_environment("reward", reward, ()),
            "episode_end": self._per_environment("done", done, ()).astype(np.float32, copy=False),
            "truncated": self._per_environment("TimeLimit.truncated", ends, ()).astype(
                np.float32, copy=False
            ),
        }
        if not self.optimize_memory_usage:
            columns["next_observation"] = self._observations("next_obs", next_obs)
        return columns

    def _observations(self, name: str, value: Any) -> Any:
        """Return observations as the native buffer takes them."""
        if not isinstance(self.obs_shape, dict):
            return self._per_environment(name, value, self.obs_shape)
        if not isinstance(value, dict) or value.keys() != self.obs_shape.keys():
            given = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise kary_replay.errors.FieldError(
                f"{name} must be a dict with {', '.join(self.obs_shape)}, got {given}"
            )
        return {
            key: self._per_environment(f"{name}[{key!r}]", value[key], shape)
            for key, shape in self.obs_shape.items()
        }

    def _per_environment(self, name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
        """Return `value` as [n_envs, *shape]: axes of length 1 may be missing or too many, an action may have more axes."""
        array = np.asarray(value)
        if array.dtype == object:
            raise TypeError(f"{name} must be numbers, got {value!r}")
        wanted = (self.n_envs, *shape)
        if array.shape == wanted:
            return array
        flattens = (
            name == "action"
            and array.shape[:1] == wanted[:1]
            and array.size == self.n_envs * self.action_dim
        )
        if not flattens and [n for n in array.shape if n != 1] != [n for n in wanted if n != 1]:
            raise kary_replay.errors.FieldError(
                f"{name} must have shape {wanted}, got {array.shape}"
            )
        return array.reshape(wanted)

    def sample(
        self, batch_size: int, env: VecNormalize | None = None
    ) -> ReplayBufferSamples | DictReplayBufferSamples:
        """Draw a batch in proportion to the masses, after writing back the TD errors of the one before.

        Parameters
        ----------
        batch_size : int
            B, at least 1.
        env : VecNormalize, optional
            Normalizes observations and rewards.

        Returns
        -------
        ReplayBufferSamples or DictReplayBufferSamples
            Dtypes and shapes as from SB3's own buffer. Its rewards weight the loss they enter and
            note its TD errors.

        Raises
        ------
        ValueError
            If the buffer is empty, the batch size is below 1, or the TD errors to be written back
            are not finite (see `flush_priorities`).

        Warns
        -----
        UserWarning
            Once, if no loss was seen for three batches in a row: their priorities stay what they
            were.
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
        """Draw rows; from now on they are the last batch."""
        if self._pending:
            self.flush_priorities()
        if self._last_batch is not None and self._last_batch.td_error is None:
            self._n_unseen += 1
            if self._n_unseen == _UNSEEN and not self._warned:
                self._warn_of_unseen_loss()
        if self.beta_schedule is not None:
            self._native.beta = self.beta_schedule(self.n_sampled)
        batch = self._native.sample(batch_size, **options)
        self.n_sampled += batch_size
        self._last_batch = SampledBatch(
            batch.handle, self._tensor(batch.importance_weight).view(-1, 1), self._pending
        )
        return batch

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
        """Return what `train()` gets. All arrays are fresh, so the tensors share their memory."""
        samples = (
            DictReplayBufferSamples if isinstance(self.obs_shape, dict) else ReplayBufferSamples
        )
        return samples(
            observations=map_arrays(self._tensor, self._normalize_obs(batch.observation, env)),
            actions=self._tensor(batch.action),
            next_observations=map_arrays(self._tensor, self._normalize_obs(next_observation, env)),
            dones=self._tensor(dones).view(-1, 1),
            rewards=self._mark(self._tensor(rewards)),
            **more,
        )

    def _mark(self, rewards: torch.Tensor) -> PrioritizedTensor:
        return self._last_batch.mark(rewards)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self.device.type == "cpu" else tensor.to(self.device)

    def _warn_of_unseen_loss(self) -> None:
        self._warned = True
        warnings.warn(
            f"{type(self).__name__}: {_UNSEEN} batches were sampled, but their rewards reached none of F.mse_loss, "
            "F.smooth_l1_loss, F.huber_loss and F.l1_loss, and no mean or sum that a prediction had entered, too. So their "
            "losses were not weighted and their priorities stay as they were. Compute the loss in one of these ways, or call "
            "replay_buffer.update_priorities(td_errors) after each batch.",
            UserWarning,
            stacklevel=4,
        )

    # ----------------------------------------------------------------------------------- as a whole

    def reset(self) -> None:
        """Forget all rows and priorities."""
        super().reset()
        self._pending.clear()
        self._last_batch, self._n_unseen, self._warned = None, 0, False
        self._native.reset()

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the views, which `__setstate__` makes anew, and batches, which belong to this process."""
        self.flush_priorities()
        state = {name: value for name, value in self.__dict__.items() if name not in _FIELDS}
        fresh = {"_last_batch": None, "_pending": [], "_n_unseen": 0, "_warned": False}
        return state | fresh | {"_format": _FORMAT, "_version": kary_replay.__version__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        found, version = state.get("_format", 1), state.get("_version", "before 0.1.0")
        if found != _FORMAT:
            raise ValueError(
                f"this {type(self).__name__} was saved by kary-replay {version} in format {found}; kary-replay "
                f"{kary_replay.__version__} reads format {_FORMAT}: load it with kary-replay {version}"
            )
        self._refuse_ignored_methods()
        self.__dict__.update(
            {name: value for name, value in state.items() if name not in ("_format", "_version")}
        )
        self._show_rows()


def _is_overridden(cls: type, name: str) -> bool:
    """Tell whether a method is neither SB3's nor ours."""
    owner = next((one for one in cls.__mro__ if name in vars(one)), None)
    return owner is not None and owner.__module__.partition(".")[0] not in _STOCK
