"""Tianshou's prioritized replay buffer with a K-ary sum tree."""

from __future__ import annotations

import operator
from typing import Any

import h5py
import numpy as np
import tianshou.data
import torch
from tianshou.data import Batch, ReplayBuffer, to_numpy
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
from kary_replay.adapters.tianshou.recycled_arrays import RecycledArrays
from kary_replay.adapters.tianshou.segment_tree import SegmentTree, as_segment_tree
from kary_replay.adapters.tianshou.uniform_share import ShareOfDraws
from kary_replay.errors import IndexRangeError
from kary_replay.types import UniformShare

_TianshouBuffer = tianshou.data.PrioritizedReplayBuffer
_FORMAT = 1
_EPSILON = np.finfo(np.float32).eps.item()  # the number that Tianshou adds to every |TD error|
_TINY = np.finfo(np.float64).tiny.item()


class PrioritizedReplayBuffer(_TianshouBuffer):
    """Prioritized replay for Tianshou's off-policy algorithms, which stay as they are.

    Parameters
    ----------
    size : int
        The number of rows.
    alpha : float
        The exponent of the priorities, above 0. A row of priority p has mass p**alpha, and is drawn
        with a probability in proportion to its mass.
    beta : float
        The exponent of the importance weights, at least 0: the share of the bias that they correct.
        With 1 they correct all of it.
    weight_norm : bool
        Whether to divide the weights of a batch by the largest of them. Otherwise the least
        priority seen so far has weight 1. It has no effect with a uniform share above 0.
    uniform_share : float or "auto"
        The share of draws that go to all rows alike, in [0, 1]. With 0, draws and weights are those
        of Tianshou's own class. Above 0, weights are (N · P(j)) ** -beta and at most
        uniform_share ** -beta. "auto" is 0.1 while few rows have most of the TD errors, and 1 until
        that is known, and while there is little to gain by priorities: so hyperparameters that were
        tuned for uniform replay can stay (docs/prioritized_replay.md, "Where priorities pay"). It
        takes gradients to be as large as TD errors, which they are with a squared loss, Tianshou's
        default.
    **kwargs
        The parameters of `tianshou.data.ReplayBuffer`: ``stack_num``, ``ignore_obs_next``,
        ``save_only_last_obs``, ``sample_avail``, ``random_seed``. `random_seed` seeds the draws,
        which do not depend on NumPy's global state.

    Attributes
    ----------
    weight : SegmentTree
        The mass of each row, priority**alpha.

    Raises
    ------
    AssertionError
        If alpha, beta or uniform_share is out of range. The error is a ValueError as well.
    TypeError
        If one of them is not a number.

    Notes
    -----
    One thread at a time may use the buffer, like Tianshou's own. Without a uniform share the
    importance weight of row j is ``(mass_j / least mass) ** -beta``. It equals (N · P(j)) ** -beta
    divided by the largest such weight, because N and the total mass cancel. Rows without mass are
    never drawn, and have the weight of the least mass. With a uniform share, N are the rows with
    mass, and with ``sample_avail`` P(j) is that among all of them. Source: Schaul et al. (2016),
    arXiv:1511.05952, section 3.4.

    Examples
    --------
    >>> from tianshou.data import Batch
    >>> from kary_replay.adapters.tianshou import PrioritizedReplayBuffer
    >>> buffer = PrioritizedReplayBuffer(100, alpha=0.6, beta=0.4)
    >>> for step in range(10):
    ...     ends = {"terminated": False, "truncated": False}
    ...     row = Batch(obs=step, act=0, rew=1.0, obs_next=step + 1, **ends)
    ...     index, _, _, _ = buffer.add(row)
    >>> batch, index = buffer.sample(4)
    >>> batch.weight
    array([1., 1., 1., 1.])
    >>> buffer.update_weight(index, np.array([0.1, 2.0, 0.3, 0.4]))
    """

    # The methods __init__, add, sample_indices and __getitem__ of Tianshou's prioritized buffer are
    # not called. `super(_TianshouBuffer, self)` skips them and reaches its base class.
    def __init__(
        self,
        size: int,
        alpha: float,
        beta: float,
        weight_norm: bool = True,
        uniform_share: UniformShare = 0.0,
        **kwargs: Any,
    ) -> None:
        ReplayBuffer.__init__(self, size, **kwargs)
        self._prioritize(alpha, beta, weight_norm, uniform_share)

    def _prioritize(
        self,
        alpha: float,
        beta: float,
        weight_norm: bool,
        uniform_share: UniformShare,
    ) -> None:
        """Add the priorities to a buffer that has none yet."""
        self._alpha, self._beta = as_alpha(alpha), as_beta(beta)
        self._weight_norm = bool(weight_norm)
        self._draw_alike(ShareOfDraws(uniform_share))
        self._max_prio = self._min_prio = 1.0
        self.weight = SegmentTree(self.maxsize)
        self._null_scan, self._recycled = NullScan(), RecycledArrays()
        self._format = _FORMAT
        self.options.update(
            alpha=alpha, beta=beta, weight_norm=weight_norm, uniform_share=uniform_share
        )

    def init_weight(self, index: int | np.ndarray) -> None:
        """Give new rows the largest priority seen so far, which is at least 1.

        Raises AssertionError, which is also an IndexError, if an index is not in 0 … size - 1.
        """
        self.weight[index] = self._max_prio**self._alpha

    def update(self, buffer: ReplayBuffer) -> np.ndarray:
        """Append all rows of another buffer, oldest first, as new ones.

        Parameters
        ----------
        buffer : ReplayBuffer
            A buffer of Tianshou's or ours. Its priorities are not copied.

        Returns
        -------
        int64 [B]
            The rows that were written, in order; empty if there was nothing to write.
        """
        index = super(_TianshouBuffer, self).update(buffer)
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
            The row: ``obs``, ``act``, ``rew``, ``terminated``, ``truncated`` and any further
            fields.
        buffer_ids : sequence of int, optional
            ``[0]`` if every field has a leading axis of length 1, as collectors give it.

        Returns
        -------
        index, episode_return, episode_length, episode_start : np.ndarray
            Four arrays [1]. Return and length are 0 unless the episode ends with this row.

        Raises
        ------
        ValueError
            If a required field is missing, or `buffer_ids` is neither None nor ``[0]``.
        """
        pairs = None
        if buffer_ids is not None and len(buffer_ids) == 1 and buffer_ids[0] == 0:
            pairs = self._pairs(batch, 1, None)
        if pairs is None:
            result = super(_TianshouBuffer, self).add(batch, buffer_ids)
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
            The number of rows, as in `sample_indices`.

        Returns
        -------
        batch : Batch
            The rows, with their importance weights as ``weight``, float64 [B].
        index : int64 [B]
            The indices of the rows, for `update_weight`.

        Raises
        ------
        ValueError, TypeError
            If there is nothing to draw, or batch_size is not an integer.
        """
        index = self.sample_indices(batch_size)
        return self[index], index

    def sample_indices(self, batch_size: int | None) -> np.ndarray:
        """Draw rows in proportion to their masses, each draw independent of the others.

        Parameters
        ----------
        batch_size : int or None
            The number of draws B. 0 returns all rows, oldest first, environment by environment; a
            negative number none; and None all rows in a random order.

        Returns
        -------
        int64 [B]
            The rows. With ``stack_num > 1`` and ``sample_avail`` they are rows that have all their
            earlier frames.

        Raises
        ------
        ValueError
            If there is nothing to draw.
        TypeError
            If batch_size is not an integer.

        Notes
        -----
        The cost is O(B · log(size)). The draws come from the random stream of `random_seed`.
        """
        if batch_size is None:
            return self._random_state.permutation(self.sample_indices(0))
        n = operator.index(batch_size)
        if n <= 0:
            return super(_TianshouBuffer, self).sample_indices(n)
        if self.stack_num == 1 or not self._sample_avail:
            return draws.draw(self, n)
        return draws.draw_available(self, n)

    def get_weight(self, index: int | np.ndarray) -> float | np.ndarray:
        """Return importance weights: (mass / least mass) ** -beta, which are at most 1.

        With a uniform share above 0 they are (N · P) ** -beta.

        Parameters
        ----------
        index : int or array of int
            The rows, in any shape. Negative numbers count from the end.

        Returns
        -------
        float64
            The weights, in the shape of `index`.

        Raises
        ------
        IndexError
            If an index is out of range.
        """
        return self._weights(self._mass(index), 0.0)

    def update_weight(self, index: np.ndarray, new_weight: np.ndarray | torch.Tensor) -> None:
        """Set the priorities of rows to |new_weight| plus a small number above 0.

        Parameters
        ----------
        index : int or array of int [B]
            The rows, as `sample` returned them. If one comes twice, the last value wins.
        new_weight : array or torch.Tensor [B]
            The TD errors, which are finite. Their signs do not matter.

        Raises
        ------
        ValueError
            If a value is NaN or infinite, or a length differs. No priority has changed then.
        AssertionError
            If an index is not in 0 … size - 1. The error is an IndexError as well, and no priority
            has changed.

        Notes
        -----
        The cost is O(B · log(size)). A row that was overwritten since it was drawn gets the
        priority of its predecessor, because Tianshou's indices do not tell the two apart.
        """
        is_tensor = isinstance(new_weight, torch.Tensor)
        td_error = new_weight.numpy(force=True) if is_tensor else to_numpy(new_weight)
        priority = np.abs(td_error, dtype=np.float64) + _EPSILON
        if not priority.size:
            return
        share, relative = self._share, None
        try:
            if share.adapts:
                relative, errors = np.broadcast_arrays(self._relative(self._mass(index)), priority)
            self.weight.sum_tree.set(index, priority**self._alpha)
        except IndexRangeError as error:
            raise LeafIndexError(f"update_weight: {error}") from None
        except ValueError as error:
            raise refused_priority(index, td_error, priority, str(error)) from None
        if relative is not None:
            share.learn(relative.ravel(), errors.ravel())
        # argmax and item take half the time of max
        self._max_prio = max(self._max_prio, priority.item(priority.argmax()))
        self._min_prio = min(self._min_prio, priority.item(priority.argmin()))
        if self._min_prio**self._alpha < _TINY:
            self.weight.may_have_gaps = True

    def __getitem__(self, index: slice | int | list[Any] | np.ndarray) -> Batch:
        """Return rows with their importance weights, as `batch.weight`.

        Parameters
        ----------
        index : slice, int, list or np.ndarray
            The rows. ``[:]`` is every row, oldest first, and a mask has one element for each row of
            the storage.

        Returns
        -------
        Batch
            Copies of the rows, with stacked frames and ``obs_next`` if the buffer is set up for
            them.
        """
        index = self._as_index(index)
        batch = None
        if type(index) is np.ndarray and index.ndim == 1:
            batch = rows.gather(
                self, self._meta.__dict__, index, self._save_obs_next, self._recycled
            )
        if batch is None:
            batch = super(_TianshouBuffer, self).__getitem__(index)
        mass = np.asarray(self._mass(index))
        # argmin and item take half the time of min
        least = mass.item(mass.argmin()) if self._weight_norm and mass.size else 0.0
        batch.__dict__["weight"] = np.asarray(self._weights(mass, least))
        return batch

    @property
    def uniform_share(self) -> float:
        """The present share of draws that go to all rows alike, in [0, 1].

        It can be set to a number, or to "auto", after which it adapts.
        """
        return self._share.value

    @uniform_share.setter
    def uniform_share(self, value: UniformShare) -> None:
        self._draw_alike(ShareOfDraws(value))
        self.options["uniform_share"] = value

    def _draw_alike(self, share: ShareOfDraws) -> None:
        """Have a share of the draws from all rows alike; the rings of a vector buffer tell it."""
        self._share = share
        for ring in self.__dict__.get("buffers", ()):
            ring._share = share

    @property
    def least_noise(self) -> float:
        """How noisy batches would be at best, as a share of the noise of uniform replay.

        It is near 0 if few rows have most of the error, and 1 if there is nothing to prioritize. It
        is known only with ``uniform_share="auto"``, and NaN otherwise.
        """
        return self._share.least_noise

    def set_beta(self, beta: float) -> None:
        """Set beta, the exponent of the importance weights, for all later batches.

        Raises AssertionError, which is also a ValueError, if beta is negative or not finite, and
        TypeError if it is not a number.
        """
        self._beta = as_beta(beta)

    def reset(self, keep_statistics: bool = False) -> None:
        """Forget all rows and priorities, and the largest and the least priority seen.

        The cost is O(size).

        Parameters
        ----------
        keep_statistics : bool
            Whether to go on counting the return and the length of the present episode.
        """
        super().reset(keep_statistics=keep_statistics)
        self._max_prio = self._min_prio = 1.0
        self._draw_alike(ShareOfDraws(self._share.given))
        # The ring of a vector buffer has no tree: the vector buffer holds the priorities.
        if "weight" in self.__dict__:
            self.weight = SegmentTree(self.maxsize)

    def dropnull(self) -> None:
        """Drop the rows in which a value is missing, and their priorities; slow, O(size)."""
        kept = [i for i, row in enumerate(self._meta) if not row.hasnull()]
        mass = self.weight[np.array(kept, int)]
        super().dropnull()
        self.weight = SegmentTree(self.maxsize)
        self.weight[np.arange(len(kept))] = mass

    def hasnull(self) -> bool:
        """Tell whether a value is missing in any row: a NaN, or a None among objects.

        Notes
        -----
        The cost is O(rows written since the last call). Each call also examines 256 KiB of the
        other rows, which may have been changed by other means than the methods of the buffer.
        """
        return not self._null_scan.finds_none(self._meta.__dict__) and super().hasnull()

    def set_array_at_key(
        self, seq: np.ndarray, key: str, index: Any = None, default_value: float | None = None
    ) -> None:
        """Set a field or some rows of it, or make a new field.

        Parameters
        ----------
        seq : np.ndarray
            The values, one for each row of `index`.
        key : str
            The name of the field.
        index : index of rows, optional
            The rows; by default all.
        default_value : float, optional
            The value of the other rows of a new field.
        """
        super().set_array_at_key(seq, key, index, default_value)
        self._null_scan.forget()

    def set_batch(self, batch: Batch) -> None:
        """Make the rows of `batch` the storage of the buffer, and keep the priorities.

        Raises AssertionError if the length of `batch` is not the size of the buffer, or its fields
        are not those of a buffer.
        """
        super().set_batch(batch)
        self._null_scan.forget()

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Write the buffer to an HDF5 file, for `load_hdf5`.

        Parameters
        ----------
        path : str
            The path of the file, which is overwritten.
        compression : str, optional
            The compression, as in `h5py.Group.create_dataset`.
        """
        with h5py.File(path, "w") as file:
            to_hdf5(self.__getstate__(), file, compression=compression)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state, with the random stream as numbers.

        NumPy 1 cannot read a RandomState that NumPy 2 has pickled.
        """
        return {**self.__dict__, "_random_state": self._random_state.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle or an HDF5 file of ours, or an HDF5 file of Tianshou's own buffer."""
        check_format(type(self).__name__, int(state.get("_format", _FORMAT)), _FORMAT)
        state = dict(state)
        if isinstance(state.get("_random_state"), tuple):
            state["_random_state"] = draws.stream(state["_random_state"])
        super().__setstate__(state)
        self._format = _FORMAT
        self._null_scan, self._recycled = NullScan(), RecycledArrays()
        self.__dict__.setdefault("_share", ShareOfDraws(0.0))  # older states have none
        if "weight" in self.__dict__:
            self.weight = as_segment_tree(self.weight)

    def _mass(self, index: Any) -> float | np.ndarray:
        """Return the masses of rows; negative numbers count from the end."""
        try:
            return self.weight[index]
        except IndexRangeError:
            at = np.asarray(index)
            return self.weight[np.where(at < 0, at + self.maxsize, at)]

    def _relative(self, mass: Any) -> Any:
        """Return masses over the mean one of the rows that have mass."""
        return mass * (self.weight.n_with_mass(len(self)) / max(self.weight.sum_tree.total, _TINY))

    def _weights(self, mass: Any, least: float) -> Any:
        """Return importance weights, of which the mass `least` has weight 1.

        No mass counts as less than that of the least priority seen. With a uniform share, weights
        are bounded without that, and not scaled.
        """
        if self._share.value:
            return self._share.chance(self._relative(mass)) ** -self._beta
        floor = max(self._min_prio**self._alpha, _TINY)
        if least < floor:
            mass, least = np.maximum(mass, floor), floor
        return (mass / least) ** -self._beta

    def _pairs(self, batch: Batch, n: int, keys: Any) -> list[tuple[np.ndarray, np.ndarray]] | None:
        """Return the stored arrays with their n new rows if all fields are numeric, or None."""
        stored = self._meta.__dict__
        if "done" not in stored:
            return None
        new = rows.new_fields(batch, keys, self._save_only_last_obs, self._save_obs_next)
        return None if new is None else rows.pair(stored, new, n)

    def _as_index(self, index: Any) -> Any:
        """Return a slice, a mask or a list as an array of indices, and all else as it is."""
        if type(index) is np.ndarray:
            return self._indices[index] if index.dtype == bool else index
        if isinstance(index, slice):
            if index == slice(None):
                return self.sample_indices(0)
            return self._indices[: len(self)][index]
        if isinstance(index, list):
            return self._indices[index]
        return index
