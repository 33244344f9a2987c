# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Slots: which there are, and who may write which, since when.

docs/concurrency.md argues why this is right. A writer reserves slots under the lock: their mass
becomes 0, their generation odd. It copies its rows holding no lock (writer.pyx), and publishes
under the lock: the generations become even, and the selector gives the rows their masses.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp

import os

import numpy as np

cimport numpy as cnp

from . import shared_memory
from ..errors import AttachError
from ..types import HANDLE_DTYPE

from .block cimport (
    Block, Handle, Header, Layout, Noise, Participant, acquire, bury, generation_of, head_nbytes,
    is_published, is_settled, is_vacant, load_relaxed, participants_of, pause, published, release,
    renew_max_mass, resume, store_relaxed, store_release, written_by,
)
from .sum_tree cimport SumTree

from .sum_tree import DEFAULT_ARITY

cnp.import_array()

cdef extern from "block.hpp" namespace "kary" nogil:
    const int64_t kUniform
    const int64_t kProportional
    const int64_t kRanked

cdef extern from "selectors.hpp" namespace "kary" nogil:
    Layout layout_of(
        int64_t selection, int64_t capacity, int64_t row_nbytes, int arity, int64_t at
    )

cdef extern from "noise.hpp" namespace "kary" nogil:
    void forget_noise(Header* header)
    double least_noise(const Noise& noise)

cdef extern from "sweep.hpp" namespace "kary" nogil:
    const int64_t kSwept
    bint needs_sweep(const Attachment* attachment, const Selector* selector)
    bint seems_abandoned(const Attachment* attachment)
    bint sweep(
        const Attachment* attachment, Selector* selector, const double* alpha, bint if_needed,
        int64_t piece,
    )

cdef extern from "recovery.hpp" namespace "kary" nogil:
    void reset(Header* header, Selector* selector)

UNIFORM, PROPORTIONAL, RANKED = kUniform, kProportional, kRanked
"""The kinds of selection; the headers of these names say what each does."""

cdef int64_t MAX_NBYTES = <int64_t>1 << 47


