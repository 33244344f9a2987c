"""The prioritized replay buffer for RLlib."""

from __future__ import annotations

import logging
import os
import pathlib
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tree
from pyarrow import fs
from ray.rllib.core.columns import Columns as Names
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils import force_list
from ray.rllib.utils import metrics as names
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger
from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer as RllibBuffer

import kary_replay as kr
from kary_replay.adapters.rllib import checkpoint
from kary_replay.adapters.rllib.arguments import (
    ArgumentError,
    check_count,
    check_fraction,
    check_length,
    check_module,
    check_weight,
    range_of,
)
from kary_replay.adapters.rllib.chunks import Columns, check_episode, chunk_of
from kary_replay.adapters.rllib.drawn_rows import DrawnRows
from kary_replay.adapters.rllib.steps import Steps
from kary_replay.errors import CheckpointError, EmptyBufferError
from kary_replay.types import UniformShare

logger = logging.getLogger(__name__)


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
        check_count("batch_size_B", batch_size_B, 1)
        check_length(batch_length_T)
        smoothing = metrics_num_episodes_for_smoothing
        check_count("metrics_num_episodes_for_smoothing", smoothing, 1)
        if not isinstance(whole_batches, bool):
            raise TypeError(f"whole_batches must be True or False, got {whole_batches!r}")
        given = extra_model_outputs
        if isinstance(given, str) or not all(isinstance(name, str) for name in given):
            raise TypeError(
                f"extra_model_outputs must be a sequence of names, got {extra_model_outputs!r}"
            )
        self.capacity = capacity
        self.batch_size_B, self.batch_length_T = batch_size_B, batch_length_T
        self.beta = beta
        self.whole_batches = whole_batches
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
        check_count("capacity", capacity, 2)
        self.rng = np.random.default_rng(seed)
        self.metrics = MetricsLogger(root=False)
        self._metrics_num_episodes_for_smoothing = smoothing
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
        check_module(module_id)
        return len(self._steps) if self._steps is not None else 0

    def get_num_episodes(self, module_id: str | None = None) -> int:
        """Return how many episodes there are, of which at least the newest observation is kept."""
        check_module(module_id)
        return len(self._steps.tails) if self._steps is not None else 0

    def get_num_episodes_evicted(self, module_id: str | None = None) -> int:
        """Return how many episodes have left the buffer altogether."""
        check_module(module_id)
        return self._steps.n_episodes - len(self._steps.tails) if self._steps is not None else 0

    def get_sampled_timesteps(self, module_id: str | None = None) -> int:
        """Return how many rows were ever drawn."""
        check_module(module_id)
        return self.sampled_timesteps

    def get_added_timesteps(self, module_id: str | None = None) -> int:
        """Return how many steps were ever added."""
        check_module(module_id)
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
        check_weight(weight)
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
        given = batch_size_B if num_items is None else num_items
        n_rows = self.batch_size_B if given is None else given
        check_count("num_items", n_rows, 1)
        check_length(0 if batch_length_T is None else batch_length_T, lookback, min_batch_length_T)
        low, high = range_of(n_step)
        beta = self.beta if beta is None else beta
        check_fraction("beta", beta)
        check_fraction("gamma", gamma)
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
        check_module(module_id)
        n_drawn = 0 if self._drawn is None else len(self._drawn)
        priorities = np.asarray(priorities)
        if self._drawn is None or priorities.shape != (n_drawn,):
            raise ArgumentError(
                f"priorities must be those of the {n_drawn} rows drawn last, got "
                f"{priorities.size}: let every sample be followed by one update_priorities"
            )
        assert self._steps is not None
        self._steps.native.update_priorities(self._drawn, priorities)
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
        """Take over what `get_state` returned, the capacity and alpha among it.

        Raises CheckpointError, a ValueError, if it is a state of RLlib's own buffer, is damaged or
        of a later version. The buffer stays as it is then.
        """
        checkpoint.check_format("state", state)
        try:
            steps = pickle.loads(state["steps"])
        except Exception as error:  # whatever damaged bytes may lead to
            raise CheckpointError(f"this state is damaged: {error!r}") from error
        self._take_over(state, steps)

    def save_to_path(
        self,
        path: str | pathlib.Path,
        *,
        state: Any = None,
        filesystem: fs.FileSystem | None = None,
        use_msgpack: bool = False,
    ) -> str:
        """Save everything to a folder, as a component of the checkpoint of an algorithm.

        Parameters
        ----------
        path : path or URI
            Where; made if it is missing. An earlier save there stays in force until this one is
            complete, and is removed then; what else is there stays.
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
        steps, saved = self._steps, self._small_state()
        if steps is None:
            return checkpoint.save(path, filesystem, saved, None)
        saved["steps"] = steps.without_rows()
        return checkpoint.save(path, filesystem, saved, steps.native)

    def restore_from_path(
        self,
        path: str | pathlib.Path,
        *,
        component: str | None = None,
        filesystem: fs.FileSystem | None = None,
        **kwargs: Any,
    ) -> None:
        """Take over what `save_to_path` wrote, the capacity and alpha among it.

        Raises CheckpointError, a ValueError, if it is damaged or of a later version, and
        FileNotFoundError if nothing is there. The buffer stays as it is then.
        """
        directory = self._options["storage_directory"]
        state, native = checkpoint.load(path, filesystem, directory)
        steps = None if native is None else Steps.with_rows(state["steps"], native)
        self._take_over(state, steps)

    def _small_state(self) -> dict[str, Any]:
        """Return all but the steps."""
        return {
            "format": checkpoint.FORMAT,
            "version": kr.__version__,
            "sampled_timesteps": self.sampled_timesteps,
            "n_steps_added": self._n_steps_added,
            "reported": self._reported,
            "rng": self.rng.bit_generator.state,
            "spaces": self._spaces,
        }

    def _take_over(self, state: dict[str, Any], steps: Steps | None) -> None:
        """Become what was saved, or raise CheckpointError and stay."""
        rng = np.random.default_rng()
        try:
            rng.bit_generator.state = state["rng"]
            spaces = state["spaces"]
            counts = int(state["n_steps_added"]), int(state["sampled_timesteps"])
            added, sampled = state.get("reported", counts)  # which the first states did not have
            reported = int(added), int(sampled)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"this state is damaged: {error!r}") from error
        self.rng, self._steps, self._drawn, self._spaces = rng, steps, None, spaces
        self._n_steps_added, self.sampled_timesteps = counts
        self._reported = reported
        if steps is None:
            return
        names = "alpha", "priority_epsilon", "uniform_share"
        wanted = {
            "capacity": self.capacity,
            **{name: self._options[name] for name in names},
            "extra_model_outputs": self.extra_model_outputs,
        }
        saved = {
            "capacity": steps.native.capacity,
            **{name: getattr(steps.native, name) for name in names},
            "extra_model_outputs": tuple(steps.columns.extra_model_outputs),
        }
        for name, value in saved.items():
            if wanted[name] not in (value, "auto"):  # which a number may be, too
                logger.warning(
                    "The replay buffer has the %s that was saved, %r, and not %r, which it was "
                    "made with.",
                    name,
                    value,
                    wanted[name],
                )
        self.capacity = steps.native.capacity
        self.extra_model_outputs = steps.columns.extra_model_outputs
