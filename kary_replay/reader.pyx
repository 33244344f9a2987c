# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Rows out of slots: drawn and copied without a lock; docs/concurrency.md argues why it is right.

A reader looks at a slot's generation before and after it copies the row, and draws another one where they differ.
"""

from cpython.ref cimport Py_INCREF
from libc.math cimport pow, powf
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

cimport numpy as cnp

from .errors import EmptyBufferError
from .types import HANDLE_DTYPE
from .validation import as_count

from .block cimport (
    PER_COUNTER, fetch_add_relaxed, fill_uniform, load_acquire, load_relaxed, prefetch_far, read_field, sched_yield,
    take_random,
)
from .slots cimport Place
from .snapshots cimport Snapshots

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    cnp.ndarray PyArray_Empty(int n_axes, cnp.npy_intp* shape, cnp.dtype dtype, int fortran)  # takes a reference to dtype

cdef cnp.dtype HANDLE = HANDLE_DTYPE

cdef enum:
    MAX_BATCH = 1 << 30
    AHEAD = 16            # rows prefetched ahead
    PREFETCHED = 512      # bytes of a row; the hardware follows a longer one by itself
    MAX_REDRAWS = 100000  # before asking whether the slot drawn holds a row at all
    MAX_REPEATS = 64      # draws of what is in the batch already, before the rest is searched one by one

# What read_batch returns.
cdef enum:
    DRAWN = 0
    EMPTY = 1
    UNREADABLE = 2
    TOO_FEW = 3


cdef cnp.ndarray _empty(int n_axes, cnp.npy_intp* shape, cnp.dtype dtype):
    """Return a new array, its content undefined."""
    Py_INCREF(dtype)
    return PyArray_Empty(n_axes, shape, dtype, 0)


cdef int64_t* _place(int64_t* seen, int64_t n_seen, int64_t slot) noexcept nogil:
    """Where a table of slots + 1 has a slot, or 0 in its stead; ``n_seen`` is a power of two and more than it holds."""
    cdef uint64_t at = (<uint64_t>slot * 0x9E3779B97F4A7C15ULL) >> 20
    while seen[at & (n_seen - 1)] != 0 and seen[at & (n_seen - 1)] != slot + 1:
        at += 1
    return seen + (at & (n_seen - 1))


cdef bint _note(int64_t* seen, int64_t n_seen, int64_t slot) noexcept nogil:
    """Note a slot; False if it was noted before."""
    cdef int64_t* place = _place(seen, n_seen, slot)
    if place[0] != 0:
        return False
    place[0] = slot + 1
    return True


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
        cdef int64_t n_seen = 1
        cdef int64_t* seen = NULL
        if column == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        try:
            if unique:
                while n_seen < 2 * n:
                    n_seen *= 2
                seen = <int64_t*>malloc(n_seen * sizeof(int64_t))
                if seen == NULL:
                    raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
                memset(seen, 0, n_seen * sizeof(int64_t))
            dims[0] = n
            for f in range(self.n_fields):
                # From C, not from the Field: each Python object touched here is a cache line that threads pass around.
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
                outcome = self.read_batch(column, n, handle, mass, stratified and not unique, seen, n_seen)
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
                            # float32 is precise enough for a float32 weight, where it can hold the ratio at all
                            weight[i] = powf(<float>ratio, <float>beta) if ratio > 1e-37 else <float>pow(ratio, beta)
        finally:
            free(column)
            free(seen)
        if outcome == TOO_FEW:
            raise ValueError(f"batch_size must be at most the number of rows that can be drawn, for unique=True, got {n}")
        if outcome == EMPTY:
            raise EmptyBufferError("there is no row to draw: add some first (or every mass is zero)")
        if outcome == UNREADABLE:
            raise RuntimeError("masses were set on slots that hold no row: set masses only for slots that add returned")
        return batch

    cdef int drawn_shape(self, int f, cnp.npy_intp* shape) noexcept nogil:
        """Write the shape that field f has in a drawn row, and return its number of axes."""
        cdef Place* place = self.places + f
        memcpy(shape, place.shape, place.n_axes * sizeof(shape[0]))
        return place.n_axes

    cdef int read_batch(self, char** column, int64_t n, Handle* handle, double* mass, bint stratified, int64_t* seen,
                        int64_t n_seen) noexcept nogil:
        """Draw n rows into the columns. ``seen`` is NULL, or a table of slots + 1 in which each one drawn is noted."""
        cdef double u[CHUNK]
        cdef int64_t slot[CHUNK]
        cdef int64_t start = 0, count, i
        cdef uint64_t counter, one
        cdef int attempts
        if self.extent() <= 0 and self.is_empty():
            return EMPTY
        if seen != NULL and n > load_relaxed(&self.header.n_published) + load_relaxed(&self.header.n_writing):
            return TOO_FEW
        counter = take_random(self.header, n)
        while start < n:
            count = min(<int64_t>CHUNK, n - start)
            self.draw(counter + start // PER_COUNTER, u, slot, start, count, n, stratified)
            self.read_rows(slot, count, column, start, handle + start, mass + start)
            for i in range(start, start + count):
                attempts = 0
                while handle[i].index < 0 or (seen != NULL and not _note(seen, n_seen, handle[i].index)):
                    # Another thread was faster, or rounding led to an empty leaf, or the batch has it: draw this one again,
                    # from the same part unless that part seems to hold nothing.
                    handle[i].index = -1
                    attempts += 1
                    if attempts % MAX_REDRAWS == 0 and self.was_never_used(slot[0]):
                        return UNREADABLE
                    if attempts > 16 and seen == NULL:
                        sched_yield()
                    if self.extent() <= 0 and self.is_empty():
                        return EMPTY
                    one = take_random(self.header, 1)
                    if seen == NULL or attempts <= MAX_REPEATS:
                        self.draw(one, u, slot, i, 1, n, stratified and attempts <= 16)
                        if seen != NULL and _place(seen, n_seen, slot[0])[0] != 0:
                            continue
                    else:  # the batch has nearly all the mass: the same distribution, at the price of a look at every slot
                        fill_uniform(self.header.random_key, one, u, 1)
                        slot[0] = self.draw_rest(seen, n_seen, u[0])
                        if slot[0] < 0:
                            return TOO_FEW
                    self.read_rows(slot, 1, column, i, handle + i, mass + i)
            start += count
        return DRAWN

    cdef int64_t draw_rest(self, int64_t* seen, int64_t n_seen, double u) noexcept nogil:
        """Draw a slot that is not among ``seen``, or return -1 if no other holds a row. O(capacity)."""
        cdef int64_t i, last = -1, n = load_relaxed(&self.header.n_started)
        cdef double rest = 0, before = 0, mass
        cdef int turn
        for turn in range(2):
            for i in range(n):
                if self.tree is not None:
                    mass = load_relaxed(self.tree.leaf + i)  # [leaf] read_rows looks again
                else:
                    mass = 1.0 - (load_relaxed(self.generation(i)) & 1)
                if mass <= 0 or _place(seen, n_seen, i)[0] != 0:
                    continue
                if turn == 0:
                    rest += mass
                else:
                    last = i
                    before += mass
                    if u * rest < before:
                        return i
        return last

    def gather(self, cnp.ndarray handles, int f):
        """Return field f of the rows with these handles, [B, ...], and which of them were still there, bool [B].

        ``handles`` is a contiguous array [B] of HANDLE_DTYPE. Where a row is gone, its value is undefined.
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
                    # [reserve-slot] relaxed: the acquire of each word above keeps this second look behind it
                    found[i] = load_relaxed(<uint64_t*>row) == wanted.generation
        return array, there

    def copy_rows(self, int64_t first, cnp.ndarray into):
        """Copy whole rows, generations first, from slot ``first`` on into a contiguous uint8 array [n * row_nbytes].

        A row that is written meanwhile may arrive torn: its generation, looked at again later, then differs from the one
        copied.
        """
        cdef char* to = <char*>cnp.PyArray_DATA(into)
        cdef int64_t n = cnp.PyArray_NBYTES(into) // self.row_nbytes, i
        cdef char* row
        assert 0 <= first and first + n <= self.capacity, "no such rows"
        with nogil:
            for i in range(n):
                row = self.rows + (first + i) * self.row_nbytes
                (<uint64_t*>(to + i * self.row_nbytes))[0] = load_acquire(<uint64_t*>row)  # [publish-slot] as in read_rows
                read_field(row, to + i * self.row_nbytes + 8, 8, self.row_nbytes - 8)

    cdef double extent(self) noexcept nogil:
        """What is divided among the draws: the total mass, or the number of slots in use. Any recent value will do."""
        if self.tree is not None:
            return self.tree.root()
        return <double>load_relaxed(&self.header.n_started) if load_relaxed(&self.header.n_published) > 0 else 0.0

    cdef void draw(self, uint64_t counter, double* u, int64_t* slot, int64_t first, int64_t n, int64_t batch_size,
                   bint stratified) noexcept nogil:
        """Draw n slots, draws ``first`` … of a batch, for read_rows to check. ``u`` is scratch.

        ``counter`` is where the random numbers for them begin.
        """
        cdef int64_t i
        cdef double extent = self.extent()
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

        A handle's index becomes -1 where the row is missing, empty, being written, or changed during the copy.
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
            # [reserve-slot] relaxed: the acquire of each word above keeps this second look behind it
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
