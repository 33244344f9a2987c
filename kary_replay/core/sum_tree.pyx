# cython: language_level=3, cdivision=True
# distutils: language = c++
"""The K-ary sum tree: draw an index with probability proportional to its mass.

For K = 4 and 6 leaves of mass 3 1 4 1 5 9 the tree is ::

    level 0                      [23]
    level 1         [9          14           0          0]
    level 2    [3  1  4  1][5  9  0  0]

To find prefix 10: the root's children hold 9, 14, so the first one with prefix < cumulative sum is
the second (9 + 14); what remains of the prefix is 10 - 9 = 1. Its children hold 5, 9: 1 < 5, so the
answer is leaf 4.
"""

from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc

import numpy as np

cimport numpy as cnp

from ..errors import EmptyBufferError, IndexRangeError
from ..validation import as_arity, as_count, as_float64, as_generator, as_index

from .block cimport (
    PER_COUNTER, Block, Header, acquire, fill_uniform, head_nbytes, load_acquire, load_relaxed,
    release, take_random,
)

cdef extern from "selectors.hpp" namespace "kary" nogil:
    void set_masses(
        Header* header, double* leaf, const int64_t* slot, const double* mass, int64_t n
    )

cnp.import_array()

DEFAULT_ARITY = 4
"""The fastest arity measured; docs/ablations.md has the table."""

cdef int64_t MAX_CAPACITY = <int64_t>1 << 40
cdef enum:
    MAX_BATCH = 1 << 30
    CHUNK = 256  # draws made together: kSearches, and whole counts of the random stream


cdef bint _is_vector(object value, int dtype):
    """Whether a value is a contiguous array of this dtype and of at most one axis.

    Not one of a class derived from it, such as a masked array, which is looked at more closely.
    """
    return type(value) is cnp.ndarray and cnp.PyArray_TYPE(value) == dtype \
        and cnp.PyArray_NDIM(value) <= 1 and cnp.PyArray_ISCARRAY_RO(value)


cdef cnp.ndarray _int64(object index):
    """Return what as_index returns, at once where ``index`` is that already."""
    return index if _is_vector(index, cnp.NPY_INT64) else as_index(index)


cdef cnp.ndarray _float64(str name, object value):
    """Return what as_float64 returns, at once where ``value`` is that already."""
    return value if _is_vector(value, cnp.NPY_FLOAT64) else as_float64(name, value)


