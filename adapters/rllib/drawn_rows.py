"""The rows of a batch, in the place that RLlib has for a list of episodes."""

from __future__ import annotations

import uuid
from typing import Any, NoReturn

import tree
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode


class NoEpisodeError(AttributeError, ValueError):
    """Rows of a batch were read like an episode."""


class DrawnRows(SingleAgentEpisode):
    """The rows of a batch, column by column, to be handed to RLlib's learners as one episode.

    RLlib deals the episodes of a batch out to its learners, and cuts those that are too long. These
    rows are cut into consecutive pieces, so that the TD errors of several learners, which RLlib
    concatenates, are in the order of the rows.

    Parameters
    ----------
    columns : dict of str to (nested) array [B, ...]
        By RLlib's names: obs, new_obs, actions, rewards, terminateds, truncateds, weights, n_step,
        and the outputs of the module.
    """

    def __init__(self, columns: dict[str, Any]) -> None:
        # SingleAgentEpisode.__init__ is not called: it would make lists of steps.
        self.columns = columns
        self.id_ = f"rows_{uuid.uuid4().hex}"
        self.agent_id = self.module_id = self.multi_agent_episode_id = None
        self.extra_model_outputs: dict[str, Any] = {}
        self.t_started, self.t = 0, len(columns[Columns.REWARDS])
        self.is_terminated = self.is_truncated = False

    def __len__(self) -> int:
        return self.t

    def __reduce__(self) -> tuple[Any, ...]:
        return DrawnRows, (self.columns,)

    def __repr__(self) -> str:
        return f"DrawnRows({len(self)} rows of {', '.join(self.columns)})"

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> DrawnRows:
        """Return some of the rows. There is nothing before them to look back at."""
        return DrawnRows(tree.map_structure(lambda array: array[slice_], self.columns))

    def __getitem__(self, item: slice) -> DrawnRows:
        if not isinstance(item, slice):
            raise TypeError(f"rows are cut by slices, got {item!r}")
        return self.slice(item)

    def env_steps(self) -> int:
        """Return how many rows there are."""
        return len(self)

    agent_steps = env_steps

    def __getattr__(self, name: str) -> NoReturn:
        """Say what is the matter where an episode's data are looked for: there are none."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoEpisodeError(
            f"{name}: these are the rows of a whole batch, and not an episode. Connectors find "
            "them in the batch, column by column, if ReplayColumns is the first learner connector. "
            "For connectors that read episodes: kary_replay.adapters.rllib.use(config, "
            "whole_batches=False)"
        )
