# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# distutils: language = c++
"""The loops of limit.hpp, several calls at a time, with the GIL released."""

from libc.stdint cimport int64_t, uint64_t

import numpy as np


cdef extern from "limit.hpp" namespace "ablation" nogil:
    cdef cppclass CLimit "ablation::Limit":
        CLimit(int64_t capacity, const double* mass) except +
        double total()
        double mass_of(int64_t at)
        bint is_right(int64_t n)
        void sample(int64_t n) except +
        void sample_uniform(int64_t n) except +
        void update(const int64_t* index, const double* mass, int64_t n, uint64_t generation)
        void add(const char* const* field, int64_t n, double mass)


cdef class Limit:
    """A full buffer of HalfCheetah's rows."""

    cdef CLimit* limit
    cdef int64_t capacity

    def __cinit__(self, double[::1] mass):
        self.capacity = mass.shape[0]
        self.limit = new CLimit(mass.shape[0], &mass[0])

    def __dealloc__(self):
        del self.limit

    def sample(self, int64_t n_calls, int64_t batch, bint uniform):
        """Draw batches, and copy their rows."""
        cdef int64_t i
        with nogil:
            for i in range(n_calls):
                if uniform:
                    self.limit.sample_uniform(batch)
                else:
                    self.limit.sample(batch)

    def update(self, int64_t[:, ::1] index, double[:, ::1] mass):
        """Set each row of leaves, as one batch."""
        cdef int64_t i
        with nogil:
            for i in range(index.shape[0]):
                self.limit.update(&index[i, 0], &mass[i, 0], index.shape[1], 2)

    def add(self, int64_t n_calls, arrays, double mass):
        """Add the same rows several times: an array for each field, one row after the other."""
        cdef const char* field[5]
        cdef int64_t i, n = len(arrays[0])
        cdef const unsigned char[::1] view
        held = []
        for i in range(5):
            held.append(np.ascontiguousarray(arrays[i]).view(np.uint8).reshape(-1))
            view = held[i]
            field[i] = <const char*>&view[0]
        with nogil:
            for i in range(n_calls):
                self.limit.add(field, n, mass)

    def masses(self):
        """Return the total, and the mass of every row."""
        return self.limit.total(), np.array(
            [self.limit.mass_of(i) for i in range(self.capacity)])

    def is_right(self, int64_t batch):
        """Say whether the last batch has the rows it names and their masses."""
        return self.limit.is_right(batch)
