"""Rows out of slots, read without a lock."""

from libc.stdint cimport int64_t, uint64_t

cimport numpy as cnp

from .snapshots cimport Snapshots

cdef enum:
    CHUNK = 128  # rows drawn together: whole counts of the random stream


cdef packed struct Handle:
    int64_t index
    uint64_t generation


cdef class Reader(Snapshots):
    cdef int drawn_shape(self, int f, cnp.npy_intp* shape) noexcept nogil
    cdef int read_batch(self, char** column, int64_t n, Handle* handle, double* mass, bint stratified, int64_t* seen,
                        int64_t n_seen) noexcept nogil
    cdef int64_t draw_rest(self, int64_t* seen, int64_t n_seen, double u) noexcept nogil
    cdef double extent(self) noexcept nogil
    cdef void draw(self, uint64_t counter, double* u, int64_t* slot, int64_t first, int64_t n, int64_t batch_size,
                   bint stratified) noexcept nogil
    cdef void read_rows(self, const int64_t* slot, int64_t n, char** column, int64_t first, Handle* handle,
                        double* mass) noexcept nogil
    cdef void prefetch_row(self, int64_t slot) noexcept nogil
