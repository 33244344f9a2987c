"""A callback that anneals beta with the training's progress and shows the priorities in SB3's logger."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from kary_replay.adapters.sb3.prioritized import Prioritized

_MAX_SLOTS = 1000  # read for the quantiles


class PrioritizedReplayCallback(BaseCallback):
    """Anneal beta from what it is to ``final_beta`` over the call of ``learn``, and log the state of the priorities.

    Logs, so that TensorBoard shows them: ``replay/beta``, ``replay/max_priority`` (the largest ever seen: what new
    transitions get), ``replay/mean_mass``, and ``replay/priority_p10``, ``_p50``, ``_p90``, quantiles over up to 1000 rows.

    Parameters
    ----------
    final_beta : float or None
        Beta at the end of training, in [0, 1]; None leaves beta to the buffer.
    every : int
        Environment steps between two looks, at least 1. A look costs about 50 µs.
    verbose : int
        As in every SB3 callback.

    Raises
    ------
    ValueError, TypeError
        If ``final_beta`` or ``every`` is out of range; from ``learn``, if the model's replay buffer is not one of ours, or
        its beta follows a schedule and ``final_beta`` is not None.

    Examples
    --------
    >>> from stable_baselines3 import DQN
    >>> from kary_replay.adapters.sb3 import PrioritizedReplayBuffer, PrioritizedReplayCallback
    >>> model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=PrioritizedReplayBuffer, buffer_size=1000)
    >>> _ = model.learn(200, callback=PrioritizedReplayCallback())
    >>> model.replay_buffer.beta
    1.0
    """

    def __init__(self, final_beta: float | None = 1.0, every: int = 1000, verbose: int = 0) -> None:
        super().__init__(verbose)
        if isinstance(final_beta, (bool, str)):
            raise TypeError(f"final_beta must be a number from 0 to 1, or None, got {final_beta!r}")
        if final_beta is not None and not 0 <= final_beta <= 1:
            raise ValueError(f"final_beta must be from 0 to 1, or None, got {final_beta!r}")
        if isinstance(every, bool) or not isinstance(every, (int, np.integer)):
            raise TypeError(f"every must be an integer, got {every!r}")
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every}")
        self.final_beta = final_beta
        self.every = every

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
        self._first_step, self._last_step = self.num_timesteps, self.locals["total_timesteps"]
        self._first_beta = self._buffer.beta
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
            progress = (self.num_timesteps - self._first_step) / max(self._last_step - self._first_step, 1)
            buffer.beta = self._first_beta + min(progress, 1.0) * (self.final_beta - self._first_beta)
        self.logger.record("replay/beta", buffer.beta)
        native = buffer.native
        if not len(native):
            return
        self.logger.record("replay/max_priority", native.max_priority)
        self.logger.record("replay/mean_mass", native.total_mass / len(native))
        masses = native.tree.get(np.linspace(0, len(native) - 1, min(len(native), _MAX_SLOTS)).astype(np.int64))
        masses = masses[masses > 0]
        if masses.size and native.alpha > 0:
            for percent, mass in zip((10, 50, 90), np.percentile(masses, (10, 50, 90)), strict=True):
                self.logger.record(f"replay/priority_p{percent}", mass ** (1 / native.alpha))
