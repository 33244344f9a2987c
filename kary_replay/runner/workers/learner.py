"""The learner: draws batches from the replay stream, trains on them, and publishes the parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ...algorithms import Share
from ...prefetch.prefetcher import Prefetcher
from ...types import Batch
from ..failures import DivergedError
from ..plan import Plan
from ..streams.inference import as_tensors, published
from ..streams.parameters import as_vector

__all__ = ["Learner"]

LOOK_SECONDS = 20e-6  # between two looks at what the first learner announces
SETTINGS_INTERVAL = 100  # updates between two looks at what changes slowly: beta
FIELDS = ("observation", "action", "reward", "next_observation", "discount", "importance_weight")


class Learner:
    """Trains on its share of every batch.

    Parameters
    ----------
    plan : Plan
        The run.
    index : int
        Which learner this is. The first one publishes.
    report : function
        Is told nothing by learners.
    share : Share
        How it averages gradients with the others.

    Notes
    -----
    One piece of work is one update. Several learners do each update together: in the averaging they
    wait for each other.
    """

    def __init__(
        self, plan: Plan, index: int, report: Callable[[Any], None], share: Share | None = None
    ) -> None:
        config = plan.config
        self.plan, self.index, self.row = plan, index, plan.board.row("learner", index)
        self.algorithm = plan.algorithm(config.learner_device(index), share)
        self.batch_size = config.options.batch_size // config.learners
        self.tensors = published(self.algorithm, plan.config.publishes_all)
        device, ahead = self.algorithm.device, config.prefetch
        if ahead is None:
            ahead = int(device.type != "cpu")
        buffer = plan.replay.buffer
        self.prefetcher = Prefetcher(buffer, self.batch_size, device, ahead) if ahead else None
        self.algorithm.warm_up(as_batch(_blank(plan.replay.buffer.fields, self.batch_size), device))
        self.last_update: int | None = None
        if index == 0:
            self.publish()

    def work(self, patience_seconds: float) -> bool:
        """Do one update; return False if that had to wait for longer than ``patience_seconds``, or all have been done."""
        self.row.alive()
        replay, following = self.plan.replay, int(self.row.updates) + 1
        if self.index > 0:
            if not self.row.wait(self._announced, following, patience_seconds):
                return False
        else:
            if self.last_update is not None and following > self.last_update:
                return False
            whole = self.plan.config.options.batch_size
            if self.last_update is None and not self.row.wait(
                replay.may_sample, whole, patience_seconds
            ):
                return False
            self.row.announced = following
        batch = (
            next(self.prefetcher) if self.prefetcher is not None else replay.sample(self.batch_size)
        )
        td_error = self.algorithm.update(as_batch(batch, self.algorithm.device))
        error = td_error.cpu().numpy()
        try:
            replay.update_priorities(batch, error)
        except ValueError:
            if np.isfinite(error).all():
                raise
            raise self._diverged("TD errors are no longer finite") from None
        self.row.updates += 1
        updates = int(self.row.updates)
        if self.index == 0:
            if updates % self.plan.config.publish_interval == 0 or updates == self.last_update:
                self.publish()
            if updates % SETTINGS_INTERVAL == 0:
                self._anneal()
        return True

    def _announced(self, update: int, patience_seconds: float) -> bool:
        """Wait at most so long; return whether the first learner does this update.

        It alone asks whether rows may be drawn, for all: were each to ask for its part, some could
        go on without the others, and would wait for them in the average for ever.
        """
        first, deadline = self.plan.board.row("learner", 0), time.monotonic() + patience_seconds
        while first.announced < update:
            if time.monotonic() >= deadline:
                return False
            time.sleep(LOOK_SECONDS)
        return True

    def publish(self) -> None:
        """Hand the parameters to the actors."""
        self.plan.parameters.publish(as_vector(self.tensors), int(self.row.updates))

    def finish_after_this(self) -> None:
        """Have all learners stop after the update that comes next; called on the first one, which announces updates."""
        self.last_update = int(self.row.updates) + 1

    def state_dict(self) -> dict[str, Any]:
        """Return all that the learner goes on from."""
        newest = self.plan.parameters.fetch()
        assert newest is not None
        state = self.algorithm.state_dict()
        for name, minimizer in state["minimizers"].items():
            # rather the checkpoint before than one of no use
            if not torch.isfinite(minimizer["parameters"]).all():
                raise self._diverged(f"the parameters of {name} are no longer finite")
        return {
            "algorithm": state,
            "updates": int(self.row.updates),
            "published": torch.from_numpy(newest[0]),
            "published_after": newest[1],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.row.updates = self.row.announced = state["updates"]
        if self.index == 0:
            self.plan.parameters.publish(state["published"].numpy(), state["published_after"])

    def _diverged(self, what: str) -> DivergedError:
        return DivergedError(
            what, int(self.row.updates), self.plan.board.env_steps, self.plan.config.options
        )

    def close(self) -> None:
        """End the thread that draws ahead."""
        if self.prefetcher is not None:
            self.prefetcher.close()

    def _anneal(self) -> None:
        config, buffer = self.plan.config, self.plan.replay.buffer
        progress = min(1.0, self.plan.board.env_steps / config.total_env_steps)
        buffer.beta = config.beta + progress * (1 - config.beta)


def _blank(fields: Mapping[str, Any], n: int) -> Batch:
    """Return a batch of ``n`` rows of zeros."""

    def zeros(field: Any) -> Any:
        if isinstance(field, Mapping):
            return {name: zeros(part) for name, part in field.items()}
        return np.zeros((n, *field.shape), field.dtype)

    columns = {name: zeros(field) for name, field in fields.items()}
    return Batch({**columns, "importance_weight": np.ones(n, np.float32)})


def as_batch(batch: Batch, device: torch.device) -> Mapping[str, Any]:
    """Return what algorithms train on."""
    if isinstance(batch.reward, torch.Tensor):
        return batch.__dict__
    tensors = {name: as_tensors(batch[name]) for name in FIELDS}
    if device.type != "cpu":
        tensors = {name: {key: part.to(device) for key, part in column.items()} if isinstance(column, dict)
                   else column.to(device) for name, column in tensors.items()}  # fmt: skip
    return tensors
