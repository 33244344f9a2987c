"""Rows out of slots, read without a lock."""

from libc.stdint cimport int64_t, uint64_t

cimport numpy as cnp

from .snapshots cimport Snapshots
from .sum_tree cimport Tree

cdef enum:
    CHUNK = 128  # rows drawn together: whole counts of the random stream


cdef extern from "remainder.hpp" namespace "kary" nogil:
    cppclass Added "kary::KeySet::Added":
        bint is_new

    cppclass KeySet:
        bint make(int64_t n)
        bint has(int64_t key)
        Added add(int64_t key)

    cppclass TreeWithout:
        bint make(const Tree& tree, int64_t n)
        double total()
        bint is_used_up()
        void remove(int64_t leaf)
        int64_t find(double prefix)

    cppclass Remainder:
        bint is_unique
        KeySet drawn
        bint is_made
        int64_t* slot
        int64_t n_slots
        TreeWithout tree
        double extent(bint has_tree)


cdef packed struct Handle:
    int64_t index
    uint64_t generation


cdef class Reader(Snapshots):
    cdef int drawn_shape(self, int f, cnp.npy_intp* shape) noexcept nogil
    cdef int read_batch(self, char** column, int64_t n, Handle* handle, double* mass, bint stratified,
                        Remainder* rest) noexcept nogil
    cdef int read_again(self, char** column, int64_t i, int64_t n, Handle* handle, double* mass, bint stratified,
                        Remainder* rest) noexcept nogil
    cdef int draw_rest(self, double u, int64_t* slot, int64_t n_drawn, int64_t n, const Handle* handle,
                       Remainder* rest) noexcept nogil
    cdef void collect(self, int64_t n_drawn, int64_t n, const Handle* handle, Remainder* rest) noexcept nogil
    cdef bint may_hold(self, int64_t n) noexcept nogil
    cdef double extent(self) noexcept nogil
    cdef double wait_for_rows(self) noexcept nogil
    cdef void draw(self, double extent, uint64_t counter, double* u, int64_t* slot, int64_t first, int64_t n,
                   int64_t batch_size, bint stratified) noexcept nogil
    cdef void read_rows(self, const int64_t* slot, int64_t n, char** column, int64_t first, Handle* handle,
                        double* mass) noexcept nogil
    cdef void prefetch_row(self, int64_t slot) noexcept nogil