cdef class SumTree:
    """A K-ary sum tree over ``capacity`` float64 masses.

    Parameters
    ----------
    capacity : int
        Number of leaves, at least 1.
    arity : int
        Children per node: a power of two from 2 to 64. The default is the fastest measured.

    Raises
    ------
    ValueError, TypeError
        If capacity or arity is out of range. Nothing is allocated then.

    Notes
    -----
    About ``8 * arity / (arity - 1)`` bytes per leaf. Every method may run in any number of threads
    at once; they release the GIL. Writers take turns, searches take no lock; sum_tree.pxd states
    what a search sees meanwhile.

    Layout after Zhang, Kuppannagari & Prasanna (2021), arXiv:2110.01101, section IV.

    Examples
    --------
    >>> import kary_replay as kr
    >>> tree = kr.SumTree(6, arity=4)
    >>> tree.set([0, 1, 2, 3, 4, 5], [3, 1, 4, 1, 5, 9])
    >>> tree.total
    23.0
    >>> tree.find(10.0)
    4
    >>> tree.set(6, 1.0)
    Traceback (most recent call last):
        ...
    kary_replay.errors.IndexRangeError: index 6 is out of range: it must be in 0 … 5
    """

    def __cinit__(self, capacity, arity=DEFAULT_ARITY, Block _block=None, size_t _offset=0):
        cdef int64_t n_leaves = as_count("capacity", capacity, MAX_CAPACITY)
        cdef int k = as_arity(arity)
        cdef size_t head = head_nbytes(False)
        if _block is None:
            _block = Block(head + lay_out(NULL, NULL, n_leaves, k))
            _offset = head
        cdef size_t end = _offset + lay_out(NULL, NULL, n_leaves, k)
        assert end <= _block.nbytes, "the tree does not fit its block"
        self.block = _block
        self.header = _block.header
        self.n_leaves = n_leaves
        lay_out(&self.tree, _block.base + _offset, n_leaves, k)
        self.leaf = self.tree.level[self.tree.n_levels - 1]

    @property
    def capacity(self):
        """Number of leaves."""
        return self.n_leaves

    @property
    def max_mass(self):
        """The largest mass a leaf may have; a tree full of them does not overflow the total."""
        return largest_mass(self.n_leaves)

    @property
    def arity(self):
        """Children per node."""
        return 1 << self.tree.log2_arity

    @property
    def total(self):
        """Sum of all masses, float64: one load. Under concurrent writes, some recent value."""
        return total_of(self.tree)

    @property
    def nbytes(self):
        """Bytes of all nodes, padding included."""
        return lay_out(NULL, NULL, self.n_leaves, self.arity)

    def __len__(self):
        return self.n_leaves

    def __repr__(self):
        return f"SumTree(capacity={self.n_leaves}, arity={self.arity}, total={self.total})"

    def set(self, index, mass):
        """Set the mass of one leaf or of many.

        Parameters
        ----------
        index : int or array of int [B]
            Leaves, each in 0 … capacity - 1. Where one comes twice, the last mass wins.
        mass : float or array of float [B]
            Finite, at least 0, at most ``max_mass``. One number sets every leaf of ``index``.

        Raises
        ------
        IndexRangeError, ValueError, TypeError
            Before any mass has changed.

        Notes
        -----
        O(B · K · log_K(capacity)), under the tree's one lock. Searches go on meanwhile and may see
        a part of the batch.
        """
        cdef cnp.ndarray indices = _int64(index), masses = _float64("mass", mass)
        cdef const int64_t* index_at = <const int64_t*>cnp.PyArray_DATA(indices)
        cdef const double* mass_at = <const double*>cnp.PyArray_DATA(masses)
        cdef int64_t n = cnp.PyArray_SIZE(indices), i
        cdef int64_t step = 0 if cnp.PyArray_SIZE(masses) == 1 else 1
        if step == 1 and cnp.PyArray_SIZE(masses) != n:
            raise ValueError(
                f"mass must be one number or have the length of index, {n}, got {masses.size}"
            )
        if n == 0:
            return
        # Copies are checked and used, whatever other threads do to the arrays meanwhile.
        cdef int64_t* leaf = <int64_t*>malloc(n * (2 * sizeof(int64_t) + sizeof(double)))
        if leaf == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        cdef int64_t* touched = leaf + n
        cdef double* value = <double*>(touched + n)
        cdef double limit = largest_mass(self.n_leaves)
        try:
            self.block.enter()
            for i in range(n):
                leaf[i] = touched[i] = index_at[i]
                value[i] = mass_at[i * step] + 0.0  # turns -0.0 into 0.0
                self.check_range(leaf[i])
                if not (0 <= value[i] <= limit):  # NaN fails too
                    raise ValueError(
                        f"mass must be finite and in 0 … {limit:.3g}, "
                        f"got {value[i]} for index {leaf[i]}"
                    )
            with nogil:
                acquire(self.header)
                set_masses(self.header, self.leaf, leaf, value, n)
                recompute(self.tree, touched, n)
                release(self.header)
        finally:
            free(leaf)

    def get(self, index):
        """Return the mass of one leaf (float) or of many (float64 [B]).

        Raises IndexRangeError or TypeError for a bad index. O(B), no lock; concurrent writes may
        fall between two leaves.
        """
        cdef cnp.ndarray indices = _int64(index)
        cdef const int64_t* leaf = <const int64_t*>cnp.PyArray_DATA(indices)
        cdef cnp.npy_intp n = cnp.PyArray_SIZE(indices), i
        cdef int64_t at
        if cnp.PyArray_NDIM(indices) == 0:
            at = leaf[0]
            self.check_range(at)
            return load_relaxed(self.leaf + at)  # any recent value will do
        cdef cnp.ndarray masses = cnp.PyArray_EMPTY(1, &n, cnp.NPY_FLOAT64, 0)
        cdef double* mass = <double*>cnp.PyArray_DATA(masses)
        for i in range(n):
            at = leaf[i]  # once: what is checked is what is used
            self.check_range(at)
            mass[i] = load_relaxed(self.leaf + at)  # any recent value will do
        return masses

    def find(self, prefix):
        """Return the smallest i with ``prefix < mass[0] + … + mass[i]``.

        Parameters
        ----------
        prefix : float or array of float [B]
            Each at least 0 and below ``total``.

        Returns
        -------
        int or int64 [B]
            Never a leaf of mass 0, rounding included.

        Raises
        ------
        ValueError, TypeError
            If a prefix is NaN, negative, or not below ``total``.

        Notes
        -----
        O(B · K · log_K(capacity)); all B descend together, one level at a time, with the GIL
        released and no lock. Sums are those of the tree: siblings are added left to right (in
        blocks of eight for K > 8), then their parents.
        """
        cdef cnp.ndarray prefixes = _float64("prefix", prefix)
        cdef cnp.npy_intp n = cnp.PyArray_SIZE(prefixes), i
        cdef cnp.ndarray scratch = prefixes.copy()  # the search uses it up
        cdef double* p = <double*>cnp.PyArray_DATA(scratch)
        cdef cnp.ndarray leaves = cnp.PyArray_EMPTY(1, &n, cnp.NPY_INT64, 0)
        cdef int64_t* leaf = <int64_t*>cnp.PyArray_DATA(leaves)
        cdef double total = total_of(self.tree)
        cdef bint empty = False
        for i in range(n):
            if not (0 <= p[i] < total):
                raise ValueError(
                    f"prefix must be at least 0 and below the total, {total}, got {p[i]}"
                )
        with nogil:
            search(self.tree, p, leaf, n, 0)
            for i in range(n):
                leaf[i] = self.settle(leaf[i])
                empty |= leaf[i] < 0
        if empty:
            raise EmptyBufferError("every mass became zero during the search")
        return leaves if cnp.PyArray_NDIM(prefixes) else leaf[0]

    def sample(self, batch_size, stratified=True, rng=None):
        """Draw leaves with probability mass_i / total.

        Parameters
        ----------
        batch_size : int
            B, at least 1.
        stratified : bool
            True: draw i comes from the i-th of B equal parts of the total, which lowers the
            variance (Schaul et al. 2016, arXiv:1511.05952, appendix B.2.1). False: B independent
            draws.
        rng : None, int or numpy.random.Generator
            None draws from the tree's own stream (seeded by the system), an int starts a new
            generator from that seed.

        Returns
        -------
        int64 [B]
            Leaves, repeats included, never one of mass 0.

        Raises
        ------
        EmptyBufferError
            If every mass is zero.
        ValueError, TypeError
            If batch_size is below 1, or rng is something else.

        Notes
        -----
        O(B · K · log_K(capacity)) with the GIL released and no lock. Where a writer empties a leaf
        meanwhile, the next one with mass to its left is returned.
        """
        cdef cnp.npy_intp n = as_count("batch_size", batch_size, MAX_BATCH), start, count, i
        cdef bint strata = bool(stratified)
        cdef cnp.ndarray leaves = cnp.PyArray_EMPTY(1, &n, cnp.NPY_INT64, 0), uniforms
        cdef int64_t* leaf = <int64_t*>cnp.PyArray_DATA(leaves)
        cdef double own[CHUNK]
        cdef double* u = NULL
        cdef uint64_t counter = 0
        cdef double total = total_of(self.tree)
        cdef bint empty = False
        if total <= 0:
            raise EmptyBufferError("every mass is zero: set some masses before drawing")
        if rng is not None:
            uniforms = cnp.PyArray_EMPTY(1, &n, cnp.NPY_FLOAT64, 0)
            as_generator(rng).random(out=uniforms)
            u = <double*>cnp.PyArray_DATA(uniforms)
        else:
            counter = take_random(self.header, n)
        with nogil:
            for start from 0 <= start < n by CHUNK:
                count = min(<cnp.npy_intp>CHUNK, n - start)
                if rng is None:
                    u = own - start
                    fill_uniform(self.header.random_key, counter + start // PER_COUNTER, own, count)
                for i in range(start, start + count):
                    u[i] = (i + u[i]) * (1.0 / n) * total if strata else u[i] * total
                search(self.tree, u + start, leaf + start, count, n if strata else 0)
                for i in range(start, start + count):
                    # [leaf] acquire: pairs with the release in SumTree.set
                    if load_acquire(self.leaf + leaf[i]) <= 0:
                        leaf[i] = self.settle(leaf[i])
                        empty |= leaf[i] < 0
        if empty:
            raise EmptyBufferError("every mass became zero during the search")
        return leaves

    def check_invariants(self):
        """Raise AssertionError naming the first broken invariant: I1 padding, I2 sums or I3 range.

        O(capacity), under the lock; searches go on meanwhile.
        """
        cdef int level, at_level = 0
        cdef int64_t i, stored, n, node = -1
        cdef int arity = 1 << self.tree.log2_arity, broken = 0
        cdef double found = 0, right = 0, value
        self.block.enter()
        # It looks under the lock and raises after it: raising allocates memory, which may run a
        # finalizer that wants the lock.
        with nogil:
            acquire(self.header)
            for level in range(self.tree.n_levels):
                n = self.tree.width[level]
                stored = n if level == 0 else (n + arity - 1) // arity * arity
                for i in range(stored):
                    value = self.tree.level[level][i]
                    if i >= n and value != 0:
                        broken = 1
                    elif not (isfinite(value) and value >= 0):
                        broken = 3
                    elif level + 1 < self.tree.n_levels and i < n:
                        right = group_sum(self.tree, self.tree.level[level + 1] + i * arity)
                        if value != right:
                            broken = 2
                    if broken:
                        at_level, node, found = level, i, value
                        break
                if broken:
                    break
            release(self.header)
        # Raised, not asserted, for `python -O` removes assertions.
        if broken == 1:
            raise AssertionError(f"I1: padding node {node} of level {at_level} has mass {found}")
        if broken == 2:
            raise AssertionError(
                f"I2: node {node} of level {at_level} is {found}, its children sum to {right}"
            )
        if broken == 3:
            raise AssertionError(f"I3: node {node} of level {at_level} has mass {found}")

    def __reduce__(self):
        masses = self.get(np.arange(self.n_leaves))
        return _restore, (self.n_leaves, self.arity, masses, self.block.random_state())

    cdef int check_range(self, int64_t leaf) except -1:
        """Raise IndexRangeError unless an index is that of a leaf."""
        if not (0 <= leaf < self.n_leaves):
            raise IndexRangeError(
                f"index {leaf} is out of range: it must be in 0 … {self.n_leaves - 1}"
            )
        return 0

    cdef int64_t settle(self, int64_t leaf) noexcept nogil:
        """Return a leaf with mass for where a search ended, or -1 if every mass is zero."""
        # At rest only rounding ends a search at an empty leaf, which is then just right of the one
        # that the search belongs to. [leaf] acquire: pairs with the release in SumTree.set
        while load_acquire(self.leaf + leaf) <= 0:
            leaf = last_with_mass(self.tree, leaf)
            if leaf < 0:  # a writer emptied all of that meanwhile
                if total_of(self.tree) <= 0:
                    return -1
                leaf = self.n_leaves - 1
        return leaf


def _restore(capacity, arity, masses, random_state):
    """Rebuild a pickled SumTree."""
    cdef SumTree tree = SumTree(capacity, arity)
    tree.set(np.arange(capacity), masses)
    tree.block.set_random_state(random_state)
    return tree
