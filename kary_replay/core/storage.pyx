# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Rows into slots, and their priorities; docs/concurrency.md argues why it is right.

A writer copies its rows into slots it has reserved, holding no lock.
"""

from libc.math cimport fabs, pow
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

cimport numpy as cnp

from ..errors import FieldError, IndexRangeError
from ..fields import missing
from ..types import HANDLE_DTYPE
from ..validation import as_array, as_float64

from .block cimport (
    Header, acquire, is_published, load_relaxed, mass_of, prefetch_far, prefetch_to_write, published, release,
    renew_max_mass, sched_yield, store_relaxed, store_release, write_field,
)
from .reader cimport Handle, Reader
from .slots cimport Place
from .sum_tree cimport rank_if_due, recompute, take_places

cnp.import_array()

cdef enum:
    # of rows that are reserved together: what a death in the middle of a copy costs
    PIECE_NBYTES = 65536
    PIECE_ROWS = 4096


cdef cnp.ndarray _handles(object array):
    """Return handles as a contiguous array of HANDLE_DTYPE."""
    if array.dtype is not HANDLE_DTYPE and array.dtype != HANDLE_DTYPE:
        raise TypeError(f"handle must be the handle of a batch (dtype {HANDLE_DTYPE}), got dtype {array.dtype}")
    return array if cnp.PyArray_IS_C_CONTIGUOUS(array) else array.copy()


cdef cnp.ndarray _td_errors(cnp.ndarray array):
    """Return TD errors as a contiguous array [B] or [B, 1] of float32, as losses give them, or float64."""
    cdef bint is_column = cnp.PyArray_NDIM(array) == 2 and cnp.PyArray_DIM(array, 1) == 1
    if cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT32 and cnp.PyArray_ISCARRAY_RO(array) and (
        is_column or cnp.PyArray_NDIM(array) == 1
    ):
        return array
    return as_float64("td_error", array[:, 0] if is_column else array)


cdef int64_t _rows_of(object value, const Place* place):
    """Return B if ``value`` is a contiguous array [B, *shape] of a field's dtype, -1 if it is one of ``shape``, else -2."""
    cdef cnp.ndarray array
    cdef int extra
    if type(value) is not cnp.ndarray:  # a subclass may mean something by it
        return -2
    array = value
    extra = cnp.PyArray_NDIM(array) - place.n_axes
    if cnp.PyArray_TYPE(array) != (<cnp.dtype>place.dtype).type_num or not 0 <= extra <= 1:
        return -2
    if not cnp.PyArray_ISCARRAY_RO(array):
        return -2
    if memcmp(cnp.PyArray_DIMS(array) + extra, place.shape, place.n_axes * sizeof(place.shape[0])) != 0:
        return -2
    return cnp.PyArray_DIM(array, 0) if extra else -1


def _say_rows(rows):
    return "no batch axis" if rows == -1 else f"{rows} rows"


