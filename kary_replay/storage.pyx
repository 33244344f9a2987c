# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Rows in and out; docs/concurrency.md argues why it is right.

A writer copies its rows into slots it has reserved, holding no lock. A reader takes no lock either: it looks at a slot's
generation before and after it copies the row, and draws another one where they differ.
"""

from cpython.ref cimport Py_INCREF
from libc.math cimport fabs, pow, powf
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cimport numpy as cnp

from .errors import EmptyBufferError, FieldError, IndexRangeError
from .types import HANDLE_DTYPE
from .validation import as_count

from .block cimport (
    PER_COUNTER, Header, acquire, fill_uniform, load_acquire, load_relaxed, prefetch_far, read_field, release,
    sched_yield, store_relaxed, store_release, take_random, write_field,
)
from .slots cimport Place, Slots
from .sum_tree cimport recompute

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    cnp.ndarray PyArray_Empty(int n_axes, cnp.npy_intp* shape, cnp.dtype dtype, int fortran)  # takes a reference to dtype

cdef cnp.dtype HANDLE = HANDLE_DTYPE

cdef enum:
    MAX_BATCH = 1 << 30
    CHUNK = 128           # rows drawn together: whole counts of the random stream
    AHEAD = 16            # rows prefetched ahead
    PREFETCHED = 512      # bytes of a row; the hardware follows a longer one by itself
    MAX_REDRAWS = 100000  # before asking whether the slot drawn holds a row at all

# What read_batch returns.
cdef enum:
    DRAWN = 0
    EMPTY = 1
    UNREADABLE = 2


cdef cnp.ndarray _empty(int n_axes, cnp.npy_intp* shape, cnp.dtype dtype):
    """Return a new array, its content undefined."""
    Py_INCREF(dtype)
    return PyArray_Empty(n_axes, shape, dtype, 0)


cdef int64_t _rows_of(object value, cnp.dtype dtype, tuple shape):
    """Return B if ``value`` is a contiguous array [B, *shape] of this dtype, -1 if it is one of ``shape``, else -2."""
    cdef cnp.ndarray array
    cdef int n_axes = len(shape), extra, i
    if type(value) is not cnp.ndarray:  # a subclass may mean something by it
        return -2
    array = value
    extra = cnp.PyArray_NDIM(array) - n_axes
    if cnp.PyArray_TYPE(array) != dtype.type_num or not 0 <= extra <= 1 or not cnp.PyArray_ISCARRAY_RO(array):
        return -2
    for i in range(n_axes):
        if cnp.PyArray_DIM(array, i + extra) != <object>shape[i]:
            return -2
    return cnp.PyArray_DIM(array, 0) if extra else -1


def as_columns(list values, list names, list fields):
    """Return the values as contiguous columns of their fields, and their common B (1 for one transition without batch axis).

    Raises FieldError where a value does not fit its field, or the leading axes differ.
    """
    cdef list columns = []
    cdef int64_t n = 0, rows
    cdef Py_ssize_t i
    for i in range(len(fields)):
        value = values[i]
        rows = _rows_of(value, fields[i].dtype, fields[i].shape)
        if rows == -2:
            value, batch_size = fields[i].cast(names[i], value)
            rows = -1 if batch_size is None else batch_size
        if i == 0:
            n = rows
        elif rows != n:
            raise FieldError(
                f"{names[i]} has {_say_rows(rows)}, {names[0]} has {_say_rows(n)}: give all fields the same leading axis"
            )
        columns.append(value)
    return columns, 1 if n == -1 else n


def _say_rows(rows):
    return "no batch axis" if rows == -1 else f"{rows} rows"


cdef class Storage(Slots):
    """Slots and what moves rows in and out of them. Columns come in the order of the fields. Private to the package."""

    # ---------------------------------------------------------------------------------------------------- writing

    def add(self, list columns, int64_t n, priorities):
        """Write n rows and return their slots.

        ``columns`` holds one contiguous array per field; ``priorities`` is None or a checked float64 array [n].
        """
        cdef cnp.npy_intp dims = n
        index = cnp.PyArray_EMPTY(1, &dims, cnp.NPY_INT64, 0)
        if n == 0:
            return index
        cdef int64_t* slot = <int64_t*>cnp.PyArray_DATA(index)
        cdef const double* priority = NULL
        cdef char** column = <char**>malloc(self.n_fields * sizeof(char*) + n * sizeof(int64_t))
        cdef int64_t* scratch = <int64_t*>(column + self.n_fields)
        cdef int64_t first = 0, taken, i
        cdef int f
        cdef char* row
        cdef Place place
        if column == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        for f in range(self.n_fields):
            array = columns[f]
            assert cnp.PyArray_NBYTES(array) == n * self.places[f].nbytes, "a column does not fit its field"
            column[f] = <char*>cnp.PyArray_DATA(array)
        if priorities is not None:
            priority = <const double*>cnp.PyArray_DATA(priorities)
        with nogil:
            while first < n:
                taken = self.reserve(slot + first, n - first, scratch)
                if taken == 0:  # every slot is another writer's, or writers are paused
                    sched_yield()
                    continue
                for i in range(first, first + taken):
                    row = self.rows + slot[i] * self.row_nbytes
                    for f in range(self.n_fields):
                        place = self.places[f]
                        write_field(row, column[f] + i * place.nbytes, place.offset, place.nbytes)
                self.publish(slot + first, taken, priority + first if priority != NULL else NULL, scratch)
                first += taken
        free(column)
        return index

    def update(self, cnp.ndarray handles, cnp.ndarray td_errors, double epsilon):
        """Set the priorities |td_error| + epsilon of the rows whose handles are still current; return how many were.

        ``handles`` is a contiguous array [B] of HANDLE_DTYPE, ``td_errors`` a contiguous float64 array [B].
        """
        cdef int64_t n = cnp.PyArray_SIZE(handles), i, applied = 0
        cdef Handle* handle_at = <Handle*>cnp.PyArray_DATA(handles)
        cdef double* td_error = <double*>cnp.PyArray_DATA(td_errors)
        cdef double* priority
        cdef double* mass
        cdef int64_t* scratch
        if n == 0:
            return 0
        # Copies, so that what is checked is what is used, whatever other threads do to the arrays.
        cdef Handle* handle = <Handle*>malloc(n * (sizeof(Handle) + 2 * sizeof(double) + sizeof(int64_t)))
        if handle == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        priority = <double*>(handle + n)
        mass = priority + n
        scratch = <int64_t*>(mass + n)
        try:
            for i in range(n):
                handle[i] = handle_at[i]
                priority[i] = fabs(td_error[i]) + epsilon
                if not 0 <= handle[i].index < self.capacity:
                    raise IndexRangeError(
                        f"handle {i} has index {handle[i].index}: it must be in 0 … {self.capacity - 1}; "
                        "pass the handle of a batch of this buffer"
                    )
                if not priority[i] <= self.tree.mass_limit:  # NaN fails too
                    raise ValueError(
                        f"td_error must be finite (at most {self.tree.mass_limit:.3g} with priority_epsilon), "
                        f"got {td_error[i]} at position {i}; has the loss diverged?"
                    )
            with nogil:
                applied = self.apply(handle, priority, mass, scratch, n)
        finally:
            free(handle)
        return applied

    cdef int64_t apply(self, Handle* handle, double* priority, double* mass, int64_t* scratch, int64_t n) noexcept nogil:
        """Set the checked priorities of the rows whose handles are current; return how many were."""
        cdef Header* header = self.header
        cdef int64_t i, applied = 0
        cdef double alpha = load_relaxed(&header.alpha), largest  # alpha is checked again under the lock
        for i in range(n):
            mass[i] = pow(priority[i], alpha)
        acquire(header)
        if header.alpha != alpha:
            for i in range(n):
                mass[i] = pow(priority[i], header.alpha)
        largest = header.max_priority
        for i in range(n):
            # Generations change only under the lock, so this one cannot move on before the mass is in (I6).
            if handle[i].index >= header.n_started or handle[i].generation & 1:
                continue  # no batch ever had this handle: the slot holds no row
            if load_relaxed(self.generation(handle[i].index)) == handle[i].generation:
                store_release(self.tree.leaf + handle[i].index, mass[i])  # [leaf] pairs with the acquire in read_rows
                scratch[applied] = handle[i].index
                applied += 1
                largest = max(largest, priority[i])
        if largest > header.max_priority:
            store_relaxed(&header.max_priority, largest)
            header.max_mass = pow(largest, header.alpha)
        if applied:
            recompute(self.tree.tree, scratch, applied)
        release(header)
        return applied

    # ---------------------------------------------------------------------------------------------------- reading

    def sample(self, batch_size, bint stratified, double beta):
        """Draw rows; return a dict of new arrays: the fields, importance_weight with a tree, index, handle."""
        cdef int64_t n = as_count("batch_size", batch_size, MAX_BATCH), i
        cdef cnp.npy_intp dims[32]
        cdef Place* place
        cdef dict batch = {}
        cdef cnp.ndarray array
        cdef char** column = <char**>malloc(self.n_fields * sizeof(char*) + n * sizeof(double))
        cdef double* mass = <double*>(column + self.n_fields)
        cdef Handle* handle
        cdef int64_t* index
        cdef float* weight = NULL
        cdef double smallest, ratio
        cdef int outcome, f
        if column == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        try:
            dims[0] = n
            for f in range(self.n_fields):
                # From C, not from the Field: each Python object touched here is a cache line that threads pass around.
                place = self.places + f
                memcpy(dims + 1, place.shape, place.n_axes * sizeof(dims[0]))
                array = _empty(place.n_axes + 1, dims, <cnp.dtype>place.dtype)
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
                outcome = self.read_batch(column, n, handle, mass, stratified)
                if outcome == DRAWN:
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
        if outcome == EMPTY:
            raise EmptyBufferError("there is no row to draw: add some first (or every mass is zero)")
        if outcome == UNREADABLE:
            raise RuntimeError("masses were set on slots that hold no row: set masses only for slots that add returned")
        return batch

    cdef int read_batch(self, char** column, int64_t n, Handle* handle, double* mass, bint stratified) noexcept nogil:
        """Draw n rows into the columns."""
        cdef double u[CHUNK]
        cdef int64_t slot[CHUNK]
        cdef int64_t start = 0, count, i
        cdef uint64_t counter
        cdef int attempts
        if self.extent() <= 0 and self.is_empty():
            return EMPTY
        counter = take_random(self.header, n)
        while start < n:
            count = min(<int64_t>CHUNK, n - start)
            self.draw(counter + start // PER_COUNTER, u, slot, start, count, n, stratified)
            self.read_rows(slot, count, column, start, handle + start, mass + start)
            for i in range(count):
                attempts = 0
                while handle[start + i].index < 0:
                    # Another thread was faster, or rounding led to an empty leaf: draw this one again, from the same
                    # part unless that part seems to hold nothing.
                    attempts += 1
                    if attempts % MAX_REDRAWS == 0 and self.is_vacant(slot[0]):
                        return UNREADABLE
                    if attempts > 16:
                        sched_yield()
                    if self.extent() <= 0 and self.is_empty():
                        return EMPTY
                    self.draw(take_random(self.header, 1), u, slot, start + i, 1, n, stratified and attempts <= 16)
                    self.read_rows(slot, 1, column, start + i, handle + start + i, mass + start + i)
            start += count
        return DRAWN

    cdef double extent(self) noexcept nogil:
        """What is divided among the draws: the total mass, or the number of slots in use. Any recent value will do."""
        return <double>load_relaxed(&self.header.n_started) if self.tree is None else self.tree.root()

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
