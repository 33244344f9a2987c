"""The prioritized replay buffer for RLlib."""

from __future__ import annotations

import os
import pathlib
import pickle
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tree
from pyarrow import fs
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns as Names
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import force_list
from ray.rllib.utils import metrics as names
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer as RllibBuffer

import kary_replay as kr
from kary_replay.adapters.rllib.chunks import Columns, check_episode, chunk_of
from kary_replay.adapters.rllib.drawn_rows import DrawnRows
from kary_replay.adapters.rllib.errors import ArgumentError
from kary_replay.adapters.rllib.steps import Steps
from kary_replay.errors import CheckpointError, EmptyBufferError
from kary_replay.types import UniformShare

_FORMAT = 1  # of states and checkpoints
_ROWS, _STATE = "rows", "state.pkl"  # of a checkpoint: the native buffer's, and the rest


class PrioritizedEpisodeReplayBuffer(RllibBuffer):
    """RLlib's prioritized episode buffer, with the steps in a native buffer.

    `use` makes an algorithm use it. It takes the place of RLlib's class of that name: episodes go
    in, in chunks, and TD errors come back for the rows drawn last.

    Parameters
    ----------
    capacity : int
        Observations kept, at least 2; then the oldest are overwritten, step by step. That is one
        for each step, and one more for each episode.
    batch_size_B : int
        Rows of a batch, where `sample` is not told.
    batch_length_T : int
        0 or 1. Sequences for recurrent modules are not drawn by priority.
    alpha : float
        0 to 1: how much priorities count; 0 draws uniformly.
    beta : float
        0 to 1: how far importance weights correct for it, where `sample` is not told.
    priority_epsilon : float
        Above 0; added to every |TD error|.
    uniform_share : float or "auto"
        The share of draws that go to all steps alike; see `kary_replay.PrioritizedReplayBuffer`.
        0 is what RLlib's own buffer does.
    seed : None or int
        Of the draws; None seeds them from the system.
    whole_batches : bool
        What `sample` returns: False, a list of episodes of one step each, as RLlib's own; True,
        a list of one `DrawnRows`, for which ReplayColumns must be the first learner connector.
    extra_model_outputs : sequence of str
        What to keep of the module's outputs when it acted, such as "action_logp".
    storage_directory : path, optional
        Keep the rows in a file in this directory, for buffers larger than memory.
    metrics_num_episodes_for_smoothing : int
        Over how many values the means among the metrics go.
    **unused
        What else `replay_buffer_config` may have; it has no effect, as in RLlib's own.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range or of the wrong kind.

    Notes
    -----
    One thread at a time may use it, as RLlib does.

    A step is stored once, with a link to the next one of its episode, so n and gamma are given when
    rows are drawn. With n > 1, each step of an episode is drawn: those near its end with a shorter
    return, whose length is in the column ``n_step``. RLlib's own never draws the last n - 1. A
    range of n is closed, as RLlib's documentation says; its own buffer leaves out the upper end.

    Importance weights are divided by the largest of their batch, unless ``uniform_share`` is above
    0; RLlib's own divides by the largest in the buffer.

    Schaul et al. (2016), Prioritized experience replay, arXiv:1511.05952.
    """

    # RLlib's __init__ is not called: it would make two trees and its metrics.
    def __init__(
        self,
        capacity: int = 10_000,
        *,
        batch_size_B: int = 16,  # noqa: N803  # RLlib's names
        batch_length_T: int = 1,  # noqa: N803
        alpha: float = 1.0,
        beta: float = 0.0,
        priority_epsilon: float = 1e-6,
        uniform_share: UniformShare = 0.0,
        seed: int | None = None,
        whole_batches: bool = False,
        extra_model_outputs: Sequence[str] = (),
        storage_directory: str | os.PathLike[str] | None = None,
        metrics_num_episodes_for_smoothing: int = 100,
        **unused: Any,
    ) -> None:
        _check_count("batch_size_B", batch_size_B, 1)
        _check_length(batch_length_T)
        if isinstance(extra_model_outputs, str):
            raise TypeError(
                f"extra_model_outputs must be a sequence of names, got {extra_model_outputs!r}"
            )
        self.capacity = capacity
        self.batch_size_B, self.batch_length_T = batch_size_B, batch_length_T
        self.beta = beta
        self.whole_batches = bool(whole_batches)
        self.extra_model_outputs = tuple(extra_model_outputs)
        self._options = {
            "alpha": alpha,
            "priority_epsilon": priority_epsilon,
            "uniform_share": uniform_share,
            "seed": seed,
            "storage_directory": storage_directory,
        }
        # whatever is wrong is said here, and not when the first episode comes
        kr.PrioritizedReplayBuffer(
            2, {"reward": kr.Field((), "float32")}, beta=beta, **self._options
        )
        _check_count("capacity", capacity, 2)
        self.rng = np.random.default_rng(seed)
        self.metrics = MetricsLogger(root=False)
        self._metrics_num_episodes_for_smoothing = metrics_num_episodes_for_smoothing
        self._steps: Steps | None = None  # made of the first episode, which tells what a step is
        self._drawn: npt.NDArray[np.void] | None = None  # handles of the rows drawn last
        self._spaces: tuple[Any, Any] = (None, None)
        self.sampled_timesteps = self._n_steps_added = 0
        self._reported = 0, 0  # the same two, when get_metrics was last asked
        self._n_step_of_last = 1.0  # the mean of the batch drawn last

    # ------------------------------------------------------------------------------------- counts

    def __repr__(self) -> str:
        what = f"capacity={self.capacity}, {self.get_num_timesteps()} steps"
        return f"{type(self).__name__}({what} of {self.get_num_episodes()} episodes)"

    def get_num_timesteps(self, module_id: str | None = None) -> int:
        """Return how many steps can be drawn; ``len`` is the same."""
        _check_module(module_id)
        return len(self._steps) if self._steps else 0

    def get_num_episodes(self, module_id: str | None = None) -> int:
        """Return of how many episodes there is at least the newest observation."""
        _check_module(module_id)
        return len(self._steps.tails) if self._steps else 0

    def get_num_episodes_evicted(self, module_id: str | None = None) -> int:
        """Return how many episodes have left the buffer altogether."""
        _check_module(module_id)
        return self._steps.n_episodes - len(self._steps.tails) if self._steps else 0

    def get_sampled_timesteps(self, module_id: str | None = None) -> int:
        """Return how many rows were ever drawn."""
        _check_module(module_id)
        return self.sampled_timesteps

    def get_added_timesteps(self, module_id: str | None = None) -> int:
        """Return how many steps were ever added."""
        _check_module(module_id)
        return self._n_steps_added

    def get_metrics(self) -> dict[str, Any]:
        """Return what happened since the last call, under four of RLlib's names.

        Each costs the training step some 40 µs of adding up, and RLlib's own buffer has forty.
        """
        log, window = self.metrics.log_value, self._metrics_num_episodes_for_smoothing
        log(names.NUM_ENV_STEPS_STORED, len(self), reduce="mean", window=window)
        log(names.ACTUAL_N_STEP, self._n_step_of_last, reduce="mean", window=window)
        added, sampled = self._n_steps_added, self.sampled_timesteps
        n_added, n_sampled = added - self._reported[0], sampled - self._reported[1]
        log(names.NUM_ENV_STEPS_ADDED_LIFETIME, n_added, reduce="lifetime_sum")
        log(names.NUM_ENV_STEPS_SAMPLED_LIFETIME, n_sampled, reduce="lifetime_sum")
        self._reported = added, sampled
        return self.metrics.reduce()

    # ---------------------------------------------------------------------------------- add, sample

    def add(
        self,
        episodes: SingleAgentEpisode | Sequence[SingleAgentEpisode],
        weight: float | None = None,
    ) -> None:
        """Append episodes, or chunks of them, each to what there is of its episode.

        Parameters
        ----------
        episodes : SingleAgentEpisode or sequence of them
            Chunks of one episode have its ``id_``, and come in order. A chunk whose beginning is
            not where the last one ended begins a new episode.
        weight : None or float
            The priority of the steps, above 0. None: the largest priority seen.

        Raises
        ------
        TypeError, FieldError, ValueError
            If they are not episodes of a single agent, or not like the first one, or the weight is
            out of range. Nothing is added then.

        Notes
        -----
        O(steps · (bytes of a step + log(capacity))). What is added is copied.
        """
        episodes = force_list(episodes)
        for episode in episodes:
            check_episode(episode)
        episodes = [episode for episode in episodes if len(episode)]
        if not episodes:
            return
        steps = self._steps
        if steps is None:
            columns = Columns(episodes[0], self.extra_model_outputs)
            steps = Steps(self.capacity, columns, **self._options)
        chunks = [chunk_of(episode, steps.columns) for episode in episodes]
        steps.add(chunks, weight)
        if self._steps is None:
            self._steps = steps
            self._spaces = episodes[0].observation_space, episodes[0].action_space
        self._n_steps_added += sum(chunk.n_steps for chunk in chunks)

    def sample(
        self,
        num_items: int | None = None,
        *,
        batch_size_B: int | None = None,  # noqa: N803
        batch_length_T: int | None = None,  # noqa: N803
        n_step: int | Sequence[int] | None = None,
        beta: float | None = None,
        gamma: float = 0.99,
        include_infos: bool = False,
        include_extra_model_outputs: bool = False,
        to_numpy: bool = False,
        lookback: int = 0,
        min_batch_length_T: int = 0,  # noqa: N803
        **unused: Any,
    ) -> list[SingleAgentEpisode]:
        """Draw steps by priority, and remember them for `update_priorities`.

        Parameters
        ----------
        num_items, batch_size_B : int
            Rows, B; give one of them, or none.
        batch_length_T, lookback, min_batch_length_T
            For recurrent modules, for which this buffer has no sequences.
        n_step : int or (int, int)
            Rewards in a return. Of a range, both ends included, each row draws its own. A return
            has fewer if its episode, or what is there of it, ends earlier.
        beta : float
            0 to 1, of the importance weights. None: what the constructor was given.
        gamma : float
            0 to 1, by which later rewards of a return are discounted.
        include_infos : bool
            Infos are not kept.
        include_extra_model_outputs : bool
            With those that the constructor was told to keep.
        to_numpy : bool
            Whether episodes hold arrays.

        Returns
        -------
        list of SingleAgentEpisode [B], or of one DrawnRows of length B
            Each row an observation, an action, the return, the observation after it, whether the
            episode ended there, and among the extra outputs ``weights`` and ``n_step``.

        Raises
        ------
        ValueError, TypeError
            If there is nothing to draw, or an argument is out of range. ArgumentError is an
            AssertionError as well, which is what RLlib raises.

        Notes
        -----
        O(B · (n · log(capacity) + bytes of a row)). Draws are stratified.
        """
        if num_items is not None and batch_size_B is not None:
            raise ArgumentError("give one of num_items and batch_size_B, not both")
        n_rows = num_items or batch_size_B or self.batch_size_B
        _check_count("num_items", n_rows, 1)
        _check_length(batch_length_T or 0, lookback, min_batch_length_T)
        low, high = _range_of(n_step)
        beta = self.beta if beta is None else beta
        if not 0 <= beta <= 1:
            raise ArgumentError(f"beta must be from 0 to 1, got {beta!r}")
        if not 0 <= gamma <= 1:
            raise ArgumentError(f"gamma must be from 0 to 1, got {gamma!r}")
        if include_infos:
            raise ArgumentError(
                "include_infos must be False: infos are dicts of any kind, and are not kept; put "
                "what is needed of them into the observation"
            )
        if self._steps is None:
            raise EmptyBufferError(
                f"sample: cannot draw {n_rows} rows from an empty buffer; add episodes first"
            )
        steps = self._steps
        if steps.native.beta != beta:
            steps.native.beta = beta
        lengths = np.full(n_rows, low) if low == high else self.rng.integers(low, high + 1, n_rows)
        batch = steps.draw(n_rows, lengths, gamma)
        self._drawn = batch.handle
        self.sampled_timesteps += n_rows
        self._n_step_of_last = float(batch.n_step.mean())
        rows = self._rows_of(batch, include_extra_model_outputs)
        return [rows] if self.whole_batches else self._episodes_of(rows, batch.time, to_numpy)

    def update_priorities(
        self, priorities: npt.NDArray[np.floating[Any]], module_id: str | None = None
    ) -> None:
        """Set the priorities of the rows drawn last to |TD error| + priority_epsilon.

        Parameters
        ----------
        priorities : array of float [B]
            TD errors, in the order of the rows, finite. Where a row comes twice, the last one wins.
        module_id : str, optional
            RLlib's name of the only module.

        Raises
        ------
        ArgumentError
            An AssertionError and a ValueError: nothing was drawn since the last call, there are
            more or fewer TD errors than rows, or the module is another one.
        ValueError
            If a TD error is not finite. Nothing is changed then, and the rows can be updated again.
        """
        _check_module(module_id)
        n_drawn = 0 if self._drawn is None else len(self._drawn)
        if self._drawn is None or len(priorities) != n_drawn:
            raise ArgumentError(
                f"priorities must be those of the {n_drawn} rows drawn last, got "
                f"{len(priorities)}: let every sample be followed by one update_priorities"
            )
        assert self._steps is not None
        self._steps.native.update_priorities(self._drawn, np.asarray(priorities))
        self._drawn = None

    def _rows_of(self, batch: kr.Batch, with_outputs: bool) -> DrawnRows:
        """Return the drawn rows under RLlib's names."""
        assert self._steps is not None
        columns, drawn = self._steps.columns, vars(batch)
        outputs = columns.extra_model_outputs if with_outputs else ()
        return DrawnRows(
            {
                Names.OBS: columns.nested("observation", drawn),
                Names.NEXT_OBS: columns.nested("observation", batch.next_observation),
                Names.ACTIONS: columns.nested("action", drawn),
                Names.REWARDS: batch.reward,
                Names.TERMINATEDS: batch.terminated,
                Names.TRUNCATEDS: batch.truncated,
                "weights": batch.importance_weight,
                "n_step": batch.n_step,
                **{name: columns.nested(name, drawn) for name in outputs},
            }
        )

    def _episodes_of(
        self, rows: DrawnRows, time: np.ndarray, to_numpy: bool
    ) -> list[SingleAgentEpisode]:
        """Return each row as an episode of one step."""
        known = (
            Names.OBS,
            Names.NEXT_OBS,
            Names.ACTIONS,
            Names.REWARDS,
            Names.TERMINATEDS,
            Names.TRUNCATEDS,
        )
        outputs = [name for name in rows.columns if name not in known]
        observation_space, action_space = self._spaces
        episodes = []
        for i in range(len(rows)):
            row = tree.map_structure(lambda array, i=i: array[i], rows.columns)
            episode = SingleAgentEpisode(
                observations=[row[Names.OBS], row[Names.NEXT_OBS]],
                observation_space=observation_space,
                actions=[row[Names.ACTIONS]],
                action_space=action_space,
                rewards=[float(row[Names.REWARDS])],
                terminated=bool(row[Names.TERMINATEDS]),
                truncated=bool(row[Names.TRUNCATEDS]),
                extra_model_outputs={name: [row[name]] for name in outputs},
                len_lookback_buffer=0,
                t_started=int(time[i]),
            )
            episodes.append(episode.to_numpy() if to_numpy else episode)
        return episodes

    # --------------------------------------------------------------------------------- checkpoints

    def get_state(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Return everything for `set_state`: rows, priorities, counters, the random streams.

        It takes as much memory again as the buffer. `save_to_path` does not.
        """
        # pickled, so that it stays as it is now
        return {**self._small_state(), "steps": pickle.dumps(self._steps, protocol=5)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned.

        Raises ValueError if it is a state of RLlib's own buffer, or of a later version.
        """
        _check_format("state", state)
        self._take_over(state, pickle.loads(state["steps"]))

    def save_to_path(
        self,
        path: str | pathlib.Path,
        *,
        state: Any = None,
        filesystem: fs.FileSystem | None = None,
        use_msgpack: bool = False,
    ) -> str:
        """Save everything to a directory, as a component of the checkpoint of an algorithm.

        Parameters
        ----------
        path : path or URI
            Where; made if it is missing.
        state, use_msgpack
            Have no effect: the rows are written as they are.
        filesystem : pyarrow.fs.FileSystem, optional
            Where the path is; None finds out.

        Returns
        -------
        str
            The path.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        filesystem, where = file_system_of(path, filesystem)
        if isinstance(filesystem, fs.LocalFileSystem):
            self._save(pathlib.Path(where))
        else:
            with tempfile.TemporaryDirectory() as folder:
                self._save(pathlib.Path(folder))
                fs.copy_files(folder, where, destination_filesystem=filesystem)
        return where

    def restore_from_path(
        self,
        path: str | pathlib.Path,
        *,
        component: str | None = None,
        filesystem: fs.FileSystem | None = None,
        **kwargs: Any,
    ) -> None:
        """Take over what `save_to_path` wrote.

        Raises CheckpointError, a ValueError, if it is damaged or of a later version, and
        FileNotFoundError if nothing is there. The buffer stays as it is then.
        """
        filesystem, where = file_system_of(path, filesystem)
        if isinstance(filesystem, fs.LocalFileSystem):
            self._load(pathlib.Path(where))
        else:
            with tempfile.TemporaryDirectory() as folder:
                fs.copy_files(where, folder, source_filesystem=filesystem)
                self._load(pathlib.Path(folder))

    def _small_state(self) -> dict[str, Any]:
        """Return all but the steps."""
        return {
            "format": _FORMAT,
            "version": kr.__version__,
            "sampled_timesteps": self.sampled_timesteps,
            "n_steps_added": self._n_steps_added,
            "rng": self.rng.bit_generator.state,
            "spaces": self._spaces,
        }

    def _take_over(self, state: dict[str, Any], steps: Steps | None) -> None:
        self.rng.bit_generator.state = state["rng"]
        self._steps, self._drawn = steps, None
        if steps is not None:
            self.capacity = steps.native.capacity
        self._spaces = state["spaces"]
        self.sampled_timesteps = state["sampled_timesteps"]
        self._n_steps_added = state["n_steps_added"]
        self._reported = self._n_steps_added, self.sampled_timesteps

    def _save(self, folder: pathlib.Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        steps = self._steps
        state = self._small_state()
        rows = None
        if steps is not None:
            rows = f"{_ROWS}_{steps.native.n_added}"  # those that the state before names stay
            steps.native.save(folder / rows)
            state |= {"rows": rows, "steps": steps.without_rows()}
        written = folder / f"{_STATE}.tmp"
        written.write_bytes(pickle.dumps(state))
        os.replace(written, folder / _STATE)
        for former in folder.glob(f"{_ROWS}_*"):
            if former.name != rows:
                shutil.rmtree(former)

    def _load(self, folder: pathlib.Path) -> None:
        try:
            state = pickle.loads((folder / _STATE).read_bytes())
        except (pickle.UnpicklingError, EOFError, AttributeError, IndexError) as error:
            raise CheckpointError(f"'{folder / _STATE}' is damaged: {error}") from error
        _check_format(f"checkpoint '{folder}'", state)
        steps = None
        if "steps" in state:
            native = kr.PrioritizedReplayBuffer.load(
                folder / state["rows"], storage_directory=self._options["storage_directory"]
            )
            steps = Steps.with_rows(state["steps"], native)
        self._take_over(state, steps)


def file_system_of(
    path: str | pathlib.Path, filesystem: fs.FileSystem | None
) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path, and the path there."""
    text = path if isinstance(path, str) else path.as_posix()
    if filesystem is not None:
        return filesystem, text
    if "://" not in text:
        text = os.path.abspath(text)
    return fs.FileSystem.from_uri(text)


def _check_format(what: str, state: dict[str, Any]) -> None:
    found = state.get("format")
    if found is None:
        raise CheckpointError(
            f"this {what} was not saved by kary-replay; RLlib's own buffer can read its own states"
        )
    if found > _FORMAT:
        raise CheckpointError(
            f"this {what} was saved by kary-replay {state['version']} in format {found}; version "
            f"{kr.__version__} reads formats up to {_FORMAT}: load it with that version"
        )


def _check_module(module_id: str | None) -> None:
    if module_id not in (None, DEFAULT_MODULE_ID):
        raise ArgumentError(
            f"module_id must be {DEFAULT_MODULE_ID!r}, the only module of a single agent, got "
            f"{module_id!r}; several modules need RLlib's MultiAgentPrioritizedEpisodeReplayBuffer"
        )


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ArgumentError(f"{name} must be at least {least}, got {value}")


def _check_length(length: int, lookback: int = 0, burn_in: int = 0) -> None:
    if length > 1 or lookback or burn_in:
        raise ArgumentError(
            "batch_length_T must be 0 or 1, and lookback and burn-in 0: this buffer draws steps, "
            "not sequences; for a recurrent module use RLlib's EpisodeReplayBuffer, got "
            f"{length}, {lookback} and {burn_in}"
        )


def _range_of(n_step: int | Sequence[int] | None) -> tuple[int, int]:
    """Return the least and the largest number of steps in a return."""
    ends = n_step if isinstance(n_step, (tuple, list)) else (n_step or 1,) * 2
    if len(ends) != 2:
        raise ArgumentError(f"n_step must be an integer or a pair of them, got {n_step!r}")
    for end in ends:
        _check_count("n_step", end, 1)
    if ends[0] > ends[1]:
        raise ArgumentError(f"n_step must not begin above its end, got {n_step!r}")
    return int(ends[0]), int(ends[1])
