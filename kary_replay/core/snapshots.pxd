"""All slots at one moment."""

from libc.stdint cimport int64_t, uint64_t

from .slots cimport Slots


cdef class Snapshots(Slots):
    cdef int64_t count_changed(self, const uint64_t[::1] copied) noexcept nogil
