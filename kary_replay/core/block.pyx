# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Map a block and draw from its random stream."""

from libc.stdint cimport int64_t, uint64_t

import errno
import os

import numpy as np

from ..errors import AttachError
from ..validation import as_seed


cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t nbytes, int protection, int flags, int file, int64_t offset)
    int munmap(void* address, size_t nbytes)
    int madvise(void* address, size_t nbytes, int advice)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_SHARED, MAP_ANON
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

cdef extern from "power.hpp" namespace "kary":
    const char* instructions()

cdef extern from "<errno.h>" nogil:
    int ERROR "errno"

cdef extern from "forks.hpp" namespace "kary" nogil:
    bint watch_forks()
    bint note_attachment(Attachment* attachment)
    void forget_attachment(Attachment* attachment)


INSTRUCTIONS = instructions().decode()
"""What powers are computed with; the numbers are the same with any (power.hpp)."""

BUILD = {"compiler": KARY_REPLAY_COMPILER.decode(), "flags": KARY_REPLAY_FLAGS.decode()}

cdef size_t HUGE_PAGE = 2 << 20

if not watch_forks():
    raise MemoryError("the system has no room for what a forked child must do")


cdef class Block:
    """``nbytes`` of memory that begins with a Header and its participants.

    ``file`` is the descriptor of a file of as many bytes, all zero, which the block takes over and
    maps for any number of processes. With ``attach`` the file holds a block already. Without a file
    the memory is this process's own.

    The memory lies on huge pages where the system has them. Rows are drawn at random, so with
    ordinary pages almost every row would also miss the translation look-aside buffer.
    """

    def __cinit__(self, size_t nbytes, seed=None, int file=-1, bint attach=False):
        cdef bint shared = file >= 0
        cdef int error
        self.attachment.file = file
        self.attachment.me = -1
        self.nbytes = nbytes  # from here on __dealloc__ closes the file
        cdef uint64_t[::1] key = as_seed(seed).generate_state(2, np.uint64)
        cdef uint64_t[::1] token = np.random.SeedSequence().generate_state(2, np.uint64)
        if nbytes < head_nbytes(shared):
            raise AttachError(f"the segment has {nbytes} bytes, which is no buffer")
        # Huge pages need an aligned start; the head room for it costs address space only.
        cdef size_t room = HUGE_PAGE if nbytes >= HUGE_PAGE and not shared else 0
        cdef int flags = MAP_SHARED if shared else MAP_PRIVATE | MAP_ANON
        self.mapping = mmap(NULL, nbytes + room, PROT_READ | PROT_WRITE, flags, file, 0)
        if self.mapping == MAP_FAILED:
            self.mapping = NULL
            raise MemoryError(
                f"capacity needs {nbytes / 2**30:.3g} GiB, which the system refuses; "
                "choose a smaller capacity"
            )
        self.mapped = nbytes + room
        self.base = <char*>self.mapping
        if room:
            self.base += (HUGE_PAGE - <size_t>self.base % HUGE_PAGE) % HUGE_PAGE
        if nbytes >= HUGE_PAGE:
            madvise(self.base, nbytes, ADVISE_HUGE_PAGES)  # only advice: a refusal changes nothing
        self.header = self.attachment.header = <Header*>self.base
        if not attach:
            self.header.magic = kMagic
            self.header.token[0], self.header.token[1] = token[0], token[1]
            self.header.random_key[0], self.header.random_key[1] = key[0], key[1]
            self.header.participants_at = whole_lines(sizeof(Header))
            self.header.n_participants = kMaxParticipants if shared else 1
            self.header.pid_namespace = pid_namespace() if shared else 0
            if init_lock(self.header, shared):
                raise MemoryError("the system refuses a mutex")
        elif self.header.magic != kMagic:
            raise AttachError(
                "the segment is not a buffer of this version of kary-replay: "
                "use one version in all processes"
            )
        elif (
            self.header.n_participants != kMaxParticipants
            or self.header.participants_at != <int64_t>whole_lines(sizeof(Header))
        ):
            raise AttachError("the segment contradicts itself: it is damaged")
        if shared:
            if not note_attachment(&self.attachment):
                error = ERROR
                reason = os.strerror(error)
                raise AttachError(
                    f"the buffer's memory cannot be opened through /proc/self/fd: {reason}"
                )
            self.is_noted = True
        self.enter()

    def __dealloc__(self):
        if self.is_noted:
            forget_attachment(&self.attachment)
        if self.mapping != NULL:
            if not self.is_noted and self.header != NULL and self.header.n_participants == 1:
                destroy_lock(self.header)
            elif self.attachment.me >= 0:
                with nogil:
                    acquire(self.header)
                    leave(&self.attachment)
                    release(self.header)
            munmap(self.mapping, self.mapped)
        # The file is ours, unless somebody closed it behind our back.
        cdef bint is_ours = not self.is_noted or has_file(&self.attachment)
        if self.nbytes and self.attachment.file >= 0 and is_ours:
            os.close(self.attachment.file)

    @property
    def file(self):
        """The descriptor that others attach to; -1 for memory of this process alone."""
        if self.is_noted and not has_file(&self.attachment):
            return -1  # somebody closed it behind our back: what has its number now is not ours
        return self.attachment.file

    @property
    def me(self):
        """The number of this process among the participants; -1 in a child that has not entered."""
        return load_relaxed(&self.attachment.me)

    @property
    def token(self):
        """Two random numbers that tell the block from all others."""
        return self.header.token[0], self.header.token[1]

    cdef int enter(self) except -1:
        """Make this process a participant, as everybody must be who may take the lock.

        A forked child becomes one when it first uses the block, so that children which never use it
        take no place from others.
        """
        # relaxed: the number is set once, and it is used under the lock
        if load_relaxed(&self.attachment.me) >= 0:
            return 0
        cdef bint entered
        cdef int error
        cdef Attachment* attachment = &self.attachment
        if self.is_noted:
            if not has_file(attachment):
                raise AttachError(
                    "this forked process cannot open its parent's buffer (is /proc missing, are "
                    "too many files open, or was the buffer's file closed?): "
                    "attach by the parent's buffer.descriptor"
                )
            # A robust mutex tells its holders apart by process numbers: it serves one namespace.
            if self.header.pid_namespace == 0 or pid_namespace() != self.header.pid_namespace:
                raise AttachError(
                    "this process has no /proc, or is in another namespace of process numbers "
                    "(a container, a sandbox) than the buffer's maker: "
                    "use the buffer where it was made"
                )
        while True:
            with nogil:
                acquire(attachment.header)
                entered = enter(attachment)
                error = ERROR
                release(attachment.header)
            if entered or error != errno.EINTR:
                break
        if not entered:
            if error not in (errno.EAGAIN, errno.EACCES):
                reason = os.strerror(error)
                raise OSError(
                    error,
                    f"this system cannot lock bytes of a file, as shared buffers need: {reason}",
                )
            raise AttachError(
                f"the buffer has {kMaxParticipants} attachments, which is as many as there may be"
            )
        return 0

    def random_state(self):
        """Return the random stream's (key, key, counter)."""
        cdef Header* header = self.header
        return header.random_key[0], header.random_key[1], load_relaxed(&header.random_counter)

    def set_random_state(self, state):
        """Continue the stream whose ``random_state`` this was. No other thread may be drawing."""
        cdef uint64_t key0, key1, counter
        key0, key1, counter = state
        self.header.random_key[0] = key0
        self.header.random_key[1] = key1
        store_relaxed(&self.header.random_counter, counter)


cdef uint64_t take_random(Header* header, int64_t n) noexcept nogil:
    """Take the stream's next n numbers, which fill_uniform writes out; nobody else gets them."""
    # relaxed: only the counter's own order matters, and all threads see one such order
    return fetch_add_relaxed(&header.random_counter, <uint64_t>(n + PER_COUNTER - 1) // PER_COUNTER)


cdef size_t head_nbytes(bint shared) noexcept nogil:
    """Return the bytes in front of the tree: those of the header and the participants."""
    cdef int64_t n_participants = kMaxParticipants if shared else 1
    return whole_lines(sizeof(Header)) + whole_lines(n_participants * sizeof(Participant))
