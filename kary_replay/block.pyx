# cython: language_level=3, cdivision=True
"""Allocate a block and draw from its random stream."""

from libc.stdint cimport int64_t, uint64_t

import numpy as np

from .validation import as_seed


cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t nbytes, int protection, int flags, int file, int64_t offset)
    int munmap(void* address, size_t nbytes)
    int madvise(void* address, size_t nbytes, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANON
    void* MAP_FAILED

cdef extern from * nogil:
    """
    #include <sys/mman.h>
    #ifdef MADV_HUGEPAGE
    static const int ADVISE_HUGE_PAGES = MADV_HUGEPAGE;
    #else
    static const int ADVISE_HUGE_PAGES = -1;
    #endif
    """
    int ADVISE_HUGE_PAGES

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* lock, const void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* lock)

cdef extern from "block.hpp" namespace "kary" nogil:
    ctypedef struct HeaderWithLock "kary::Header":
        pthread_mutex_t lock


cdef size_t HUGE_PAGE = 2 << 20


cdef class Block:
    """``nbytes`` of zeroed memory that begins with a Header, on huge pages where the system has them.

    Rows are drawn at random, so with ordinary pages almost every row would also miss the translation look-aside buffer.
    """

    def __cinit__(self, size_t nbytes, seed=None):
        cdef uint64_t[::1] key = as_seed(seed).generate_state(2, np.uint64)
        # Huge pages need an aligned start; the head room for it costs address space only.
        cdef size_t mapped = nbytes + (HUGE_PAGE if nbytes >= HUGE_PAGE else 0)
        self.mapping = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0)
        if self.mapping == MAP_FAILED:
            self.mapping = NULL
            raise MemoryError(f"capacity needs {nbytes / 2**30:.3g} GiB, which the system refuses; choose a smaller capacity")
        self.mapped = mapped
        self.nbytes = nbytes
        self.base = <char*>self.mapping
        if nbytes >= HUGE_PAGE:
            self.base += (HUGE_PAGE - <size_t>self.base % HUGE_PAGE) % HUGE_PAGE
            madvise(self.base, nbytes, ADVISE_HUGE_PAGES)  # only advice: a refusal changes nothing
        self.header = <Header*>self.base
        self.header.random_key[0] = key[0]
        self.header.random_key[1] = key[1]
        pthread_mutex_init(&(<HeaderWithLock*>self.header).lock, NULL)

    def __dealloc__(self):
        if self.mapping != NULL:
            pthread_mutex_destroy(&(<HeaderWithLock*>self.header).lock)
            munmap(self.mapping, self.mapped)

    def random_state(self):
        """Return the random stream's (key, key, counter)."""
        return self.header.random_key[0], self.header.random_key[1], load_relaxed(&self.header.random_counter)

    def set_random_state(self, state):
        """Continue the stream whose ``random_state`` this was. No other thread may be drawing."""
        cdef uint64_t key0, key1, counter
        key0, key1, counter = state
        self.header.random_key[0] = key0
        self.header.random_key[1] = key1
        store_relaxed(&self.header.random_counter, counter)


cdef uint64_t take_random(Header* header, int64_t n) noexcept nogil:
    """Take the stream's next n numbers, for fill_uniform to write out. Concurrent callers get disjoint parts of the stream."""
    # relaxed: only the counter's own order matters, and every thread sees one such order
    return fetch_add_relaxed(&header.random_counter, <uint64_t>(n + PER_COUNTER - 1) // PER_COUNTER)


cdef size_t aligned(size_t nbytes) noexcept nogil:
    """Round up to whole cache lines."""
    return (nbytes + 63) & ~<size_t>63
