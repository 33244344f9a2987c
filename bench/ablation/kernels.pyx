# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# distutils: language = c++
"""The ablation kernels, callable from Python with the GIL released."""

from libc.stdint cimport int64_t


cdef extern from "tree_kernels.hpp" namespace "ablation" nogil:
    cdef cppclass CTree "ablation::Tree":
        CTree(int64_t n_leaves, int log2_arity, bint is_aligned) except +
        double* leaves()
        double** level
        int n_levels

    void descend_batches(const CTree& tree, int order, double* prefix, int64_t* node,
                         int64_t n_batches, int64_t batch)
    void update_batches(const CTree& tree, int64_t* index, const double* mass,
                        int64_t n_batches, int64_t batch)
    void rebuild_all(const CTree& tree)

cdef extern from "lock_kernels.hpp" namespace "ablation" nogil:
    cdef cppclass CBuffer "ablation::Buffer":
        CBuffer(int64_t capacity, const double* mass) except +
        double rate(int discipline, int n_threads, int64_t n_add, int64_t n_sample,
                    int64_t n_update, double seconds, int64_t* torn)

cdef extern from "update_kernels.hpp" namespace "ablation" nogil:
    cdef cppclass CUpdateRace "ablation::UpdateRace":
        CUpdateRace(int64_t capacity) except +
        double rate(int kind, int n_threads, int64_t batch, double seconds)
        bint is_exact()

cdef extern from "race.hpp" namespace "ablation" nogil:
    double c_line_round_trip "ablation::line_round_trip"(int64_t n)


def line_round_trip(int64_t n=20000):
    """Return the seconds a cache line takes to another thread and back."""
    cdef double seconds
    with nogil:
        seconds = c_line_round_trip(n)
    return seconds


cdef class Tree:
    """A sum tree of the given arity, aligned and padded or naive."""

    cdef CTree* tree

    def __cinit__(self, double[::1] mass, int arity, bint aligned):
        cdef int64_t i
        self.tree = new CTree(mass.shape[0], arity.bit_length() - 1, aligned)
        for i in range(mass.shape[0]):
            self.tree.leaves()[i] = mass[i]
        rebuild_all(self.tree[0])

    def __dealloc__(self):
        del self.tree

    @property
    def total(self):
        """The root."""
        return self.tree.level[0][0]

    def descend(self, double[:, ::1] prefix, int64_t[:, ::1] leaf, int order):
        """Search each row of prefixes as one batch.

        The order is 0 for one at a time, 1 for level by level, 2 for that with prefetch.
        """
        cdef int64_t n_batches = prefix.shape[0], batch = prefix.shape[1]
        with nogil:
            descend_batches(self.tree[0], order, &prefix[0, 0], &leaf[0, 0], n_batches, batch)

    def update(self, int64_t[:, ::1] index, double[:, ::1] mass):
        """Set each row of leaves as one batch. ``index`` is used up."""
        with nogil:
            update_batches(self.tree[0], &index[0, 0], &mass[0, 0], index.shape[0], index.shape[1])


cdef class Buffer:
    """The four locking disciplines over one set of rows."""

    cdef CBuffer* buffer

    def __cinit__(self, double[::1] mass):
        self.buffer = new CBuffer(mass.shape[0], &mass[0])

    def __dealloc__(self):
        del self.buffer

    def rate(self, int discipline, int n_threads, int64_t n_add, int64_t n_sample,
             int64_t n_update, double seconds):
        """Rounds of add, sample and update per second, all threads together."""
        cdef int64_t torn = 0
        cdef double result
        with nogil:
            result = self.buffer.rate(discipline, n_threads, n_add, n_sample, n_update, seconds,
                                      &torn)
        assert torn == 0, f"{torn} torn rows"
        return result


cdef class UpdateRace:
    """Threads that set batches of random leaves, under a lock or, in fixed point, without one."""

    cdef CUpdateRace* race

    def __cinit__(self, int64_t capacity):
        self.race = new CUpdateRace(capacity)

    def __dealloc__(self):
        del self.race

    def rate(self, int kind, int n_threads, int64_t batch, double seconds):
        """Batches per second, all threads together; 0 recompute, 1 fixed point."""
        cdef double result
        with nogil:
            result = self.race.rate(kind, n_threads, batch, seconds)
        if kind == 1:
            assert self.race.is_exact(), "a node of the tree is not the sum of its children"
        return result