def _packed(nbytes, start):
    """Return an order of fields of these sizes that aligns most of them to 8, without gaps."""
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

    ``selection`` is one of the kinds above. ``shared``: for other processes, too; ``directory``: in
    a file there; ``file``: attach to what that descriptor holds. Private to the package.
    """

    def __cinit__(
        self, int64_t capacity, list names, list fields, int64_t selection, seed,
        bint shared=False, directory=None, int file=-1,
    ):
        cdef bint attach = file >= 0
        self.places = NULL
        # first, so that the file is the block's to close, whatever is wrong with the rest
        if attach:
            self.block = Block(os.fstat(file).st_size, seed, file, True)
        self.capacity = capacity
        self.names = names
        self.fields = fields
        self.swept = kSwept
        self._place_fields()
        if self.capacity > MAX_NBYTES // self.row_nbytes:
            tebibytes = self.capacity * self.row_nbytes / 2**40
            raise MemoryError(
                f"capacity {self.capacity} needs {tebibytes:.3g} TiB; choose a smaller one"
            )
        cdef size_t at = head_nbytes(shared or attach or directory is not None)
        cdef Layout layout = layout_of(
            selection, self.capacity, self.row_nbytes, DEFAULT_ARITY, at
        )
        if not attach:
            if shared or directory is not None:
                file = shared_memory.create(layout.nbytes, directory)
            self.block = Block(layout.nbytes, seed, file)
        self.header = self.block.header
        self.attachment = &self.block.attachment
        if attach:
            self.check_layout(&layout)
        else:
            self.header.layout = layout
            self.header.alpha = self.header.max_priority = self.header.max_mass = 1.0
        self.rows = self.block.base + layout.rows_at
        self.selector = make_selector(self.header, &self.space)
        if layout.tree_at:
            self.tree = SumTree(self.capacity, DEFAULT_ARITY, self.block, layout.tree_at)

    def __dealloc__(self):
        free(self.places)

    def _place_fields(self):
        """Say where each field is in a row, and how long rows are."""
        cdef Py_ssize_t end = sizeof(uint64_t)
        cdef Place* place
        self.n_fields = len(self.fields)
        self.places = <Place*>malloc(max(self.n_fields, 1) * sizeof(Place))
        if self.places == NULL:
            raise MemoryError
        for i in _packed([field.nbytes for field in self.fields], end):
            field, place = self.fields[i], self.places + <int>i
            place.offset, place.nbytes = end, field.nbytes
            place.dtype = <PyObject*>field.dtype
            place.n_axes = len(field.shape)
            for axis in range(place.n_axes):
                place.shape[axis] = field.shape[axis]
            end += place.nbytes
        self.payload_nbytes = end - sizeof(uint64_t)
        self.row_nbytes = (end + 7) // 8 * 8

    cdef int check_layout(self, const Layout* layout) except -1:
        """Raise AttachError for another layout, and for numbers that name no slots."""
        cdef Header* header = self.header
        cdef int64_t position, n_started, n_touched
        if (
            self.block.nbytes != <size_t>layout.nbytes
            or memcmp(&header.layout, layout, sizeof(Layout)) != 0
        ):
            raise AttachError(
                "the segment has another layout than the descriptor says: "
                "use one version of kary-replay in all"
            )
        with nogil:
            acquire(header)
            position, n_started, n_touched = header.position, header.n_started, header.n_touched
            release(header)
        if not (0 <= n_started <= n_touched <= self.capacity and 0 <= position < self.capacity):
            raise AttachError("the segment contradicts itself: it is damaged")
        return 0

    def __len__(self):
        return load_relaxed(&self.header.n_published)  # any recent value will do

    @property
    def alpha(self):
        """The exponent in force."""
        return load_relaxed(&self.header.alpha)

    @property
    def is_settled(self):
        """Whether all rows have the masses that were last asked for."""
        return is_settled(self.header)

    @property
    def max_priority(self):
        """The largest priority seen."""
        return load_relaxed(&self.header.max_priority)

    def raise_max_priority(self, double value):
        """Let new rows get at least this priority, where none is given for them.

        Raises ValueError if no row can have it.
        """
        if not 1 <= value <= self.selector.largest:
            raise ValueError(
                f"max_priority must be from 1 to {self.selector.largest:.3g}, got {value}"
            )
        self.block.enter()
        with nogil:
            acquire(self.header)
            if value > self.header.max_priority:
                # relaxed: readers without the lock may have the one before for one more add
                store_relaxed(&self.header.max_priority, value)
                renew_max_mass(self.header)
            release(self.header)

    @property
    def n_with_mass(self):
        """Rows that have mass."""
        return max(load_relaxed(&self.header.n_with_mass), 0)  # any recent value will do

    def handles(self):
        """Return the handles of whole rows, oldest first, whatever their mass is.

        As of one moment where nobody writes meanwhile.
        """
        cdef cnp.ndarray found = np.empty(self.capacity, HANDLE_DTYPE)
        cdef Handle* handle = <Handle*>cnp.PyArray_DATA(found)
        cdef int64_t slot = self.header.position, count = 0
        cdef uint64_t generation
        for _ in range(self.capacity):
            # relaxed: at rest nobody writes, and otherwise any recent value will do
            generation = load_relaxed(generation_of(self.header, slot))
            if is_published(generation) and not is_vacant(generation):
                handle[count].index, handle[count].generation = slot, generation
                count += 1
            slot = slot + 1 if slot + 1 < self.capacity else 0
        return found[:count]

    @property
    def largest(self):
        """The largest priority that a row can have."""
        return self.selector.largest

    def by_age(self):
        """Return the slots of the rows that can be drawn, oldest first, and their priorities.

        As of one moment where nobody writes meanwhile. Slots of masses only.
        """
        slot = (self.header.position + np.arange(self.capacity)) % self.capacity
        slot = slot[self.tree.get(slot) > 0]
        cdef const int64_t[::1] at = slot
        cdef double[::1] priority = np.empty(len(slot))
        cdef int64_t i
        for i in range(len(at)):
            priority[i] = self.selector.priority[at[i]]
        return slot, np.asarray(priority)

    @property
    def n_added(self):
        """Rows ever added."""
        return load_relaxed(&self.header.n_added)

    @property
    def n_repaired(self):
        """Processes that died while they held the lock; others repaired what they left."""
        return load_relaxed(&self.header.n_repaired)

    @property
    def n_copying(self):
        """Threads that copy masses, for which others count the changes."""
        cdef int64_t n
        self.block.enter()
        with nogil:
            acquire(self.header)
            n = self.header.n_copying
            release(self.header)
        return n

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
        """What is added to every |TD error|; kept here for other processes to see."""
        return load_relaxed(&self.header.priority_epsilon)

    @priority_epsilon.setter
    def priority_epsilon(self, double value):
        store_relaxed(&self.header.priority_epsilon, value)

    @property
    def uniform_share(self):
        """The share of draws among all rows alike; kept here for other processes to see."""
        return load_relaxed(&self.header.uniform_share)

    @property
    def adapts_share(self):
        """Whether TD errors choose the uniform share, as noise.hpp says."""
        return load_relaxed(&self.header.adapts_share) != 0

    def set_share(self, double share, bint adapts):
        """Set the uniform share, and whether TD errors choose it from then on.

        What was known of the noise belongs to the share before, and is forgotten.
        """
        self.block.enter()
        with nogil:
            acquire(self.header)  # who learns from TD errors just now must not set it after us
            # relaxed: readers without the lock may have the share of before for one more batch
            store_relaxed(&self.header.adapts_share, <int64_t>adapts)
            forget_noise(self.header)
            store_relaxed(&self.header.uniform_share, share)
            release(self.header)

    @property
    def relative_noise(self):
        """The noise of batches over that of uniform ones, as noise.hpp says; NaN: nobody knows."""
        cdef Noise noise = self.known_noise()
        return noise.present / noise.uniform if noise.uniform > 0 else float("nan")

    @property
    def least_noise(self):
        """The least noise of batches over that of uniform ones; NaN: nobody knows."""
        cdef Noise noise = self.known_noise()
        return least_noise(noise) if noise.uniform > 0 else float("nan")

    cdef Noise known_noise(self):
        """Return what is known of the noise of batches."""
        cdef Noise noise
        self.block.enter()
        with nogil:
            acquire(self.header)
            noise = self.header.noise
            release(self.header)
        return noise

    # -------------------------------------------------------------------------------------- writing

    cdef int64_t reserve(self, int64_t* slot, int64_t n, int64_t* scratch) noexcept nogil:
        """Make up to n slots ours, in ring order; return how many could be had."""
        cdef Header* header = self.header
        cdef Participant* us
        cdef int64_t taken = 0, n_lost = 0, n_seen = 0, me, at, i
        cdef uint64_t generation
        cdef bint blocked
        acquire(header)
        me = self.attachment.me
        us = participants_of(header) + me
        blocked = header.n_paused > 0
        if not blocked:
            at = header.position
            while taken < n and n_seen < self.capacity:
                n_seen += 1
                # only changed under the lock, which we hold
                generation = load_relaxed(generation_of(header, at))
                if generation & 1 == 0 or is_vacant(generation):
                    n_lost += at < header.n_started and is_published(generation)
                    slot[taken] = at
                    taken += 1
                else:  # a slow writer's that we have lapped: it keeps its slot, if it lives
                    blocked = True
                at += 1
                if at == self.capacity:
                    at = 0
            self.selector.vacate(slot, taken, scratch)
            # before the generations: a snapshot looks for changed ones by the first, and who
            # buries us by the others
            if us.n_writing == 0:
                us.first_written, us.passed_before = header.position, header.n_passed
            header.n_passed += n_seen
            us.n_passed = min(header.n_passed - us.passed_before, self.capacity)
            for i in range(taken):
                # before the generation: who repairs the block looks at so many
                if slot[i] >= header.n_started:
                    store_relaxed(&header.n_touched, max(header.n_touched, slot[i] + 1))
                    store_relaxed(&header.n_started, slot[i] + 1)
                generation = written_by(load_relaxed(generation_of(header, slot[i])), me)
                # [reserve-slot] the releases of write_word (atomic.hpp) keep it before the row
                store_release(generation_of(header, slot[i]), generation)
            header.position = at
            store_relaxed(&header.n_published, header.n_published - n_lost)
            us.n_writing += taken
            store_relaxed(&header.n_writing, header.n_writing + taken)
        if blocked:
            bury(self.attachment, False)
        release(header)
        return taken

    cdef void publish(
        self, const int64_t* slot, int64_t n, const double* priority, int64_t* scratch
    ) noexcept nogil:
        """Make n written rows drawable.

        A negative priority, or NULL for all, stands for the largest seen. A row of priority 0 is
        there for others to refer to, and is no transition.
        """
        cdef Header* header = self.header
        cdef uint64_t generation
        cdef int64_t i
        cdef bint is_due
        acquire(header)
        # before the generations: a row that others find published has its own priority
        self.selector.store_priorities(slot, n, priority)
        for i in range(n):
            generation = published(load_relaxed(generation_of(header, slot[i])))
            # [publish-slot] release: pairs with the acquire in Reader.read_rows (reader.pyx); the
            # row is visible before this is
            store_release(generation_of(header, slot[i]), generation)
            if self.selector.is_transition(slot[i]):
                store_relaxed(&header.n_added, header.n_added + 1)
        self.selector.admit(slot, n, scratch)
        store_relaxed(&header.n_published, header.n_published + n)
        participants_of(header)[self.attachment.me].n_writing -= n
        store_relaxed(&header.n_writing, header.n_writing - n)
        is_due = needs_sweep(self.attachment, self.selector)
        release(header)
        if is_due:
            self.sweep(NULL, True)  # without memory for it, the next change tries again

    cdef bint sweep(self, const double* alpha, bint if_needed) noexcept nogil:
        """Give all rows new masses, as sweep.hpp says; False if there is no memory for it."""
        return sweep(self.attachment, self.selector, alpha, if_needed, self.swept)

    cdef void settle(self) noexcept nogil:
        """Finish what somebody left who died while giving all rows new masses."""
        if not is_settled(self.header) and seems_abandoned(self.attachment):
            self.sweep(NULL, True)

    cdef void retire(self, const Handle* handle, int64_t n, int64_t* scratch) noexcept nogil:
        """Take rows out of the draws for good, where their handles are current."""
        cdef Header* header = self.header
        cdef int64_t i, n_retired = 0
        acquire(header)
        for i in range(n):
            # Generations change only under the lock: this is the row that was looked at, or its
            # slot has another one now.
            if load_relaxed(generation_of(header, handle[i].index)) == handle[i].generation:
                scratch[n_retired] = handle[i].index
                n_retired += 1
        if n_retired > 0:
            self.selector.retire(scratch, n_retired)
        release(header)

    def rank(self):
        """Give every row the mass of its rank now; without ranks, do nothing."""
        cdef bint there_was_memory
        self.block.enter()
        if not self.selector.needs_all():
            return
        with nogil:
            there_was_memory = self.sweep(NULL, False)
        if not there_was_memory:
            raise MemoryError("no memory to rank the rows; their masses stay as they were")

    def set_alpha(self, double alpha):
        """Give every row the mass of its priority and the new exponent."""
        cdef bint there_was_memory
        self.block.enter()
        with nogil:
            there_was_memory = self.sweep(&alpha, False)
        if not there_was_memory:
            raise MemoryError(
                "no memory to rank the rows; alpha and their masses stay as they were"
            )

    def reset(self):
        """Forget every row and priority. Generations rise, so every handle handed out is stale."""
        self.block.enter()
        with nogil:
            pause(self.attachment)
            reset(self.header, self.selector)
            resume(self.attachment)

    # -------------------------------------------------------------------------------------- looking

    def view(self, int f):
        """Return field f of every slot as a strided view [capacity, ...] of the rows."""
        field = self.fields[f]
        strides = (self.row_nbytes, *np.empty(field.shape, field.dtype).strides)
        shape = (self.capacity, *field.shape)
        rows = self.bytes_of(self.capacity)
        return np.ndarray(shape, field.dtype, rows, self.places[f].offset, strides)

    cdef object bytes_of(self, int64_t n):
        """Return the first n rows as one writable uint8 array, which keeps the block alive."""
        cdef cnp.npy_intp nbytes = n * self.row_nbytes
        array = cnp.PyArray_SimpleNewFromData(1, &nbytes, cnp.NPY_UINT8, self.rows)
        cnp.set_array_base(array, self.block)
        return array

    cdef bint is_idle(self) noexcept nogil:
        """Whether no row can be drawn and none is about to be; the lock makes it one moment."""
        cdef bint is_idle
        acquire(self.header)
        bury(self.attachment, False)  # or we might wait for a row that a dead writer began
        is_idle = self.header.n_writing == 0 and self.selector.extent() <= 0
        release(self.header)
        return is_idle

    cdef int64_t n_to_come(self) noexcept nogil:
        """Return how many rows may be drawn once all that are being written are there."""
        cdef int64_t n
        acquire(self.header)
        bury(self.attachment, False)
        n = self.header.n_with_mass + self.header.n_writing
        release(self.header)
        return n

    cdef bint holds_no_row(self, int64_t slot, bint with_mass) noexcept nogil:
        """Whether a slot has no row and gets none unless somebody adds one.

        ``with_mass``: whether it has no row that can be drawn; otherwise masses do not matter.
        """
        cdef uint64_t generation
        cdef bint holds_none
        acquire(self.header)
        bury(self.attachment, False)
        # relaxed: it changes only under the lock
        generation = load_relaxed(generation_of(self.header, slot))
        holds_none = generation == 0 or is_vacant(generation)
        if with_mass and is_published(generation):  # which it was in the hold that gave it a mass
            holds_none = self.selector.mass_at(slot) <= 0
        release(self.header)
        return holds_none
