"""A K-ary sum tree over float64 masses, searched without a lock.

What is promised. Any number of threads, of any processes that share the block, may call any
function at once.

*At rest*, when no write is under way, every node equals the sum of its children bit for bit, and
leaf i is drawn with probability mass_i / total. A parent is always recomputed from its children,
never adjusted by a difference, so nothing drifts, however many updates there were.

*Under concurrent writes* a search may read some nodes from before a write and some from after it.
It still ends at some leaf and never leaves the tree. Which leaf it ends at may be biased by the
masses in flight at that moment, and that leaf's mass may have become zero: the buffer looks again
at the leaf, with its slot's generation, and draws again. ``SumTree.sample`` itself goes on to the
nearest leaf with mass.

*Not promised.* The leaves of one batch are not a snapshot: a write may land between two of them.

How. Writers hold the header's lock from the first leaf to the root. Searches take no lock and load
nodes as relaxed atomics. docs/concurrency.md argues why this is enough.
"""

from libc.stdint cimport int64_t

from .block cimport Block, Header


cdef extern from "sum_tree.hpp" namespace "kary" nogil:
    ctypedef struct Tree:
        double** level
        int64_t* width
        int n_levels
        int log2_arity

    # sum_tree.hpp says what they do.
    size_t lay_out(Tree* tree, char* base, int64_t capacity, int arity)
    double total_of(const Tree& tree)
    double largest_mass(int64_t capacity)
    void search(const Tree& tree, double* prefix, int64_t* leaf, int64_t n, int64_t density)
    void recompute(const Tree& tree, int64_t* node, int64_t n)
    double group_sum(const Tree& tree, const double* group)
    int64_t last_with_mass(const Tree& tree, int64_t leaf)


cdef class SumTree:
    cdef Block block
    cdef Header* header
    cdef Tree tree
    cdef double* leaf            # [capacity], then zeros up to a whole group
    cdef int64_t n_leaves
    cdef int check_range(self, int64_t leaf) except -1
    cdef int64_t settle(self, int64_t leaf) noexcept nogil
