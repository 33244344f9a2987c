"""Slots, the places of rows.

A row is one transition: its slot's generation, then its fields, packed. The generation counts the
uses of the slot: 0 never used, odd being written or given up (I5), even holding a published row. It
changes only under the header's lock. block.hpp says how an odd one names its writer. The row's
priority lies elsewhere, beside those of all others: see priorities.hpp.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t

cimport numpy as cnp

from .block cimport Attachment, Block, Header
from .sum_tree cimport SumTree


cdef struct Place:
    Py_ssize_t offset      # within the row
    Py_ssize_t nbytes      # of one value
    PyObject* dtype        # its field's, which keeps it alive
    int n_axes
    cnp.npy_intp[31] shape


cdef class Slots:
    cdef readonly int64_t capacity
    cdef readonly Py_ssize_t row_nbytes      # from one row to the next
    cdef readonly Py_ssize_t payload_nbytes  # of the fields alone
    cdef readonly SumTree tree               # None for uniform draws
    cdef readonly Block block
    cdef Header* header
    cdef Attachment* attachment
    # [capacity], of the rows there are; 0: no transition. NULL without a tree
    cdef double* priority
    cdef char* rows
    cdef Place* places
    cdef int n_fields
    cdef list names
    cdef list fields

    cdef uint64_t* generation(self, int64_t slot) noexcept nogil
    cdef int64_t reserve(self, int64_t* slot, int64_t n, int64_t* scratch) noexcept nogil
    cdef void publish(self, const int64_t* slot, int64_t n, const double* priority, int64_t* scratch) noexcept nogil
    cdef bint is_empty(self) noexcept nogil
    cdef bint holds_no_row(self, int64_t slot) noexcept nogil
