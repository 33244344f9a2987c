"""The updates of priorities: TD errors on their way from the losses of batches into the tree."""

from __future__ import annotations

import warnings

import numpy as np
import torch

import kary_replay
from kary_replay.adapters.sb3.arrays import as_array
from kary_replay.adapters.sb3.prioritized_loss import SampledBatch

# After so many batches in a row without a loss a warning is due. A single batch may have been drawn
# for another purpose; where losses are seen now and then, so may all that lie between two of them.
_UNSEEN = 3
_UNSEEN_BETWEEN = 1_000


class PriorityUpdates:
    """The batches that were drawn from a native buffer and may still get TD errors.

    Parameters
    ----------
    native : kary_replay.PrioritizedReplayBuffer
        The buffer whose priorities are updated.
    name : str
        The class of the buffer in front of it, for the warning.
    is_by_gradient : bool
        Whether priorities are sizes of the loss's gradient instead of TD errors.
    """

    def __init__(
        self, native: kary_replay.PrioritizedReplayBuffer, name: str, is_by_gradient: bool
    ) -> None:
        self.native, self.name, self.is_by_gradient = native, name, is_by_gradient
        self.last_batch: SampledBatch | None = None
        self.pending: list[SampledBatch] = []  # batches whose TD errors are not in the tree yet
        self.n_unseen = 0  # batches in a row that no loss was seen for
        self.most_unseen = _UNSEEN
        self.warned = False

    def remember(self, handle: np.ndarray, importance_weight: torch.Tensor | None) -> None:
        """Make the rows that were just drawn the last batch.

        Their weights are [B, 1]; None says that all are 1.
        """
        self.last_batch = SampledBatch(handle, importance_weight, self.pending, self.is_by_gradient)

    def set_by_hand(self, td_errors: np.ndarray | torch.Tensor) -> None:
        """Replace the TD errors of the last batch; see `PrioritizedBuffer.update_priorities`."""
        batch = self.last_batch
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
                f"update_priorities: td_errors of shape {errors.shape} must hold one value for "
                f"each of the {len(batch)} rows of the last batch, as [B] or [B, 1]"
            )
        if not np.isfinite(errors).all():
            wrong = errors[~np.isfinite(errors)][0]
            raise ValueError(f"update_priorities: td_errors must be finite, got {wrong}")
        batch.record_by_hand(torch.from_numpy(errors.astype(np.float64).reshape(-1)))

    def flush(self, *, hides_rows: bool) -> None:
        """Write all pending TD errors into the tree; see `PrioritizedBuffer.flush_priorities`.

        With ``hides_rows``, rows of mass 0 must not be drawn and keep that mass.
        """
        while self.pending:
            self.n_unseen, self.most_unseen = 0, _UNSEEN_BETWEEN
            batch = self.pending.pop(0)
            handle, td_error = batch.handle, as_array(batch.td_error).reshape(-1)
            if hides_rows:
                drawable = np.flatnonzero(self.native.tree.get(handle["index"]))
                handle, td_error = handle[drawable], td_error[drawable]
            try:
                self.native.update_priorities(handle, td_error)
            except ValueError as refusal:
                wrong = np.flatnonzero(~np.isfinite(td_error))
                if len(wrong) == 0:
                    raise
                first = wrong[0]
                row, slot = drawable[first] if hides_rows else first, handle["index"][first]
                raise ValueError(
                    f"the loss's TD error is {td_error[first]} in row {row} of a batch of "
                    f"{len(batch)} (slot {slot}): the network, the rewards or the observations are "
                    "no longer finite. The priorities were left as they are; "
                    "a lower learning rate or scaled rewards may help"
                ) from refusal

    def warn_of_unseen_loss(self) -> None:
        """Warn, once, if too many batches in a row have reached no loss; called before a draw."""
        if self.last_batch is None or self.last_batch.td_error is not None:
            return
        self.n_unseen += 1
        if self.n_unseen < self.most_unseen or self.warned:
            return
        self.warned = True
        warnings.warn(
            f"{self.name}: {self.n_unseen:,} batches were sampled, but their rewards reached "
            "none of F.mse_loss, F.smooth_l1_loss, F.huber_loss and F.l1_loss, and no mean or sum "
            "that a prediction had entered, too. So their losses were not weighted and their "
            "priorities stay as they were. Compute the loss in one of these ways, or call "
            "replay_buffer.update_priorities(td_errors) after each batch.",
            UserWarning,
            stacklevel=4,
        )
