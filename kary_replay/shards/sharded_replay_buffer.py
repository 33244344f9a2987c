"""A prioritized replay buffer over shards, here or on other machines."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ..buffers.prioritized_replay_buffer import PrioritizedReplayBuffer
from ..core.sharded_reader import Plan, ShardedReader
from ..errors import FieldError, ShardError, ShardLostError
from ..types import SHARDED_HANDLE_DTYPE, Batch, UniformShare
from ..validation import as_array, as_count, as_float64, as_fraction, as_positive, as_share
from .checkpoint import save_shards, saved_shards
from .frame_rows import deal_frames
from .layout import Layout
from .local_shard import LocalShard
from .remote_shard import Asked, RemoteShard

__all__ = ["ShardedReplayBuffer"]

Self = TypeVar("Self", bound="ShardedReplayBuffer")

GOLDEN = 0.6180339887498949  # whose multiples, less their whole parts, lie evenly in [0, 1)
HEADROOM = 0.02  # of the bounds under which rows are accepted
MOST_ROUNDS = 1000  # of draws for what is missing of a batch
MOST_IN_VAIN = 20_000  # draws that bring no new row for a batch without repetition


class _Request(NamedTuple):
    """Batches that have been asked for."""

    plans: list[Plan]
    pending: list[tuple[int, Asked]]  # by the shards' numbers
    shards: int  # how often shards had come


class ShardedReplayBuffer:
    """Prioritized replay over shards, with the law of one buffer that has all their rows.

    Parameters
    ----------
    shards : sequence of PrioritizedReplayBuffer, FrameReplayBuffer or RemoteShard
        The shards, which have the same fields and are prioritized by priority, not by rank. A
        buffer, made here or attached to, is read directly.
    beta : float
        0 to 1: how far importance weights correct.
    uniform_share : float or "auto"
        As PrioritizedReplayBuffer has it, of all draws. What shards have themselves does not count.
    seed : None or int
        Of the draws.
    exact : None or "rejection"
        None: a row is drawn with probability q · mass / M, where q is the share of its shard in
        all mass as it was last known, and M the shard's mass at the draw. Weights are those of
        that probability, and `distance` says how far it is from one tree's. With "rejection",
        points are drawn under bounds a little above what shards have; a point that hits nothing is
        drawn anew among all shards, and rows have the probabilities of one tree at the draw.

    Raises
    ------
    ValueError, TypeError
        If there are no shards, or one comes twice; if their fields, alpha or priority_epsilon
        differ; if masses go by rank.

    Notes
    -----
    Any number of threads may use it, one at a time, and any number of processes may add to the
    shards and update them meanwhile. Which rows are overwritten first is up to each shard: a shard
    whose writers are faster forgets sooner.

    A shard that cannot be reached is lost: its mass leaves the root, draws go on among the others,
    and the handles of its rows are refused and counted. What is promised under way, and after a
    loss, is in docs/cluster.md.

    Examples
    --------
    >>> import kary_replay as kr
    >>> fields = {"reward": kr.Field((), "float32")}
    >>> shards = [kr.PrioritizedReplayBuffer(100, fields) for _ in range(3)]
    >>> buffer = kr.ShardedReplayBuffer(shards, seed=0)
    >>> for reward in ([0.5, 1.0], [1.5], [2.0, 2.5]):
    ...     buffer.add(reward=reward)
    >>> batch = buffer.sample(4)
    >>> buffer.update_priorities(batch.handle, batch.reward - 1.0)
    4
    >>> buffer.distance
    0.0
    """

    def __init__(
        self,
        shards: Sequence[PrioritizedReplayBuffer | RemoteShard],
        beta: float = 0.4,
        uniform_share: UniformShare = 0.0,
        seed: int | None = None,
        exact: Literal["rejection"] | None = None,
    ) -> None:
        if exact not in (None, "rejection"):
            raise ValueError(f"exact must be None or 'rejection', got {exact!r}")
        self._beta = as_fraction("beta", beta)
        share = as_share("uniform_share", uniform_share)
        if not isinstance(shards, Sequence):
            raise TypeError(f"shards must be a sequence, got {type(shards).__name__}")
        checked = [_checked(shard) for shard in shards]
        if not checked:
            raise ValueError("shards must have at least one")
        for number, shard in enumerate(checked):
            _refuse_unlike(number, shard, checked[:number])
        self._shards: list[LocalShard | RemoteShard] = checked
        self._layout = checked[0].layout
        # It has no rows: it checks and arranges what goes to shards, and comes from them.
        self._template = self._layout.template()
        self._leaves = self._layout.leaves
        self._headroom = HEADROOM if exact else 0.0
        self._reader = ShardedReader(
            [shard.reader for shard in checked], self._template._reader, len(checked[0].names), seed
        )
        self._epochs = [0] * len(checked)
        self._n_joined = 0
        self._lock = threading.RLock()
        self._next = 0  # the shard that the next rows go to
        self._n_sampled = self._n_refused = 0
        self.uniform_share = share
        self._take_over()

    def _take_over(self) -> None:
        """Learn what all shards say of themselves, and let them agree on the largest priority."""
        self._sort_out()
        for s in range(len(self._shards)):
            self._learn(s)
        self._epsilon = float(self._first("priority_epsilon"))
        self._largest = min(self._each("largest_priority")) / len(self._shards)
        self._share_max_priority()

    # ------------------------------------------------------------------------- what is known

    def _learn(self, s: int) -> None:
        """Take over what a shard says of itself; nothing is left of one that is lost."""
        shard = self._shards[s]
        vitals = shard.vitals
        total, n_rows = float(vitals["total"]), float(vitals["n_rows"])
        if shard.is_lost:
            total = n_rows = 0.0
        self._reader.learn(s, total, n_rows, int(vitals["capacity"]), self._epochs[s])

    def _sort_out(self) -> None:
        """List the shards of this process, and those elsewhere that are not lost."""
        self._here = [shard for shard in self._shards if isinstance(shard, LocalShard)]
        self._far = [
            (s, shard)
            for s, shard in enumerate(self._shards)
            if isinstance(shard, RemoteShard) and not shard.is_lost
        ]

    def _lose(self, s: int) -> None:
        """Draw from the others; ShardLostError if there are none."""
        self._learn(s)
        self._sort_out()
        if all(shard.is_lost for shard in self._shards):
            raise ShardLostError("all shards are lost")

    def _alive(self) -> Iterator[tuple[int, LocalShard | RemoteShard]]:
        """Yield the shards that are not lost, with their numbers."""
        self._refuse_closed()
        for s, shard in enumerate(self._shards):
            if not shard.is_lost:
                yield s, shard

    def _each(self, name: str) -> list[Any]:
        """Return what the shards that are not lost say of themselves."""
        return [shard.vitals[name].item() for _, shard in self._alive()]

    def _first(self, name: str) -> Any:
        """Return what all shards have alike; ShardLostError if there are none."""
        for _, shard in self._alive():
            return shard.vitals[name].item()
        raise ShardLostError("all shards are lost")

    def __len__(self) -> int:
        """Return the number of rows that can be drawn, as far as it is known."""
        return int(sum(self._each("size")))

    def __repr__(self) -> str:
        return (
            f"ShardedReplayBuffer({len(self)} of {self.capacity} rows, "
            f"{sum(1 for _ in self._alive())} of {self.n_shards} shards)"
        )

    @property
    def n_shards(self) -> int:
        """Shards, those that are lost among them."""
        return len(self._shards)

    @property
    def lost(self) -> list[int]:
        """The numbers of the shards that are lost."""
        return [s for s, shard in enumerate(self._shards) if shard.is_lost]

    @property
    def capacity(self) -> int:
        """Transitions kept, in all shards."""
        return int(sum(self._each("capacity")))

    @property
    def n_added(self) -> int:
        """Transitions ever added to the shards."""
        return int(sum(self._each("n_added")))

    @property
    def n_sampled(self) -> int:
        """Transitions ever drawn by this object."""
        return self._n_sampled

    @property
    def n_refused(self) -> int:
        """Priorities that were refused, for their rows were of a shard that is lost."""
        return self._n_refused

    @property
    def fields(self) -> dict[str, Any]:
        """The fields, nested as given."""
        return self._template.fields

    @property
    def total_mass(self) -> float:
        """Sum of all masses, as far as it is known."""
        return float(sum(self._each("total")))

    @property
    def max_priority(self) -> float:
        """The largest priority seen in any shard: what a new transition gets."""
        return max((shard.max_priority for _, shard in self._alive()), default=1.0)

    @property
    def distance(self) -> float:
        """How far the law of the last batch was from one tree's: the total variation, 0 to 1.

        Where a share of the draws is uniform, it is a bound. It compares the totals that the batch
        was divided by with those that were known when it was complete.
        """
        return float(self._reader.distance)

    # -------------------------------------------------------------------------------- settings

    @property
    def beta(self) -> float:
        """Exponent of the importance weights, 0 to 1; settable at any time."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = as_fraction("beta", value)

    @property
    def alpha(self) -> float:
        """How much priorities count, 0 to 1; settable, in all shards."""
        return float(self._first("alpha"))

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._set("alpha", as_fraction("alpha", value))

    @property
    def priority_epsilon(self) -> float:
        """What is added to every |TD error|; settable, in all shards."""
        return self._epsilon

    @priority_epsilon.setter
    def priority_epsilon(self, value: float) -> None:
        self._set("priority_epsilon", as_positive("priority_epsilon", value))

    def _set(self, name: str, value: float) -> None:
        """Set what all shards have in common, and wait until they have it."""
        with self._lock:
            for s, shard in self._alive():
                self._try(s, shard.set, name, value)
            self.settle()
            self._take_over()

    @property
    def uniform_share(self) -> float:
        """The share of draws that go to all rows alike, 0 to 1, or "auto"; settable at any time.

        Reading it gives the share that it has now.
        """
        return float(self._reader.share)

    @uniform_share.setter
    def uniform_share(self, value: UniformShare) -> None:
        share = as_share("uniform_share", value)
        adapts = share == "auto"
        with self._lock:
            self._reader.set_share(1.0 if adapts else float(share), adapts)

    @property
    def relative_noise(self) -> float:
        """As PrioritizedReplayBuffer has it, learned from the updates of this object."""
        return float(self._reader.noise()[0])

    @property
    def least_noise(self) -> float:
        """As PrioritizedReplayBuffer has it, learned from the updates of this object."""
        return float(self._reader.noise()[1])

    # --------------------------------------------------------------------- shards come and go

    def join(self, shard: PrioritizedReplayBuffer | RemoteShard) -> int:
        """Draw from one more shard; return its number.

        It takes the number of one that is lost, if there is one, whose handles stay refused, and
        the alpha and priority_epsilon of the others. What `batches` had asked for is asked for
        anew. Raises ValueError or TypeError as the constructor does.
        """
        new = _checked(shard)
        with self._lock:
            self._refuse_closed()
            _refuse_other_fields(len(self._shards), new, self._layout)
            _refuse_twice(len(self._shards), new, [one for _, one in self._alive()])
            for name in ("alpha", "priority_epsilon"):
                if any(True for _ in self._alive()):
                    new.set(name, self._first(name))
            new.settle()
            lost = self.lost
            s = lost[0] if lost else len(self._shards)
            if lost:
                self._shards[s].close()
                self._shards[s] = new
                self._epochs[s] += 1
            else:
                self._shards.append(new)
                self._epochs.append(0)
            self._n_joined += 1
            self._reader.take_over([one.reader for one in self._shards])
            self._take_over()
            return s

    def leave(self, number: int) -> None:
        """Give up a shard elsewhere, whose machine is known to be gone.

        It counts as lost at once, and nobody waits for it. One that is lost already stays so.
        Raises IndexError if there is no such shard, and ValueError if it is one of this process.
        """
        with self._lock:
            self._refuse_closed()
            if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
                raise TypeError(f"number must be an integer, got {number!r}")
            if not 0 <= number < len(self._shards):
                raise IndexError(f"number must be below {len(self._shards)}, got {number}")
            shard = self._shards[number]
            if not isinstance(shard, RemoteShard):
                raise ValueError(f"shard {number} is in this process, and cannot be gone")
            if not shard.is_lost:
                with contextlib.suppress(ShardLostError):  # that all are lost, draws will say
                    self._try(number, shard.lose, "it was said to be gone")

    def _try(self, s: int, call: Any, *arguments: Any) -> Any:
        """Call something of a shard; None, with the shard out of the root, if it is lost."""
        try:
            return call(*arguments)
        except ShardLostError:
            self._lose(s)
            return None

    # -------------------------------------------------------------------------- rows come and go

    def add(self, /, *, priority: npt.ArrayLike | None = None, **fields: Any) -> None:
        """Append one transition, or B of them, to the shard whose turn it is.

        Parameters
        ----------
        priority : None, float or array of float [B]
            Raw priorities, finite and above 0. None: the largest seen in any shard, as far as the
            shard knows it.
        **fields
            Every field by name.

        Raises
        ------
        FieldError, ValueError, TypeError
            If a field or a priority is wrong. No row of the batch is written then. TypeError, too,
            if shards keep frames once: their rows come from writers beside each.
        ShardLostError
            If all shards are lost.

        Notes
        -----
        Rows for a shard elsewhere are sent, and `settle` waits until it has them.
        """
        if self._layout.stacks:
            self._template.add()
        columns = self._template._by_leaf(fields)
        n = self._checked_rows(columns)
        given = None if priority is None else self._checked_priorities(priority, n)
        with self._lock:
            while True:
                s, shard = self._whose_turn()
                try:
                    shard.add(columns, given)
                    break
                except ShardLostError:
                    self._lose(s)
            if priority is not None:
                self._share_max_priority()

    def _checked_priorities(self, priority: npt.ArrayLike, n: int) -> npt.NDArray[np.float64]:
        """Return priorities of n rows that every shard can have, and all together."""
        checked: npt.NDArray[np.float64] = self._template._writer.priorities(priority, n)
        self._refuse_too_large("priority", checked)
        return checked

    def _refuse_too_large(self, name: str, priority: npt.NDArray[np.float64]) -> None:
        too_large = np.flatnonzero(priority > self._largest)
        if len(too_large):
            at = int(too_large[0])
            raise ValueError(
                f"{name} must lead to priorities of at most {self._largest:.3g}, "
                f"got {priority[at]} at position {at}"
            )

    def _whose_turn(self) -> tuple[int, LocalShard | RemoteShard]:
        """Return the shard that the next rows go to."""
        alive = list(self._alive())
        if not alive:
            raise ShardLostError("all shards are lost")
        turn = next((one for one in alive if one[0] >= self._next), alive[0])
        self._next = (turn[0] + 1) % len(self._shards)
        return turn

    def _checked_rows(self, columns: dict[str, Any]) -> int:
        """Cast columns to their fields, with a batch axis; return how many rows they have."""
        n: int | None = None
        for number, (name, field) in enumerate(
            zip(self._template._names, self._leaves, strict=True)
        ):
            columns[name], rows = field.cast(name, columns[name])
            if number and rows != n:
                raise FieldError(
                    f"{name} has {_say_rows(rows)}, {self._template._names[0]} has {_say_rows(n)}: "
                    "give all fields the same leading axis"
                )
            n = rows
        if n is None:
            for name, field in zip(self._template._names, self._leaves, strict=True):
                columns[name] = columns[name].reshape(1, *field.shape)
        return 1 if n is None else n

    def sample(
        self,
        batch_size: int,
        *,
        stratified: bool = True,
        unique: bool = False,
        out: Batch | Mapping[str, Any] | None = None,
    ) -> Batch:
        """Draw ``batch_size`` rows with the probabilities of one buffer, with replacement.

        Parameters
        ----------
        batch_size : int
            B, at least 1.
        stratified, unique, out
            As for PrioritizedReplayBuffer.sample. ``unique`` draws again what has come before, so
            it takes long where few rows have nearly all the mass.

        Returns
        -------
        Batch
            The fields with a leading axis B; ``importance_weight`` float32 [B]; ``index``, the
            slots within their shards; ``handle`` for ``update_priorities``. Of frames that are
            stored once, stacks as FrameReplayBuffer.sample has them.

        Raises
        ------
        EmptyBufferError
            If there is no row with mass.
        ShardLostError
            If all shards are lost.
        ValueError, TypeError, FieldError
            As PrioritizedReplayBuffer.sample does; also if ``unique`` hardly finds a new row.

        Notes
        -----
        O(B · (bytes of a row + K · log_K(capacity)) + shards), and one round trip to the shards
        elsewhere, all at once. `batches` asks for batches before they are needed.
        """
        given = None if out is None else self._template._arrays_of(out)
        with self._lock:
            if self._far or self.lost:
                return self._receive(self._ask([batch_size], stratified, unique), given)[0]
            # All shards are here: what asking would add takes a tenth of the time.
            self._look_around()
            plan = self._reader.plan(batch_size, stratified, unique, self._headroom)
            columns = self._reader.columns(plan, given)
            self._reader.read(plan, columns)
            return self._finished(plan, columns)

    def batches(
        self,
        batch_size: int,
        *,
        stratified: bool = True,
        per_request: int = 4,
        under_way: int = 2,
    ) -> Iterator[Batch]:
        """Yield batches for ever, which have been asked for before they are needed.

        ``per_request`` batches come in one answer of each shard elsewhere, and ``under_way``
        requests are out at a time: so many batches do not know the last priorities yet. Errors are
        those of `sample`.
        """
        sizes = [as_count("batch_size", batch_size)] * as_count("per_request", per_request)
        return self._ahead(sizes, stratified, as_count("under_way", under_way))

    def _ahead(self, sizes: list[int], stratified: bool, under_way: int) -> Iterator[Batch]:
        requests: deque[_Request] = deque()
        while True:
            with self._lock:
                while len(requests) < under_way:
                    requests.append(self._ask(sizes, stratified, False))
                found = self._receive(requests.popleft(), None)
            yield from found

    def _ask(self, batch_sizes: Sequence[int], stratified: bool, unique: bool) -> _Request:
        """Divide batches among the shards, and ask those elsewhere for their rows."""
        self._look_around()
        is_short = unique and len(self) < as_count("batch_size", batch_sizes[0])
        for s, shard in list(self._far):
            # one without rows would never be asked, and others may have more rows by now
            if shard.vitals["n_rows"] == 0 or is_short:
                self._try(s, shard.look)
                self._learn(s)
        if not self._reader.has_mass() and len(self.lost) == self.n_shards:
            raise ShardLostError("all shards are lost")
        return self._planned(batch_sizes, stratified, unique)

    def _planned(self, batch_sizes: Sequence[int], stratified: bool, unique: bool) -> _Request:
        """Divide batches among the shards as they are known, and ask for their rows."""
        plans = [
            self._reader.plan(batch_size, stratified, unique, self._headroom)
            for batch_size in batch_sizes
        ]
        pending = self._ask_shards(plans) if self._far else []
        return _Request(plans, pending, self._n_joined)

    def _look_around(self) -> None:
        """Take over what shards are known to be."""
        for one in self._here:
            if one.buffer._reader is not one.reader:
                one.refuse_closed()
        self._reader.look()
        for s, _ in self._far:
            self._learn(s)

    def _ask_shards(self, plans: list[Plan]) -> list[tuple[int, Asked]]:
        """Ask the shards elsewhere for what is missing of batches."""
        pending = []
        for s, shard in list(self._far):
            points, *rest = self._reader.points_for(plans, s)
            headroom = plans[0].headroom
            if not len(points) and not headroom:
                self._try(s, shard.glance)  # no answer would tell what has become of it
                continue
            asked = self._try(s, shard.ask, points, *rest, headroom)
            if asked is not None:
                pending.append((s, asked))
        return pending

    def _receive(self, request: _Request, out: dict[str, Any] | None) -> list[Batch]:
        """Read the rows of batches that have been asked for, from wherever they are."""
        reader = self._reader
        if request.shards != self._n_joined:  # others have these numbers now
            first = request.plans[0]
            sizes = [plan.n for plan in request.plans]
            request = self._ask(sizes, first.was_stratified, first.is_unique)
        arrays = [reader.columns(plan, out) for plan in request.plans]
        for plan, columns in zip(request.plans, arrays, strict=True):
            reader.read(plan, columns)
        for s, asked in request.pending:
            self._place(request.plans, arrays, s, asked)
        return [
            self._finished(plan, columns)
            for plan, columns in zip(request.plans, arrays, strict=True)
        ]

    def _finished(self, plan: Plan, columns: dict[str, Any]) -> Batch:
        """Draw what is missing of a batch, and return it."""
        self._complete(plan, columns)
        self._reader.finish(plan, self._beta, columns)
        self._n_sampled += plan.n
        return self._template._batch(columns)

    def _place(self, plans: list[Plan], arrays: list[Any], s: int, asked: Asked) -> None:
        """Take over the rows that a shard elsewhere has drawn."""
        shard = self._shards[s]
        assert isinstance(shard, RemoteShard)
        drawn = self._try(s, shard.drawn, asked)
        if drawn is None:  # what is missing is drawn anew
            return
        self._learn(s)
        if drawn.is_broken:
            for plan in plans:
                plan.is_broken = True
            return
        rows = drawn.by_mass, drawn.by_count, drawn.handle
        try:
            self._reader.place(plans, s, drawn.columns, *rows, arrays, drawn.total, drawn.n_rows)
        except ShardError as error:
            self._try(s, shard.lose, f"it does not draw as shards do: {error}", error)

    def _complete(self, plan: Plan, columns: dict[str, Any]) -> None:
        """Draw what is missing of a batch, until nothing is."""
        reader, least, in_vain, n_rounds = self._reader, plan.n, 0, 0
        while True:
            if plan.headroom > 0:
                plan.end_round()
            if plan.is_unique:
                plan.drop_repeated()
            if plan.n_missing == 0 and not plan.is_broken:
                return
            in_vain = 0 if plan.n_missing < least else in_vain + plan.n_missing
            least = min(least, plan.n_missing)
            # of a batch of all rows, the last one takes as many draws as there are rows
            if plan.is_unique and in_vain > MOST_IN_VAIN + 20 * plan.n:
                raise ValueError(
                    "unique=True: few rows have nearly all the mass, and hardly a new one is found "
                    f"for a batch of {plan.n}; draw without unique"
                )
            n_rounds += 1
            if n_rounds > MOST_ROUNDS and not plan.is_unique:
                raise RuntimeError(
                    f"a batch is not complete after {MOST_ROUNDS} rounds: rows are overwritten "
                    "faster than they can be drawn, or a shard says what is not so"
                )
            self._look_around()
            reader.assign(plan)
            pending = self._ask_shards([plan])
            reader.read(plan, columns)
            for s, asked in pending:
                self._place([plan], [columns], s, asked)

    def update_priorities(self, handle: npt.NDArray[np.void], td_error: npt.ArrayLike) -> int:
        """Set priorities to |td_error| + priority_epsilon.

        Parameters
        ----------
        handle : array [B] of SHARDED_HANDLE_DTYPE
            ``batch.handle``, or rows of it.
        td_error : array of float [B] or [B, 1]
            Finite; the sign does not matter. Where a row comes twice, the last one wins.

        Returns
        -------
        int
            How many handles were applied, or sent to shards elsewhere. A handle whose row has been
            overwritten since changes nothing; one of a shard that is lost counts in `n_refused`.

        Raises
        ------
        ValueError, TypeError
            If td_error is NaN or infinite, a length differs, or handle is no array of handles.
            Nothing is changed then.
        ShardLostError
            If all shards are lost.

        Notes
        -----
        What goes to shards elsewhere is not waited for; `settle` waits.
        """
        handles, errors = _checked_update(handle, td_error)
        with self._lock:
            self._refuse_closed()
            self._refuse_too_large("td_error", errors + self._epsilon)
            parts, n_refused = self._reader.split(handles, errors)
            self._reader.learn_errors(handles, errors + self._epsilon)
            n_applied = 0
            for s, rows, values in parts:
                n = self._try(s, self._shards[s].update, rows, values)
                if n is None:
                    n_refused += len(rows)
                else:
                    n_applied += n
            self._n_refused += n_refused
            self._share_max_priority()
        return n_applied

    def _share_max_priority(self) -> None:
        """Let all shards have the largest priority of any, as far as it is known."""
        largest = self.max_priority
        for s, shard in self._alive():
            if shard.max_priority < largest:
                self._try(s, shard.set, "max_priority", largest)

    def _let_all(self, method: str) -> None:
        """Call a method of all shards that are not lost, and learn how they are then."""
        for s, shard in self._alive():
            self._try(s, getattr(shard, method))
            self._learn(s)

    def look(self) -> None:
        """Ask the shards elsewhere how they are, and wait until they have done what was sent."""
        with self._lock:
            self._let_all("look")

    def settle(self) -> None:
        """Wait until all shards have done what was sent to them."""
        with self._lock:
            self._let_all("settle")
            self._share_max_priority()  # which may be news to some
            self._let_all("settle")

    def reset(self) -> None:
        """Forget all rows; handles handed out before stay stale for ever."""
        with self._lock:
            self._let_all("reset")

    def check_invariants(self) -> None:
        """Raise AssertionError if something in a shard is not as it must be."""
        for _, shard in self._alive():
            shard.check_invariants()

    # ------------------------------------------------------------------------------ checkpoints

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write all shards that are not lost to a directory, and what this object knows.

        A checkpoint that is there stays in force until the new one is complete. Each shard is saved
        as of one moment, one after the other; others may go on meanwhile.

        Raises
        ------
        CheckpointError
            If the directory holds other things than a checkpoint.
        OSError
            If it cannot be written.
        ShardLostError
            If a shard is lost meanwhile. The former checkpoint stays in force then.
        """
        with self._lock:
            alive = list(self._alive())  # one that is lost from now on is missed
            self.settle()
            state = {"beta": self._beta, "reader": self._reader.state()}
            self._first("alpha")  # raises if there are none
            with save_shards(Path(os.fsdecode(directory)), self._layout, state) as one:
                for s, shard in alive:
                    try:
                        one(shard.save)
                    except ShardLostError:
                        self._lose(s)
                        raise

    def load(self, directory: str | os.PathLike[str]) -> None:
        """Add the rows of a checkpoint, of as many shards as it has, to the shards that are here.

        Rows keep their priorities, and all have the alpha and priority_epsilon that they were saved
        with. Each shard gets rows as it has room, of all that were saved, the oldest first; if not
        all have room, the oldest are overwritten. Handles from before the save do not hold. Frames
        that are stored once stay with the rows that need them, and are copied where these part;
        a FrameStackWriter that went on by a `state_dict` from before would name others. All
        rows are read, and checked, before the first one is added: they need to have room here.

        Raises
        ------
        ValueError
            If there are rows here already.
        CheckpointError
            If what was saved is damaged, or no checkpoint of shards, or has other fields. No row
            is here then.
        """
        with self._lock:
            self.look()
            if len(self):
                raise ValueError(f"load into shards without rows, there are {len(self)}")
            with saved_shards(Path(os.fsdecode(directory)), self._layout) as saved:
                scratch = ShardedReader(
                    [self._template._reader], self._template._reader, len(self._leaves), 0
                )
                with saved.named():
                    scratch.restore(saved.state["reader"])
                try:
                    for name, value in saved.settings.items():
                        self._set(name, value)
                    room = [int(shard.vitals["capacity"]) for _, shard in self._alive()]
                    if self._layout.stacks:
                        deal_frames(saved.shards, [shard for _, shard in self._alive()], room)
                    else:
                        for rows, priority in saved.rows():
                            self._deal(rows, priority, room)
                    self._set("max_priority", saved.max_priority)
                    self.beta = saved.state["beta"]
                    self._reader.restore(saved.state["reader"])
                except BaseException:
                    self.reset()
                    raise

    def _deal(
        self, rows: dict[str, Any], priority: npt.NDArray[np.float64], room: list[int]
    ) -> None:
        """Add rows of a checkpoint: to shards by their room; when there is none, by their size."""
        alive = list(self._alive())
        n = len(priority)
        whose = np.empty(n, np.int64)
        share = np.array([max(one, 0) for one in room], np.float64)
        if not share.any():  # each overwrites its own oldest ones
            share[:] = [int(shard.vitals["capacity"]) for _, shard in alive]
        # as evenly as can be: row i goes to the shard whose part of the room holds (i + 1/2) / n
        order = np.argsort((np.arange(n) * GOLDEN) % 1, kind="stable")
        ends = np.cumsum(share)[:-1] / share.sum()
        whose[order] = np.searchsorted(ends, (np.arange(n) + 0.5) / n)
        for number, (_, shard) in enumerate(alive):
            mine = np.flatnonzero(whose == number)
            if len(mine):
                room[number] -= len(mine)
                shard.add({name: column[mine] for name, column in rows.items()}, priority[mine])

    def close(self) -> None:
        """Let go of the shards, which are closed, too, and of the connections.

        Every later use raises ClosedError, a ValueError; closing twice is no error.
        """
        with self._lock:
            for shard in self._shards:
                shard.close()
            self._template.close()
            self._shards, self._here, self._far = [], [], []
            closed: Any = self._template._reader  # it refuses everything
            self._reader = closed

    def __enter__(self: Self) -> Self:
        self._refuse_closed()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a ShardedReplayBuffer stays in its process: make another one over the same shards, "
            "from their descriptors and addresses"
        )

    def _refuse_closed(self) -> None:
        """Raise ClosedError if this buffer has been closed, or a shard of this process."""
        len(self._template)
        for one in self._here:
            one.refuse_closed()


def _checked(shard: Any) -> LocalShard | RemoteShard:
    """Return what stands for a shard, or raise if it is none that can be used."""
    if isinstance(shard, RemoteShard):
        shard.settle()
        return shard
    if not isinstance(shard, PrioritizedReplayBuffer):
        raise TypeError(
            "shards must be of the type PrioritizedReplayBuffer, FrameReplayBuffer or RemoteShard, "
            f"got {type(shard).__name__}"
        )
    return LocalShard(shard)


def _refuse_unlike(
    number: int, shard: LocalShard | RemoteShard, before: list[LocalShard | RemoteShard]
) -> None:
    """Raise if a shard does not go with those before it."""
    _refuse_twice(number, shard, before)
    if not before:
        return
    _refuse_other_fields(number, shard, before[0].layout)
    for name in ("alpha", "priority_epsilon"):
        found, expected = shard.vitals[name].item(), before[0].vitals[name].item()
        if found != expected:
            raise ValueError(
                f"shards must have the same {name}; shard {number} has {found}, the first "
                f"{expected}: set one of them"
            )


def _refuse_twice(
    number: int, shard: LocalShard | RemoteShard, others: list[LocalShard | RemoteShard]
) -> None:
    for other in others:
        if tuple(other.vitals["identity"]) == tuple(shard.vitals["identity"]):
            raise ValueError(f"shards must be different ones; shard {number} is there already")


def _say_rows(n: int | None) -> str:
    return "no batch axis" if n is None else f"{n} rows"


def _refuse_other_fields(number: int, shard: LocalShard | RemoteShard, layout: Layout) -> None:
    found, expected = shard.layout.text(), layout.text()
    if found != expected:
        raise ShardError(
            f"shards must have the same fields; shard {number} has {found}, the first {expected}"
        )


def _checked_update(handle: Any, td_error: Any) -> tuple[Any, npt.NDArray[np.float64]]:
    """Return handles and TD errors as arrays, or raise."""
    handles = as_array("handle", handle)
    if handles.dtype != SHARDED_HANDLE_DTYPE or handles.ndim != 1:
        raise TypeError(
            f"handle must be the handle of a batch (dtype {SHARDED_HANDLE_DTYPE}, one axis), "
            f"got dtype {handles.dtype}, {handles.ndim} axes"
        )
    given = as_array("td_error", td_error)
    if given.ndim == 2 and given.shape[1] == 1:
        given = given[:, 0]
    errors = np.abs(as_float64("td_error", given))
    if errors.shape != handles.shape:
        raise ValueError(
            f"td_error must have one value per handle, {len(handles)}, got {given.size}"
        )
    if not np.isfinite(errors).all():
        raise ValueError("td_error must be finite; has the loss diverged?")
    return np.ascontiguousarray(handles), np.ascontiguousarray(errors)
