# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Rows out of slots, drawn or named by the caller, and copied without a lock.

docs/concurrency.md argues why this is right. A reader looks at a slot's generation before and after
it copies the row, and draws another row where they differ. Which slots are drawn, the selector
says: proportional.hpp descends the tree of sum_tree.hpp, uniform.hpp picks any slot in use.
"""

from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

import numpy as np

cimport numpy as cnp

from ..errors import EmptyBufferError, IndexRangeError
from ..types import HANDLE_DTYPE
from ..validation import as_count, as_index

from .block cimport (
    PER_COUNTER, Handle, Header, acquire, ask_for_rows, bury, fetch_add_relaxed, fill_uniform,
    give_way, load_acquire, load_relaxed, read_field, release, sched_yield, take_random,
)
from .slots cimport Place, Remainder, Selector, Slots

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    # takes a reference to dtype
    cnp.ndarray PyArray_Empty(int n_axes, cnp.npy_intp* shape, cnp.dtype dtype, int fortran)

cdef cnp.dtype HANDLE = HANDLE_DTYPE
cdef cnp.dtype FLOAT32 = np.dtype(np.float32)
cdef cnp.dtype INT64 = np.dtype(np.int64)

cdef enum:
    MAX_BATCH = 1 << 30
    FAR = 2048            # bytes of a row; of longer ones, a batch drives out what it asked for
    AHEAD = 4             # so many of these are asked for again ahead of their copy
    PATIENCE = 16         # draws in vain, before what is left is looked at, or others get the core
    MAX_REDRAWS = 1000    # before asking whether the slot drawn holds a row at all

# What becomes of a batch.
cdef enum:
    DRAWN = 0
    EMPTY = 1
    UNREADABLE = 2
    TOO_FEW = 3
    NO_MEMORY = 4
    NO_ROW = 5


cdef str _shown(int n_axes, const cnp.npy_intp* shape, cnp.dtype dtype):
    """Return dtype and shape as messages show them."""
    return f"{dtype}{[shape[axis] for axis in range(n_axes)]}"


cdef cnp.ndarray column_of(
    str name, int n_axes, cnp.npy_intp* shape, cnp.dtype dtype, dict out
):
    """Return the array of ``out`` with that name if there is one, else a new one."""
    cdef cnp.ndarray array
    if out is None or name not in out:
        Py_INCREF(dtype)
        return PyArray_Empty(n_axes, shape, dtype, 0)
    given = out[name]
    if not isinstance(given, cnp.ndarray) or isinstance(given, np.ma.MaskedArray):
        raise TypeError(
            f"out: {name} must be an array {_shown(n_axes, shape, dtype)}, "
            f"got {type(given).__name__}"
        )
    array = given
    if (
        cnp.PyArray_NDIM(array) != n_axes or array.dtype != dtype
        or memcmp(cnp.PyArray_DIMS(array), shape, n_axes * sizeof(shape[0])) != 0
    ):
        raise ValueError(
            f"out: {name} must be an array {_shown(n_axes, shape, dtype)}, "
            f"got {array.dtype}{list(given.shape)}"
        )
    if not cnp.PyArray_ISCARRAY(array):
        raise ValueError(f"out: {name} must be contiguous, aligned and writeable")
    return array


cdef int64_t as_batch_size(batch_size) except -1:
    """Return how many rows a batch is to have."""
    if type(batch_size) is int and 1 <= batch_size <= MAX_BATCH:
        return batch_size  # as nearly always; the check below takes longer
    return as_count("batch_size", batch_size, MAX_BATCH)


cdef class Reader:
    """Copies rows out of slots. Columns come in the order of the fields. Private to the package."""

    def __cinit__(self, Slots slots, *_):
        self.slots = slots

    def sample(self, batch_size, bint stratified, bint unique=False, dict out=None):
        """Draw rows; return a dict of arrays: the fields, the weights, index and handle.

        The importance weights are there where slots have masses. With ``unique``, rows are drawn
        one after the other from those that are not in the batch yet. The arrays are new, but for
        those of ``out``, by the same names.
        """
        cdef int64_t n = as_batch_size(batch_size)
        return self.collect(n, NULL, stratified and not unique, unique, out)

    def take(self, index):
        """Read the rows of the slots ``index`` [B]; return what ``sample`` does.

        Raises IndexRangeError if one of them has no row that can be drawn.
        """
        cdef cnp.ndarray slot = as_index(index).copy()  # what is checked is what is used
        cdef const int64_t* given = <const int64_t*>cnp.PyArray_DATA(slot)
        cdef int64_t n, i
        if slot.ndim != 1:
            raise ValueError(f"index must be one-dimensional, got {index!r}")
        n = as_count("the length of index", len(slot), MAX_BATCH)
        for i in range(n):
            if not 0 <= given[i] < self.slots.capacity:
                raise IndexRangeError(
                    f"index {given[i]} is out of range: "
                    f"it must be in 0 … {self.slots.capacity - 1}"
                )
        return self.collect(n, given, False, False, None)

    cdef dict collect(
        self, int64_t n, const int64_t* given, bint stratified, bint unique, dict out
    ):
        """Read n rows, of the given slots or of drawn ones, into arrays of ``out`` or new ones."""
        cdef Slots slots = self.slots
        cdef cnp.npy_intp dims[1]
        cdef cnp.ndarray array
        cdef dict arrays = {}
        cdef int64_t* index
        cdef float* weight = NULL
        cdef Handle* handle
        cdef double beta = load_relaxed(&slots.header.beta)
        cdef int outcome = TOO_FEW
        cdef Remainder rest
        cdef Draw batch
        cdef int64_t i
        batch.n, batch.n_fields, batch.stratified = n, slots.n_fields, stratified
        # handles are looked at again, so they are written to the caller's memory at the end
        batch.column = <char**>malloc(
            slots.n_fields * sizeof(char*) + n * (sizeof(double) + sizeof(Handle))
        )
        batch.mass = <double*>(batch.column + slots.n_fields)
        batch.handle = <Handle*>(batch.mass + n)
        if batch.column == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        try:
            slots.block.enter()
            rest.is_unique = unique
            dims[0] = n
            self.add_columns(n, slots.n_fields, out, arrays, batch.column)
            if slots.tree is not None:
                array = column_of("importance_weight", 1, dims, FLOAT32, out)
                weight = <float*>cnp.PyArray_DATA(array)
                arrays["importance_weight"] = array
            arrays["index"] = array = column_of("index", 1, dims, INT64, out)
            index = <int64_t*>cnp.PyArray_DATA(array)
            arrays["handle"] = array = column_of("handle", 1, dims, HANDLE, out)
            handle = <Handle*>cnp.PyArray_DATA(array)
            with nogil:
                self.slots.settle()
                if given == NULL:
                    outcome = self.read_batch(&batch, &rest)
                else:
                    outcome = self.read_given(&batch, given)
                if outcome == DRAWN:
                    fetch_add_relaxed(&slots.header.n_sampled, n)
                    memcpy(handle, batch.handle, n * sizeof(Handle))
                    for i in range(n):
                        index[i] = batch.handle[i].index
                    if weight != NULL:
                        slots.selector.weigh(batch.mass, n, beta, weight)
                elif outcome == NO_ROW:
                    n = 0  # the first one that is not there
                    while batch.handle[n].index >= 0:
                        n += 1
        finally:
            free(batch.column)
        if outcome == NO_ROW:
            raise IndexRangeError(
                f"index must be of rows that can be drawn: slot {given[n]} has none, "
                f"got at position {n}"
            )
        if outcome == TOO_FEW:
            raise ValueError(
                "batch_size must be at most the number of rows that can be drawn, "
                f"for unique=True, got {n}"
            )
        if outcome == EMPTY:
            raise EmptyBufferError(
                "there is no row to draw: add some first (or every mass is zero)"
            )
        if outcome == NO_MEMORY:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        if outcome == UNREADABLE:
            raise RuntimeError(
                "masses were set on slots that hold no row: "
                "set masses only for slots that add returned"
            )
        return arrays

    cdef int add_columns(
        self, int64_t n, int n_fields, dict out, dict arrays, char** column
    ) except -1:
        """Add arrays for n rows of the first fields to ``arrays``, those of ``out`` or new ones."""
        cdef Slots slots = self.slots
        cdef cnp.npy_intp dims[32]
        cdef cnp.ndarray array
        cdef int f
        dims[0] = n
        for f in range(n_fields):
            # From C, not from the Field: each Python object touched here is a cache line that
            # threads pass around.
            array = column_of(
                slots.names[f], self.drawn_shape(f, dims + 1) + 1, dims,
                <cnp.dtype>slots.places[f].dtype, out,
            )
            column[f] = <char*>cnp.PyArray_DATA(array)
            arrays[slots.names[f]] = array
        return 0

    cdef int drawn_shape(self, int f, cnp.npy_intp* shape) noexcept nogil:
        """Write the shape that field f has in a drawn row, and return its number of axes."""
        cdef Place* place = self.slots.places + f
        memcpy(shape, place.shape, place.n_axes * sizeof(shape[0]))
        return place.n_axes

    cdef Py_ssize_t drawn_nbytes(self, int f) noexcept nogil:
        """Return how many bytes field f has in a drawn row."""
        return self.slots.places[f].nbytes

    cdef int read_batch(self, Draw* batch, Remainder* rest) noexcept nogil:
        """Draw the rows of a batch."""
        cdef double u[CHUNK]
        cdef int64_t slot[CHUNK]
        cdef int64_t first, n, i
        cdef uint64_t counter
        cdef double extent = self.wait_for_rows()
        cdef int outcome
        if extent <= 0:
            return EMPTY
        if rest.is_unique and not self.may_hold(batch.n):
            return TOO_FEW
        if rest.is_unique and not rest.drawn.make(batch.n):
            return NO_MEMORY
        counter = take_random(self.slots.header, batch.n)
        for first from 0 <= first < batch.n by CHUNK:
            if first > 0:
                extent = self.wait_for_rows()
                if extent <= 0:
                    return EMPTY
            n = min(<int64_t>CHUNK, batch.n - first)
            self.draw(
                batch, first, n, extent, counter + first // PER_COUNTER, batch.stratified, u, slot
            )
            if self.read_rows(slot, n, batch, first) == n and not rest.is_unique:
                continue
            for i in range(first, first + n):
                if batch.handle[i].index >= 0 and (
                    not rest.is_unique or rest.drawn.add(batch.handle[i].index).is_new
                ):
                    continue
                outcome = self.read_again(batch, i, rest)
                if outcome != DRAWN:
                    return outcome
        return DRAWN

    cdef int read_given(self, Draw* batch, const int64_t* slot) noexcept nogil:
        """Read the rows of given slots, those being written once they are there."""
        cdef int64_t first, n, i
        for first from 0 <= first < batch.n by CHUNK:
            n = min(<int64_t>CHUNK, batch.n - first)
            ask_for_rows(self.slots.header, slot + first, n)
            self.read_rows(slot + first, n, batch, first)
            for i in range(first, first + n):
                while batch.handle[i].index < 0:
                    if self.slots.holds_no_row(slot[i], True):
                        return NO_ROW
                    give_way()
                    self.read_rows(slot + i, 1, batch, i)
        return DRAWN

    cdef int read_again(self, Draw* batch, int64_t i, Remainder* rest) noexcept nogil:
        """Draw row i of a batch until there is one.

        Another thread was faster, or the slot has no row, or the batch has it already. The next
        draws come from the same part of the extent, unless that part seems to hold nothing.
        """
        cdef Header* header = self.slots.header
        cdef Selector* selector = self.slots.selector
        cdef double u, extent
        cdef int64_t slot, attempts = 0
        cdef bint from_rest
        cdef int outcome
        while True:
            batch.handle[i].index = -1
            attempts += 1
            extent = self.wait_for_rows()
            if extent <= 0:
                return EMPTY
            from_rest = attempts > PATIENCE and selector.needs_remainder(rest.is_unique)
            if from_rest:
                outcome = self.draw_rest(batch, i, rest, &slot)
                if outcome != DRAWN:
                    return outcome
            else:
                if attempts > PATIENCE:
                    sched_yield()
                self.draw(
                    batch, i, 1, extent, take_random(header, 1),
                    batch.stratified and attempts <= PATIENCE, &u, &slot,
                )
            if not (rest.is_unique and rest.drawn.has(slot)):
                if self.read_rows(&slot, 1, batch, i) == 1:
                    if rest.is_unique:
                        rest.drawn.add(slot)
                    elif from_rest:
                        selector.put_back(rest)
                    return DRAWN
            if attempts % MAX_REDRAWS == 0 and self.slots.holds_no_row(slot, False):
                return UNREADABLE

    cdef int draw_rest(self, Draw* batch, int64_t i, Remainder* rest, int64_t* slot) noexcept nogil:
        """Draw a slot from what is left beside the batch's first i rows, and take it out.

        What is left is found anew when it has been used up; where nothing is left, this waits
        for those who write.
        """
        cdef Header* header = self.slots.header
        cdef Selector* selector = self.slots.selector
        cdef bint is_idle, is_built
        cdef double u
        fill_uniform(header.random_key, take_random(header, 1), &u, 1)
        while rest.extent <= 0:
            if not selector.build_remainder(batch.handle, i, batch.n, rest):
                return NO_MEMORY
            if rest.extent > 0:
                break
            acquire(header)
            bury(self.slots.attachment, False)
            is_idle = header.n_writing == 0
            # under the lock, if nobody is writing: then it is one moment
            is_built = not is_idle or selector.build_remainder(batch.handle, i, batch.n, rest)
            release(header)
            if not is_built:
                return NO_MEMORY
            if is_idle and rest.extent <= 0:
                return TOO_FEW if rest.is_unique else EMPTY
            if not is_idle:
                give_way()
        slot[0] = selector.draw_from(rest, u)
        return DRAWN

    cdef bint may_hold(self, int64_t n) noexcept nogil:
        """Whether there are n rows, with those that are being written; if in doubt, by the lock."""
        cdef Header* header = self.slots.header
        cdef bint may = n <= load_relaxed(&header.n_published) + load_relaxed(&header.n_writing)
        if not may:
            acquire(header)
            bury(self.slots.attachment, False)
            may = n <= header.n_published + header.n_writing
            release(header)
        return may

    cdef double wait_for_rows(self) noexcept nogil:
        """Return an extent above 0, or 0 if there is no row and none is about to be."""
        cdef double extent = self.slots.selector.extent()
        while extent <= 0 and not self.slots.is_idle():
            give_way()
            extent = self.slots.selector.extent()
        return max(extent, 0.0)

    cdef void draw(
        self, const Draw* batch, int64_t first, int64_t n, double extent, uint64_t counter,
        bint stratified, double* u, int64_t* slot,
    ) noexcept nogil:
        """Draw n slots for the rows ``first`` … of a batch, for read_rows to check.

        ``counter`` is where the random numbers for them begin; ``extent``, above 0, is what the
        draws divide; ``u`` is scratch.
        """
        cdef int64_t i
        fill_uniform(self.slots.header.random_key, counter, u, n)
        for i in range(n):
            if stratified:
                u[i] = (first + i + u[i]) * (1.0 / batch.n) * extent
            else:
                u[i] = u[i] * extent
        self.slots.selector.draw(u, extent, slot, n, batch.n if stratified else 0)

    cdef int64_t read_rows(
        self, const int64_t* slot, int64_t n, const Draw* batch, int64_t first
    ) noexcept nogil:
        """Copy n slots' rows into the rows ``first`` … of a batch; return how many were there.

        A handle's index becomes -1 where the row is missing, empty, being written, or changed
        during the copy.
        """
        cdef char* rows = self.slots.rows
        cdef Py_ssize_t row_nbytes = self.slots.row_nbytes
        cdef Selector* selector = self.slots.selector
        cdef const Place* places = self.slots.places
        cdef const Place* place
        cdef int n_fields = batch.n_fields, f
        cdef Handle* handle = batch.handle + first
        cdef double* mass = batch.mass + first
        cdef uint64_t generation
        cdef char* row
        cdef int64_t i, n_read = 0
        for i in range(n):
            if row_nbytes > FAR and i + AHEAD < n:
                ask_for_rows(self.slots.header, slot + i + AHEAD, 1)
            row = rows + slot[i] * row_nbytes
            handle[i].index = -1
            # [publish-slot] acquire: pairs with the release in Slots.publish (slots.pyx)
            generation = load_acquire(<uint64_t*>row)
            if generation == 0 or generation & 1:
                continue
            mass[i] = selector.mass_at(slot[i])  # [leaf] see selector.hpp
            if mass[i] <= 0:
                continue
            for f in range(n_fields):
                place = places + f
                read_field(
                    row, batch.column[f] + (first + i) * place.nbytes, place.offset, place.nbytes
                )
            # [reserve-slot] relaxed: the acquires of read_word (atomic.hpp) above keep this second
            # look behind them
            if load_relaxed(<uint64_t*>row) == generation:
                handle[i].index = slot[i]
                handle[i].generation = generation
                n_read += 1
        return n_read
