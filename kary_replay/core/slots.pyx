# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Slots: who may write which, since when, and with what mass. docs/concurrency.md argues why it is right.

A writer reserves slots under the lock (their mass becomes 0, their generation odd), copies its rows
holding no lock, and publishes under the lock (the generation becomes even, the mass the
priority's). storage.pyx moves the rows.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

import os

import numpy as np

cimport numpy as cnp

from . import shared_memory
from ..errors import AttachError
from ..validation import as_count

from .block cimport (
    Block, Header, acquire, aligned, bury, head_nbytes, is_published, is_vacant, kRankingBytes, load_relaxed, mass_of,
    participants_of, pause, priorities_of, published, release, renew_max_mass, reset, resume, set_alpha, store_relaxed,
    store_release, written_by,
)
from .sum_tree cimport SumTree, lay_out, rank_all, rank_if_due, recompute

from .sum_tree import DEFAULT_ARITY

cnp.import_array()

cdef int64_t MAX_CAPACITY = <int64_t>1 << 40
cdef int RANKED = 2  # what ``prioritized`` is for masses by rank
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

    With ``prioritized`` there is a tree with one leaf per slot; 2: by rank. ``shared``: for other
    processes, too; ``directory``: in a file there; ``file``: attach to what that descriptor holds.
    Private to the package.
    """

    def __cinit__(
        self, capacity, list names, list fields, int prioritized, seed, bint shared=False, directory=None, int file=-1
    ):
        cdef bint attach = file >= 0
        self.places = NULL
        # first, so that the file is the block's to close, whatever is wrong with the rest
        if attach:
            self.block = Block(os.fstat(file).st_size, seed, file, True)
        cdef int64_t n_slots = as_count("capacity", capacity, MAX_CAPACITY)
        cdef Py_ssize_t end = sizeof(uint64_t)
        cdef size_t tree_at = head_nbytes(shared or attach or directory is not None)
        cdef size_t priorities_at, ranking_at, rows_at, nbytes
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
        priorities_at = tree_at + (lay_out(NULL, NULL, n_slots, DEFAULT_ARITY) if prioritized else 0)
        ranking_at = priorities_at + (aligned(n_slots * sizeof(double)) if prioritized else 0)
        rows_at = ranking_at + (kRankingBytes if prioritized == RANKED else 0)
        if n_slots > MAX_NBYTES // self.row_nbytes:
            raise MemoryError(f"capacity {n_slots} needs {n_slots * self.row_nbytes / 2**40:.3g} TiB; choose a smaller one")
        nbytes = rows_at + n_slots * self.row_nbytes
        if not attach:
            if shared or directory is not None:
                file = shared_memory.create(nbytes, directory)
            self.block = Block(nbytes, seed, file)
        self.header = self.block.header
        self.attachment = &self.block.attachment
        self.rows = self.block.base + rows_at
        if not attach:
            self.header.capacity = n_slots
            self.header.row_nbytes = self.row_nbytes
            self.header.rows_at = rows_at
            self.header.tree_at = tree_at if prioritized else 0
            self.header.priorities_at = priorities_at if prioritized else 0
            self.header.ranking_at = ranking_at if prioritized == RANKED else 0
            self.header.arity = DEFAULT_ARITY
            self.header.alpha = self.header.max_priority = self.header.max_mass = 1.0
        elif (
            self.block.nbytes != nbytes or self.header.capacity != n_slots or self.header.row_nbytes != self.row_nbytes
            or self.header.rows_at != <int64_t>rows_at or self.header.arity != DEFAULT_ARITY
            or self.header.tree_at != (<int64_t>tree_at if prioritized else 0)
            or self.header.priorities_at != (<int64_t>priorities_at if prioritized else 0)
            or self.header.ranking_at != (<int64_t>ranking_at if prioritized == RANKED else 0)
        ):
            raise AttachError("the segment has another layout than the descriptor says: use one version of kary-replay in all")
        else:
            self._check_header()
        self.tree = SumTree(n_slots, DEFAULT_ARITY, self.block, tree_at) if prioritized else None
        self.priority = priorities_of(self.header) if prioritized else NULL

    def __dealloc__(self):
        free(self.places)

    def _check_header(self):
        """Raise AttachError where the numbers of a block that others made name slots that there are not."""
        cdef Header* header = self.header
        cdef int64_t position, n_started, n_touched
        with nogil:
            acquire(header)
            position, n_started, n_touched = header.position, header.n_started, header.n_touched
            release(header)
        if not (0 <= n_started <= n_touched <= self.capacity and 0 <= position < self.capacity):
            raise AttachError("the segment contradicts itself: it is damaged")

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

    @property
    def n_added(self):
        """Rows ever added."""
        return load_relaxed(&self.header.n_added)

    @property
    def n_repaired(self):
        """Processes that died while they held the lock, and were cleaned up after."""
        return load_relaxed(&self.header.n_repaired)

    @property
    def n_sampled(self):
        """Rows ever drawn."""
        return load_relaxed(&self.header.n_sampled)

    @property
    def beta(self):
        """Exponent of the importance weights; kept here for other processes to see."""
        return load_relaxed(&self.header.beta)

    @beta.setter
    def beta(self, double value):
        store_relaxed(&self.header.beta, value)

    @property
    def priority_epsilon(self):
        """What is added to |TD error|; kept here for other processes to see."""
        return load_relaxed(&self.header.priority_epsilon)

    @priority_epsilon.setter
    def priority_epsilon(self, double value):
        store_relaxed(&self.header.priority_epsilon, value)

    # -------------------------------------------------------------------------------------- writing

    cdef int64_t reserve(self, int64_t* slot, int64_t n, int64_t* scratch) noexcept nogil:
        """Make up to n slots ours, in ring order, and return how many: fewer where others hold the rest."""
        cdef Header* header = self.header
        cdef int64_t taken = 0, emptied = 0, n_lost = 0, _seen, at
        cdef uint64_t generation
        cdef bint blocked
        acquire(header)
        blocked = header.n_paused > 0
        if not blocked:
            at = header.position
            for _seen in range(self.capacity):
                if taken == n:
                    break
                # only changed under the lock, which we hold
                generation = load_relaxed(self.generation(at))
                if generation & 1 == 0 or is_vacant(generation):
                    n_lost += at < header.n_started and is_published(generation)
                    if self.tree is not None and load_relaxed(self.tree.leaf + at) > 0:
                        # [leaf] pairs with the acquire in Reader.read_rows
                        store_release(self.tree.leaf + at, 0.0)
                        scratch[emptied] = at
                        emptied += 1
                    # before the generation: who repairs the block looks at so many
                    if at >= header.n_started:
                        store_relaxed(&header.n_touched, max(header.n_touched, at + 1))
                        store_relaxed(&header.n_started, at + 1)
                    # [reserve-slot] the release of each word of the row keeps it before them
                    store_release(self.generation(at), written_by(generation, self.attachment.me))
                    slot[taken] = at
                    taken += 1
                else:  # a slow writer's that we have lapped: it keeps its slot, if it lives
                    blocked = True
                at += 1
                if at == self.capacity:
                    at = 0
            header.position = at
            store_relaxed(&header.n_published, header.n_published - n_lost)
            participants_of(header)[self.attachment.me].n_writing += taken
            store_relaxed(&header.n_writing, header.n_writing + taken)
            if emptied > 0:
                recompute(self.tree.tree, scratch, emptied)
        if blocked:
            bury(self.attachment, False)
        release(header)
        return taken

    cdef void publish(self, const int64_t* slot, int64_t n, const double* priority, int64_t* scratch) noexcept nogil:
        """Make n written rows drawable; a negative priority, or NULL for all, gives them the largest seen.

        A row of priority 0 has mass 0, whatever alpha is: it is there for others to refer to, and
        no transition.
        """
        cdef Header* header = self.header
        cdef int64_t i
        cdef double mass = 0, given = 1
        acquire(header)
        for i in range(n):
            if self.tree is not None:
                given = header.max_priority
                if priority != NULL and priority[i] >= 0:
                    given = priority[i]
                    if given > header.max_priority:
                        store_relaxed(&header.max_priority, given)
                        renew_max_mass(header)
                if given == 0:
                    mass = 0
                elif given == header.max_priority and header.ranking_at == 0:
                    mass = header.max_mass
                else:
                    mass = mass_of(header, given)
                self.priority[slot[i]] = given
            # [publish-slot] release: pairs with the acquire in Reader.read_rows; the row is visible
            # before this is. The priority is stored before it, too: a row that others find
            # published has its own.
            store_release(self.generation(slot[i]), published(load_relaxed(self.generation(slot[i]))))
            if self.tree is not None:
                # [leaf] release: pairs with the acquire in Reader.read_rows; who sees this mass
                # sees the new generation
                store_release(self.tree.leaf + slot[i], mass)
                scratch[i] = slot[i]
            store_relaxed(&header.n_added, header.n_added + (given > 0))
        store_relaxed(&header.n_published, header.n_published + n)
        participants_of(header)[self.attachment.me].n_writing -= n
        store_relaxed(&header.n_writing, header.n_writing - n)
        if self.tree is not None:
            recompute(self.tree.tree, scratch, n)
            rank_if_due(header, self.tree.tree, self.priority, n)
        release(header)

    def rank(self):
        """Give every row the mass of its rank now; without ranks, nothing."""
        cdef bint there_was_memory = True
        self.block.enter()
        with nogil:
            acquire(self.header)
            if self.header.ranking_at != 0:
                there_was_memory = rank_all(self.header, self.tree.tree, self.priority, self.header.alpha)
            release(self.header)
        if not there_was_memory:
            raise MemoryError("no memory to rank the rows; their masses stay as they were")

    def set_alpha(self, double alpha):
        """Give every row the mass of its priority and the new exponent."""
        cdef bint there_was_memory
        self.block.enter()
        with nogil:
            acquire(self.header)
            there_was_memory = set_alpha(self.header, alpha)
            release(self.header)
        if not there_was_memory:
            raise MemoryError("no memory to rank the rows; alpha and their masses stay as they were")

    # ----------------------------------------------------------------------------------- as a whole

    def view(self, int f):
        """Return field f of every slot as a writable strided array [capacity, ...] onto the rows themselves."""
        field = self.fields[f]
        strides = (self.row_nbytes, *np.empty(field.shape, field.dtype).strides)
        shape = (self.capacity, *field.shape)
        return np.ndarray(shape, field.dtype, self._bytes(self.capacity), self.places[f].offset, strides)

    def reset(self):
        """Forget every row and priority. Generations rise, so that every handle handed out is stale."""
        self.block.enter()
        with nogil:
            pause(self.attachment)
            reset(self.header)
            resume(self.attachment)

    def _bytes(self, int64_t n):
        """Return the first n rows as one writable uint8 array, which keeps the block alive."""
        cdef cnp.npy_intp nbytes = n * self.row_nbytes
        array = cnp.PyArray_SimpleNewFromData(1, &nbytes, cnp.NPY_UINT8, self.rows)
        cnp.set_array_base(array, self.block)
        return array

    cdef bint is_empty(self) noexcept nogil:
        """Whether no row can be drawn and none is about to be; the lock makes it one moment."""
        cdef bint empty
        acquire(self.header)
        bury(self.attachment, False)  # or we might wait for a row that a dead writer began
        empty = self.header.n_writing == 0 and (self.header.n_published == 0 if self.tree is None else self.tree.root() <= 0)
        release(self.header)
        return empty

    cdef bint holds_no_row(self, int64_t slot) noexcept nogil:
        """Whether a slot has no row and will get none unless somebody adds one, though it may have been given mass."""
        cdef uint64_t generation
        acquire(self.header)
        bury(self.attachment, False)
        generation = load_relaxed(self.generation(slot))
        release(self.header)
        return generation == 0 or is_vacant(generation)

    cdef uint64_t* generation(self, int64_t slot) noexcept nogil:
        """Where a slot's generation is."""
        return <uint64_t*>(self.rows + slot * self.row_nbytes)
