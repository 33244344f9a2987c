"""Rows out of slots, read without a lock."""

from libc.stdint cimport int64_t, uint64_t

cimport numpy as cnp

from .block cimport Handle
from .slots cimport Remainder, Slots

cdef enum:
    CHUNK = 256  # rows drawn together: whole counts of the random stream


# A batch that is being drawn.
cdef struct Draw:
    int64_t n              # its rows
    bint stratified
    int n_fields           # the first ones of a row, which are read
    char** column          # for each of them, where its values go
    Handle* handle         # [n]
    double* mass           # [n]


# the array of `out` with that name if there is one, checked, else a new one
cdef cnp.ndarray column_of(
    str name, int n_axes, cnp.npy_intp* shape, cnp.dtype dtype, dict out
)


cdef int64_t as_batch_size(batch_size) except -1


cdef class Reader:
    cdef Slots slots

    cdef int add_columns(
        self, int64_t n, int n_fields, dict out, dict arrays, char** column
    ) except -1
    cdef int drawn_shape(self, int f, cnp.npy_intp* shape) noexcept nogil
    cdef Py_ssize_t drawn_nbytes(self, int f) noexcept nogil
    cdef dict collect(
        self, int64_t n, const int64_t* given, bint stratified, bint unique, dict out
    )
    cdef int read_given(self, Draw* batch, const int64_t* slot) noexcept nogil
    cdef int read_batch(self, Draw* batch, Remainder* rest) noexcept nogil
    cdef int read_again(self, Draw* batch, int64_t i, Remainder* rest) noexcept nogil
    cdef int draw_rest(self, Draw* batch, int64_t i, Remainder* rest, int64_t* slot) noexcept nogil
    cdef bint may_hold(self, int64_t n) noexcept nogil
    cdef double wait_for_rows(self) noexcept nogil
    cdef void draw(
        self, const Draw* batch, int64_t first, int64_t n, double extent, uint64_t counter,
        bint stratified, double* u, int64_t* slot,
    ) noexcept nogil
    cdef int64_t read_rows(
        self, const int64_t* slot, int64_t n, const Draw* batch, int64_t first
    ) noexcept nogil
