"""Rows into slots, and their priorities."""

from libc.stdint cimport int64_t

from .block cimport Handle
from .slots cimport Slots


cdef class Writer:
    cdef Slots slots
    cdef void write_rows(self, const int64_t* slot, int64_t n, char** column, int64_t first,
                         Handle* handle) noexcept nogil
    cdef int64_t apply(self, const Handle* handle, int64_t* slot, double* priority, double* mass,
                       int64_t n) noexcept nogil
