"""The prioritized replay buffer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..core.slots import PROPORTIONAL, RANKED
from ..core.sum_tree import SumTree
from ..fields import Fields
from ..types import Batch, UniformShare
from ..validation import as_fraction, as_positive, as_share
from .replay_buffer import ReplayBuffer

__all__ = ["PrioritizedReplayBuffer"]

BY_RANK = {"prioritization": "rank"}  # the options of a buffer that selects so


class PrioritizedReplayBuffer(ReplayBuffer):
    """A ring of transitions, of which those with large TD errors are drawn more often.

    Rows are drawn in proportion to priority ** alpha, a share of them uniformly if you wish, and
    importance weights correct for it.

    Parameters
    ----------
    capacity, fields, seed, shared, storage_directory
        As for ReplayBuffer.
    alpha : float
        0 to 1: how much priorities count; 0 draws uniformly.
    beta : float
        0 to 1: how far importance weights correct for it; 1 corrects fully. Below 1, learning is
        biased towards rows with large errors.
    priority_epsilon : float
        Above 0; added to every |TD error|, so that no row is lost for ever.
    prioritization : "proportional" or "rank"
        Whether a row's mass is priority ** alpha, or rank ** -alpha, the row of the largest
        priority having rank 1 (Schaul et al. 2016, section 3.3): robust against outliers, blind to
        how far errors differ. See `rank`.
    uniform_share : float or "auto"
        0 to 1: the share of draws that go to all rows alike, whatever their priorities. Then no
        row is drawn more rarely than that share of how often uniform replay draws it, and no weight
        exceeds uniform_share ** -beta. With 0, as in Schaul et al. (2016), weights have no bound
        and are divided by the largest of their batch. "auto" is 0.1 while priorities pay, that is
        while `least_noise` is below 0.5, and 1 while they do not, and until 10,000 TD errors have
        come back. It takes the gradient of a row to be as large as its TD error, so TD errors
        should end where a Huber loss turns linear.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As for ReplayBuffer; the memory is about 19 bytes more per transition.

    Notes
    -----
    Any number of threads may ``add``, ``sample`` and ``update_priorities`` at once: no row is torn,
    none of mass 0 is drawn, and a priority never lands on a row that has been overwritten since.
    With N rows that have mass, P(i) = (1 - uniform_share) mass_i / total + uniform_share / N is
    exact at rest. A batch is not a snapshot. docs/concurrency.md states the promise in full.

    Schaul et al. (2016), Prioritized experience replay, arXiv:1511.05952; equations 1 and 2.

    Examples
    --------
    >>> import kary_replay as kr
    >>> fields = {"observation": kr.Field((2,), "float32"), "reward": kr.Field((), "float32")}
    >>> buffer = kr.PrioritizedReplayBuffer(100, fields, alpha=0.6, beta=0.4, seed=0)
    >>> index = buffer.add(observation=[[0, 1], [2, 3]], reward=[0.5, 1.0])
    >>> batch = buffer.sample(2)
    >>> buffer.update_priorities(batch.handle, [0.1, -2.0])
    2
    >>> buffer.max_priority
    2.000001
    """

    def __init__(
        self,
        capacity: int,
        fields: Fields,
        alpha: float = 0.6,
        beta: float = 0.4,
        priority_epsilon: float = 1e-6,
        seed: int | None = None,
        shared: bool = False,
        storage_directory: str | os.PathLike[str] | None = None,
        prioritization: Literal["proportional", "rank"] = "proportional",
        uniform_share: UniformShare = 0.0,
    ) -> None:
        if prioritization not in ("proportional", "rank"):
            raise ValueError(
                f"prioritization must be 'proportional' or 'rank', got {prioritization!r}"
            )
        if prioritization == "rank":
            self._options = BY_RANK
        alpha, beta = as_fraction("alpha", alpha), as_fraction("beta", beta)
        epsilon = as_positive("priority_epsilon", priority_epsilon)
        uniform_share = as_share("uniform_share", uniform_share)
        super().__init__(
            capacity, fields, seed=seed, shared=shared, storage_directory=storage_directory
        )
        slots = self._slots
        slots.set_alpha(alpha)
        slots.beta, slots.priority_epsilon = beta, epsilon
        self.uniform_share = uniform_share

    @property
    def alpha(self) -> float:
        """How much priorities count, 0 to 1; settable.

        Setting gives every row the mass of its priority under the new exponent. Priorities are
        stored, so setting the old alpha again restores the old masses bit for bit. It costs
        O(capacity), done in pieces beside the others: meanwhile they draw some rows by old masses
        and some by new ones. Importance weights belong to the masses that rows were drawn by.

        Raises MemoryError, with nothing changed, if there is no memory to compute the masses in.
        """
        return self._slots.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._slots.set_alpha(as_fraction("alpha", value))

    @property
    def beta(self) -> float:
        """Exponent of the importance weights, 0 to 1; settable at any time.

        The next ``sample`` of any process uses it.
        """
        return self._slots.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._slots.beta = as_fraction("beta", value)

    @property
    def priority_epsilon(self) -> float:
        """What is added to every |TD error|; settable, above 0."""
        return self._slots.priority_epsilon

    @priority_epsilon.setter
    def priority_epsilon(self, value: float) -> None:
        self._slots.priority_epsilon = as_positive("priority_epsilon", value)

    @property
    def uniform_share(self) -> float:
        """The share of draws that go to all rows alike, 0 to 1; settable at any time.

        The next ``sample`` of any process uses it. Set to "auto", it adapts from then on, and
        reading it gives the share that it has now. Setting it forgets what was known of the noise.
        """
        return self._slots.uniform_share

    @uniform_share.setter
    def uniform_share(self, value: UniformShare) -> None:
        share = as_share("uniform_share", value)
        self._slots.set_share(1.0 if share == "auto" else share, share == "auto")

    @property
    def relative_noise(self) -> float:
        """How noisy batches are, as a share of the noise of uniform replay.

        Below 1, priorities pay: batches of the same size tell the learner more. It is the mean of
        w² · TD error² over the mean of w · TD error², w being a drawn row's weight with beta = 1,
        in about the last 10,000 rows that priorities were updated of; NaN before that. It takes
        gradients to be as large as TD errors. Handles that come back must be of batches that
        ``sample`` drew.
        """
        return self._slots.relative_noise

    @property
    def least_noise(self) -> float:
        """How noisy batches would be at best, as a share of the noise of uniform replay.

        So noisy are batches of rows drawn in proportion to their TD errors now. It is the square
        of the mean of |TD error| over the mean of TD error²: near 0 if few rows have most of the
        error, and 1 if all have the same, in which case there is nothing to prioritize. It is
        learned as `relative_noise` is.
        """
        return self._slots.least_noise

    @property
    def tree(self) -> SumTree:
        """The sum tree, whose leaf i is the mass of slot i.

        ``tree.get`` reads masses, and ``tree.set`` sets them without a handle. Set masses only of
        slots that hold a row. A mass stands for the priority that has it under the present alpha;
        mass 0 says that the row is no transition any more: no update brings it back.
        """
        return self._slots.tree

    @property
    def prioritization(self) -> str:
        """Whether masses go by priority ("proportional") or by its rank ("rank")."""
        return "rank" if "prioritization" in self._options else "proportional"

    def rank(self) -> None:
        """Give every row exactly the mass of its rank now, where prioritization is by rank.

        It does nothing where masses go by priority. It also happens by itself whenever as many
        priorities have changed as there are rows. In between, a new priority gets the mass of the
        rank that it would have had at the last time, to within 2.5 %. One of several equal
        priorities gets the mean of their masses. Those not below the largest take the masses of
        ranks 1, 2, … in turn. Of equal priorities, the lower slot ranks first.

        Raises MemoryError, with nothing changed, if there is no memory to sort them in, 32 bytes a
        row. O(n log n), done beside the others, who meanwhile draw some rows by old masses and some
        by new ones. A row whose priority they change meanwhile gets the mass of the rank that it
        would have had. Where it happens by itself, the call whose change was the last takes so
        long, and other threads' calls do not.
        """
        self._slots.rank()

    @property
    def total_mass(self) -> float:
        """Sum of all masses."""
        return self.tree.total

    @property
    def max_priority(self) -> float:
        """Largest priority seen, at least 1: what a new transition gets."""
        return self._slots.max_priority

    def add(
        self, /, *, priority: npt.ArrayLike | None = None, **fields: Any
    ) -> npt.NDArray[np.int64]:
        """Append one transition, or B of them; see ReplayBuffer.add.

        Parameters
        ----------
        priority : None, float or array of float [B]
            Raw priorities, finite and above 0; mass becomes priority ** alpha. None: the largest
            priority seen.
        **fields
            Every field by name.

        Returns
        -------
        int64 [B]
            The slots written.

        Raises
        ------
        FieldError, ValueError, TypeError
            If a field or a priority is wrong. No row of the batch is written then.

        Notes
        -----
        O(B · (bytes of a row + K · log_K(capacity))), GIL released; the lock is held for the tree,
        not for the copy.
        """
        return self._writer.add(self._by_leaf(fields) if self._nested else fields, priority)

    def sample(
        self,
        batch_size: int,
        *,
        stratified: bool = True,
        unique: bool = False,
        out: Batch | Mapping[str, Any] | None = None,
    ) -> Batch:
        """Draw ``batch_size`` rows with probability P(i), with replacement.

        Parameters
        ----------
        batch_size : int
            B, at least 1.
        stratified : bool
            True: each row comes from a part of its own of B equal parts of the total mass. Those of
            a uniform share do not: they are drawn independently, as by uniform replay. False: B
            independent draws.
        unique : bool
            True: without replacement. The rows are drawn one after the other, each with probability
            P(i) / (sum of P over the rows not drawn yet); there are no strata then.
        out : Batch or mapping, optional
            Where the batch goes; see ReplayBuffer.sample.

        Returns
        -------
        Batch
            The fields with a leading axis B; ``importance_weight`` float32 [B], (N · P(i)) ** -beta
            (if uniform_share is 0, over its largest in the batch); ``index``; ``handle`` for
            ``update_priorities``.

        Raises
        ------
        EmptyBufferError
            If there is no row with mass.
        ValueError, TypeError
            If batch_size is not an integer of at least 1, or more than there are rows with mass and
            ``unique`` is set; if an array of ``out`` does not fit, and nothing is drawn then.
        FieldError
            If ``out`` names what the batch does not have.

        Notes
        -----
        O(B · (bytes of a row + K · log_K(capacity))), with the GIL released and no lock. A row that
        another thread overwrites during the copy is drawn again from the same part. ``unique``
        repeats draws of rows that are in the batch already; where these hold nearly all the mass,
        it draws from a tree without them, which costs O(K · log_K(capacity)) a row.
        """
        sample = self._reader.sample  # refuses a closed buffer, whatever it was given
        given = None if out is None else self._arrays_of(out)
        return self._batch(sample(batch_size, stratified, unique, given))

    def update_priorities(self, handle: npt.NDArray[np.void], td_error: npt.ArrayLike) -> int:
        """Set priorities to |td_error| + priority_epsilon.

        Parameters
        ----------
        handle : array [B] of HANDLE_DTYPE
            ``batch.handle``, or rows of it.
        td_error : array of float [B] or [B, 1]
            Finite; the sign does not matter. Where a row comes twice, the last one wins.

        Returns
        -------
        int
            How many handles were applied. A handle whose row has been overwritten since changes
            nothing.

        Raises
        ------
        ValueError, TypeError
            If td_error is NaN or infinite, a length differs, or handle is no array of handles.
            Nothing is changed then.

        Notes
        -----
        O(B · K · log_K(capacity)), GIL released, under the lock.
        """
        return self._writer.update(handle, td_error)

    @classmethod
    def _checked_options(
        cls, capacity: int, fields: dict[str, Any], options: dict[str, Any]
    ) -> dict[str, Any]:
        if options not in ({}, BY_RANK):
            raise ValueError(f"options must be empty or {BY_RANK}, got {options!r}")
        return options

    @classmethod
    def _selection(cls, options: dict[str, Any]) -> int:
        return RANKED if options.get("prioritization") == "rank" else PROPORTIONAL

    def __getstate__(self) -> dict[str, Any]:
        return {
            **super().__getstate__(),
            "beta": self.beta,
            "priority_epsilon": self.priority_epsilon,
            "uniform_share": self.uniform_share,
            "adapts_share": self._slots.adapts_share,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        # older states have no share; what they know of the noise comes after it
        share = as_fraction("uniform_share", state.get("uniform_share", 0.0))
        self._slots.set_share(share, bool(state.get("adapts_share", False)))
        super()._restore(state)
        self.beta, self.priority_epsilon = state["beta"], state["priority_epsilon"]
