"""A callback that anneals beta over the training, and logs the state of the priorities."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from kary_replay.adapters.sb3.arguments import check_count, check_number
from kary_replay.adapters.sb3.prioritized_buffer import PrioritizedBuffer

_MAX_SLOTS = 1000  # the quantiles are those of at most so many rows


class PrioritizedReplayCallback(BaseCallback):
    """Anneals beta to ``final_beta`` over the training, and logs the state of the priorities.

    TensorBoard shows what is logged: ``replay/beta``; ``replay/uniform_share``;
    ``replay/relative_noise`` and ``replay/least_noise``; ``replay/max_priority``, the largest
    priority seen so far and at least 1, which new transitions get; ``replay/mean_mass``; and the
    quantiles ``replay/priority_p10``, ``_p50`` and ``_p90`` over at most 1000 rows.

    Parameters
    ----------
    final_beta : float or None
        Beta at the end of training, in [0, 1]. None leaves beta to the buffer.
    every : int
        The number of environment steps between two records, at least 1. A record costs about 50 µs.
    verbose : int
        The verbosity, as in every SB3 callback.
    total_timesteps : int or None
        The model's ``num_timesteps`` at which beta reaches ``final_beta``, at least 1. None means
        the end of the call of ``learn``, as in SB3's own schedules. A further call begins again
        with the buffer's first beta, unless ``reset_num_timesteps=False``. A training that calls
        ``learn(…, reset_num_timesteps=False)`` several times needs the sum of their steps here:
        otherwise beta reaches ``final_beta`` at the end of the first call.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range. The call of ``learn`` raises if the model's replay buffer is
        not one of ours, or if ``final_beta`` is given and the buffer's beta follows a schedule.

    Examples
    --------
    >>> from stable_baselines3 import DQN
    >>> from kary_replay.adapters.sb3 import PrioritizedReplayBuffer, PrioritizedReplayCallback
    >>> ours = {"replay_buffer_class": PrioritizedReplayBuffer, "buffer_size": 1000}
    >>> model = DQN("MlpPolicy", "CartPole-v1", **ours)
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
        if final_beta is not None:
            check_number("final_beta", final_beta, most=1)
        check_count("every", every)
        if total_timesteps is not None:
            check_count("total_timesteps", total_timesteps)
        self.final_beta = final_beta
        self.every = every
        self.total_timesteps = total_timesteps

    @property
    def _buffer(self) -> PrioritizedBuffer:
        return self.model.replay_buffer

    def _on_training_start(self) -> None:
        if not isinstance(getattr(self.model, "replay_buffer", None), PrioritizedBuffer):
            found = type(getattr(self.model, "replay_buffer", None)).__name__
            raise TypeError(
                "PrioritizedReplayCallback needs a prioritized replay buffer, "
                f"the model has {found}: pass replay_buffer_class=PrioritizedReplayBuffer"
            )
        if self.final_beta is not None and self._buffer.beta_schedule is not None:
            raise ValueError(
                "final_beta: the buffer's beta follows a schedule of its own; "
                "pass final_beta=None to keep that, and only log"
            )
        # SB3 has already added the steps of earlier calls, unless num_timesteps was reset.
        end_of_call = self.locals["total_timesteps"]
        self._first_step, buffer = self.num_timesteps, self._buffer
        # a further training begins anew
        self._first_beta = buffer.first_beta if self.num_timesteps == 0 else buffer.beta
        self._last_step = end_of_call if self.total_timesteps is None else self.total_timesteps
        self._next_record = self.num_timesteps

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next_record:
            self._anneal_and_record()
            self._next_record = self.num_timesteps + self.every
        return True

    def _on_training_end(self) -> None:
        self._anneal_and_record()

    def _anneal_and_record(self) -> None:
        """Set beta for the present timestep, and log the state of the priorities."""
        buffer = self._buffer
        if self.final_beta is not None:
            n_left = self._last_step - self.num_timesteps
            share_left = n_left / (self._last_step - self._first_step) if n_left > 0 else 0.0
            beta = share_left * self._first_beta + (1.0 - share_left) * self.final_beta
            buffer.anneal_beta(beta)
        self.logger.record("replay/beta", buffer.beta)
        native = buffer.native
        if not len(native):
            return
        self.logger.record("replay/uniform_share", native.uniform_share)
        self.logger.record("replay/relative_noise", native.relative_noise)
        self.logger.record("replay/least_noise", native.least_noise)
        self.logger.record("replay/max_priority", native.max_priority)
        self.logger.record("replay/mean_mass", native.total_mass / len(native))
        slots = np.linspace(0, len(native) - 1, min(len(native), _MAX_SLOTS))
        masses = native.tree.get(slots.astype(np.int64))
        masses = masses[masses > 0]
        if masses.size and native.alpha > 0:
            for percent in (10, 50, 90):
                priority = np.percentile(masses, percent) ** (1 / native.alpha)
                self.logger.record(f"replay/priority_p{percent}", priority)
