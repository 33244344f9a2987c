"""One block of memory for everything a buffer remembers: header, tree, rows.

Nothing in a block is a pointer, so its bytes mean the same wherever it is mapped.
"""

from libc.stdint cimport int64_t, uint64_t


cdef extern from "block.hpp" namespace "kary" nogil:
    ctypedef struct Participant:
        int64_t n_writing
        int64_t first_written
        int64_t n_passed
        int64_t passed_before

    ctypedef struct Handle:
        int64_t index
        uint64_t generation

    ctypedef struct Layout:
        int64_t capacity
        int64_t row_nbytes
        int64_t tree_at
        int64_t rows_at
        int64_t nbytes

    ctypedef struct Noise:
        double n_rows
        double weight
        double size
        double uniform
        double present

    ctypedef struct Header:
        uint64_t magic
        uint64_t[2] token
        Layout layout
        int64_t participants_at
        int64_t n_participants
        uint64_t pid_namespace
        int64_t position
        int64_t n_passed
        int64_t n_published
        int64_t n_with_mass
        int64_t n_writing
        int64_t n_started
        int64_t n_touched
        int64_t n_paused
        int64_t n_added
        int64_t n_repaired
        double alpha
        double max_priority
        double max_mass
        double beta
        double priority_epsilon
        double uniform_share
        int64_t adapts_share
        int64_t n_copying
        int64_t sweep_asked
        int64_t sweep_done
        Noise noise
        uint64_t[2] random_key
        uint64_t random_counter
        uint64_t n_sampled

    const uint64_t kMagic
    const int64_t kMaxParticipants
    const uint64_t kCount
    int64_t whole_lines(int64_t nbytes)
    bint is_vacant(uint64_t generation)
    bint is_published(uint64_t generation)
    uint64_t written_by(uint64_t generation, int64_t participant)
    uint64_t published(uint64_t generation)
    uint64_t vacated(uint64_t generation)
    uint64_t* generation_of(Header* header, int64_t slot)
    void ask_for_rows(Header* header, const int64_t* slot, int64_t n)
    Participant* participants_of(Header* header)
    void renew_max_mass(Header* header)
    bint is_settled(const Header* header)


cdef extern from "lock.hpp" namespace "kary" nogil:
    # Nobody calls it with the GIL held, for the lock's holder may be waiting for the GIL.
    void acquire(Header* header)
    void release(Header* header)
    int init_lock(Header* header, bint shared)
    void destroy_lock(Header* header)


cdef extern from "participants.hpp" namespace "kary" nogil:
    ctypedef struct Attachment:
        Header* header
        int file
        int64_t me

    uint64_t pid_namespace()
    bint has_file(const Attachment* attachment)
    bint enter(Attachment* attachment)
    void leave(Attachment* attachment)
    bint bury(const Attachment* attachment, bint all)
    void pause(Attachment* attachment)  # takes the lock, resume lets it go
    void resume(Attachment* attachment)
    void give_way()


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
    void read_field_ahead(char* row, char* value, int64_t offset, int64_t nbytes, const char* next)
    void write_field(char* row, char* value, int64_t offset, int64_t nbytes)


cdef extern from "philox.hpp" namespace "kary" nogil:
    void fill_uniform(const uint64_t* key, uint64_t counter, double* u, int64_t n)


cdef class Block:
    cdef readonly size_t nbytes
    cdef Attachment attachment
    cdef bint is_noted     # among the attachments that a fork looks after: the memory is shared
    cdef char* base        # 64-byte aligned; 2 MiB aligned where it is that large
    cdef Header* header    # at base
    cdef void* mapping     # what munmap gets
    cdef size_t mapped
    cdef object __weakref__

    cdef int enter(self) except -1


cdef enum:
    PER_COUNTER = 4  # random numbers that one count of the stream stands for

cdef uint64_t take_random(Header* header, int64_t n) noexcept nogil
cdef size_t head_nbytes(bint shared) noexcept nogil
