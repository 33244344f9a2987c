"""Pieces of RLlib's episodes, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tree
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

import kary_replay as kr
from kary_replay.errors import FieldError

# the other columns of a row, and those of a batch
RESERVED = (
    *("observation", "action", "reward", "terminated", "truncated", "next", "time"),
    *("next_observation", "n_step", "index", "handle", "importance_weight", "priority", "keys"),
    *("obs", "new_obs", "actions", "rewards", "terminateds", "truncateds", "weights"),
)


def is_observation(field: str) -> bool:
    """Tell whether a native field holds observations, or a leaf of them."""
    return field.partition(".")[0] == "observation"


class Columns:
    """Which native fields hold the observations, actions and outputs of a module.

    Observations and actions may be nested, by dicts and tuples; each leaf is a field.

    Parameters
    ----------
    episode : SingleAgentEpisode
        With at least one step, from which shapes and dtypes are taken.
    extra_model_outputs : sequence of str
        What to keep beside, of what the module said when it acted.

    Raises
    ------
    FieldError
        If the episode lacks one of the outputs, or a value has no fixed shape.
    """

    def __init__(self, episode: SingleAgentEpisode, extra_model_outputs: Sequence[str]) -> None:
        self.extra_model_outputs = tuple(extra_model_outputs)
        taken = [name for name in extra_model_outputs if name in RESERVED or "." in name]
        if taken:
            raise FieldError(
                f"extra_model_outputs must have no dot and be none of {', '.join(RESERVED)}, "
                f"got {taken[0]!r}"
            )
        self.structures: dict[str, Any] = {}
        self.fields: dict[str, kr.Field] = {}
        for name, values in self._of(episode).items():
            self.structures[name] = tree.map_structure(lambda _: 0, values)
            for leaf, array in zip(self._names(name), tree.flatten(values), strict=True):
                if array.dtype == object:
                    raise FieldError(
                        f"episodes: {leaf} must have a fixed shape and dtype, got "
                        f"{tree.flatten(values)[0][0]!r}"
                    )
                self.fields[leaf] = kr.Field(array.shape[1:], array.dtype)

    def leaves(self, episode: SingleAgentEpisode) -> dict[str, np.ndarray]:
        """Return the arrays of an episode by the names of the fields, in their dtypes.

        Observations have one row more than there are steps. FieldError if they do not fit.
        """
        found: dict[str, np.ndarray] = {}
        for name, values in self._of(episode).items():
            try:
                tree.assert_same_structure(self.structures[name], values)
            except (ValueError, TypeError) as error:
                raise FieldError(
                    f"episodes: the {name} of episode {episode.id_} has another structure than "
                    f"that of the first one: {error}"
                ) from None
            for leaf, array in zip(self._names(name), tree.flatten(values), strict=True):
                found[leaf] = self._fitted(leaf, array, episode)
        return found

    def nested(self, name: str, leaves: dict[str, np.ndarray]) -> Any:
        """Return the observations, actions or outputs of drawn rows, nested as they came."""
        structure = self.structures[name]
        if not tree.is_nested(structure):
            return leaves[name]
        return tree.unflatten_as(structure, [leaves[leaf] for leaf in self._names(name)])

    def _names(self, name: str) -> list[str]:
        """Return the fields of a column: its own name, or a number for each leaf."""
        structure = self.structures[name]
        if not tree.is_nested(structure):
            return [name]
        return [f"{name}.{i}" for i in range(len(tree.flatten(structure)))]

    def _of(self, episode: SingleAgentEpisode) -> dict[str, Any]:
        """Return the (nested) arrays of an episode, without what lies before its chunk."""
        outputs = episode.extra_model_outputs
        absent = [name for name in self.extra_model_outputs if name not in outputs]
        if absent:
            raise FieldError(
                f"episodes: episode {episode.id_} has no {absent[0]!r} among its "
                f"extra_model_outputs, only {sorted(outputs)}; extra_model_outputs names what is "
                "to be kept"
            )
        found = {"observation": episode.observations, "action": episode.actions}
        found |= {name: outputs[name] for name in self.extra_model_outputs}
        return {name: _arrays(buffer) for name, buffer in found.items()}

    def _fitted(self, leaf: str, array: np.ndarray, episode: SingleAgentEpisode) -> np.ndarray:
        """Return an array in the shape and dtype of its field."""
        field, n = self.fields[leaf], len(episode) + is_observation(leaf)
        if len(array) < n:
            raise FieldError(
                f"episodes: episode {episode.id_} has {len(episode)} steps, but only {len(array)} "
                f"rows of {leaf}, not {n}"
            )
        array = array[:n]
        fits = array.shape[1:] == field.shape
        if fits and array.dtype != field.dtype:
            fits = np.can_cast(array.dtype, field.dtype, "same_kind")
            if fits and array.dtype.kind != "f":  # floats are rounded, all else keeps its value
                fits = np.array_equal(array.astype(field.dtype), array)
        if not fits:
            raise FieldError(
                f"episodes: {leaf} of episode {episode.id_} must be {field.dtype} "
                f"{list(field.shape)} as in the first episode, got {array.dtype} "
                f"{list(array.shape[1:])}, or values that do not fit"
            )
        return array


@dataclass(frozen=True)
class Chunk:
    """Some consecutive steps of one episode."""

    id: str
    first: int  # time of the first step
    n_steps: int
    leaves: dict[str, np.ndarray]  # by field; observations have one more than n_steps
    reward: np.ndarray  # [n_steps]
    is_terminated: bool
    is_truncated: bool

    @property
    def is_done(self) -> bool:
        """Whether there will be no more chunks of its episode."""
        return self.is_terminated or self.is_truncated

    def last(self, n_steps: int) -> Chunk:
        """Return the last ``n_steps`` of it."""
        left_out = self.n_steps - n_steps
        return Chunk(
            self.id,
            self.first + left_out,
            n_steps,
            {name: array[left_out:] for name, array in self.leaves.items()},
            self.reward[left_out:],
            self.is_terminated,
            self.is_truncated,
        )


def chunk_of(episode: Any, columns: Columns) -> Chunk:
    """Return an episode of at least one step as a chunk, or raise FieldError."""
    n_steps = len(episode)
    reward = np.asarray(_arrays(episode.rewards), dtype=np.float32)
    if reward.shape != (n_steps,):
        raise FieldError(
            f"episodes: episode {episode.id_} has {n_steps} steps and rewards of shape "
            f"{list(reward.shape)}; one number for each step is needed"
        )
    return Chunk(
        episode.id_,
        episode.t_started,
        n_steps,
        columns.leaves(episode),
        reward,
        bool(episode.is_terminated),
        bool(episode.is_truncated),
    )


def check_episode(episode: Any) -> None:
    """Raise TypeError for what is not an episode of a single agent."""
    if isinstance(episode, MultiAgentEpisode):
        raise TypeError(
            "episodes: got a MultiAgentEpisode, and this buffer keeps those of a single agent; "
            "use RLlib's MultiAgentPrioritizedEpisodeReplayBuffer"
        )
    if not isinstance(episode, SingleAgentEpisode):
        raise TypeError(
            f"episodes must be SingleAgentEpisodes, got {type(episode).__name__}; "
            "sample batches belong to RLlib's old API stack, which this buffer does not know"
        )


def _arrays(buffer: Any) -> Any:
    """Return what a lookback buffer holds of the chunk itself, as (nested) arrays."""
    data = buffer.data
    if isinstance(data, list):  # not made arrays of yet
        try:
            data = tree.map_structure(lambda *values: np.stack(values), *data)
        except ValueError as error:
            raise FieldError(f"episodes: steps of one episode differ: {error}") from None
    if isinstance(data, np.ndarray):
        return data[buffer.lookback :]
    return tree.map_structure(lambda array: array[buffer.lookback :], data)
