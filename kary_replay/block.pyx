# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Map a block and draw from its random stream."""

from libc.stdint cimport int64_t, uint64_t

import os
import weakref

import numpy as np

from .errors import AttachError
from .validation import as_seed


cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t nbytes, int protection, int flags, int file, int64_t offset)
    int munmap(void* address, size_t nbytes)
    int mprotect(void* address, size_t nbytes, int protection)
    int madvise(void* address, size_t nbytes, int advice)
    int PROT_NONE, PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_SHARED, MAP_ANON
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

cdef extern from *:
    """
    #ifdef __clang__
    #define KARY_REPLAY_COMPILER __VERSION__
    #else
    #define KARY_REPLAY_COMPILER "GCC " __VERSION__
    #endif
    #ifndef KARY_REPLAY_FLAGS
    #define KARY_REPLAY_FLAGS "not recorded"
    #endif
    """
    const char* KARY_REPLAY_COMPILER
    const char* KARY_REPLAY_FLAGS

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_destroy(pthread_mutex_t* lock)

cdef extern from "block.hpp" namespace "kary" nogil:
    ctypedef struct HeaderWithLock "kary::Header":
        pthread_mutex_t lock


BUILD = {"compiler": KARY_REPLAY_COMPILER.decode(), "flags": KARY_REPLAY_FLAGS.decode()}

cdef size_t HUGE_PAGE = 2 << 20

cdef object _shared = weakref.WeakSet()  # the blocks that a forked child has to enter under its own name


cdef class Block:
    """``nbytes`` of memory that begins with a Header and its participants, on huge pages where the system has them.

    Rows are drawn at random, so with ordinary pages almost every row would also miss the translation look-aside buffer.

    ``file`` is a descriptor of as many bytes, all zero, which the block takes over and maps for any number of processes;
    with ``attach`` it holds a block already. Without it the memory is this process's own.
    """

    def __cinit__(self, size_t nbytes, seed=None, int file=-1, bint attach=False):
        cdef bint shared = file >= 0
        self.file = file
        self.nbytes = nbytes  # from here on __dealloc__ closes the file
        cdef uint64_t[::1] key = as_seed(seed).generate_state(2, np.uint64)
        cdef uint64_t[::1] token = np.random.SeedSequence().generate_state(2, np.uint64)
        # Huge pages need an aligned start; the head room for it costs address space only.
        cdef size_t room = HUGE_PAGE if nbytes >= HUGE_PAGE and not shared else 0
        self.me = -1
        cdef int flags = MAP_SHARED if shared else MAP_PRIVATE | MAP_ANON
        self.mapping = mmap(NULL, nbytes + room, PROT_READ | PROT_WRITE, flags, file, 0)
        if self.mapping == MAP_FAILED:
            self.mapping = NULL
            raise MemoryError(f"capacity needs {nbytes / 2**30:.3g} GiB, which the system refuses; choose a smaller capacity")
        self.mapped = nbytes + room
        self.base = <char*>self.mapping
        if room:
            self.base += (HUGE_PAGE - <size_t>self.base % HUGE_PAGE) % HUGE_PAGE
        if nbytes >= HUGE_PAGE:
            madvise(self.base, nbytes, ADVISE_HUGE_PAGES)  # only advice: a refusal changes nothing
        self.header = <Header*>self.base
        if not attach:
            self.header.magic = kMagic
            self.header.token[0], self.header.token[1] = token[0], token[1]
            self.header.random_key[0], self.header.random_key[1] = key[0], key[1]
            self.header.participants_at = aligned(sizeof(Header))
            self.header.n_participants = kMaxParticipants if shared else 1
            if init_lock(self.header, shared):
                raise MemoryError("the system refuses a mutex")
        elif self.header.magic != kMagic:
            raise AttachError("the segment is not a buffer of this version of kary-replay: use one version in all processes")
        self.join()

    def __dealloc__(self):
        if self.mapping != NULL:
            if self.file < 0:
                pthread_mutex_destroy(&(<HeaderWithLock*>self.header).lock)
            elif self.me >= 0:
                with nogil:
                    acquire(self.header)
                    remove_participant(self.header, self.me)
                    release(self.header)
            munmap(self.mapping, self.mapped)
        if self.nbytes and self.file >= 0:
            os.close(self.file)

    @property
    def token(self):
        """Two random numbers by which a block is known."""
        return self.header.token[0], self.header.token[1]

    def join(self):
        """Enter this process among the participants."""
        cdef int64_t me = 0
        self.me = -1
        if self.file >= 0:
            with nogil:
                acquire(self.header)
                me = add_participant(self.header)
                release(self.header)
            if me < 0:
                raise AttachError(f"the buffer has {kMaxParticipants} attachments, which is as many as there may be")
            _shared.add(self)
        self.me = me

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


def start_time(int64_t pid):
    """Return when a process started, in clock ticks since boot; 0 if there is none."""
    return start_time_of(pid)


cdef uint64_t take_random(Header* header, int64_t n) noexcept nogil:
    """Take the stream's next n numbers, for fill_uniform to write out. Concurrent callers get disjoint parts of the stream."""
    # relaxed: only the counter's own order matters, and every thread sees one such order
    return fetch_add_relaxed(&header.random_counter, <uint64_t>(n + PER_COUNTER - 1) // PER_COUNTER)


cdef size_t aligned(size_t nbytes) noexcept nogil:
    """Round up to whole cache lines."""
    return (nbytes + 63) & ~<size_t>63


cdef size_t head_nbytes(bint shared) noexcept nogil:
    """Bytes in front of the tree: the header and the participants."""
    return aligned(sizeof(Header)) + aligned((kMaxParticipants if shared else 1) * sizeof(Participant))


def _after_fork():
    """Enter the child: it is a process of its own."""
    cdef Block block
    for block in list(_shared):
        try:
            block.join()
        except AttachError as error:
            # Under its parent's number it would destroy what the parent writes: let the first access end it instead.
            os.write(2, f"kary-replay: a forked child must not use a buffer of its parent: {error}\n".encode())
            mprotect(block.base, block.nbytes, PROT_NONE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
