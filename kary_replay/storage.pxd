"""Rows in and out of slots: written lazily, read without a lock."""

from libc.stdint cimport int64_t, uint64_t

from .slots cimport Slots


cdef packed struct Handle:
    int64_t index
    uint64_t generation


cdef class Storage(Slots):
    cdef int64_t apply(self, Handle* handle, double* priority, double* mass, int64_t* scratch, int64_t n) noexcept nogil
    cdef int read_batch(self, char** column, int64_t n, Handle* handle, double* mass, bint stratified) noexcept nogil
    cdef double extent(self) noexcept nogil
    cdef void draw(self, uint64_t counter, double* u, int64_t* slot, int64_t first, int64_t n, int64_t batch_size,
                   bint stratified) noexcept nogil
    cdef void read_rows(self, const int64_t* slot, int64_t n, char** column, int64_t first, Handle* handle,
                        double* mass) noexcept nogil
    cdef void prefetch_row(self, int64_t slot) noexcept nogil
