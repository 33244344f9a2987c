"""Slots, the places of rows in a block.

A row is one transition: its slot's generation, then its fields, packed. The generation counts the
uses of the slot and changes only under the header's lock; block.hpp says how to read it. The row's
priority lies elsewhere, beside those of all others, for the selector to find.
"""

from cpython.ref cimport PyObject
from libc.stdint cimport int64_t, uint64_t

cimport numpy as cnp

from .block cimport Attachment, Block, Handle, Header, Layout, Noise
from .sum_tree cimport SumTree, Tree


cdef extern from "remainder.hpp" namespace "kary" nogil:
    cppclass Added "kary::KeySet::Added":
        bint is_new

    cppclass KeySet:
        bint make(int64_t n)
        bint has(int64_t key)
        Added add(int64_t key)

    cppclass Remainder:
        bint is_unique
        KeySet drawn
        double extent


# selector.hpp says what they do.
cdef extern from "selectors.hpp" namespace "kary" nogil:
    cppclass Selector:
        double* leaf
        double* priority
        double* ranking
        int64_t n_ranking
        double largest
        double mass_at(int64_t slot)
        bint is_transition(int64_t slot)
        double extent()
        void draw(double* point, double extent, int64_t* slot, int64_t n, int64_t density)
        void draw_by_mass(double* point, int64_t* slot, int64_t n, int64_t density)
        void draw_alike(double* point, int64_t* slot, int64_t n)
        void weigh(const double* mass, int64_t n, double beta, float* weight)
        bint needs_remainder(bint is_unique)
        bint build_remainder(const Handle* drawn, int64_t n_drawn, int64_t n, Remainder* rest)
        int64_t draw_from(Remainder* rest, double u)
        void put_back(Remainder* rest)
        void vacate(const int64_t* slot, int64_t n, int64_t* scratch)
        void store_priorities(const int64_t* slot, int64_t n, const double* priority)
        void admit(const int64_t* slot, int64_t n, int64_t* scratch)
        void retire(int64_t* slot, int64_t n)
        double prepare(const Handle* handle, const double* priority, double* mass, int64_t n)
        void update(
            int64_t* slot, const double* priority, double* mass, int64_t n, double alpha
        )
        bint needs_all()
        void derive_masses(
            double alpha, const double* priority, double* mass, int64_t n, double* ranking,
            double* scratch,
        )

    cppclass SelectorSpace:
        pass

    Selector* make_selector(Header* header, SelectorSpace* space)


cdef struct Place:
    Py_ssize_t offset      # within the row
    Py_ssize_t nbytes      # of one value
    PyObject* dtype        # its field's, which keeps it alive
    int n_axes
    cnp.npy_intp[31] shape


cdef class Slots:
    cdef readonly int64_t capacity
    cdef readonly Py_ssize_t row_nbytes      # from one row to the next
    cdef readonly Py_ssize_t payload_nbytes  # of the fields alone
    cdef readonly SumTree tree               # None in uniform selection
    cdef readonly Block block
    cdef Header* header
    cdef Attachment* attachment
    cdef Selector* selector
    cdef SelectorSpace space                 # which the selector is in
    cdef char* rows
    cdef Place* places
    cdef int n_fields
    cdef list names
    cdef list fields
    cdef public int64_t swept                # rows that a sweep gives masses in one hold

    cdef int check_layout(self, const Layout* layout) except -1
    cdef object bytes_of(self, int64_t n)
    cdef Noise known_noise(self)
    cdef int64_t reserve(self, int64_t* slot, int64_t n, int64_t* scratch) noexcept nogil
    cdef void publish(
        self, const int64_t* slot, int64_t n, const double* priority, int64_t* scratch
    ) noexcept nogil
    cdef bint sweep(self, const double* alpha, bint if_needed) noexcept nogil
    cdef void settle(self) noexcept nogil
    cdef void retire(self, const Handle* handle, int64_t n, int64_t* scratch) noexcept nogil
    cdef bint is_idle(self) noexcept nogil
    cdef int64_t n_to_come(self) noexcept nogil
    cdef bint holds_no_row(self, int64_t slot, bint with_mass) noexcept nogil
