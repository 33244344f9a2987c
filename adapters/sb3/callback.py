"""A callback that anneals beta with the training's progress and shows the priorities in SB3's logger."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from kary_replay.adapters.sb3.prioritized import Prioritized

_MAX_SLOTS = 1000  # read for the quantiles


class PrioritizedReplayCallback(BaseCallback):
    """Anneal beta from what it is to ``final_beta`` over the training, and log the priorities' state.

    Logs, so that TensorBoard shows them: ``replay/beta``, ``replay/max_priority`` (the largest ever
    seen: what new transitions get), ``replay/mean_mass``, and ``replay/priority_p10``, ``_p50``,
    ``_p90``, quantiles over up to 1000 rows.

    Parameters
    ----------
    final_beta : float or None
        Beta at the end of training, in [0, 1]; None leaves beta to the buffer.
    total_timesteps : int or None
        The model's ``num_timesteps`` at which beta gets there, at least 1. None: the end of the
        call of ``learn``, as with SB3's own schedules. A training of several calls, ``learn(…,
        reset_num_timesteps=False)``, needs the sum of theirs: by default the first of them would
        anneal beta all the way.
    every : int
        Environment steps between two looks, at least 1. A look costs about 50 µs.
    verbose : int
        As in every SB3 callback.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range; from ``learn``, if the model's replay buffer is not one of
        ours, or its beta follows a schedule and ``final_beta`` is not None.

    Examples
    --------
    >>> from stable_baselines3 import DQN
    >>> from kary_replay.adapters.sb3 import PrioritizedReplayBuffer, PrioritizedReplayCallback
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=PrioritizedReplayBuffer, buffer_size=1000)
    >>> _ = model.learn(200, callback=PrioritizedReplayCallback())
    >>> model.replay_buffer.beta
    1.0
    """

    def __init__(
        self,
        final_beta: float | None = 1.0,
        every: int = 1000,
        verbose: int = 0,
        *,
        total_timesteps: int | None = None,
    ) -> None:
        super().__init__(verbose)
        if isinstance(final_beta, (bool, str)):
            raise TypeError(f"final_beta must be a number from 0 to 1, or None, got {final_beta!r}")
        if final_beta is not None and not 0 <= final_beta <= 1:
            raise ValueError(f"final_beta must be from 0 to 1, or None, got {final_beta!r}")
        for name, value in (("every", every), ("total_timesteps", total_timesteps)):
            if name == "total_timesteps" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.final_beta = final_beta
        self.every = every
        self.total_timesteps = total_timesteps

    @property
    def _buffer(self) -> Prioritized:
        return self.model.replay_buffer

    def _on_training_start(self) -> None:
        if not isinstance(getattr(self.model, "replay_buffer", None), Prioritized):
            found = type(getattr(self.model, "replay_buffer", None)).__name__
            raise TypeError(
                f"PrioritizedReplayCallback needs a prioritized replay buffer, the model has {found}: "
                "pass replay_buffer_class=PrioritizedReplayBuffer"
            )
        if self.final_beta is not None and self._buffer.beta_schedule is not None:
            raise ValueError(
                "final_beta: the buffer's beta follows a schedule of its own; pass final_beta=None to keep that, and only log"
            )
        # SB3 has added to it what the calls before have trained, if they count.
        end_of_call = self.locals["total_timesteps"]
        self._first_step, self._first_beta = self.num_timesteps, self._buffer.beta
        self._last_step = end_of_call if self.total_timesteps is None else self.total_timesteps
        self._next_look = self.num_timesteps

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next_look:
            self._look()
            self._next_look = self.num_timesteps + self.every
        return True

    def _on_training_end(self) -> None:
        self._look()

    def _look(self) -> None:
        """Set beta and log."""
        buffer = self._buffer
        if self.final_beta is not None:
            n_left = self._last_step - self.num_timesteps
            share_left = n_left / (self._last_step - self._first_step) if n_left > 0 else 0.0
            buffer.beta = share_left * self._first_beta + (1.0 - share_left) * self.final_beta
        self.logger.record("replay/beta", buffer.beta)
        native = buffer.native
        if not len(native):
            return
        self.logger.record("replay/max_priority", native.max_priority)
        self.logger.record("replay/mean_mass", native.total_mass / len(native))
        masses = native.tree.get(
            np.linspace(0, len(native) - 1, min(len(native), _MAX_SLOTS)).astype(np.int64)
        )
        masses = masses[masses > 0]
        if masses.size and native.alpha > 0:
            for percent, mass in zip(
                (10, 50, 90), np.percentile(masses, (10, 50, 90)), strict=True
            ):
                self.logger.record(f"replay/priority_p{percent}", mass ** (1 / native.alpha))
