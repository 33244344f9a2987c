"""Rows into slots, written lazily, and their priorities."""

from libc.stdint cimport int64_t

from .reader cimport Handle, Reader


cdef class Storage(Reader):
    cdef int64_t apply(self, Handle* handle, double* priority, double* mass, int64_t* scratch, int64_t n) noexcept nogil
