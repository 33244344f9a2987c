"""The learner connector that makes the columns of a train batch out of drawn rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tree
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.rl_module.rl_module import RLModule
from ray.rllib.utils.spaces.space_utils import BatchedNdArray

from kary_replay.adapters.rllib.drawn_rows import DrawnRows


class ReplayColumns(ConnectorV2):
    """Puts whole columns into the batch, so that RLlib's default connectors find theirs there.

    These add the columns that are missing, one Python loop over the episodes each. `use` makes this
    the first learner connector. Of batches without drawn rows it changes nothing.
    """

    def __call__(
        self,
        *,
        rl_module: RLModule,
        batch: dict[str, Any],
        episodes: Sequence[Any],
        explore: bool | None = None,
        shared_data: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the batch with the columns of all drawn rows.

        Raises ValueError if there are episodes among them, which the other connectors would leave
        out.
        """
        drawn = [rows for rows in episodes if isinstance(rows, DrawnRows)]
        if not drawn:
            return batch
        if len(drawn) < len(episodes):
            raise ValueError(
                f"episodes: {len(episodes) - len(drawn)} of {len(episodes)} are no rows drawn by "
                "PrioritizedEpisodeReplayBuffer, and would be left out; "
                "hand them over in an update of their own"
            )
        for rows in drawn:
            for name, values in rows.columns.items():
                arrays = tree.map_structure(BatchedNdArray, values)
                batch.setdefault(name, {})[(rows.id_,)] = [arrays]
        return batch
