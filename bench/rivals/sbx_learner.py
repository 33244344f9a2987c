"""SBX's learners, Stable-Baselines3's interface in JAX, in an environment of their own."""

from __future__ import annotations

from bench.rivals.xla_threads import leave_one_thread

leave_one_thread()

import sbx  # noqa: E402
import torch  # noqa: E402

from bench.harness.timing import Contender  # noqa: E402
from bench.rivals.sb3_learner import PERIOD, filled_model  # noqa: E402

torch.set_num_threads(1)  # its replay buffer is Stable-Baselines3's, whose batches are tensors


class SbxLearner:
    """Its own settings, but for the widths and the batch."""

    name = "SBX"

    def __init__(self, algorithm: str, units: int, batch_size: int) -> None:
        self._model = filled_model(sbx, algorithm, units)
        self._batch_size = batch_size

    def train(self, together: int) -> Contender:
        """Return calls of at least PERIOD updates, so many `together` in one call of train."""
        train, batch_size = self._model.train, self._batch_size
        n_calls = max(1, PERIOD // together)

        def call() -> None:
            for _ in range(n_calls):
                train(gradient_steps=together, batch_size=batch_size)

        return Contender(
            f"SBX, {together} updates in one call" if together > 1 else "SBX, one by one",
            call,
            lambda n: [()] * n,
            operations=n_calls * together,
            has_threads=True,
        )
