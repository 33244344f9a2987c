"""Tianshou's prioritized replay buffer for several environments, with one K-ary sum tree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tianshou.data
from tianshou.data import Batch, ReplayBufferManager

from kary_replay.adapters.tianshou.errors import ArgumentError
from kary_replay.adapters.tianshou.replay_buffer import PrioritizedReplayBuffer

_DEFAULT_SEED = 42  # Tianshou's


class PrioritizedVectorReplayBuffer(
    PrioritizedReplayBuffer, tianshou.data.PrioritizedVectorReplayBuffer
):
    """Prioritized replay for vectorized environments.

    Each environment has a ring of rows, and one tree holds the priorities of all rings.

    Parameters
    ----------
    total_size : int
        The number of rows, rounded up to a multiple of `buffer_num`.
    buffer_num : int
        The number of environments.
    **kwargs
        The other parameters of `PrioritizedReplayBuffer`, ``alpha`` and ``beta`` among them.

    Attributes
    ----------
    buffers : np.ndarray
        The rings, [buffer_num]. They are views of the same rows, and have no priorities.

    Raises
    ------
    AssertionError
        If buffer_num is not above 0, or `PrioritizedReplayBuffer` refuses an argument.

    Notes
    -----
    Row i of the ring of environment e is row ``e * size of a ring + i`` of the buffer. Pickles and
    HDF5 files hold each row once. One thread at a time may use the buffer, like Tianshou's own.

    Examples
    --------
    >>> from kary_replay.adapters.tianshou import PrioritizedVectorReplayBuffer
    >>> buffer = PrioritizedVectorReplayBuffer(1000, buffer_num=8, alpha=0.6, beta=0.4)
    >>> buffer.set_beta(0.7)
    """

    def __init__(self, total_size: int, buffer_num: int, **kwargs: Any) -> None:
        if not buffer_num > 0:
            raise ArgumentError(
                f"buffer_num must be above 0, got {buffer_num!r}: one per environment"
            )
        size = math.ceil(total_size / buffer_num)
        rings = [PrioritizedReplayBuffer(size, **kwargs) for _ in range(buffer_num)]
        ReplayBufferManager.__init__(self, rings)
        for ring in rings:
            del ring.weight
        options = rings[0].options
        names = "alpha", "beta", "weight_norm", "uniform_share"
        self._prioritize(*(options[name] for name in names))
        self._random_state = np.random.RandomState(kwargs.get("random_seed", _DEFAULT_SEED))

    def add(
        self, batch: Batch, buffer_ids: np.ndarray | list[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Add one row per environment, at the largest priority seen so far.

        Parameters
        ----------
        batch : Batch
            The rows: ``obs``, ``act``, ``rew``, ``terminated``, ``truncated`` and further fields,
            with a leading axis B.
        buffer_ids : sequence of int [B], optional
            The environments of the rows; by default all environments.

        Returns
        -------
        index, episode_return, episode_length, episode_start : np.ndarray
            Four arrays [B]. Return and length are 0 for an episode that goes on.
        """
        ids = range(self.buffer_num) if buffer_ids is None else buffer_ids
        pairs = self._pairs(batch, len(ids), self._reserved_keys)
        if pairs is None:
            # not by the way of a single buffer, whose rows are counted elsewhere
            result = ReplayBufferManager.add(self, batch, buffer_ids)
            self.init_weight(result[0])
            self._null_scan.note(result[0])
            return result
        done = np.logical_or(batch.terminated, batch.truncated)
        index, episodes = [], []
        for i, reward, ends in zip(ids, batch.rew, done, strict=True):
            ring, start = self.buffers[i], int(self._offset[i])
            at, episode_return, episode_length, episode_start = ring._update_state_pre_add(
                reward, ends
            )
            index.append(start + at)
            episodes.append((episode_return, episode_length, start + episode_start))
            self.last_index[i] = start + at
            self._lengths[i] = ring._size
        where = np.array(index)
        for stored, new in pairs:
            stored[where] = new
        self.init_weight(where)
        self._null_scan.note(where)
        episode_returns, episode_lengths, episode_starts = zip(*episodes, strict=True)
        return where, np.array(episode_returns), np.array(episode_lengths), np.array(episode_starts)

    def unfinished_index(self) -> np.ndarray:
        """Return the last row, int64, of every environment whose episode goes on."""
        last = self.last_index[self._lengths > 0]
        return last[~self.done[last].astype(bool)]

    def set_beta(self, beta: float) -> None:
        """Set beta for all later batches; see `PrioritizedReplayBuffer.set_beta`."""
        PrioritizedReplayBuffer.set_beta(self, beta)
        for ring in self.buffers:
            ring.set_beta(beta)

    def dropnull(self) -> None:
        """Raise NotImplementedError, because a row cannot be taken out of one ring alone."""
        raise NotImplementedError(
            "dropnull would shift rows from one environment's ring into another's; "
            "use batch.dropnull() on what is sampled"
        )

    def _set_batch_for_children(self) -> None:
        """Let the rings show the rows of the buffer, with the fields that hooks added to them.

        Tianshou's own refuses such fields. A collector's hook adds them, and they are there when a
        further field comes, or a file is read.
        """
        for ring, start in zip(self.buffers, self._offset, strict=True):
            ring._meta = self._meta[start : start + ring.maxsize]
            if isinstance(ring, PrioritizedReplayBuffer):  # and not of Tianshou's own, from a file
                ring._null_scan.forget()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the rows of the rings, which are views of the buffer's own."""
        rings = np.empty(self.buffer_num, dtype=object)
        for i, ring in enumerate(self.buffers):
            rings[i] = object.__new__(type(ring))
            rings[i].__dict__.update(ring.__dict__, _meta=Batch())
        return {**super().__getstate__(), "buffers": rings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if len(self._meta.__dict__):
            self._set_batch_for_children()
