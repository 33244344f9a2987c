# cython: language_level=3, cdivision=True
# distutils: language = c++
"""All slots at one moment: copied, taken over, checked. Writers wait meanwhile, readers do not."""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

import numpy as np

cimport numpy as cnp

from .block cimport Header, is_vacant, load_relaxed, pause, ranking_nbytes, renew_max_mass, resume
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

        ``known`` spares the rows that the caller has copied before: uint64 [n], the generations of rows 0 … n - 1 in that copy.
        Then "rows" has only the others, in the order of "changed", their slots.
        """
        cdef Header* header = self.header
        cdef cnp.ndarray rows, masses, changed, ranking
        cdef const uint64_t[::1] copied = np.zeros(0, np.uint64) if known is None else known
        cdef int64_t n_copied = len(copied), n_changed = 0, room = 0, i
        cdef int64_t* slot
        cdef char* to
        cdef Header copy
        while True:
            # Room first, lock after: an allocation may run a finalizer that wants the lock.
            room = max(self.count_changed(copied), n_changed)
            room += room // 8 if n_copied else 0
            rows = np.empty(room * self.row_nbytes, np.uint8)
            changed = np.empty(room, np.int64)
            masses = np.empty(load_relaxed(&header.n_touched) if self.tree is not None else 0)
            ranking = np.empty((ranking_nbytes(len(masses)) if header.ranking_at != 0 else 0) // sizeof(double))
            slot, to = <int64_t*>cnp.PyArray_DATA(changed), <char*>cnp.PyArray_DATA(rows)
            with nogil:
                pause(header, self.block.me)
                copy = header[0]
                n_changed = 0
                for i in range(copy.n_touched):
                    if i < n_copied and copied[i] == load_relaxed(self.generation(i)):
                        continue
                    if n_changed < room:
                        memcpy(to + n_changed * self.row_nbytes, self.rows + i * self.row_nbytes, self.row_nbytes)
                        slot[n_changed] = i
                    n_changed += 1
                if self.tree is not None and copy.n_started <= cnp.PyArray_SIZE(masses):
                    memcpy(cnp.PyArray_DATA(masses), self.tree.leaf, copy.n_started * sizeof(double))
                    if copy.ranking_at != 0:
                        memcpy(cnp.PyArray_DATA(ranking), <char*>header + copy.ranking_at, ranking_nbytes(copy.n_started))
                resume(header, self.block.me)
            if n_changed <= room and (self.tree is None or copy.n_started <= cnp.PyArray_SIZE(masses)):
                break
        return {
            "row_nbytes": self.row_nbytes,
            "n_touched": copy.n_touched,
            "rows": rows[: n_changed * self.row_nbytes],
            "changed": changed[:n_changed],
            "mass": None if self.tree is None else masses[: copy.n_started],
            "ranking": ranking[: ranking_nbytes(copy.n_started) // sizeof(double)] if copy.ranking_at != 0 else None,
            "position": copy.position,
            "n_started": copy.n_started,
            "alpha": copy.alpha,
            "max_priority": copy.max_priority,
            "n_added": copy.n_added,
            "n_sampled": copy.n_sampled,
            "random": (copy.random_key[0], copy.random_key[1], copy.random_counter),
        }

    cdef int64_t count_changed(self, const uint64_t[::1] copied) noexcept nogil:
        """Count the rows whose generations are not these, at some recent moment."""
        cdef int64_t n = 0, i
        for i in range(load_relaxed(&self.header.n_touched)):
            n += i >= copied.shape[0] or copied[i] != load_relaxed(self.generation(i))
        return n

    def restore(self, dict state, read_rows=None):
        """Take over a snapshot, or raise ValueError if it is damaged. Nobody else may be using this storage yet.

        ``read_rows``, if given, is called with the place of all rows, a uint8 array, to put there what ``state`` lacks.
        """
        cdef Header* header = self.header
        cdef int64_t n_started, position, n_touched
        cdef cnp.ndarray saved
        if state["row_nbytes"] != self.row_nbytes:
            raise ValueError(f"the saved rows have {state['row_nbytes']} bytes, these {self.row_nbytes}: another layout")
        n_started, position = state["n_started"], state["position"]
        if read_rows is None:
            rows = state["rows"]
            n_touched = len(rows) // self.row_nbytes
        else:
            n_touched = state["n_touched"]
            if not 0 <= n_touched <= self.capacity:
                raise ValueError(f"there are {n_touched} saved rows for {self.capacity} slots")
            rows = self._bytes(n_touched)
            read_rows(rows)
        generations = rows.reshape(n_touched, -1)[:, :8].copy().view(np.uint64) if n_touched else np.zeros(0, np.uint64)
        vacant = generations >> np.uint64(48) == 0xFFFF  # given up by a process that died: see block.hpp
        alpha, max_priority, masses, ranking = state["alpha"], state["max_priority"], state["mass"], state["ranking"]
        whole = (
            rows.dtype == np.uint8 and len(rows) == n_touched * self.row_nbytes
            and 0 <= n_started <= n_touched <= self.capacity and 0 <= position < self.capacity
            and 0 <= alpha <= 1 and ((generations % 2 == 0) | vacant).all() and (generations > 0).all()
            and (masses is None) == (self.tree is None) and (masses is None or len(masses) == n_started)
            and 0 < max_priority <= np.finfo(np.float64).max
            and (ranking is None) == (header.ranking_at == 0)
            and (ranking is None or ranking.nbytes == ranking_nbytes(n_started))
        )
        if not whole:
            raise ValueError("the saved state contradicts itself: it is damaged")
        if self.tree is not None:
            self.tree.set(np.arange(n_started), masses)
        header.n_touched = n_touched
        header.n_started = n_started
        header.n_published = n_started - <int64_t>np.count_nonzero(vacant[:n_started])
        header.position = position
        header.alpha = alpha
        header.max_priority = max_priority
        header.n_added, header.n_sampled = state["n_added"], state["n_sampled"]
        if ranking is not None:
            saved = ranking
            memcpy(<char*>header + header.ranking_at, cnp.PyArray_DATA(saved), ranking_nbytes(n_started))
        renew_max_mass(header)
        if read_rows is None:
            self._bytes(n_touched)[:] = rows
        self.block.set_random_state(state["random"])

    def check_invariants(self):
        """Raise AssertionError naming the first invariant that is broken: the tree's I1 to I3, then I4, I5, the counters."""
        cdef int64_t i, slot = -1
        cdef uint64_t generation = 0
        cdef double mass = 0
        cdef int broken = 0
        cdef Header copy
        cdef int64_t n_vacant = 0
        if self.tree is not None:
            self.tree.check_invariants()
        with nogil:  # look first, speak after the lock is gone, as in SumTree.check_invariants
            pause(self.header, self.block.me)
            copy = self.header[0]
            for i in range(self.capacity):
                generation = load_relaxed(self.generation(i))
                if self.tree is not None:
                    mass = self.tree.leaf[i]
                if is_vacant(generation):
                    n_vacant += i < copy.n_started
                elif generation & 1:
                    broken = 1
                elif i < copy.n_started and generation == 0:
                    broken = 2
                if mass != 0 and (i >= copy.n_started or is_vacant(generation)):
                    broken = 3
                if broken:
                    slot = i
                    break
            resume(self.header, self.block.me)
        assert broken != 1, f"I5: slot {slot} has the odd generation {generation}, and nobody is writing it"
        assert broken != 2, f"I5: slot {slot} counts as used and has generation 0"
        assert broken != 3, f"I4: slot {slot} holds no row and has mass {mass}"
        assert copy.n_writing == 0, f"I5: {copy.n_writing} slots count as being written, and nobody is writing"
        assert copy.n_published == copy.n_started - n_vacant, \
            f"I5: {copy.n_published} rows are published, {n_vacant} of {copy.n_started} used slots vacant, nobody is writing"
        assert 0 <= copy.position < self.capacity, f"I5: position {copy.position} is not a slot"
