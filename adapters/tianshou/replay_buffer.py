"""Tianshou's prioritized replay buffer over a K-ary sum tree."""

from __future__ import annotations

import operator
from typing import Any

import h5py
import numpy as np
import tianshou.data
import torch
from tianshou.data import Batch, ReplayBuffer, ReplayBufferManager, to_numpy
from tianshou.data.utils.converter import to_hdf5

from kary_replay.adapters.tianshou import draws, rows
from kary_replay.adapters.tianshou.errors import (
    LeafIndexError,
    as_alpha,
    as_beta,
    check_format,
    refused_priority,
)
from kary_replay.adapters.tianshou.null_scan import NullScan
from kary_replay.adapters.tianshou.segment_tree import SegmentTree, as_segment_tree
from kary_replay.errors import IndexRangeError

_Stock = tianshou.data.PrioritizedReplayBuffer
_FORMAT = 1
_EPSILON = np.finfo(np.float32).eps.item()  # Tianshou's: what is added to every |TD error|
_TINY = np.finfo(np.float64).tiny.item()


class PrioritizedReplayBuffer(_Stock):
    """Prioritized replay for Tianshou's off-policy algorithms and collectors, none of which need to know.

    Parameters
    ----------
    size : int
        Number of rows.
    alpha : float
        How much priorities count: a row of priority p is drawn with probability p**alpha over the
        sum of all. Above 0.
    beta : float
        How much of the bias from that the importance weights correct, at least 0; 1 corrects fully.
    weight_norm : bool
        Divide the weights of a batch by the largest of them. If False, that of the least priority
        seen so far is 1.
    **kwargs
        As in `tianshou.data.ReplayBuffer`: ``stack_num``, ``ignore_obs_next``,
        ``save_only_last_obs``, ``sample_avail``, ``random_seed``. `random_seed` seeds the draws;
        NumPy's global state plays no part.

    Attributes
    ----------
    weight : SegmentTree
        One mass, priority**alpha, per row.

    Raises
    ------
    AssertionError
        If alpha or beta is out of range; it is a ValueError, too.
    TypeError
        If one of them is no number.

    Notes
    -----
    For one thread, like Tianshou's own. The importance weight of row j is ``(mass_j / least mass)
    ** -beta``, which is (N · P(j)) ** -beta over the largest such weight, N and the total mass
    having cancelled: Schaul et al. (2016), arXiv:1511.05952, section 3.4. Rows without mass, which
    are never drawn, get the weight of the least mass.

    Examples
    --------
    >>> from tianshou.data import Batch
    >>> from kary_replay.adapters.tianshou import PrioritizedReplayBuffer
    >>> buffer = PrioritizedReplayBuffer(100, alpha=0.6, beta=0.4)
    >>> for step in range(10):
    ...     row = Batch(obs=step, act=0, rew=1.0, terminated=False, truncated=False, obs_next=step + 1)
    ...     index, _, _, _ = buffer.add(row)
    >>> batch, index = buffer.sample(4)
    >>> batch.weight
    array([1., 1., 1., 1.])
    >>> buffer.update_weight(index, np.array([0.1, 2.0, 0.3, 0.4]))
    """

    # Stock's __init__ is not called, nor its add, sample_indices, __getitem__: `super(_Stock,
    # self)` is what stock builds on.
    def __init__(
        self, size: int, alpha: float, beta: float, weight_norm: bool = True, **kwargs: Any
    ) -> None:
        ReplayBuffer.__init__(self, size, **kwargs)
        self._prioritize(alpha, beta, weight_norm)

    def _prioritize(self, alpha: float, beta: float, weight_norm: bool) -> None:
        """Add the priorities to a buffer that has none yet."""
        self._alpha, self._beta = as_alpha(alpha), as_beta(beta)
        self._weight_norm = bool(weight_norm)
        self._max_prio = self._min_prio = 1.0
        self.weight = SegmentTree(self.maxsize)
        self._null_scan = NullScan()
        self._format = _FORMAT
        self.options.update(alpha=alpha, beta=beta, weight_norm=weight_norm)

    def init_weight(self, index: int | np.ndarray) -> None:
        """Give new rows the largest priority seen so far, at least 1.

        Raises AssertionError, also an IndexError, for an index that is not in 0 … size - 1.
        """
        self.weight[index] = self._max_prio**self._alpha

    def update(self, buffer: ReplayBuffer) -> np.ndarray:
        """Append all rows of another buffer, oldest first, as new ones.

        Parameters
        ----------
        buffer : ReplayBuffer
            Any of Tianshou's or ours; its priorities are not taken over.

        Returns
        -------
        int64 [B]
            The rows written, in order; empty if there was nothing to write.
        """
        index = super(_Stock, self).update(buffer)
        self.init_weight(index)
        self._null_scan.note(index)
        return index

    def add(
        self, batch: Batch, buffer_ids: np.ndarray | list[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Add one row, at the largest priority seen so far.

        Parameters
        ----------
        batch : Batch
            ``obs``, ``act``, ``rew``, ``terminated``, ``truncated`` and whatever else is to be
            stored.
        buffer_ids : sequence of int, optional
            ``[0]``, with a leading axis of length 1 on every field, as collectors have it.

        Returns
        -------
        index, episode_return, episode_length, episode_start : np.ndarray
            Each [1]; return and length are 0 unless the episode ends here.

        Raises
        ------
        ValueError
            If a required field is missing or `buffer_ids` is something else.
        """
        pairs = None
        if buffer_ids is not None and len(buffer_ids) == 1 and buffer_ids[0] == 0:
            pairs = self._pairs(batch, 1, None)
        if pairs is None:
            result = super(_Stock, self).add(batch, buffer_ids)
        else:
            ends = batch.terminated[0] or batch.truncated[0]
            index, *episode = (
                np.array([x]) for x in self._update_state_pre_add(batch.rew[0], ends)
            )
            for stored, new in pairs:
                stored[index] = new
            result = index, *episode
        self.init_weight(result[0])
        self._null_scan.note(result[0])
        return result

    def sample(self, batch_size: int | None) -> tuple[Batch, np.ndarray]:
        """Draw rows in proportion to their masses.

        Parameters
        ----------
        batch_size : int or None
            As for `sample_indices`, whose errors are raised, too.

        Returns
        -------
        batch : Batch
            The rows, and their importance weights as ``weight``, float64 [B].
        index : int64 [B]
            Where they are, for `update_weight`.
        """
        index = self.sample_indices(batch_size)
        return self[index], index

    def sample_indices(self, batch_size: int | None) -> np.ndarray:
        """Draw rows in proportion to their masses, each draw independent of the others.

        Parameters
        ----------
        batch_size : int or None
            B. 0 means all rows, oldest first, below 0 none, and None all in a random order. (Of
            several buffers together: in order, buffer by buffer.)

        Returns
        -------
        int64 [B]
            With ``stack_num > 1`` and ``sample_avail``, only rows that have all their earlier
            frames.

        Raises
        ------
        ValueError
            If there is nothing to draw from.
        TypeError
            If batch_size is no integer.

        Notes
        -----
        O(B · log(size)). From the stream of `random_seed`.
        """
        if batch_size is None:
            return self._all_shuffled()
        n = operator.index(batch_size)
        if n <= 0:
            return super(_Stock, self).sample_indices(n)
        if self.stack_num == 1 or not self._sample_avail:
            return draws.draw(self.weight.sum_tree, self._random_state, n)
        return draws.draw_available(self, self.weight, self._random_state, n)

    def get_weight(self, index: int | np.ndarray) -> float | np.ndarray:
        """Return importance weights, (mass / least mass) ** -beta, which are at most 1.

        Parameters
        ----------
        index : int or array of int
            Of any shape; negative ones count from the end.

        Returns
        -------
        float64
            In the shape of `index`. IndexError is raised where one is out of range.
        """
        try:
            mass = self.weight[index]
        except IndexRangeError:
            at = np.asarray(index)
            mass = self.weight[np.where(at < 0, at + self.maxsize, at)]
        least = max(self._min_prio**self._alpha, _TINY)
        return (np.maximum(mass, least) / least) ** -self._beta

    def update_weight(self, index: np.ndarray, new_weight: np.ndarray | torch.Tensor) -> None:
        """Set the priorities of rows to |new_weight| plus a small number, so that no row is lost for good.

        Parameters
        ----------
        index : int or array of int [B]
            Rows, as `sample` returned them. Where one comes twice, the last value wins.
        new_weight : array or torch.Tensor [B]
            TD errors, finite; the sign does not matter.

        Raises
        ------
        ValueError
            If a value is NaN or infinite, or a length differs. No priority has changed then.
        AssertionError
            If an index is not in 0 … size - 1; it is an IndexError, too. No priority has changed
            then.

        Notes
        -----
        O(B · log(size)). A row that was overwritten since it was drawn gets the priority of its
        predecessor: Tianshou hands over nothing to tell the two apart.
        """
        td_error = (
            new_weight.numpy(force=True)
            if isinstance(new_weight, torch.Tensor)
            else to_numpy(new_weight)
        )
        priority = np.abs(td_error, dtype=np.float64) + _EPSILON
        if not priority.size:
            return
        try:
            self.weight.sum_tree.set(index, priority**self._alpha)
        except IndexRangeError as error:
            raise LeafIndexError(f"update_weight: {error}") from None
        except ValueError as error:
            raise refused_priority(index, td_error, priority, str(error)) from None
        # half the time of max()
        self._max_prio = max(self._max_prio, priority.item(priority.argmax()))
        self._min_prio = min(self._min_prio, priority.item(priority.argmin()))

    def __getitem__(self, index: slice | int | list[Any] | np.ndarray) -> Batch:
        """Return rows with their importance weights, as `batch.weight`.

        Parameters
        ----------
        index : slice, int, list or np.ndarray
            ``[:]`` is every row, oldest first; a mask has one element per row of the storage.

        Returns
        -------
        Batch
            Copies, stacked and with ``obs_next`` looked up as the buffer was set up to.
        """
        index = self._as_index(index)
        batch = None
        if type(index) is np.ndarray and index.ndim == 1:
            batch = rows.gather(self, self._meta.__dict__, index, self._save_obs_next)
        if batch is None:
            batch = super(_Stock, self).__getitem__(index)
        weight = np.asarray(self.get_weight(index))
        if self._weight_norm and weight.size:
            weight = weight / weight.item(weight.argmax())
        batch.__dict__["weight"] = np.asarray(weight)
        return batch

    def set_beta(self, beta: float) -> None:
        """Set how much the importance weights correct, from the next batch on.

        Raises AssertionError, also a ValueError, if it is negative or not finite, TypeError if it
        is no number.
        """
        self._beta = as_beta(beta)

    def reset(self, keep_statistics: bool = False) -> None:
        """Forget all rows and priorities, and the largest and least priority seen. O(size).

        Parameters
        ----------
        keep_statistics : bool
            Go on counting the return and the length of the episode at hand.
        """
        super().reset(keep_statistics=keep_statistics)
        self._max_prio = self._min_prio = 1.0
        # one of several buffers has none: the priorities are with them together
        if "weight" in self.__dict__:
            self.weight = SegmentTree(self.maxsize)

    def dropnull(self) -> None:
        """Drop the rows in which a value is missing, and their priorities with them. O(size), slowly."""
        kept = [i for i, row in enumerate(self._meta) if not row.hasnull()]
        mass = self.weight[np.array(kept, int)]
        super().dropnull()
        self.weight = SegmentTree(self.maxsize)
        self.weight[np.arange(len(kept))] = mass

    def hasnull(self) -> bool:
        """Tell whether a value is missing in any row: a NaN, or a None among objects.

        Notes
        -----
        O(rows written since the last call). Of rows changed by other means than the methods of the
        buffer, each call examines 256 KiB more.
        """
        return not self._null_scan.finds_none(self._meta.__dict__) and super().hasnull()

    def set_array_at_key(
        self, seq: np.ndarray, key: str, index: Any = None, default_value: float | None = None
    ) -> None:
        """Set a field, or some rows of it, or make a new one.

        Parameters
        ----------
        seq : np.ndarray
            The values, as long as `index`.
        key : str
            The field.
        index : index of rows, optional
            By default all.
        default_value : float, optional
            What the other rows of a new field hold.
        """
        super().set_array_at_key(seq, key, index, default_value)
        self._null_scan.forget()

    def set_batch(self, batch: Batch) -> None:
        """Take the rows of `batch`, of the size of the buffer, as storage; priorities stay.

        Raises AssertionError if its length or its fields are others.
        """
        super().set_batch(batch)
        self._null_scan.forget()

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Write all to an HDF5 file, for `load_hdf5`.

        Parameters
        ----------
        path : str
            The file; it is overwritten.
        compression : str, optional
            As for `h5py.Group.create_dataset`.
        """
        with h5py.File(path, "w") as file:
            to_hdf5(self.__getstate__(), file, compression=compression)

    def __getstate__(self) -> dict[str, Any]:
        """Return all there is; the stream of draws as numbers, since NumPy 1 reads no RandomState that NumPy 2 pickled."""
        return {**self.__dict__, "_random_state": self._random_state.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle or an HDF5 file of ours, or an HDF5 file that stock saved."""
        check_format(type(self).__name__, int(state.get("_format", _FORMAT)), _FORMAT)
        state = dict(state)
        if isinstance(state.get("_random_state"), tuple):
            state["_random_state"] = draws.stream(state["_random_state"])
        super().__setstate__(state)
        self._format = _FORMAT
        self._null_scan = NullScan()
        if "weight" in self.__dict__:
            self.weight = as_segment_tree(self.weight)

    def _pairs(self, batch: Batch, n: int, keys: Any) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """Return what is to be written where if `batch` has n rows of nothing but numbers, else None."""
        stored = self._meta.__dict__
        if "done" not in stored:
            return None
        new = rows.new_fields(batch, keys, self._save_only_last_obs, self._save_obs_next)
        return None if new is None else rows.pair(stored, new, n)

    def _as_index(self, index: Any) -> Any:
        """Return slices, masks and lists as arrays of indices."""
        if type(index) is np.ndarray:
            return self._indices[index] if index.dtype == bool else index
        if isinstance(index, slice):
            return (
                self.sample_indices(0)
                if index == slice(None)
                else self._indices[: len(self)][index]
            )
        if isinstance(index, list):
            return self._indices[index]
        return index

    def _all_shuffled(self) -> np.ndarray:
        if isinstance(self, ReplayBufferManager):  # stock's order
            return super(_Stock, self).sample_indices(None)
        return self._random_state.permutation(super(_Stock, self).sample_indices(0))
