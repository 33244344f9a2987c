"""The replay buffer of SB3's off-policy algorithms, prioritized."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from stable_baselines3.common.vec_env import VecNormalize

import kary_replay
from kary_replay.adapters.sb3.prioritized_loss import SampledBatch

# SB3's array → our field. A transition that ends an episode by time has episode_end and truncated set.
_FIELDS = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next_observation",
    "dones": "episode_end",
    "timeouts": "truncated",
}


class PrioritizedReplayBuffer(ReplayBuffer):
    """Prioritized replay for SB3's DQN, DDPG, TD3 and SAC, none of which need to know.

    Pass the class as ``replay_buffer_class`` and, if the defaults do not suit, its keyword-only parameters as
    ``replay_buffer_kwargs``. `sample` draws transitions in proportion to priority**alpha over all environments at
    once. The rewards it returns see to the rest: they carry the importance weights into the critic's loss and
    its TD errors back out of it (see `kary_replay.adapters.sb3.prioritized_loss`). These enter the tree before
    the next batch is drawn or the next transition added.

    Parameters
    ----------
    buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage, handle_timeout_termination
        As in `stable_baselines3.common.buffers.ReplayBuffer`. Dict observations and ``optimize_memory_usage=True``
        are not available yet.
    alpha : float
        How much priorities count, in [0, 1]; 0 is uniform replay. Can be set later.
    beta : float
        How much of the bias from that the importance weights correct, in [0, 1]; 0 makes all weights 1. Can be
        set later.
    priority_epsilon : float
        Added to each |TD error|, so that no transition is lost for good.
    seed : int, optional
        Of the draws. By default one number from `numpy.random`, which SB3 has seeded by the time it builds its
        buffer: an SB3 run with a seed is reproducible.

    Attributes
    ----------
    observations, actions, rewards, next_observations, dones, timeouts : np.ndarray
        The stored rows as SB3 has them, [buffer_size, n_envs, …]: writable views of the native buffer.

    Raises
    ------
    TypeError
        If `observation_space` is a Dict.
    NotImplementedError
        For ``optimize_memory_usage=True``.
    ValueError
        For an alpha, beta or priority_epsilon out of range, and for whatever SB3 refuses.

    Notes
    -----
    For one thread, like SB3's own. Source: Schaul et al. 2016, arXiv:1511.05952, algorithm 1.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        priority_epsilon: float = 1e-6,
        seed: int | None = None,
    ) -> None:
        if isinstance(observation_space, spaces.Dict):
            raise TypeError(
                "PrioritizedReplayBuffer does not take Dict observation spaces yet: flatten the observations "
                "(gymnasium.wrappers.FlattenObservation), or keep SB3's DictReplayBuffer"
            )
        for name, value in (("buffer_size", buffer_size), ("n_envs", n_envs)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        # Of a buffer of one row SB3 decides the shapes and dtypes; the rows themselves live in the native buffer.
        super().__init__(
            n_envs, observation_space, action_space, device, n_envs, optimize_memory_usage, handle_timeout_termination
        )
        if optimize_memory_usage:
            raise NotImplementedError(
                "PrioritizedReplayBuffer: optimize_memory_usage=True is not available yet; leave it False"
            )
        fields = {ours: _field_of_row(getattr(self, theirs)) for theirs, ours in _FIELDS.items()}
        self.buffer_size = max(buffer_size // n_envs, 1)
        _warn_if_larger_than_memory(self.buffer_size * n_envs, fields)
        self._native = kary_replay.PrioritizedReplayBuffer(
            self.buffer_size * n_envs,  # slot = row * n_envs + environment
            fields,
            alpha=alpha,
            beta=beta,
            priority_epsilon=priority_epsilon,
            seed=int(np.random.randint(2**31 - 1)) if seed is None else seed,  # noqa: NPY002 - the stream SB3 seeds
        )
        self._last_batch: SampledBatch | None = None
        self._pending: list[SampledBatch] = []  # batches whose TD errors are not in the tree yet
        self._warned = False
        self._show_rows()

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
        """How much the importance weights correct, from the next batch on."""
        return self._native.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._native.beta = value

    def add(
        self,
        obs: np.ndarray,
        next_obs: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Sequence[dict[str, Any]],
    ) -> None:
        """Add one transition per environment, at the largest priority seen so far.

        Parameters
        ----------
        obs, next_obs, action, reward, done : np.ndarray
            Leading axis n_envs.
        infos : sequence of dict
            Their "TimeLimit.truncated" says which episodes ended by time, unless
            ``handle_timeout_termination`` is off.

        Raises
        ------
        kary_replay.errors.FieldError
            If an array has a shape or a dtype that does not fit; nothing is added.
        """
        self.flush_priorities()
        if len(infos) != self.n_envs:
            raise ValueError(f"infos must have one dict per environment, {self.n_envs}, got {len(infos)}")
        truncated = np.zeros(self.n_envs, np.float32)
        if self.handle_timeout_termination:
            truncated[:] = [info.get("TimeLimit.truncated", False) for info in infos]
        self._native.add(
            observation=self._per_environment("obs", obs, self.obs_shape),
            action=self._per_environment("action", action, (self.action_dim,)),
            reward=self._per_environment("reward", reward, ()),
            next_observation=self._per_environment("next_obs", next_obs, self.obs_shape),
            episode_end=self._per_environment("done", done, ()).astype(np.float32, copy=False),
            truncated=truncated,
        )
        self.pos += 1
        if self.pos == self.buffer_size:
            self.full = True
            self.pos = 0

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> ReplayBufferSamples:
        """Draw a batch in proportion to the masses, after writing back the TD errors of the one before.

        Parameters
        ----------
        batch_size : int
            B, at least 1.
        env : VecNormalize, optional
            Normalizes observations and rewards.

        Returns
        -------
        ReplayBufferSamples
            Dtypes and shapes as from SB3's own buffer. Its rewards weight the loss they enter and note its TD errors.

        Raises
        ------
        ValueError
            If the buffer is empty, the batch size is below 1, or the TD errors to be written back are not
            finite (see `flush_priorities`).

        Warns
        -----
        UserWarning
            Once, if no loss was seen for the batch before: its priorities stay what they were.
        """
        self.flush_priorities()
        if self._last_batch is not None and self._last_batch.td_error is None and not self._warned:
            self._warn_of_unseen_loss()
        batch = self._native.sample(batch_size)
        weight = self.to_torch(batch.importance_weight.reshape(-1, 1), copy=False)
        self._last_batch = SampledBatch(batch.handle, weight, self._pending)
        terminated = batch.episode_end * (1 - batch.truncated)
        rewards = self._normalize_reward(batch.reward.reshape(-1, 1), env)
        return ReplayBufferSamples(  # the arrays are fresh: no need to copy them once more
            observations=self.to_torch(self._normalize_obs(batch.observation, env), copy=False),
            actions=self.to_torch(batch.action, copy=False),
            next_observations=self.to_torch(self._normalize_obs(batch.next_observation, env), copy=False),
            dones=self.to_torch(terminated.reshape(-1, 1), copy=False),
            rewards=self._last_batch.mark(self.to_torch(rewards, copy=False)),
        )

    def update_priorities(self, td_errors: np.ndarray | torch.Tensor) -> None:
        """Set the priorities of the batch sampled last by hand, for losses that are not recognized.

        Parameters
        ----------
        td_errors : array or torch.Tensor
            [B] or [B, 1], of any sign. They take the place of what a loss may have noted for the batch.

        Raises
        ------
        ValueError
            If nothing was sampled yet, the length is not B, or a value is not finite.
        """
        batch = self._last_batch
        if batch is None:
            raise ValueError("update_priorities: no batch was sampled yet; call sample(batch_size) first")
        errors = np.asarray(td_errors.detach().cpu() if isinstance(td_errors, torch.Tensor) else td_errors)
        if errors.dtype.kind not in "iuf":
            raise TypeError(f"update_priorities: td_errors must be real numbers, got dtype {errors.dtype}")
        if errors.shape not in ((len(batch),), (len(batch), 1)):
            raise ValueError(
                f"update_priorities: td_errors of shape {errors.shape} must hold one value for each of "
                f"the {len(batch)} rows of the last batch, as [B] or [B, 1]"
            )
        if not np.isfinite(errors).all():
            raise ValueError(f"update_priorities: td_errors must be finite, got {errors[~np.isfinite(errors)][0]}")
        batch.td_error = None
        batch.record(errors.astype(np.float64).reshape(-1))
        self.flush_priorities()

    def flush_priorities(self) -> None:
        """Write the TD errors noted so far into the tree. `add`, `sample`, `native` and pickling do so first.

        Rows that were overwritten since their batch was sampled are left alone.

        Raises
        ------
        ValueError
            If a TD error is NaN or infinite. That batch is dropped without touching a priority, so that the
            buffer can still be saved and examined.
        """
        while self._pending:
            batch = self._pending.pop(0)
            td_error = batch.td_error
            try:
                self._native.update_priorities(batch.handle, td_error)
            except ValueError as refusal:
                row = int(np.argmin(np.isfinite(td_error)))
                raise ValueError(
                    f"the loss's TD error is {td_error[row]} in row {row} of a batch of {len(batch)} (slot "
                    f"{batch.handle['index'][row]}): the network, the rewards or the observations are no longer finite. "
                    "The priorities were left as they are; a lower learning rate or scaled rewards may help"
                ) from refusal

    def reset(self) -> None:
        """Forget all rows and priorities."""
        super().reset()
        self._pending.clear()
        self._last_batch = None
        self._native.reset()

    def _per_environment(self, name: str, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return `value` as [n_envs, *shape]: axes of length 1 may be missing or too many, an action may have more axes."""
        array = np.asarray(value)
        wanted = (self.n_envs, *shape)
        if array.shape == wanted:
            return array
        flattens = name == "action" and array.shape[:1] == wanted[:1] and array.size == self.n_envs * self.action_dim
        if not flattens and [n for n in array.shape if n != 1] != [n for n in wanted if n != 1]:
            raise kary_replay.errors.FieldError(f"{name} must have shape {wanted}, got {array.shape}")
        return array.reshape(wanted)

    def _show_rows(self) -> None:
        """Let SB3's array attributes show the native rows. Splitting the leading axis never copies."""
        for theirs, ours in _FIELDS.items():
            rows = self._native.field_view(ours)
            setattr(self, theirs, rows.reshape(self.buffer_size, self.n_envs, *rows.shape[1:]))

    def _warn_of_unseen_loss(self) -> None:
        self._warned = True
        warnings.warn(
            "PrioritizedReplayBuffer: a batch was sampled, but its rewards reached none of F.mse_loss, F.smooth_l1_loss, "
            "F.huber_loss and F.l1_loss, so its loss was not weighted and its priorities stay as they were. Compute the loss "
            "with one of these, or call replay_buffer.update_priorities(td_errors) after each batch.",
            UserWarning,
            stacklevel=3,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return all but the views, which `__setstate__` makes anew, and batches, which belong to this process."""
        self.flush_priorities()
        state = {name: value for name, value in self.__dict__.items() if name not in _FIELDS}
        return state | {"_last_batch": None, "_pending": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._show_rows()


def _field_of_row(array: np.ndarray) -> kary_replay.Field:
    """Return the field that holds what `array` [1, n_envs, …] holds for one environment."""
    return kary_replay.Field(array.shape[2:], array.dtype)


def _warn_if_larger_than_memory(capacity: int, fields: dict[str, kary_replay.Field]) -> None:
    """Warn, as SB3 does and under the same condition that psutil is there, of rows that will not fit."""
    try:
        import psutil
    except ImportError:
        return
    needed = capacity * sum(int(np.prod(field.shape)) * np.dtype(field.dtype).itemsize for field in fields.values())
    available = psutil.virtual_memory().available
    if needed > available:
        warnings.warn(
            f"PrioritizedReplayBuffer: {capacity} transitions take {needed / 1e9:.2f}GB, but only "
            f"{available / 1e9:.2f}GB of memory are free",
            stacklevel=3,
        )
