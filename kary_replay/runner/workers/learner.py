"""The learner: draws batches from the stream of experience, trains, and publishes parameters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...types import Batch
from ..failures import DivergedError
from ..messages import Trained
from ..streams.experience import Source
from ..streams.inference import as_tensors, moved
from ..streams.parameters import as_vector, published
from .worker import Seat

__all__ = ["Learner"]

FIGURES_SECONDS = 5.0  # between two reports of how training goes
# What a minimizer's state has, by the name that errors give it.
TRAINED = {"parameters": "parameters", "mean": "mean gradients", "square": "mean squared gradients"}


class Learner:
    """Trains on its share of every batch.

    Parameters
    ----------
    seat : Seat
        With the streams "experience", to read from, "learning" and "parameters"; and "statistics",
        to read from, if observations or rewards are normalized. The first learner publishes for
        all that do their updates together.

    Notes
    -----
    One piece of work is one update. Several learners do each update together, and wait for each
    other in the averaging; or, asynchronous, each does updates of its own. The first one reports
    now and then how training goes.
    """

    def __init__(self, seat: Seat) -> None:
        config, streams = seat.config, seat.streams
        self.seat, self.config, self.row = seat, config, seat.row
        self.experience: Source = streams["experience"]
        self.parameters = streams["parameters"]
        self.learning = streams["learning"]
        self.statistics = streams.get("statistics")
        self.is_first = seat.index == 0
        self.is_together = config.optimization == "synchronous"
        self.algorithm = seat.algorithm(self.learning.share(seat.index, seat.device))
        if not self.is_together:
            self.algorithm.generator.manual_seed(int(seat.rng().integers(2**63)))
        self.batch_size = config.rows_per_update // self.algorithm.share.count
        self.tensors = published(self.algorithm, config.publishes_all)
        device, ahead = self.algorithm.device, config.prefetch
        if ahead is None:
            ahead = int(device.type != "cpu")
        blank = self.experience.blank(self.batch_size)
        self.columns = list(blank.keys())
        self._last: dict[str, tuple[Any, Any]] = {}  # columns of a batch, and their tensors
        self.algorithm.warm_up(self.as_tensors(blank))
        self.experience.prepare(self.batch_size, device, ahead, self.algorithm.share, seat.index)
        self.learning.begin(self.algorithm)
        self.next_figures = 0.0
        self.has_finished = False
        # What the stream had before `finish` published out of turn: a run that goes on from a
        # later checkpoint must begin with that, in order to be the same as one that never ended.
        self.in_turn: tuple[npt.NDArray[Any], int] | None = None
        if self.is_first:
            self.publish()

    def work(self, patience_seconds: float) -> bool:
        """Do one update; return False if none may begin within the patience, or all are done."""
        self.seat.beat()
        following = int(self.row.updates) + 1
        if not self._may_do(following, patience_seconds):
            return False
        if following == 1 and self.config.learns_from == "replay":
            self._normalize()  # rollouts are learned from by what they were chosen by
        batch = self.experience.draw()
        tensors = self.as_tensors(batch)
        error = self.algorithm.update(tensors).cpu().numpy()
        try:
            self.experience.learned(batch, error)
        except ValueError:
            if np.isfinite(error).all():
                raise
            raise self._diverged("TD errors are no longer finite") from None
        self.learning.exchange()
        self.row.updates = following
        has_settings = following % self.algorithm.settings_interval == 0
        if has_settings:
            self._report_if_due(tensors, error)  # normalized as the update was
            self._advance()
            self._normalize()
        # Where learners do not wait for each other, the first may stand still while others go on.
        publishes = self.is_first or not self.is_together
        if publishes and following % self.config.publish_interval == 0:
            self.publish()
        self.experience.release(self.n_updates)
        return True

    def _report_if_due(self, tensors: Mapping[str, Any], error: npt.NDArray[Any]) -> None:
        """Report now and then how training goes."""
        if self.is_first and time.monotonic() >= self.next_figures:
            self.next_figures = time.monotonic() + FIGURES_SECONDS
            figures = {"td_error": float(error.mean()), **self.algorithm.figures(tensors)}
            self.seat.report(Trained(self.seat.board.env_steps, figures))

    def _advance(self) -> None:
        """Set what changes with the share of the run that is done."""
        done = min(1.0, self.seat.board.env_steps / self.config.total_env_steps)
        agreed = torch.tensor([done], dtype=torch.float64, device=self.algorithm.device)
        self._agree(agreed)
        self.experience.advance(float(agreed))
        self.algorithm.advance(float(agreed))

    def _normalize(self) -> None:
        """Take up the present statistics."""
        normalization = self.algorithm.normalization
        if normalization is not None and self.statistics is not None:
            normalization.take_up(self.statistics.total())
            self._agree(normalization.vector)

    def _agree(self, numbers: torch.Tensor) -> None:
        """Set numbers to their mean over the learners, who have looked one after another.

        All of them do so at the same update: they must go on alike.
        """
        average = self.algorithm.share.average
        if average is not None:
            average(numbers)

    def _may_do(self, update: int, patience_seconds: float) -> bool:
        """Return whether the learner does an update.

        Where all do it together, the first of them decides for all.
        """
        if self.is_together and not self.is_first:
            return self.row.wait(patience_seconds, self.learning.is_announced, update)
        whole = self.config.rows_per_update
        if self.has_finished or not self.row.wait(
            patience_seconds, self.experience.may_draw, whole
        ):
            return False
        if self.is_together:
            self.learning.announce(update)
        return True

    @property
    def n_updates(self) -> int:
        """Updates of all learners, those together counted once."""
        return int(self.row.updates) if self.is_together else self.seat.board.updates

    def publish(self) -> None:
        """Hand the parameters to those who act."""
        self.parameters.publish(as_vector(self.tensors), self.n_updates)

    def finish(self, give_up: Callable[[], bool]) -> None:
        """Publish what the last update came to.

        The first learner announces no update any more, so that the others do none either.
        """
        self.has_finished = True
        if not self.is_first:
            return
        newest = self.parameters.newest()
        if newest is None or newest[1] != self.n_updates:
            self.in_turn = newest
            self.publish()

    def state_dict(self) -> dict[str, Any]:
        """Return all that the learner goes on from."""
        newest = self.in_turn or self.parameters.newest()
        assert newest is not None
        updates = self.n_updates
        self.learning.catch_up()  # with all that are counted
        state = self.algorithm.state_dict()
        for name, minimizer in state["minimizers"].items():
            # The checkpoint before is worth more than one that cannot be used.
            for key, what in TRAINED.items():
                if not torch.isfinite(minimizer[key]).all():
                    raise self._diverged(f"the {what} of {name} are no longer finite")
        return {
            "algorithm": state,
            "updates": updates,
            "progress": self.algorithm.progress,
            "total_env_steps": self.config.total_env_steps,
            "experience": self.experience.state_dict(),
            "published": torch.from_numpy(newest[0]),
            "published_after": newest[1],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state."""
        self.algorithm.load_state_dict(state["algorithm"])
        if not (self.is_together or self.is_first):  # the state is the first one's
            seed = self.seat.rng(state["updates"]).integers(2**63)
            self.algorithm.generator.manual_seed(int(seed))
        self.row.updates = state["updates"] if self.is_together or self.is_first else 0
        self.learning.begin(self.algorithm)
        total = self.config.total_env_steps  # perhaps more than there were to be, or fewer
        # 0.1.0 had none of these three
        done = state.get("progress", 0.0) * state.get("total_env_steps", total)
        progress = min(done / total, 1.0)
        self.experience.load_state_dict(state.get("experience", {}))
        self.experience.advance(progress)
        self.algorithm.advance(progress)
        if self.is_first:
            if self.is_together:
                self.learning.announce(state["updates"])
            self.parameters.publish(state["published"].numpy(), state["published_after"])

    def close(self) -> None:
        """End the thread that draws ahead, and let go of the last batch."""
        self._last.clear()
        self.experience.close()

    def as_tensors(self, batch: Batch) -> Mapping[str, Any]:
        """Return a batch as the algorithm trains on it."""
        columns = {name: batch[name] for name in self.columns}
        if self.experience.draws_tensors:
            return columns
        tensors = {name: self._as_tensor(name, column) for name, column in columns.items()}
        device = self.algorithm.device
        if device.type == "cpu":
            return tensors
        return {name: moved(column, device) for name, column in tensors.items()}

    def _as_tensor(self, name: str, column: Any) -> Any:
        """Return a column as a tensor, or a dict of them: the same as long as the array is."""
        array, tensor = self._last.get(name, (None, None))
        if array is not column:
            tensor = as_tensors(column)
            self._last[name] = column, tensor
        return tensor

    def _diverged(self, what: str) -> DivergedError:
        updates, env_steps = int(self.row.updates), self.seat.board.env_steps
        return DivergedError(what, updates, env_steps, self.config.options)
