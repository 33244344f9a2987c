# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Rows out of slots: drawn and copied without a lock; docs/concurrency.md argues why it is right.

A reader looks at a slot's generation before and after it copies the row, and draws another one
where they differ.
"""

from cpython.ref cimport Py_INCREF
from libc.math cimport pow, powf
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cimport numpy as cnp

from ..errors import EmptyBufferError
from ..types import HANDLE_DTYPE
from ..validation import as_count

from .block cimport (
    PER_COUNTER, acquire, bury, fetch_add_relaxed, fill_uniform, is_published, load_acquire, load_relaxed,
    prefetch_far, read_field, release, sched_yield, take_random,
)
from .slots cimport Place
from .snapshots cimport Snapshots

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    # takes a reference to dtype
    cnp.ndarray PyArray_Empty(int n_axes, cnp.npy_intp* shape, cnp.dtype dtype, int fortran)

cdef cnp.dtype HANDLE = HANDLE_DTYPE

cdef enum:
    MAX_BATCH = 1 << 30
    AHEAD = 16            # rows prefetched ahead
    PREFETCHED = 512      # bytes of a row; the hardware follows a longer one by itself
    PATIENCE = 16         # draws in vain, before what is left is looked at, or others get the core
    MAX_REDRAWS = 1000    # before asking whether the slot drawn holds a row at all

# What read_batch returns.
cdef enum:
    DRAWN = 0
    EMPTY = 1
    UNREADABLE = 2
    TOO_FEW = 3
    NO_MEMORY = 4


cdef cnp.ndarray _empty(int n_axes, cnp.npy_intp* shape, cnp.dtype dtype):
    """Return a new array, its content undefined."""
    Py_INCREF(dtype)
    return PyArray_Empty(n_axes, shape, dtype, 0)


cdef class Reader(Snapshots):
    """Slots, and what copies rows out of them. Columns come in the order of the fields. Private to the package."""

    def sample(self, batch_size, bint stratified, double beta, bint unique=False):
        """Draw rows; return a dict of new arrays: the fields, importance_weight with a tree, index, handle.

        With ``unique``, one after the other from those that are not in the batch yet.
        """
        cdef int64_t n = as_count("batch_size", batch_size, MAX_BATCH), i
        cdef cnp.npy_intp dims[32]
        cdef dict batch = {}
        cdef cnp.ndarray array
        cdef char** column = <char**>malloc(self.n_fields * sizeof(char*) + n * sizeof(double))
        cdef double* mass = <double*>(column + self.n_fields)
        cdef Handle* handle
        cdef int64_t* index
        cdef float* weight = NULL
        cdef double smallest, ratio
        cdef int outcome = TOO_FEW, f
        cdef Remainder rest
        if column == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        try:
            self.block.enter()
            rest.is_unique = unique
            if unique and not rest.drawn.make(n):
                raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
            dims[0] = n
            for f in range(self.n_fields):
                # From C, not from the Field: each Python object touched here is a cache line that
                # threads pass around.
                array = _empty(self.drawn_shape(f, dims + 1) + 1, dims, <cnp.dtype>self.places[f].dtype)
                column[f] = <char*>cnp.PyArray_DATA(array)
                batch[self.names[f]] = array
            if self.tree is not None:
                batch["importance_weight"] = array = cnp.PyArray_EMPTY(1, dims, cnp.NPY_FLOAT32, 0)
                weight = <float*>cnp.PyArray_DATA(array)
            batch["index"] = array = cnp.PyArray_EMPTY(1, dims, cnp.NPY_INT64, 0)
            index = <int64_t*>cnp.PyArray_DATA(array)
            batch["handle"] = array = _empty(1, dims, HANDLE)
            handle = <Handle*>cnp.PyArray_DATA(array)
            with nogil:
                outcome = self.read_batch(column, n, handle, mass, stratified and not unique, &rest)
                if outcome == DRAWN:
                    fetch_add_relaxed(&self.header.n_sampled, n)
                    for i in range(n):
                        index[i] = handle[i].index
                    if weight != NULL:
                        # (N · P(i)) ** -beta over its maximum in the batch: N and the total cancel.
                        smallest = mass[0]
                        for i in range(1, n):
                            smallest = min(smallest, mass[i])
                        for i in range(n):
                            ratio = smallest / mass[i]
                            # float32 is precise enough for a float32 weight, where it can hold the
                            # ratio at all
                            weight[i] = powf(<float>ratio, <float>beta) if ratio > 1e-37 else <float>pow(ratio, beta)
        finally:
            free(column)
        if outcome == TOO_FEW:
            raise ValueError(f"batch_size must be at most the number of rows that can be drawn, for unique=True, got {n}")
        if outcome == EMPTY:
            raise EmptyBufferError("there is no row to draw: add some first (or every mass is zero)")
        if outcome == NO_MEMORY:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        if outcome == UNREADABLE:
            raise RuntimeError("masses were set on slots that hold no row: set masses only for slots that add returned")
        return batch

    cdef int drawn_shape(self, int f, cnp.npy_intp* shape) noexcept nogil:
        """Write the shape that field f has in a drawn row, and return its number of axes."""
        cdef Place* place = self.places + f
        memcpy(shape, place.shape, place.n_axes * sizeof(shape[0]))
        return place.n_axes

    cdef int read_batch(self, char** column, int64_t n, Handle* handle, double* mass, bint stratified,
                        Remainder* rest) noexcept nogil:
        """Draw n rows into the columns."""
        cdef double u[CHUNK]
        cdef int64_t slot[CHUNK]
        cdef int64_t start = 0, count, i
        cdef double extent = self.wait_for_rows()
        cdef uint64_t counter
        cdef int outcome
        if extent <= 0:
            return EMPTY
        if rest.is_unique and not self.may_hold(n):
            return TOO_FEW
        counter = take_random(self.header, n)
        while start < n:
            count = min(<int64_t>CHUNK, n - start)
            self.draw(extent, counter + start // PER_COUNTER, u, slot, start, count, n, stratified)
            self.read_rows(slot, count, column, start, handle + start, mass + start)
            for i in range(start, start + count):
                if handle[i].index < 0 or (rest.is_unique and not rest.drawn.add(handle[i].index).is_new):
                    outcome = self.read_again(column, i, n, handle, mass, stratified, rest)
                    if outcome != DRAWN:
                        return outcome
            start += count
            if start < n:
                extent = self.wait_for_rows()
                if extent <= 0:
                    return EMPTY
        return DRAWN

    cdef int read_again(self, char** column, int64_t i, int64_t n, Handle* handle, double* mass, bint stratified,
                        Remainder* rest) noexcept nogil:
        """Draw row i of a batch until there is one: another thread was faster, or the slot has no row, or the batch has it.

        From the same part of the mass first, unless that part seems to hold nothing.
        """
        cdef double u, extent
        cdef int64_t slot
        cdef int64_t attempts = 0
        cdef int outcome
        while True:
            handle[i].index = -1
            attempts += 1
            extent = self.wait_for_rows()
            if extent <= 0:
                return EMPTY
            if attempts <= PATIENCE or (self.tree is not None and not rest.is_unique):
                if attempts > PATIENCE:
                    sched_yield()
                self.draw(extent, take_random(self.header, 1), &u, &slot, i, 1, n, stratified and attempts <= PATIENCE)
            else:
                fill_uniform(self.header.random_key, take_random(self.header, 1), &u, 1)
                outcome = self.draw_rest(u, &slot, i, n, handle, rest)
                if outcome != DRAWN:
                    return outcome
            if not (rest.is_unique and rest.drawn.has(slot)):
                self.read_rows(&slot, 1, column, i, handle + i, mass + i)
                if handle[i].index >= 0:
                    if rest.is_unique:
                        rest.drawn.add(slot)
                    elif attempts > PATIENCE and self.tree is None:
                        rest.n_slots += 1  # back among what is left: it may come again
                    return DRAWN
            if attempts % MAX_REDRAWS == 0 and self.holds_no_row(slot):
                return UNREADABLE

    cdef int draw_rest(self, double u, int64_t* slot, int64_t n_drawn, int64_t n, const Handle* handle,
                       Remainder* rest) noexcept nogil:
        """Draw a slot from what is left beside the batch's first n_drawn rows, and take it out.

        What is left is looked at anew when it has been used up; where that is nothing, this waits
        for those who write.
        """
        cdef bint has_tree = self.tree is not None, is_idle
        cdef int64_t j
        if not rest.is_made or rest.extent(has_tree) <= 0 or (has_tree and rest.tree.is_used_up()):
            self.collect(n_drawn, n, handle, rest)
            while rest.is_made and rest.extent(has_tree) <= 0:
                acquire(self.header)
                bury(self.attachment, False)
                is_idle = self.header.n_writing == 0
                if is_idle:  # then the lock makes it one moment
                    self.collect(n_drawn, n, handle, rest)
                release(self.header)
                if is_idle and rest.is_made and rest.extent(has_tree) <= 0:
                    return TOO_FEW if rest.is_unique else EMPTY
                if not is_idle:
                    sched_yield()
                    self.collect(n_drawn, n, handle, rest)
            if not rest.is_made:
                return NO_MEMORY
        if has_tree:
            slot[0] = rest.tree.find(u * rest.tree.total())
            rest.tree.remove(slot[0])
        else:
            j = min(<int64_t>(u * rest.n_slots), rest.n_slots - 1)
            slot[0] = rest.slot[j]
            rest.n_slots -= 1  # and behind the others, where read_again finds it
            rest.slot[j] = rest.slot[rest.n_slots]
            rest.slot[rest.n_slots] = slot[0]
        return DRAWN

    cdef void collect(self, int64_t n_drawn, int64_t n, const Handle* handle, Remainder* rest) noexcept nogil:
        """Look at what is left now; without memory for it, `is_made` is false afterwards.

        O(n_drawn · log(capacity)) with a tree, else O(capacity).
        """
        cdef int64_t i, n_started
        if self.tree is not None:
            # rows of the batch, and draws in vain
            rest.is_made = rest.tree.make(self.tree.tree, n + PATIENCE)
            if rest.is_made:
                for i in range(n_drawn):
                    rest.tree.remove(handle[i].index)
            return
        n_started = load_relaxed(&self.header.n_started)
        free(rest.slot)
        rest.n_slots = 0
        rest.slot = <int64_t*>malloc(max(n_started, 1) * sizeof(int64_t))
        rest.is_made = rest.slot != NULL
        if not rest.is_made:
            return
        for i in range(n_started):
            # relaxed: read_rows looks again
            if is_published(load_relaxed(self.generation(i))) and not (rest.is_unique and rest.drawn.has(i)):
                rest.slot[rest.n_slots] = i
                rest.n_slots += 1

    cdef bint may_hold(self, int64_t n) noexcept nogil:
        """Whether there are n rows, those included that are being written; where it looks as if not, under the lock."""
        cdef bint may
        if n <= load_relaxed(&self.header.n_published) + load_relaxed(&self.header.n_writing):
            return True
        acquire(self.header)
        bury(self.attachment, False)
        may = n <= self.header.n_published + self.header.n_writing
        release(self.header)
        return may

    def gather(self, cnp.ndarray handles, int f):
        """Return field f of the rows with these handles, [B, ...], and which of them were still there, bool [B].

        ``handles`` is a contiguous array [B] of HANDLE_DTYPE. Where a row is gone, its value is
        undefined.
        """
        cdef cnp.npy_intp dims[32]
        cdef int64_t n = cnp.PyArray_SIZE(handles), i
        cdef Handle* handle = <Handle*>cnp.PyArray_DATA(handles)
        cdef Handle wanted
        cdef Place* place = self.places + f
        cdef char* row
        cdef char* value
        cdef cnp.ndarray array, there
        cdef char* found
        dims[0] = n
        memcpy(dims + 1, place.shape, place.n_axes * sizeof(dims[0]))
        array = _empty(place.n_axes + 1, dims, <cnp.dtype>place.dtype)
        there = cnp.PyArray_EMPTY(1, dims, cnp.NPY_BOOL, 0)
        value = <char*>cnp.PyArray_DATA(array)
        found = <char*>cnp.PyArray_DATA(there)
        with nogil:
            for i in range(n):
                wanted = handle[i]
                found[i] = False
                if not 0 <= wanted.index < self.capacity or wanted.generation & 1 or wanted.generation == 0:
                    continue
                row = self.rows + wanted.index * self.row_nbytes
                # [publish-slot] acquire: pairs with the release in publish
                if load_acquire(<uint64_t*>row) == wanted.generation:
                    read_field(row, value + i * place.nbytes, place.offset, place.nbytes)
                    # [reserve-slot] relaxed: the acquire of each word above keeps this second look
                    # behind it
                    found[i] = load_relaxed(<uint64_t*>row) == wanted.generation
        return array, there

    def copy_rows(self, int64_t first, cnp.ndarray into):
        """Copy whole rows, generations first, from slot ``first`` on into a contiguous uint8 array [n * row_nbytes].

        A row that is written meanwhile may arrive torn: its generation, looked at again later, then
        differs from the one copied.
        """
        cdef char* to = <char*>cnp.PyArray_DATA(into)
        cdef int64_t n = cnp.PyArray_NBYTES(into) // self.row_nbytes, i
        cdef char* row
        assert 0 <= first and first + n <= self.capacity, "no such rows"
        with nogil:
            for i in range(n):
                row = self.rows + (first + i) * self.row_nbytes
                # [publish-slot] as in read_rows
                (<uint64_t*>(to + i * self.row_nbytes))[0] = load_acquire(<uint64_t*>row)
                read_field(row, to + i * self.row_nbytes + 8, 8, self.row_nbytes - 8)

    cdef double extent(self) noexcept nogil:
        """What is divided among the draws: the total mass, or the number of slots in use. Any recent value will do."""
        if self.tree is not None:
            return self.tree.root()
        return <double>load_relaxed(&self.header.n_started) if load_relaxed(&self.header.n_published) > 0 else 0.0

    cdef double wait_for_rows(self) noexcept nogil:
        """Return an extent above 0, or 0 if there is no row and none is about to be."""
        cdef double extent = self.extent()
        while extent <= 0 and not self.is_empty():
            sched_yield()
            extent = self.extent()
        return max(extent, 0.0)

    cdef void draw(self, double extent, uint64_t counter, double* u, int64_t* slot, int64_t first, int64_t n,
                   int64_t batch_size, bint stratified) noexcept nogil:
        """Draw n slots, draws ``first`` … of a batch, for read_rows to check. ``u`` is scratch.

        ``counter`` is where the random numbers for them begin; ``extent``, above 0, is what the
        draws divide.
        """
        cdef int64_t i
        fill_uniform(self.header.random_key, counter, u, n)
        for i in range(n):
            u[i] = (first + i + u[i]) * (1.0 / batch_size) * extent if stratified else u[i] * extent
        if self.tree is None:
            for i in range(n):
                slot[i] = min(<int64_t>u[i], self.capacity - 1)
        else:
            self.tree.search(u, slot, n, batch_size if stratified else 0)

    cdef void read_rows(self, const int64_t* slot, int64_t n, char** column, int64_t first, Handle* handle,
                        double* mass) noexcept nogil:
        """Copy n slots' rows into rows ``first`` … of the columns.

        A handle's index becomes -1 where the row is missing, empty, being written, or changed
        during the copy.
        """
        cdef int64_t i
        cdef int f
        cdef char* row
        cdef uint64_t generation
        cdef Place place
        for i in range(min(<int64_t>AHEAD, n)):
            self.prefetch_row(slot[i])
        for i in range(n):
            if i + AHEAD < n:
                self.prefetch_row(slot[i + AHEAD])
            row = self.rows + slot[i] * self.row_nbytes
            handle[i].index = -1
            # [publish-slot] acquire: pairs with the release in publish
            generation = load_acquire(<uint64_t*>row)
            if generation == 0 or generation & 1:
                continue
            if self.tree is not None:
                # [leaf] acquire: pairs with the releases in reserve, publish and update
                mass[i] = load_acquire(self.tree.leaf + slot[i])
                if mass[i] <= 0:
                    continue
            for f in range(self.n_fields):
                place = self.places[f]
                read_field(row, column[f] + (first + i) * place.nbytes, place.offset, place.nbytes)
            # [reserve-slot] relaxed: the acquire of each word above keeps this second look behind
            # it
            if load_relaxed(<uint64_t*>row) == generation:
                handle[i].index = slot[i]
                handle[i].generation = generation

    cdef void prefetch_row(self, int64_t slot) noexcept nogil:
        """Ask for the first cache lines of a row."""
        cdef char* row = self.rows + slot * self.row_nbytes
        cdef Py_ssize_t offset
        for offset in range(0, min(self.row_nbytes, <Py_ssize_t>PREFETCHED), 64):
            prefetch_far(row + offset)
        prefetch_far(row + min(self.row_nbytes, <Py_ssize_t>PREFETCHED) - 1)
