# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Slots: who may write which, since when, and with what mass. docs/concurrency.md argues why it is right.

A writer reserves slots under the lock (their mass becomes 0, their generation odd), copies its rows holding no lock, and
publishes under the lock (the generation becomes even, the mass the priority's). storage.pyx moves the rows.
"""

from cpython.ref cimport PyObject
from libc.math cimport pow
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import numpy as np

cimport numpy as cnp

from .validation import as_count

from .block cimport Block, Header, acquire, aligned, load_relaxed, release, sched_yield, store_relaxed, store_release
from .sum_tree cimport SumTree, lay_out, rebuild, recompute

from .sum_tree import DEFAULT_ARITY

cnp.import_array()

cdef int64_t MAX_CAPACITY = <int64_t>1 << 40
cdef int64_t MAX_NBYTES = <int64_t>1 << 47


def _packed(nbytes, start):
    """Return an order of fields of these sizes, laid out without gaps from ``start``, that keeps most of them aligned to 8."""
    left = sorted(range(len(nbytes)), key=lambda i: (nbytes[i] % 8 != 0, -nbytes[i]))
    order = []
    end = start
    while left:
        realigning = [i for i in left if end % 8 and (end + nbytes[i]) % 8 == 0]
        chosen = realigning[-1] if realigning else left[0]
        left.remove(chosen)
        order.append(chosen)
        end += nbytes[chosen]
    return order


cdef class Slots:
    """``capacity`` slots for rows of ``fields`` (a list of ``Field``), with ``names`` for them.

    With ``prioritized`` there is a tree with one leaf per slot. Private to the package.
    """

    def __cinit__(self, capacity, list names, list fields, bint prioritized, seed):
        cdef int64_t n_slots = as_count("capacity", capacity, MAX_CAPACITY)
        cdef Py_ssize_t end = sizeof(uint64_t)
        cdef size_t tree_at = aligned(sizeof(Header)), rows_at
        self.places = NULL
        self.capacity = n_slots
        self.names = names
        self.fields = fields
        self.n_fields = len(fields)
        self.places = <Place*>malloc(max(self.n_fields, 1) * sizeof(Place))
        if self.places == NULL:
            raise MemoryError
        for i in _packed([field.nbytes for field in fields], end):
            self.places[i].offset = end
            self.places[i].nbytes = fields[i].nbytes
            self.places[i].dtype = <PyObject*>fields[i].dtype
            self.places[i].n_axes = len(fields[i].shape)
            for axis in range(self.places[i].n_axes):
                self.places[i].shape[axis] = fields[i].shape[axis]
            self.payload_nbytes += fields[i].nbytes
            end += fields[i].nbytes
        self.row_nbytes = (end + 7) // 8 * 8
        rows_at = tree_at + (lay_out(NULL, NULL, n_slots, DEFAULT_ARITY) if prioritized else 0)
        if n_slots > MAX_NBYTES // self.row_nbytes:
            raise MemoryError(f"capacity {n_slots} needs {n_slots * self.row_nbytes / 2**40:.3g} TiB; choose a smaller one")
        self.block = Block(rows_at + n_slots * self.row_nbytes, seed)
        self.header = self.block.header
        self.rows = self.block.base + rows_at
        self.tree = SumTree(n_slots, DEFAULT_ARITY, self.block, tree_at) if prioritized else None
        self.header.alpha = 1.0
        self.header.max_priority = 1.0
        self.header.max_mass = 1.0

    def __dealloc__(self):
        free(self.places)

    def __len__(self):
        return load_relaxed(&self.header.n_published)  # any recent value will do

    @property
    def alpha(self):
        """The exponent in force."""
        return load_relaxed(&self.header.alpha)

    @property
    def max_priority(self):
        """The largest priority seen."""
        return load_relaxed(&self.header.max_priority)

    # ---------------------------------------------------------------------------------------------------- writing

    cdef int64_t reserve(self, int64_t* slot, int64_t n, int64_t* scratch) noexcept nogil:
        """Make up to n slots ours, in ring order, and return how many: fewer where others hold the rest."""
        cdef Header* header = self.header
        cdef int64_t taken = 0, emptied = 0, _seen, at
        cdef uint64_t generation
        acquire(header)
        if header.n_paused == 0:
            at = header.position
            for _seen in range(self.capacity):
                if taken == n:
                    break
                generation = load_relaxed(self.generation(at))  # only changed under the lock, which we hold
                if generation & 1 == 0:  # an odd one is a slow writer's that we have lapped: it keeps its slot
                    if self.tree is not None and load_relaxed(self.tree.leaf + at) > 0:
                        store_release(self.tree.leaf + at, 0.0)  # [leaf] pairs with the acquire in Storage.read_rows
                        scratch[emptied] = at
                        emptied += 1
                    # [reserve-slot] relaxed: the release of each word of the row keeps it before them
                    store_relaxed(self.generation(at), generation + 1)
                    if at < header.n_started:
                        store_relaxed(&header.n_published, header.n_published - 1)
                    slot[taken] = at
                    taken += 1
                at += 1
                if at > header.n_started:
                    store_relaxed(&header.n_started, at)
                    header.n_touched = max(header.n_touched, at)
                if at == self.capacity:
                    at = 0
            header.position = at
            store_relaxed(&header.n_writing, header.n_writing + taken)
            if emptied > 0:
                recompute(self.tree.tree, scratch, emptied)
        release(header)
        return taken

    cdef void publish(self, const int64_t* slot, int64_t n, const double* priority, int64_t* scratch) noexcept nogil:
        """Make n written rows drawable; priority NULL gives them the largest seen."""
        cdef Header* header = self.header
        cdef int64_t i
        cdef double mass
        acquire(header)
        for i in range(n):
            # [publish-slot] release: pairs with the acquire in Storage.read_rows; the row is visible before this is
            store_release(self.generation(slot[i]), load_relaxed(self.generation(slot[i])) + 1)
            if self.tree is not None:
                mass = header.max_mass
                if priority != NULL:
                    mass = pow(priority[i], header.alpha)
                    if priority[i] > header.max_priority:
                        store_relaxed(&header.max_priority, priority[i])
                # [leaf] release: pairs with the acquire in Storage.read_rows; who sees this mass sees the new generation
                store_release(self.tree.leaf + slot[i], mass)
                scratch[i] = slot[i]
        if priority != NULL:
            header.max_mass = pow(header.max_priority, header.alpha)
        store_relaxed(&header.n_published, header.n_published + n)
        store_relaxed(&header.n_writing, header.n_writing - n)
        if self.tree is not None:
            recompute(self.tree.tree, scratch, n)
        release(header)

    def set_alpha(self, double alpha):
        """Raise every priority to the new exponent: mass becomes mass ** (new / old)."""
        cdef Header* header = self.header
        cdef int64_t i
        cdef double mass, ratio
        with nogil:
            acquire(header)
            if alpha != header.alpha:
                ratio = alpha / header.alpha if header.alpha > 0 else 0
                for i in range(header.n_started):
                    mass = load_relaxed(self.tree.leaf + i)  # only changed under the lock, which we hold
                    if mass > 0:
                        # From alpha = 0 the priorities cannot be told apart: the rows count as new.
                        mass = pow(mass, ratio) if header.alpha > 0 else pow(header.max_priority, alpha)
                        # [leaf] release: pairs with the acquire in Storage.read_rows
                        store_release(self.tree.leaf + i, min(max(mass, 5e-324), self.tree.mass_limit))
                store_relaxed(&header.alpha, alpha)
                header.max_mass = pow(header.max_priority, alpha)
                rebuild(self.tree.tree)
            release(header)

    # ------------------------------------------------------------------------------------------------- as a whole

    def view(self, int f):
        """Return field f of every slot as a writable strided array [capacity, ...] onto the rows themselves."""
        field = self.fields[f]
        strides = (self.row_nbytes, *np.empty(field.shape, field.dtype).strides)
        shape = (self.capacity, *field.shape)
        return np.ndarray(shape, field.dtype, self._bytes(self.capacity), self.places[f].offset, strides)

    def reset(self):
        """Forget every row and priority. Generations rise, so that every handle handed out is stale."""
        cdef int64_t i
        with nogil:
            self.pause()
            if self.tree is not None:
                for i in range(self.header.n_started):
                    store_release(self.tree.leaf + i, 0.0)  # [leaf] pairs with the acquire in Storage.read_rows
            for i in range(self.header.n_started):
                # [publish-slot] release: pairs with the acquire in Storage.read_rows; what is read meanwhile counts as changed
                store_release(self.generation(i), load_relaxed(self.generation(i)) + 2)
            if self.tree is not None:
                rebuild(self.tree.tree)
            self.header.position = 0
            store_relaxed(&self.header.n_published, <int64_t>0)
            store_relaxed(&self.header.n_started, <int64_t>0)
            store_relaxed(&self.header.max_priority, 1.0)
            self.header.max_mass = 1.0
            self.resume()

    def snapshot(self):
        """Return everything as a dict of numbers and arrays: a consistent cut, for which writers wait."""
        cdef Header* header = self.header
        cdef cnp.ndarray rows, masses
        cdef Header copy
        cdef int64_t n_rows
        while True:
            # Room first, lock after: an allocation may run a finalizer that wants the lock.
            n_rows = load_relaxed(&header.n_touched)
            rows = np.empty(n_rows * self.row_nbytes, np.uint8)
            masses = np.empty(n_rows if self.tree is not None else 0)
            with nogil:
                self.pause()
                copy = header[0]
                if copy.n_touched <= n_rows:
                    memcpy(cnp.PyArray_DATA(rows), self.rows, copy.n_touched * self.row_nbytes)
                    if self.tree is not None:
                        memcpy(cnp.PyArray_DATA(masses), self.tree.leaf, copy.n_started * sizeof(double))
                self.resume()
            if copy.n_touched <= n_rows:
                break
        return {
            "row_nbytes": self.row_nbytes,
            "rows": rows[: copy.n_touched * self.row_nbytes],
            "mass": None if self.tree is None else masses[: copy.n_started],
            "position": copy.position,
            "n_started": copy.n_started,
            "alpha": copy.alpha,
            "max_priority": copy.max_priority,
            "random": (copy.random_key[0], copy.random_key[1], copy.random_counter),
        }

    def restore(self, dict state):
        """Take over a snapshot, or raise ValueError if it is damaged. Nobody else may be using this storage yet."""
        cdef Header* header = self.header
        cdef int64_t n_started, position, n_touched
        if state["row_nbytes"] != self.row_nbytes:
            raise ValueError(f"the saved rows have {state['row_nbytes']} bytes, these {self.row_nbytes}: another layout")
        rows, n_started, position = state["rows"], state["n_started"], state["position"]
        n_touched = len(rows) // self.row_nbytes
        generations = rows.reshape(n_touched, -1)[:, :8].copy().view(np.uint64) if n_touched else np.zeros(0, np.uint64)
        alpha, max_priority, masses = state["alpha"], state["max_priority"], state["mass"]
        whole = (
            rows.dtype == np.uint8 and len(rows) == n_touched * self.row_nbytes
            and 0 <= n_started <= n_touched <= self.capacity and 0 <= position < self.capacity
            and 0 <= alpha <= 1 and (generations % 2 == 0).all() and (generations > 0).all()
            and (masses is None) == (self.tree is None) and (masses is None or len(masses) == n_started)
            and 0 < max_priority <= np.finfo(np.float64).max
        )
        if not whole:
            raise ValueError("the saved state contradicts itself: the pickle is damaged")
        if self.tree is not None:
            self.tree.set(np.arange(n_started), masses)
        header.n_touched = n_touched
        header.n_started = header.n_published = n_started
        header.position = position
        header.alpha = alpha
        header.max_priority = max_priority
        header.max_mass = pow(header.max_priority, header.alpha)
        self._bytes(n_touched)[:] = rows
        self.block.set_random_state(state["random"])

    def check_invariants(self):
        """Raise AssertionError naming the first invariant that is broken: the tree's I1 to I3, then I4, I5, the counters."""
        cdef int64_t i, slot = -1
        cdef uint64_t generation = 0
        cdef double mass = 0
        cdef int broken = 0
        cdef Header copy
        if self.tree is not None:
            self.tree.check_invariants()
        with nogil:  # look first, speak after the lock is gone, as in SumTree.check_invariants
            self.pause()
            copy = self.header[0]
            for i in range(self.capacity):
                generation = load_relaxed(self.generation(i))
                if self.tree is not None:
                    mass = self.tree.leaf[i]
                if generation & 1:
                    broken = 1
                elif i < copy.n_started and generation == 0:
                    broken = 2
                elif i >= copy.n_started and mass != 0:
                    broken = 3
                if broken:
                    slot = i
                    break
            self.resume()
        assert broken != 1, f"I5: slot {slot} has the odd generation {generation}, and nobody is writing it"
        assert broken != 2, f"I5: slot {slot} counts as used and has generation 0"
        assert broken != 3, f"I4: slot {slot} holds no row and has mass {mass}"
        assert copy.n_published == copy.n_started, \
            f"I5: {copy.n_published} rows are published in {copy.n_started} used slots, and nobody is writing"
        assert 0 <= copy.position < self.capacity, f"I5: position {copy.position} is not a slot"

    def _bytes(self, int64_t n):
        """Return the first n rows as one writable uint8 array, which keeps the block alive."""
        cdef cnp.npy_intp nbytes = n * self.row_nbytes
        array = cnp.PyArray_SimpleNewFromData(1, &nbytes, cnp.NPY_UINT8, self.rows)
        cnp.set_array_base(array, self.block)
        return array

    cdef void pause(self) noexcept nogil:
        """Take the lock at a moment when nobody is writing a row."""
        acquire(self.header)
        store_relaxed(&self.header.n_paused, self.header.n_paused + 1)
        while self.header.n_writing > 0:
            release(self.header)
            sched_yield()
            acquire(self.header)

    cdef void resume(self) noexcept nogil:
        """End what pause began."""
        store_relaxed(&self.header.n_paused, self.header.n_paused - 1)
        release(self.header)

    cdef bint is_empty(self) noexcept nogil:
        """Whether no row can be drawn and none is about to be; the lock makes it one moment."""
        cdef bint empty
        acquire(self.header)
        empty = self.header.n_writing == 0 and (self.header.n_published == 0 if self.tree is None else self.tree.root() <= 0)
        release(self.header)
        return empty

    cdef bint is_vacant(self, int64_t slot) noexcept nogil:
        """Whether a slot holds no row and will get none soon, though it may have been given mass."""
        cdef bint vacant
        acquire(self.header)
        vacant = slot >= self.header.n_started
        release(self.header)
        return vacant

    cdef uint64_t* generation(self, int64_t slot) noexcept nogil:
        """Where a slot's generation is."""
        return <uint64_t*>(self.rows + slot * self.row_nbytes)