cdef class Storage(Reader):
    """Slots, and what moves rows in and out of them. Columns come in the order of the fields. Private to the package."""

    # -------------------------------------------------------------------------------------- writing

    def columns(self, dict values):
        """Return the fields' values as contiguous columns, and their common B (1 for one transition without batch axis).

        Raises FieldError where a value is missing or does not fit its field, or the leading axes
        differ.
        """
        cdef list columns = []
        cdef int64_t n = 0, rows
        cdef int f
        for f in range(self.n_fields):
            if self.names[f] not in values:
                raise missing(self.names[f])
            value = values[self.names[f]]
            rows = _rows_of(value, self.places + f)
            if rows == -2:
                value, batch_size = self.fields[f].cast(self.names[f], value)
                rows = -1 if batch_size is None else batch_size
            if f == 0:
                n = rows
            elif rows != n:
                raise FieldError(
                    f"{self.names[f]} has {_say_rows(rows)}, {self.names[0]} has {_say_rows(n)}: "
                    "give all fields the same leading axis"
                )
            columns.append(value)
        return columns, 1 if n == -1 else n

    def add(self, list columns, int64_t n, priorities, cnp.ndarray handles=None):
        """Write n rows and return their slots.

        ``columns`` holds one contiguous array per field; ``priorities`` is None or a checked
        float64 array [n], see publish; ``handles``, if given, is a contiguous array [n] of
        HANDLE_DTYPE, which gets the rows' handles.
        """
        cdef cnp.npy_intp dims = n
        self.block.enter()
        index = cnp.PyArray_EMPTY(1, &dims, cnp.NPY_INT64, 0)
        if n == 0:
            return index
        cdef int64_t* slot = <int64_t*>cnp.PyArray_DATA(index)
        cdef const double* priority = NULL
        cdef int64_t piece = min(n, max(<int64_t>1, min(<int64_t>PIECE_ROWS, <int64_t>(PIECE_NBYTES // self.row_nbytes))))
        cdef char** column = <char**>malloc(self.n_fields * sizeof(char*) + piece * sizeof(int64_t))
        cdef int64_t* scratch = <int64_t*>(column + self.n_fields)
        cdef int64_t first = 0, taken, i
        cdef int f
        cdef char* row
        cdef Place place
        cdef Handle* handle = NULL
        if column == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        if handles is not None:
            handle = <Handle*>cnp.PyArray_DATA(handles)
        for f in range(self.n_fields):
            array = columns[f]
            assert cnp.PyArray_NBYTES(array) == n * self.places[f].nbytes, "a column does not fit its field"
            column[f] = <char*>cnp.PyArray_DATA(array)
        if priorities is not None:
            priority = <const double*>cnp.PyArray_DATA(priorities)
        with nogil:
            while first < n:
                taken = self.reserve(slot + first, min(piece, n - first), scratch)
                if taken == 0:  # every slot is another writer's, or writers are paused
                    sched_yield()
                    continue
                for i in range(first, first + taken):
                    row = self.rows + slot[i] * self.row_nbytes
                    for f in range(self.n_fields):
                        place = self.places[f]
                        write_field(row, column[f] + i * place.nbytes, place.offset, place.nbytes)
                    # the slot is ours: its generation changes when we publish it, not before
                    if handle != NULL:
                        handle[i].index = slot[i]
                        handle[i].generation = published(load_relaxed(self.generation(slot[i])))
                self.publish(slot + first, taken, priority + first if priority != NULL else NULL, scratch)
                first += taken
        free(column)
        return index

    def update(self, handle, td_error):
        """Set the priorities of the rows whose handles are still current; see PrioritizedReplayBuffer.update_priorities."""
        # runs what code they have; none of it runs below
        given = as_array("handle", handle), as_array("td_error", td_error)
        cdef cnp.ndarray handles = _handles(given[0]), td_errors = _td_errors(given[1])
        cdef int64_t n = cnp.PyArray_SIZE(handles), i, applied = 0
        cdef double epsilon = load_relaxed(&self.header.priority_epsilon), value
        cdef Handle* row
        cdef double* priority
        cdef double* mass
        cdef int64_t* scratch
        self.block.enter()
        if cnp.PyArray_SIZE(td_errors) != n:
            raise ValueError(f"td_error must have one value per handle, {n}, got {td_errors.size}")
        if n == 0:
            return 0
        # Copies, so that what is checked is what is used, whatever other threads do to the arrays;
        # and they are aligned.
        row = <Handle*>malloc(n * (sizeof(Handle) + 2 * sizeof(double) + sizeof(int64_t)))
        if row == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        priority = <double*>(row + n)
        mass = priority + n
        scratch = <int64_t*>(mass + n)
        memcpy(row, cnp.PyArray_DATA(handles), n * sizeof(Handle))
        if cnp.PyArray_TYPE(td_errors) == cnp.NPY_FLOAT32:
            for i in range(n):
                priority[i] = (<const float*>cnp.PyArray_DATA(td_errors))[i]
        else:
            memcpy(priority, cnp.PyArray_DATA(td_errors), n * sizeof(double))
        try:
            for i in range(n):
                value = priority[i]
                priority[i] = fabs(value) + epsilon
                if not 0 <= row[i].index < self.capacity:
                    raise IndexRangeError(
                        f"handle {i} has index {row[i].index}: it must be in 0 … {self.capacity - 1}; "
                        "pass the handle of a batch of this buffer"
                    )
                if not priority[i] <= self.tree.mass_limit:  # NaN fails too
                    raise ValueError(
                        f"td_error must be finite (at most {self.tree.mass_limit:.3g} with priority_epsilon), "
                        f"got {value} at position {i}; has the loss diverged?"
                    )
            with nogil:
                applied = self.apply(row, priority, mass, scratch, n)
        finally:
            free(row)
        return applied

    cdef int64_t apply(self, Handle* handle, double* priority, double* mass, int64_t* scratch, int64_t n) noexcept nogil:
        """Set the checked priorities of the rows whose handles are current; return how many were."""
        cdef Header* header = self.header
        cdef int64_t i, slot, applied = 0, n_changed
        cdef double alpha = load_relaxed(&header.alpha)  # checked again under the lock
        cdef bint is_ranked = header.ranking_at != 0, larger = False
        for i in range(n):
            # What the loop below touches under the lock arrives while the powers are computed.
            prefetch_far(self.generation(handle[i].index))
            prefetch_to_write(self.tree.leaf + handle[i].index)
            prefetch_to_write(self.priority + handle[i].index)
            mass[i] = pow(priority[i], alpha)
        acquire(header)
        if header.alpha != alpha and not is_ranked:
            for i in range(n):
                mass[i] = mass_of(header, priority[i])
        for i in range(n):
            slot = handle[i].index
            # Generations change only under the lock, so this one cannot move on before the mass is
            # in (I6). No batch ever had the handle of a row that is not published, and a row of
            # priority 0 is no transition any more.
            if not is_published(handle[i].generation) or slot >= header.n_started:
                continue
            if load_relaxed(self.generation(slot)) == handle[i].generation and self.priority[slot] > 0:
                # first, so that it is noted whatever becomes of us
                if priority[i] > header.max_priority:
                    store_relaxed(&header.max_priority, priority[i])
                    larger = True
                # before the mass: who repairs the block derives that from it
                self.priority[slot] = priority[i]
                if not is_ranked:
                    # [leaf] pairs with the acquire in Reader.read_rows
                    store_release(self.tree.leaf + slot, mass[i])
                scratch[applied] = slot
                applied += 1
        if larger:
            renew_max_mass(header)
        if applied:
            n_changed = take_places(header, self.tree.tree, self.priority, scratch, applied) if is_ranked else applied
            recompute(self.tree.tree, scratch, n_changed)
            rank_if_due(header, self.tree.tree, self.priority, n_changed)
        release(header)
        return applied
