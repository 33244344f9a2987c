# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Windows of n steps, folded while steps arrive: their returns, and which are complete.

`kary_replay.writers.n_step` draws how they lie. Slot j of a stream's ring has the window that began
with step j (mod n) of the episode.
"""

from libc.math cimport fabs, isfinite
from libc.stdint cimport int64_t
from libc.string cimport memcpy

cimport numpy as cnp

cnp.import_array()


cdef cnp.ndarray _plain(object array, int type_number):
    """Return an array as it is, or a copy that is contiguous, aligned and of this type."""
    return cnp.PyArray_FROM_OTF(array, type_number, cnp.NPY_ARRAY_CARRAY_RO)


cdef cnp.ndarray _empty(cnp.npy_intp n, int type_number):
    return cnp.PyArray_EMPTY(1, &n, type_number, 0)


def fold(
    cnp.ndarray streams, cnp.ndarray n_steps, cnp.ndarray returns, cnp.ndarray power,
    double limit, reward, terminated, truncated,
):
    """Fold one step of M streams into their windows, and change nothing.

    Parameters
    ----------
    streams : int64 [M]
        Each at most once.
    n_steps : int64 [N]
        How many steps each stream has taken since its episode began.
    returns : float64 [N, n]
        Of the windows in the rings.
    power : float64 [n + 1]
        The powers of gamma.
    limit : float
        From here on a field takes a finite number for an infinite one.
    reward, terminated, truncated : float64 [M], bool [M], bool [M]
        The step.

    Returns
    -------
    int64 [M]
        Steps since the episode began, 0 where it has ended: to be the new ``n_steps``.
    float64 [M, n]
        To be the new ``returns``.
    int64 [M]
        Where in a column of all rings, [N * n], the window lies that this step begins.
    int64 [B], int64 [B], float64 [B], float64 [B]
        Of the windows that are complete, by stream and then by first step: which of the M streams,
        where in such a column, the return, and the discount.

    Raises
    ------
    OverflowError
        ``args`` are what is beyond: "reward", "return" in float64, or "row", a complete window's
        return; and of which of the M streams.
    ValueError
        A number of steps is negative.

    Notes
    -----
    The cost is O(M * n). Nobody may change the arrays meanwhile. The numbers are trusted to be of
    the shapes and types above, and the streams to be there.
    """
    cdef int64_t n = cnp.PyArray_DIM(returns, 1), m, M = cnp.PyArray_DIM(streams, 0)
    cdef int64_t stream, steps, pending, position, age, j, k, n_rows = 0, b = 0
    cdef cnp.ndarray rewards = _plain(reward, cnp.NPY_DOUBLE)
    cdef cnp.ndarray ends = _plain(terminated, cnp.NPY_BOOL), cuts = _plain(truncated, cnp.NPY_BOOL)
    cdef cnp.npy_intp shape[2]
    shape[0], shape[1] = M, n
    cdef cnp.ndarray next_steps = _empty(M, cnp.NPY_INT64), places = _empty(M, cnp.NPY_INT64)
    cdef cnp.ndarray next_returns = cnp.PyArray_EMPTY(2, shape, cnp.NPY_DOUBLE, 0)
    cdef const int64_t* which = <const int64_t*>cnp.PyArray_DATA(streams)
    cdef const int64_t* taken = <const int64_t*>cnp.PyArray_DATA(n_steps)
    cdef const double* r = <const double*>cnp.PyArray_DATA(rewards)
    cdef const double* powers = <const double*>cnp.PyArray_DATA(power)
    cdef const char* is_terminal = <const char*>cnp.PyArray_DATA(ends)
    cdef const char* is_cut = <const char*>cnp.PyArray_DATA(cuts)
    cdef int64_t* new_steps = <int64_t*>cnp.PyArray_DATA(next_steps)
    cdef int64_t* place = <int64_t*>cnp.PyArray_DATA(places)
    cdef const double* before
    cdef double* after
    for m in range(M):
        steps = taken[which[m]] + 1
        if steps < 1:
            raise ValueError(f"a stream has taken {steps - 1} steps: the state is of no writer")
        if isfinite(r[m]) and fabs(r[m]) >= limit:
            raise OverflowError("reward", m)
        if is_terminal[m] or is_cut[m]:
            n_rows += min(steps, n)
        elif steps >= n:
            n_rows += 1
    for m in range(M):
        stream = which[m]
        steps = taken[stream] + 1
        position, pending = (steps - 1) % n, min(steps, n)
        before = <const double*>cnp.PyArray_DATA(returns) + stream * n
        after = <double*>cnp.PyArray_DATA(next_returns) + m * n
        memcpy(after, before, n * sizeof(double))
        for age in range(1, pending):
            j = position - age if position >= age else position - age + n
            after[j] += powers[age] * r[m]
            if not isfinite(after[j]) and isfinite(before[j]) and isfinite(r[m]):
                raise OverflowError("return", m)
        after[position] = r[m]
        place[m] = stream * n + position
        new_steps[m] = 0 if is_terminal[m] or is_cut[m] else steps
    cdef cnp.ndarray rows = _empty(n_rows, cnp.NPY_INT64), firsts = _empty(n_rows, cnp.NPY_INT64)
    cdef cnp.ndarray values = _empty(n_rows, cnp.NPY_DOUBLE)
    cdef cnp.ndarray discounts = _empty(n_rows, cnp.NPY_DOUBLE)
    cdef int64_t* row = <int64_t*>cnp.PyArray_DATA(rows)
    cdef int64_t* first = <int64_t*>cnp.PyArray_DATA(firsts)
    cdef double* value = <double*>cnp.PyArray_DATA(values)
    cdef double* discount = <double*>cnp.PyArray_DATA(discounts)
    for m in range(M):
        steps = taken[which[m]] + 1
        position, pending = (steps - 1) % n, min(steps, n)
        after = <double*>cnp.PyArray_DATA(next_returns) + m * n
        # the windows with the last `k` steps, the longest first
        for k in range(pending, 0 if new_steps[m] == 0 else n - 1, -1):
            j = position - (k - 1) if position >= k - 1 else position - (k - 1) + n
            row[b], first[b], value[b] = m, which[m] * n + j, after[j]
            discount[b] = 0.0 if is_terminal[m] else powers[k]
            if isfinite(value[b]) and fabs(value[b]) >= limit:
                raise OverflowError("row", m)
            b += 1
    return next_steps, next_returns, places, rows, firsts, values, discounts
