# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Numbers in memory that several processes share, by which they tell each other what is there.

What a process has written before it stores a number, others see once they have loaded that number.
"""

from libc.stdint cimport int64_t

cdef extern from "atomic.hpp" namespace "kary" nogil:
    int64_t load_acquire(const int64_t* p)
    void store_release(int64_t* p, int64_t value)


def load(const int64_t[::1] numbers, Py_ssize_t i):
    """Return the i-th number; IndexError if there is none."""
    if not 0 <= i < numbers.shape[0]:
        raise IndexError(f"there are {numbers.shape[0]} numbers, and none at {i}")
    # [told] pairs with store's release
    return load_acquire(&numbers[i])


def store(int64_t[::1] numbers, Py_ssize_t i, int64_t value):
    """Set the i-th number, which only one thread does; IndexError if there is none."""
    if not 0 <= i < numbers.shape[0]:
        raise IndexError(f"there are {numbers.shape[0]} numbers, and none at {i}")
    store_release(&numbers[i], value)  # [told] pairs with load's acquire
