# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Rows of several arrays at once: for buffers whose rows lie in arrays of their own, as Tianshou's do."""

from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

import numpy as np

cimport numpy as cnp

from .errors import IndexRangeError
from .validation import as_index

from .block cimport prefetch_far

cnp.import_array()

cdef extern from "numpy/arrayobject.h":
    cnp.ndarray PyArray_Empty(int n_axes, cnp.npy_intp* shape, cnp.dtype dtype, int fortran)  # takes a reference to dtype

cdef int HALF = np.dtype(np.float16).num

cdef enum:
    AHEAD = 12        # rows prefetched ahead of the one being copied
    PREFETCHED = 512  # bytes of a row; the hardware follows a longer one by itself


def gather(list arrays, index):
    """Return the rows at ``index`` of every array: ``[array[index] for array in arrays]``, in less time.

    Parameters
    ----------
    arrays : list of np.ndarray
        C-contiguous, of the same length, with dtypes of fixed size (no objects).
    index : array of int [B]
        Rows; negative ones count from the end.

    Returns
    -------
    list of np.ndarray
        One fresh array [B, …] for each.

    Raises
    ------
    IndexRangeError
        An IndexError and a ValueError, if a row is out of range.
    ValueError, TypeError
        If an array is of another kind, or index is not one-dimensional.

    Notes
    -----
    O(B · bytes of a row), with the GIL released. The rows of all arrays are prefetched a dozen rows ahead, so that their cache
    misses overlap. Other threads must not write to the arrays meanwhile.

    Examples
    --------
    >>> import numpy as np
    >>> from kary_replay.gather import gather
    >>> gather([np.arange(5), np.eye(5)[:, :2]], [3, 0])  # the second one is not contiguous
    Traceback (most recent call last):
        ...
    ValueError: arrays[1] must be a C-contiguous array of numbers with at least one axis
    >>> gather([np.arange(5)], [3, -1])
    [array([3, 4])]
    """
    cdef cnp.ndarray rows = as_index(index).copy(), array, result
    cdef int64_t* row = <int64_t*>cnp.PyArray_DATA(rows)
    cdef int64_t n = cnp.PyArray_SIZE(rows), length = -1, i, at
    cdef int n_arrays = len(arrays), a
    cdef cnp.npy_intp dims[64]
    cdef list results = []
    cdef cnp.dtype dtype
    cdef char** source
    cdef char** target
    cdef int64_t* nbytes
    if cnp.PyArray_NDIM(rows) != 1:
        raise ValueError(f"index must be one-dimensional, got shape {(<object>rows).shape}")
    source = <char**>malloc((n_arrays + 1) * (2 * sizeof(char*) + sizeof(int64_t)))
    if source == NULL:
        raise MemoryError
    target = source + n_arrays
    nbytes = <int64_t*>(target + n_arrays)
    try:
        for a in range(n_arrays):
            if not isinstance(arrays[a], cnp.ndarray):
                raise TypeError(f"arrays[{a}] must be an array, got {type(<object>arrays[a]).__name__}")
            array = arrays[a]
            if cnp.PyArray_NDIM(array) < 1 or not cnp.PyArray_IS_C_CONTIGUOUS(array) \
                    or not _is_numeric(cnp.PyArray_TYPE(array)):
                raise ValueError(f"arrays[{a}] must be a C-contiguous array of numbers with at least one axis")
            if length >= 0 and cnp.PyArray_DIM(array, 0) != length:
                raise ValueError(f"arrays[{a}] has {len(array)} rows, arrays[0] has {length}")
            length = cnp.PyArray_DIM(array, 0)
            memcpy(dims, cnp.PyArray_DIMS(array), cnp.PyArray_NDIM(array) * sizeof(dims[0]))
            dims[0] = n
            dtype = <cnp.dtype>cnp.PyArray_DESCR(array)
            Py_INCREF(dtype)
            result = PyArray_Empty(cnp.PyArray_NDIM(array), dims, dtype, 0)
            results.append(result)
            source[a] = <char*>cnp.PyArray_DATA(array)
            target[a] = <char*>cnp.PyArray_DATA(result)
            nbytes[a] = cnp.PyArray_NBYTES(array) // length if length else 0
        for i in range(n if n_arrays else 0):
            at = row[i]
            if not -length <= at < length:
                raise IndexRangeError(f"index {at} is out of range: it must be in {-length} … {length - 1}")
            row[i] = at + length if at < 0 else at
        with nogil:
            for i in range(min(<int64_t>AHEAD, n)):
                for a in range(n_arrays):
                    _prefetch(source[a] + row[i] * nbytes[a], nbytes[a])
            for i in range(n):
                for a in range(n_arrays):
                    if i + AHEAD < n:
                        _prefetch(source[a] + row[i + AHEAD] * nbytes[a], nbytes[a])
                    memcpy(target[a] + i * nbytes[a], source[a] + row[i] * nbytes[a], nbytes[a])
    finally:
        free(source)
    return results


cdef bint _is_numeric(int type_number) noexcept nogil:
    """Whether values of this type are bytes and nothing else."""
    return type_number <= cnp.NPY_CLONGDOUBLE or type_number == HALF


cdef void _prefetch(const char* row, int64_t nbytes) noexcept nogil:
    """Ask for the first cache lines of a row, and the last."""
    cdef int64_t offset
    for offset in range(0, min(nbytes, <int64_t>PREFETCHED), 64):
        prefetch_far(row + offset)
    prefetch_far(row + min(nbytes, <int64_t>PREFETCHED) - 1)
