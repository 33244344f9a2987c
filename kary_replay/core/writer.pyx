# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Rows into slots, and their priorities.

docs/concurrency.md argues why this is right. A writer copies its rows into slots that it has
reserved, holding no lock.
"""

from cpython.dict cimport PyDict_GetItemWithError, PyDict_Next
from cpython.ref cimport PyObject
from libc.math cimport fabs
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import numpy as np

cimport numpy as cnp

from ..errors import FieldError, IndexRangeError
from ..fields import missing, refuse_unknown
from ..types import HANDLE_DTYPE
from ..validation import as_array, as_float64

from .block cimport (
    Attachment, Handle, Header, acquire, generation_of, give_way, is_published, load_relaxed,
    published, release, write_field,
)
from .slots cimport Place, Selector, Slots

cnp.import_array()

cdef extern from "sweep.hpp" namespace "kary" nogil:
    bint needs_sweep(const Attachment* attachment, const Selector* selector)

cdef extern from "words.hpp" namespace "kary" nogil:
    cppclass Words:
        int64_t* make(int64_t n)

cdef enum:
    # Rows that are reserved together, which a death in the middle of the copy costs.
    PIECE_NBYTES = 65536
    PIECE_ROWS = 4096


cdef cnp.ndarray _handles(object array):
    """Return handles as a contiguous array of HANDLE_DTYPE."""
    if array.dtype is not HANDLE_DTYPE and array.dtype != HANDLE_DTYPE:
        raise TypeError(
            f"handle must be the handle of a batch (dtype {HANDLE_DTYPE}), got dtype {array.dtype}"
        )
    return array if cnp.PyArray_IS_C_CONTIGUOUS(array) else array.copy()


cdef cnp.ndarray _td_errors(cnp.ndarray array):
    """Return TD errors as a contiguous array [B] or [B, 1] of float64, or float32 if they are."""
    cdef bint is_column = cnp.PyArray_NDIM(array) == 2 and cnp.PyArray_DIM(array, 1) == 1
    cdef bint is_flat = is_column or cnp.PyArray_NDIM(array) == 1
    if is_flat and cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT32 and cnp.PyArray_ISCARRAY_RO(array):
        return array
    return as_float64("td_error", array[:, 0] if is_column else array)


cdef int64_t _rows_of(object value, const Place* place):
    """Return B if ``value`` is a contiguous array [B, *shape] of a field's dtype.

    Return -1 if it is such an array of ``shape`` itself, and -2 if it is anything else.
    """
    cdef cnp.ndarray array
    cdef int extra, axis
    if type(value) is not cnp.ndarray:  # a subclass may mean something by it
        return -2
    array = value
    extra = cnp.PyArray_NDIM(array) - place.n_axes
    if cnp.PyArray_TYPE(array) != (<cnp.dtype>place.dtype).type_num or not 0 <= extra <= 1:
        return -2
    if not cnp.PyArray_ISCARRAY_RO(array):
        return -2
    for axis in range(place.n_axes):
        if cnp.PyArray_DIM(array, extra + axis) != place.shape[axis]:
            return -2
    return cnp.PyArray_DIM(array, 0) if extra else -1


def _say_rows(rows):
    return "no batch axis" if rows == -1 else f"{rows} rows"


cdef class Writer:
    """Copies rows into slots. Columns come in the order of the fields. Private to the package."""

    cdef Slots slots

    def __cinit__(self, Slots slots):
        self.slots = slots

    def add(
        self, dict values, priority=None, *, cnp.ndarray checked=None, cnp.ndarray handles=None
    ):
        """Write rows and return their slots.

        ``values`` has every field by name, of one row or with a leading axis B; ``priority`` is as
        for PrioritizedReplayBuffer.add. ``checked`` may stand in its place: float64 [B], see
        Slots.publish. ``handles``, if given, is a contiguous array [B] of HANDLE_DTYPE, which gets
        the rows' handles. Raises FieldError where a value is missing or does not fit its field, or
        where the leading axes differ.
        """
        cdef Slots slots = self.slots
        cdef Words columns, scratch
        cdef char** column = <char**>columns.make(slots.n_fields)
        cdef int64_t n = 0, piece
        cdef cnp.npy_intp n_slots
        cdef cnp.ndarray index
        cdef const double* raw = NULL
        cdef Handle* handle = NULL
        if column != NULL:
            n = n_slots = self.gather(values, column)
        piece = max(<int64_t>1, <int64_t>(PIECE_NBYTES // slots.row_nbytes))
        piece = min(n, min(<int64_t>PIECE_ROWS, piece))
        cdef int64_t* spare = scratch.make(piece)
        if column == NULL or spare == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        slots.block.enter()
        if priority is not None:
            checked = self.priorities(priority, n)
        if checked is not None:
            raw = <const double*>cnp.PyArray_DATA(checked)
        if handles is not None:
            handle = <Handle*>cnp.PyArray_DATA(handles)
        index = cnp.PyArray_EMPTY(1, &n_slots, cnp.NPY_INT64, 0)
        with nogil:
            self.write(<int64_t*>cnp.PyArray_DATA(index), n, piece, column, raw, handle, spare)
        return index

    def priorities(self, priority, int64_t n):
        """Return the checked raw priorities of n rows."""
        given = as_float64("priority", priority)
        if given.ndim and given.shape[0] != n:
            raise ValueError(
                f"priority must be one number or have length {n}, got {given.shape[0]}"
            )
        # a copy: what is checked is what is used
        priorities = np.array(np.broadcast_to(given, (n,)))
        cdef double limit = self.slots.selector.largest
        bad = np.flatnonzero(~((priorities > 0) & (priorities <= limit)))
        if bad.size:
            value = priorities[bad[0]]
            raise ValueError(
                f"priority must be finite, above 0, at most {limit:.3g}, "
                f"got {value} at position {bad[0]}"
            )
        return priorities

    cdef int64_t gather(self, dict values, char** column) except -1:
        """Find the fields' values as contiguous columns, and return their common B.

        B is 1 for one row without a batch axis. An array that had to be made takes the place of the
        value in ``values``, which keeps it.
        """
        cdef Slots slots = self.slots
        cdef int64_t n = 0, rows
        cdef Py_ssize_t at = 0
        cdef PyObject* key
        cdef PyObject* found
        cdef int f
        if len(values) != slots.n_fields:
            refuse_unknown(values, dict.fromkeys(slots.names))
        for f in range(slots.n_fields):
            name = slots.names[f]
            # as a rule they come in the order of the fields, and none needs looking up
            if not PyDict_Next(values, &at, &key, &found) or key != <PyObject*>name:
                found = PyDict_GetItemWithError(values, name)
            if found == NULL:
                raise missing(name)
            value = <object>found
            rows = _rows_of(value, slots.places + f)
            if rows == -2:
                value, batch_size = slots.fields[f].cast(name, value)
                values[name] = value
                rows = -1 if batch_size is None else batch_size
            if f == 0:
                n = rows
            elif rows != n:
                raise FieldError(
                    f"{name} has {_say_rows(rows)}, {slots.names[0]} has {_say_rows(n)}: "
                    "give all fields the same leading axis"
                )
            column[f] = <char*>cnp.PyArray_DATA(value)
        return 1 if n == -1 else n

    cdef void write(
        self, int64_t* slot, int64_t n, int64_t piece, char** column, const double* priority,
        Handle* handle, int64_t* scratch,
    ) noexcept nogil:
        """Write n rows, ``piece`` of them at a time, and tell their slots.

        ``scratch`` is [piece]; ``priority`` as for Slots.publish; ``handle`` may be NULL.
        """
        cdef int64_t first = 0, taken
        while first < n:
            taken = self.slots.reserve(slot + first, min(piece, n - first), scratch)
            if taken == 0:  # every slot is another writer's, or writers are paused
                give_way()
                continue
            self.write_rows(slot, taken, column, first, handle)
            self.slots.publish(
                slot + first, taken, priority + first if priority != NULL else NULL, scratch
            )
            first += taken

    cdef void write_rows(self, const int64_t* slot, int64_t n, char** column, int64_t first,
                         Handle* handle) noexcept nogil:
        """Copy the rows ``first`` … of the columns into their slots, which are ours."""
        cdef char* rows = self.slots.rows
        cdef Py_ssize_t row_nbytes = self.slots.row_nbytes
        cdef const Place* places = self.slots.places
        cdef const Place* place
        cdef int n_fields = self.slots.n_fields, f
        cdef char* row
        cdef int64_t i
        for i in range(first, first + n):
            row = rows + slot[i] * row_nbytes
            for f in range(n_fields):
                place = places + f
                write_field(row, column[f] + i * place.nbytes, place.offset, place.nbytes)
            if handle != NULL:
                handle[i].index = slot[i]
                # The generation is ours, too: it changes when we publish the row, not before.
                handle[i].generation = published(load_relaxed(<uint64_t*>row))

    def update(self, handle, td_error):
        """Set the priorities of the rows whose handles are current; return how many were.

        See PrioritizedReplayBuffer.update_priorities.
        """
        # It runs what code the arguments have; none of that runs below.
        given = as_array("handle", handle), as_array("td_error", td_error)
        cdef Slots slots = self.slots
        cdef cnp.ndarray handles = _handles(given[0]), td_errors = _td_errors(given[1])
        cdef int64_t n = cnp.PyArray_SIZE(handles), i, applied = 0
        cdef double epsilon = load_relaxed(&slots.header.priority_epsilon)
        cdef double limit = slots.selector.largest, value
        cdef Handle* row
        cdef double* priority
        cdef double* mass
        cdef int64_t* scratch
        slots.block.enter()
        if cnp.PyArray_SIZE(td_errors) != n:
            raise ValueError(
                f"td_error must have one value per handle, {n}, got {td_errors.size}"
            )
        if n == 0:
            return 0
        # Copies are checked and used, whatever other threads do to the arrays; they are aligned.
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
                if not 0 <= row[i].index < slots.capacity:
                    raise IndexRangeError(
                        f"handle {i} has index {row[i].index}: it must be in "
                        f"0 … {slots.capacity - 1}; pass the handle of a batch of this buffer"
                    )
                if not priority[i] <= limit:  # NaN fails too
                    raise ValueError(
                        f"td_error must be finite (at most {limit:.3g} with priority_epsilon), "
                        f"got {value} at position {i}; has the loss diverged?"
                    )
            with nogil:
                applied = self.apply(row, scratch, priority, mass, n)
        finally:
            free(row)
        return applied

    cdef int64_t apply(self, const Handle* handle, int64_t* slot, double* priority, double* mass,
                       int64_t n) noexcept nogil:
        """Set the checked priorities of the rows whose handles are current; return how many were.

        ``slot`` and ``mass`` are scratch, [n], and ``priority`` is used up.
        """
        cdef Header* header = self.slots.header
        cdef Selector* selector = self.slots.selector
        cdef double alpha = selector.prepare(handle, priority, mass, n)
        cdef int64_t i, index, n_current = 0
        cdef bint is_due
        acquire(header)
        for i in range(n):
            # Generations change only under the lock, so this one cannot move on before the mass is
            # in (I6). No batch ever had the handle of a row that is not published, and a row of
            # priority 0 is no transition any more.
            index = handle[i].index
            if (
                is_published(handle[i].generation) and index < header.n_started
                and load_relaxed(generation_of(header, index)) == handle[i].generation
                and selector.is_transition(index)
            ):
                slot[n_current] = index
                priority[n_current] = priority[i]
                mass[n_current] = mass[i]
                n_current += 1
        if n_current > 0:
            selector.update(slot, priority, mass, n_current, alpha)
        is_due = needs_sweep(self.slots.attachment, selector)
        release(header)
        if is_due:
            self.slots.sweep(NULL, True)  # without memory for it, the next change tries again
        return n_current
