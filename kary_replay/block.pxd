"""One block of memory for everything a buffer remembers: header, tree, rows.

Nothing in a block is a pointer, so that its bytes mean the same wherever it is mapped.
"""

from libc.stdint cimport int64_t, uint64_t


cdef extern from "block.hpp" namespace "kary" nogil:
    ctypedef struct Header:
        int64_t position
        int64_t n_published
        int64_t n_writing
        int64_t n_started
        int64_t n_touched
        int64_t n_paused
        double alpha
        double max_priority
        double max_mass
        uint64_t[2] random_key
        uint64_t random_counter

    # Never called with the GIL held: the lock's holder may be waiting for it.
    void acquire(Header* header)
    void release(Header* header)


cdef extern from "<sched.h>" nogil:
    int sched_yield()


cdef extern from "atomic.hpp" namespace "kary" nogil:
    T load_relaxed[T](const T* p)
    T load_acquire[T](const T* p)
    void store_relaxed[T](T* p, T value)
    void store_release[T](T* p, T value)
    uint64_t fetch_add_relaxed(uint64_t* p, uint64_t n)
    void prefetch_far(const void* p)
    void read_field(char* row, char* value, int64_t offset, int64_t nbytes)
    void write_field(char* row, char* value, int64_t offset, int64_t nbytes)


cdef extern from "philox.hpp" namespace "kary" nogil:
    void fill_uniform(const uint64_t* key, uint64_t counter, double* u, int64_t n)


cdef class Block:
    cdef readonly size_t nbytes
    cdef char* base        # 64-byte aligned; 2 MiB aligned where it is that large
    cdef Header* header    # at base
    cdef void* mapping     # what munmap gets
    cdef size_t mapped


cdef enum:
    PER_COUNTER = 4  # random numbers that one count of the stream stands for

cdef uint64_t take_random(Header* header, int64_t n) noexcept nogil
cdef size_t aligned(size_t nbytes) noexcept nogil
