# cython: language_level=3, cdivision=True
# distutils: language = c++
"""All slots at one moment: copied, taken over, checked. Writers wait meanwhile, readers do not."""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

import numpy as np

cimport numpy as cnp

from ..validation import as_count, as_exponent, as_real

from .block cimport (
    Header, is_published, is_vacant, kCount, kRankingBytes, kRanks, load_relaxed, pause, renew_max_mass, resume,
    store_relaxed, store_release, vacated,
)
from .slots cimport Slots

cnp.import_array()


cdef class Snapshots(Slots):
    """Slots, and what looks at all of them at once. Private to the package."""

    @property
    def n_touched(self):
        """Slots ever used: no row behind them."""
        return load_relaxed(&self.header.n_touched)  # any recent value will do

    @property
    def offsets(self):
        """Where each field begins in a row."""
        return [self.places[f].offset for f in range(self.n_fields)]

    def changed(self, const uint64_t[::1] copied):
        """Return the slots, ascending, of rows whose generations are not these: int64. Of some recent moment; nobody waits."""
        cdef int64_t n = self.count_changed(copied), found = 0, i
        cdef cnp.ndarray changed = np.empty(n, np.int64)
        cdef int64_t* slot = <int64_t*>cnp.PyArray_DATA(changed)
        with nogil:
            for i in range(load_relaxed(&self.header.n_touched)):
                if found == n:
                    break
                if i >= copied.shape[0] or copied[i] != load_relaxed(self.generation(i)):
                    slot[found] = i
                    found += 1
        return changed[:found]

    def snapshot(self, known=None):
        """Return everything as a dict of numbers and arrays: a consistent cut, for which writers wait.

        ``known`` spares the rows that the caller has copied before: uint64 [n], the generations of
        rows 0 … n - 1 in that copy. Then "rows" has only the others, in the order of "changed",
        their slots.
        """
        cdef Header* header = self.header
        cdef cnp.ndarray rows, masses, priorities, changed, ranking
        cdef const uint64_t[::1] copied = np.zeros(0, np.uint64) if known is None else known
        cdef int64_t n_copied = len(copied), n_changed = 0, room = 0, i
        cdef int64_t n_touched = 0, n_started = 0, position = 0, n_added = 0
        cdef uint64_t n_sampled = 0, random_counter = 0
        cdef double alpha = 0, max_priority = 0
        cdef int64_t* slot
        cdef char* to
        self.block.enter()
        while True:
            # Room first, lock after: an allocation may run a finalizer that wants the lock.
            room = max(self.count_changed(copied), n_changed)
            room += room // 8 if n_copied else 0
            rows = np.empty(room * self.row_nbytes, np.uint8)
            changed = np.empty(room, np.int64)
            masses = np.empty(load_relaxed(&header.n_touched) if self.tree is not None else 0)
            priorities = np.empty_like(masses)
            ranking = np.empty((kRankingBytes if header.ranking_at != 0 else 0) // sizeof(double))
            slot, to = <int64_t*>cnp.PyArray_DATA(changed), <char*>cnp.PyArray_DATA(rows)
            with nogil:
                pause(self.attachment)
                # One by one: beside the numbers that the lock guards there are some that others
                # change meanwhile.
                n_touched, n_started, position = header.n_touched, header.n_started, header.position
                n_added, alpha, max_priority = header.n_added, header.alpha, header.max_priority
                n_sampled, random_counter = load_relaxed(&header.n_sampled), load_relaxed(&header.random_counter)
                n_changed = 0
                for i in range(n_touched):
                    if i < n_copied and copied[i] == load_relaxed(self.generation(i)):
                        continue
                    if n_changed < room:
                        memcpy(to + n_changed * self.row_nbytes, self.rows + i * self.row_nbytes, self.row_nbytes)
                        slot[n_changed] = i
                    n_changed += 1
                if self.tree is not None and n_started <= cnp.PyArray_SIZE(masses):
                    memcpy(cnp.PyArray_DATA(masses), self.tree.leaf, n_started * sizeof(double))
                    memcpy(cnp.PyArray_DATA(priorities), self.priority, n_started * sizeof(double))
                    if header.ranking_at != 0:
                        memcpy(cnp.PyArray_DATA(ranking), <char*>header + header.ranking_at, kRankingBytes)
                resume(self.attachment)
            if n_changed <= room and (self.tree is None or n_started <= cnp.PyArray_SIZE(masses)):
                break
        return {
            "row_nbytes": self.row_nbytes,
            "n_touched": n_touched,
            "rows": rows[: n_changed * self.row_nbytes],
            "changed": changed[:n_changed],
            "mass": None if self.tree is None else masses[:n_started],
            "priority": None if self.tree is None else priorities[:n_started],
            "ranking": None if header.ranking_at == 0 else ranking,
            "position": position,
            "n_started": n_started,
            "alpha": alpha,
            "max_priority": max_priority,
            "n_added": n_added,
            "n_sampled": n_sampled,
            "random": (header.random_key[0], header.random_key[1], random_counter),
        }

    cdef int64_t count_changed(self, const uint64_t[::1] copied) noexcept nogil:
        """Count the rows whose generations are not these, at some recent moment."""
        cdef int64_t n = 0, i
        for i in range(load_relaxed(&self.header.n_touched)):
            n += i >= copied.shape[0] or copied[i] != load_relaxed(self.generation(i))
        return n

    def restore(self, dict state, read_rows=None):
        """Take over a snapshot, or raise ValueError if it contradicts itself. Nobody else may be using this storage yet.

        ``read_rows``, if given, is called with the place of all rows, a uint8 array, to put there
        what ``state`` lacks. After an error this storage is of no use.
        """
        cdef Header* header = self.header
        cdef int64_t n_started, position, n_touched, n_added, i
        cdef uint64_t n_sampled
        cdef double alpha, max_priority
        cdef cnp.ndarray priorities, ranking
        if state["row_nbytes"] != self.row_nbytes:
            raise ValueError(f"the saved rows have {state['row_nbytes']} bytes, these {self.row_nbytes}: another layout")
        n_touched = as_count("n_touched", state["n_touched"], self.capacity, least=0)
        if read_rows is None:
            rows = np.asarray(state["rows"])
            if rows.dtype != np.uint8 or rows.shape != (n_touched * self.row_nbytes,):
                raise _contradiction(f"rows are the bytes of {n_touched} rows of {self.row_nbytes} bytes")
        n_started = as_count("n_started", state["n_started"], n_touched, least=0)
        # below n_started: who was writing there died
        position = as_count("position", state["position"], min(n_started, self.capacity - 1), least=0)
        n_added = as_count("n_added", state["n_added"], 2**62 - 1, least=0)
        n_sampled = as_count("n_sampled", state["n_sampled"], 2**62 - 1, least=0)
        alpha = as_exponent("alpha", state["alpha"])
        max_priority = as_real("max_priority", state["max_priority"])
        if not 1 <= max_priority <= _largest(self):
            raise ValueError(f"max_priority must be from 1 to {_largest(self):.3g}, got {max_priority}")
        key0, key1, counter = (as_count("a number of random", number, 2**64 - 1, least=0) for number in state["random"])
        if read_rows is None:
            self._bytes(n_touched)[:] = rows
        else:
            read_rows(self._bytes(n_touched))
        generations = self._bytes(n_touched).reshape(n_touched, self.row_nbytes)[:, :8].copy().view(np.uint64).ravel()
        is_row = _checked_generations(generations)[:n_started]
        if (self.tree is None) != (state["mass"] is None) or (self.tree is None and state["priority"] is not None):
            raise _contradiction("there are masses without a tree, or none for it")
        if (header.ranking_at == 0) != (state["ranking"] is None):
            raise _contradiction("there are ranks without a table for them, or none for it")
        if self.tree is not None:
            masses, priorities = _checked_priorities(self, state, is_row)
            ranking = None
            if header.ranking_at != 0:
                ranking = _checked_ranking(state["ranking"], alpha)
            self.tree.set(np.arange(n_started), masses)
            memcpy(self.priority, cnp.PyArray_DATA(priorities), n_started * sizeof(double))
            if ranking is not None:
                memcpy(<char*>header + header.ranking_at, cnp.PyArray_DATA(ranking), kRankingBytes)
            if n_started:
                max_priority = max(max_priority, priorities.max())
        # rows from before a reset, as older versions left them
        for i in range(n_started, n_touched):
            store_release(self.generation(i), vacated(load_relaxed(self.generation(i))))
        header.n_touched = n_touched
        header.n_started = n_started
        store_relaxed(&header.n_published, <int64_t>np.count_nonzero(is_row))
        header.position = position
        header.alpha = alpha
        header.max_priority = max_priority
        header.n_added = n_added
        store_relaxed(&header.n_sampled, n_sampled)
        renew_max_mass(header)
        self.block.set_random_state((key0, key1, counter))

    def check_invariants(self):
        """Raise AssertionError naming the first invariant that is broken: the tree's I1 to I3, then I4, I5, the counters."""
        cdef Header* header = self.header
        cdef int64_t i, slot = -1, n_started = 0, n_writing = 0, n_published = 0, position = 0, n_vacant = 0
        cdef uint64_t generation = 0
        cdef double mass = 0, priority = 0
        cdef int broken = 0
        self.block.enter()
        if self.tree is not None:
            self.tree.check_invariants()
        with nogil:  # look first, speak after the lock is gone, as in SumTree.check_invariants
            pause(self.attachment)
            n_started, n_writing = header.n_started, header.n_writing
            n_published, position = header.n_published, header.position
            for i in range(self.capacity):
                generation = load_relaxed(self.generation(i))
                if self.tree is not None:
                    mass = self.tree.leaf[i]
                    priority = self.priority[i]
                if is_vacant(generation):
                    n_vacant += i < n_started
                elif generation & 1:
                    broken = 1
                elif i < n_started and generation == 0:
                    broken = 2
                if mass != 0 and (i >= n_started or not is_published(generation)):
                    broken = 3
                elif self.tree is not None and i < n_started and is_published(generation) and (mass > 0) != (priority > 0):
                    broken = 4
                if broken:
                    slot = i
                    break
            resume(self.attachment)
        # Raised, not asserted: `python -O` is no reason to look the other way.
        if broken == 1:
            raise AssertionError(f"I5: slot {slot} has the odd generation {generation}, and nobody is writing it")
        if broken == 2:
            raise AssertionError(f"I5: slot {slot} counts as used and has generation 0")
        if broken == 3:
            raise AssertionError(f"I4: slot {slot} holds no row and has mass {mass}")
        if broken == 4:
            raise AssertionError(f"I4: slot {slot} has mass {mass} and priority {priority}")
        if n_writing != 0:
            raise AssertionError(f"I5: {n_writing} slots count as being written, and nobody is writing")
        if n_published != n_started - n_vacant:
            raise AssertionError(
                f"I5: {n_published} rows are published, {n_vacant} of {n_started} used slots vacant, nobody is writing"
            )
        if not 0 <= position < self.capacity:
            raise AssertionError(f"I5: position {position} is not a slot")


# ------------------------------------------------------------------- what a snapshot must look like


def _contradiction(what):
    return ValueError(f"the saved state contradicts itself, it is damaged: {what}")


def _largest(Snapshots slots):
    """The largest priority, and mass, that there may be."""
    return np.finfo(np.float64).max if slots.tree is None else slots.tree.max_mass


def _numbers(name, values, n):
    """Return n float64 numbers of a snapshot as a contiguous array."""
    values = np.asarray(values)
    if values.dtype != np.float64 or values.shape != (n,):
        raise _contradiction(f"{name} has dtype {values.dtype} and shape {values.shape} instead of float64 and ({n},)")
    return np.ascontiguousarray(values)


def _checked_generations(generations):
    """Return which slots hold a row, bool [n]; the others must be vacant."""
    counts, owners = generations & np.uint64(kCount), generations >> np.uint64(48)
    is_row = (counts % 2 == 0) & (owners == 0)
    is_nobodys = (counts % 2 == 1) & (owners == 0xFFFF)
    bad = np.flatnonzero(~(is_row | is_nobodys) | (counts == 0) | (counts > np.uint64(kCount // 2)))
    if bad.size:
        raise _contradiction(f"slot {bad[0]} has the generation {generations[bad[0]]}")
    return is_row


def _checked_priorities(Snapshots slots, dict state, is_row):
    """Return the masses and the priorities of a snapshot's slots in use, float64 [n_started] each."""
    cdef int64_t n = len(is_row)
    masses = _numbers("mass", state["mass"], n)
    priorities = state["priority"]
    if priorities is None:  # of format 1, which stored masses
        priorities = _priorities_behind(masses, state, slots.tree.max_mass)
    priorities = np.where(is_row, _numbers("priority", priorities, n), 0.0)
    for name, values in (("mass", masses), ("priority", priorities)):
        bad = np.flatnonzero(~((values >= 0) & (values <= slots.tree.max_mass)))  # NaN fails too
        if bad.size:
            raise _contradiction(f"slot {bad[0]} has {name} {values[bad[0]]}")
    bad = np.flatnonzero((masses > 0) != (priorities > 0))
    if bad.size:
        slot = bad[0]
        row = "a row" if is_row[slot] else "no row"
        raise _contradiction(f"slot {slot} holds {row} of priority {priorities[slot]} and has mass {masses[slot]}")
    if slots.header.ranking_at == 0:  # what a priority says counts, but for rounding
        derived = np.where(priorities > 0, priorities ** state["alpha"], 0.0)
        masses = np.where(np.abs(masses - derived) <= 1e-6 * derived, masses, derived)
    return masses, priorities


def _priorities_behind(masses, dict state, largest):
    """Return the priorities whose masses these are, as format 1 saved them."""
    if state["ranking"] is not None:
        ranking = np.asarray(state["ranking"])
        return ranking[_TABLE : _TABLE + len(masses)] * (masses > 0)
    if state["alpha"] == 0:
        return state["max_priority"] * (masses > 0)
    with np.errstate(over="ignore", under="ignore"):
        priorities = masses ** (1 / state["alpha"])
    return np.where(masses > 0, np.clip(priorities, np.nextafter(0, 1), largest), 0.0)


cdef Py_ssize_t _TABLE = 3 + 4 * kRanks  # numbers in a Ranking


def _checked_ranking(saved, double alpha):
    """Return the table of ranks as the memory of a Ranking, float64 [kRankingBytes / 8]."""
    saved = np.asarray(saved)
    if saved.dtype != np.float64 or saved.ndim != 1 or len(saved) < _TABLE:
        raise _contradiction(f"ranking has dtype {saved.dtype} and shape {saved.shape}")
    ranking = np.zeros(kRankingBytes // 8)  # contiguous, whatever the saved one is
    ranking[:_TABLE] = saved[:_TABLE]
    n_changed, n_bounds, n_on_top = ranking[:3].view(np.int64).tolist()
    if not (0 <= n_bounds <= kRanks and 0 <= n_changed < 2**62 and 0 <= n_on_top < 2**62):
        raise _contradiction(f"the ranking has {n_bounds} bounds, {n_changed} changes, {n_on_top} on top")
    priority, rank, mass, total = ranking[3:_TABLE].reshape(4, kRanks)[:, :n_bounds]
    with np.errstate(all="ignore"):  # NaN fails every comparison
        due = rank**-alpha
        steps, gains = np.diff(rank, prepend=0.0), np.diff(total, prepend=0.0)
        whole = (
            np.isfinite(priority).all() and (priority > 0).all() and (np.diff(priority) <= 0).all()
            and (rank == np.rint(rank)).all() and (steps >= 1).all() and (rank <= 2.0**53).all() and (rank[:1] == 1).all()
            and (np.abs(mass - due) <= 1e-9 * due).all()
            # The masses between two bounds lie between theirs.
            and (gains >= steps * mass * (1 - 1e-6)).all()
            and (gains <= steps * np.concatenate([mass[:1], mass[:-1]]) * (1 + 1e-6)).all()
        )
    if not whole:
        raise _contradiction("the ranking's bounds are not those of ranks")
    return ranking
