# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Batches out of several shards, drawn as if they were one sum tree.

The shards are the children of a root that stands above their trees. A point of a batch in
[0, total of all) finds its shard by the shards' totals, and the remainder finds the row within it,
as a search in one tree would go on. With totals that are those of the trees at the draw, that *is*
one tree.

Other processes change a shard between the look at its total and the draw, so a shard stretches what
it is given onto the total that it has by then. A row i of shard s is drawn with probability

    P(i) = (1 - share) · q_s · mass_i / M_s  +  share · n_s / N_s

where q_s and n_s are the shards' shares of all mass and of all rows as the root took them to be,
and M_s and N_s are the shard's mass and rows at the draw. Weights come from that P(i), so they are
right however old the root's totals are. See Hübschle-Schneider & Sanders, Parallel weighted random
sampling, ESA 2019, for the split by totals.
"""

from libc.math cimport INFINITY, exp2, fabs, floor, log2
from libc.stdint cimport int8_t, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

import numpy as np

cimport numpy as cnp

from ..errors import EmptyBufferError, IndexRangeError, ShardError
from ..types import HANDLE_DTYPE, SHARDED_HANDLE_DTYPE
from ..validation import as_count, as_fraction, as_real, as_seed

from .block cimport (
    PER_COUNTER, Handle, Noise, fetch_add_relaxed, fill_uniform, give_way, load_relaxed,
)
from .reader cimport CHUNK, Draw, Reader, as_batch_size, column_of
from .slots cimport KeySet, Selector, Slots

cnp.import_array()

cdef cnp.dtype HANDLE = SHARDED_HANDLE_DTYPE
cdef cnp.dtype FLOAT32 = np.dtype(np.float32)
cdef cnp.dtype INT64 = np.dtype(np.int64)

cdef extern from "power.hpp" namespace "kary" nogil:
    # result[i] = (x[i] · factor + summand) ** a; returns how many came out meaningless
    int64_t raise_to "kary::raise" (
        const double* x, double factor, double summand, double a, float* result, int64_t n
    )
    double smallest_of(const double* x, int64_t n)

cdef extern from "noise.hpp" namespace "kary" nogil:
    double least_noise(const Noise& noise)
    void add_error(Noise& seen, double relative, double td_error)
    void learn_from(Noise& noise, const Noise& seen, double n)
    double fitting_share(const Noise& noise)

cdef enum:
    MOST_HEADROOM = 1 << 20
    PATIENCE = 16        # draws in vain within a shard, before the root draws anew
    UNKNOWN = -1         # how a row is drawn


cdef struct ShardedHandle:
    int32_t shard
    uint32_t epoch
    int64_t index
    uint64_t generation
    double relative      # N · P(i)


# What the root knows of a shard.
cdef struct Shard:
    double total         # of its masses
    double n_rows        # those that have mass
    int64_t capacity
    uint32_t epoch
    bint is_here         # its memory is mapped here, so the two above are looked up


cdef class Plan:
    """Which shard draws which rows of a batch, and at which points. Private to the package."""

    cdef readonly int64_t n
    cdef readonly int64_t n_missing      # rows that have not been read yet
    cdef int64_t n_shards
    cdef bint is_stratified              # as long as every row is still to be drawn
    cdef readonly bint is_unique         # no row twice
    cdef readonly bint was_stratified    # as it was asked for
    cdef bint is_drawn_anew              # what is missing was drawn before, in vain
    cdef public bint is_broken           # a shard has outgrown its bound: all rows are drawn anew
    cdef double share
    cdef readonly double headroom        # of the bounds above what is known; 0: none
    cdef char* memory
    cdef double* point                   # [n] within the shard: a mass, or in [0, 1) if is_alike
    cdef double* mass                    # [n]
    cdef double* by_mass                 # [n] its part of its shard's mass; under bounds, its mass
    cdef double* by_count                # [n] 1 / the shard's rows; under bounds, 1
    cdef double* mass_factor             # [n] N times the chance of its shard, by mass
    cdef double* count_factor            # [n] and among all rows alike, when it was drawn
    cdef double* spare                   # [n]
    cdef Handle* handle                  # [n]
    cdef int64_t* order                  # [n] the missing rows, by shard, those drawn alike first
    cdef int64_t* slot                   # [n]
    cdef int32_t* shard                  # [n]
    cdef int8_t* is_alike                # [n] or UNKNOWN
    cdef double* planned                 # [n_shards] the mass that points refer to
    cdef double* planned_rows            # [n_shards] the rows that points of rows alike refer to
    cdef double* mass_share              # [n_shards] q_s
    cdef double* row_share               # [n_shards] n_s
    cdef double* drawn_mass              # [n_shards] under bounds: what each had at the draws
    cdef double* drawn_rows              # [n_shards]
    cdef int64_t* first                  # [2 * n_shards + 1] where a shard's part of `order` begins

    def __cinit__(
        self, int64_t n, int64_t n_shards, bint stratified, bint unique, double share,
        double headroom,
    ):
        cdef int64_t nbytes = n * (
            7 * sizeof(double) + sizeof(Handle) + 2 * sizeof(int64_t) + sizeof(int32_t)
            + sizeof(int8_t)
        )
        cdef int64_t of_shards = 6 * n_shards * sizeof(double)
        of_shards += (2 * n_shards + 1) * sizeof(int64_t)
        self.n = self.n_missing = n
        self.n_shards = n_shards
        self.is_stratified, self.is_unique = stratified and not unique, unique
        self.was_stratified = self.is_stratified
        self.share, self.headroom = share, headroom
        self.memory = <char*>malloc(nbytes + of_shards)
        if self.memory == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        self.point = <double*>self.memory
        self.mass = self.point + n
        self.by_mass = self.mass + n
        self.by_count = self.by_mass + n
        self.mass_factor = self.by_count + n
        self.count_factor = self.mass_factor + n
        self.spare = self.count_factor + n
        self.handle = <Handle*>(self.spare + n)
        self.order = <int64_t*>(self.handle + n)
        self.slot = self.order + n
        self.planned = <double*>(self.slot + n)
        self.planned_rows = self.planned + n_shards
        self.mass_share = self.planned_rows + n_shards
        self.row_share = self.mass_share + n_shards
        self.drawn_mass = self.row_share + n_shards
        self.drawn_rows = self.drawn_mass + n_shards
        self.first = <int64_t*>(self.drawn_rows + n_shards)
        self.shard = <int32_t*>(self.first + 2 * n_shards + 1)
        self.is_alike = <int8_t*>(self.shard + n)
        self.forget()

    def __dealloc__(self):
        free(self.memory)

    cdef void forget(self) noexcept nogil:
        """Forget which rows have been read."""
        memset(self.handle, 0xFF, self.n * sizeof(Handle))  # every index is -1
        self.n_missing = self.n
        self.is_broken = self.is_drawn_anew = False

    cdef void sort(self) noexcept nogil:
        """List the missing rows by shard, those drawn from all rows alike first."""
        cdef int64_t* at = self.first
        cdef int64_t i, key, before = 0, n = 0, counted
        cdef bint is_sorted = self.n_missing == self.n  # as stratified points are
        memset(at, 0, (2 * self.n_shards + 1) * sizeof(int64_t))
        for i in range(self.n):
            if self.handle[i].index < 0:
                key = 2 * self.shard[i] + (not self.is_alike[i])
                at[key] += 1
                is_sorted &= key >= before
                before = key
        for key in range(2 * self.n_shards + 1):
            counted = at[key]
            at[key] = n
            n += counted
        if is_sorted:
            for i in range(self.n):
                self.order[i] = i
            return
        for i in range(self.n):
            if self.handle[i].index < 0:
                key = 2 * self.shard[i] + (not self.is_alike[i])
                self.order[at[key]] = i
                at[key] += 1
        for key in range(2 * self.n_shards, 0, -1):
            at[key] = at[key - 1]
        at[0] = 0

    cdef void note_factors(self, double n_rows) noexcept nogil:
        """Note by which shares of the shards the missing rows are drawn, among so many rows.

        Those that are there already keep theirs: shards may have changed since, or be gone.
        """
        cdef double by_mass = (1 - self.share) * n_rows, by_count = self.share * n_rows
        cdef int64_t k, i
        for k in range(self.first[2 * self.n_shards]):
            i = self.order[k]
            self.mass_factor[i] = by_mass * self.mass_share[self.shard[i]]
            self.count_factor[i] = by_count * self.row_share[self.shard[i]]

    def drop_repeated(self):
        """Forget the rows that come before in the batch, so that others are drawn for them.

        Rows are drawn independently until as many different ones have come as there are to be:
        each is then drawn in proportion to the others that had not come yet.
        """
        cdef KeySet seen
        cdef int64_t i
        if not seen.make(self.n):
            raise MemoryError(f"no memory for a batch of {self.n}; use a smaller one")
        for i in range(self.n):
            if self.handle[i].index < 0:
                continue
            if not seen.add((<int64_t>self.shard[i] << 40) | self.handle[i].index).is_new:
                self.handle[i].index = -1
                self.is_alike[i] = UNKNOWN  # the next draw in its place is one of either kind
                self.n_missing += 1

    def end_round(self):
        """Note the factors of the rows that were drawn under bounds since `assign`.

        They have the probabilities of one tree with all that the shards had at their draws.
        """
        cdef double mass = 0, n_rows = 0
        cdef int64_t k, i, s
        for s in range(self.n_shards):
            mass += self.drawn_mass[s]
            n_rows += self.drawn_rows[s]
        for k in range(self.first[2 * self.n_shards]):
            i = self.order[k]
            self.mass_factor[i] = (1 - self.share) * n_rows / mass
            self.count_factor[i] = self.share

    cdef void relate(self, double* relative) noexcept nogil:
        """Write how much more often each row is drawn than by uniform replay."""
        cdef int64_t i
        for i in range(self.n):
            relative[i] = (
                self.mass_factor[i] * self.by_mass[i] + self.count_factor[i] * self.by_count[i]
            )


cdef class ShardedReader:
    """Draws batches over shards; those that are not mapped here, somebody else asks.

    Private to the package. One thread at a time.
    """

    cdef list readers
    cdef Reader template            # of slots with the fields that batches have
    cdef Shard* shard
    cdef readonly int64_t n_shards
    cdef int n_fields
    cdef uint64_t[2] key
    cdef uint64_t counter
    cdef Noise seen                 # what TD errors have shown of the noise of batches
    cdef readonly double share      # of the draws that go to all rows alike
    cdef bint adapts_share          # TD errors choose it; see noise.hpp
    cdef readonly double distance   # total variation between the last batch's law and one tree's

    def __cinit__(self, list readers, Reader template, int n_fields, seed):
        cdef uint64_t[::1] key = as_seed(seed).generate_state(2, np.uint64)
        self.key[0], self.key[1] = key[0], key[1]
        self.template = template
        self.n_fields = n_fields
        self.take_over(readers)

    def __dealloc__(self):
        free(self.shard)

    def take_over(self, list readers):
        """Draw from these shards from now on: the ones that there are, and others behind them.

        Of each there is a Reader, or None if its memory is not mapped here.
        """
        cdef int64_t s, n = len(readers)
        cdef Shard* shard = <Shard*>calloc(max(n, 1), sizeof(Shard))
        if shard == NULL:
            raise MemoryError(f"no memory for {n} shards")
        if self.shard != NULL:
            memcpy(shard, self.shard, min(n, self.n_shards) * sizeof(Shard))
            free(self.shard)
        self.shard, self.readers, self.n_shards = shard, readers, n
        for s in range(n):
            shard[s].is_here = readers[s] is not None

    def set_share(self, double share, bint adapts):
        """Draw a share of the rows from all rows alike; forget what was known of the noise."""
        self.seen = Noise(0, 0, 0, 0, 0)
        self.share, self.adapts_share = (1.0 if adapts else share), adapts

    def noise(self):
        """Return what is known of the noise of batches, over that of uniform ones: now, at best.

        NaN: nobody knows.
        """
        if not self.seen.uniform > 0:
            return float("nan"), float("nan")
        return self.seen.present / self.seen.uniform, least_noise(self.seen)

    def state(self):
        """Return what `restore` takes: random state, share, whether it adapts, noise."""
        return [
            [self.key[0], self.key[1], self.counter], self.share, bool(self.adapts_share),
            [
                self.seen.n_rows, self.seen.weight, self.seen.size, self.seen.uniform,
                self.seen.present,
            ],
        ]

    def restore(self, state):
        """Go on where `state` was asked for; ValueError or TypeError if it is none."""
        cdef int i
        random, share, adapts, noise = state
        key = [as_count("a number of the random state", one, 2**64 - 1, 0) for one in random]
        numbers = [as_real("a number of noise", one) for one in noise]
        if len(key) != 3 or len(numbers) != 5 or not 0 <= min(numbers) <= max(numbers) < INFINITY:
            raise ValueError("a random state has 3 numbers, noise 5, finite and at least 0")
        self.set_share(as_fraction("uniform_share", share), bool(adapts))
        self.share = share
        self.key[0], self.key[1], self.counter = key
        for i in range(5):  # in the order of the struct
            (<double*>&self.seen)[i] = numbers[i]

    def learn_errors(self, cnp.ndarray handles, cnp.ndarray priorities):
        """Learn from the new priorities of rows that were drawn how noisy batches are."""
        cdef const ShardedHandle* handle = <const ShardedHandle*>cnp.PyArray_DATA(handles)
        cdef const double* priority = <const double*>cnp.PyArray_DATA(priorities)
        cdef Noise update = Noise(0, 0, 0, 0, 0)
        cdef int64_t i, n = cnp.PyArray_SIZE(handles)
        for i in range(n):
            if handle[i].relative > 0:
                add_error(update, handle[i].relative, priority[i])
        if n > 0:
            learn_from(self.seen, update, <double>n)
        if self.adapts_share:
            self.share = fitting_share(self.seen)

    def split(self, cnp.ndarray handles, cnp.ndarray values):
        """Return a list of (shard, its handles, its values), and how many handles are of none.

        These are of another epoch, or of a shard that there is not. Arrays are contiguous. Raises
        IndexRangeError if a handle is of a slot that its shard does not have.
        """
        cdef const ShardedHandle* handle = <const ShardedHandle*>cnp.PyArray_DATA(handles)
        cdef const double* value = <const double*>cnp.PyArray_DATA(values)
        cdef cnp.npy_intp n = cnp.PyArray_SIZE(handles)
        cdef int64_t n_refused = 0, s, i, at, begin = 0
        cdef cnp.ndarray own_handles = np.empty(n, HANDLE_DTYPE)
        cdef cnp.ndarray own_values = cnp.PyArray_EMPTY(1, &n, cnp.NPY_FLOAT64, 0)
        cdef Handle* own = <Handle*>cnp.PyArray_DATA(own_handles)
        cdef double* own_value = <double*>cnp.PyArray_DATA(own_values)
        cdef int64_t* first = <int64_t*>calloc(self.n_shards + 1, sizeof(int64_t))
        if first == NULL:
            raise MemoryError(f"no memory for {self.n_shards} shards")
        for i in range(n):
            if not self.is_current(handle + i):
                n_refused += 1
                continue
            s = handle[i].shard
            if not 0 <= handle[i].index < self.shard[s].capacity:
                free(first)
                raise IndexRangeError(
                    f"handle must be of a batch: shard {s} has no slot {handle[i].index}, "
                    f"got at position {i}"
                )
            first[s + 1] += 1
        for s in range(self.n_shards):
            first[s + 1] += first[s]
        for i in range(n):
            if self.is_current(handle + i):
                at = first[handle[i].shard]
                first[handle[i].shard] += 1
                own[at].index, own[at].generation = handle[i].index, handle[i].generation
                own_value[at] = value[i]
        parts = []
        for s in range(self.n_shards):  # each part now ends where the next one began
            if first[s] > begin:
                parts.append((s, own_handles[begin:first[s]], own_values[begin:first[s]]))
            begin = first[s]
        free(first)
        return parts, n_refused

    cdef bint is_current(self, const ShardedHandle* handle) noexcept nogil:
        return (
            0 <= handle.shard < self.n_shards and handle.epoch == self.shard[handle.shard].epoch
        )

    def learn(self, int64_t s, double total, double n_rows, int64_t capacity, uint32_t epoch):
        """Take over what a shard says of itself."""
        self.shard[s].total, self.shard[s].n_rows = total, n_rows
        self.shard[s].capacity, self.shard[s].epoch = capacity, epoch

    def known(self):
        """Return what is known of the shards: total masses and numbers of rows."""
        cdef int64_t s
        return (
            np.array([self.shard[s].total for s in range(self.n_shards)]),
            np.array([self.shard[s].n_rows for s in range(self.n_shards)]),
        )

    def has_mass(self):
        """Whether some shard has mass, as far as it is known."""
        cdef int64_t s
        for s in range(self.n_shards):
            if self.shard[s].total > 0:
                return True
        return False

    def look(self):
        """Look at the totals of the shards that are here."""
        cdef int64_t s
        cdef Reader reader
        for s in range(self.n_shards):
            if self.shard[s].is_here:
                reader = <Reader>self.readers[s]
                self.shard[s].total = max(reader.slots.selector.extent(), 0.0)
                self.shard[s].n_rows = rows_of(reader)

    def plan(self, batch_size, bint stratified, bint unique=False, double headroom=0.0):
        """Return where the rows of a batch come from, by the totals that are known now.

        Raises EmptyBufferError if no shard has mass.
        """
        cdef int64_t n = as_batch_size(batch_size)
        cdef Plan plan = Plan(n, self.n_shards, stratified, unique, self.share, headroom)
        self.assign(plan)
        return plan

    cdef int refuse_old(self, Plan plan) except -1:
        """Raise if a plan was made for other shards."""
        if plan.n_shards != self.n_shards:
            raise RuntimeError("shards have come since a batch was planned")
        return 0

    def assign(self, Plan plan):
        """Choose shards and points for the rows of a batch that are missing."""
        cdef double total = 0, n_rows = 0, bounds = 0
        cdef int64_t s, wanted = plan.n if plan.is_unique else 1  # rows there must be
        self.refuse_old(plan)
        if plan.is_broken:
            plan.forget()
            # what is known is older than the bounds allow for
            plan.headroom = min(2 * plan.headroom, <double>MOST_HEADROOM)
        while True:
            total = n_rows = 0
            for s in range(self.n_shards):
                total += self.shard[s].total
                n_rows += self.shard[s].n_rows
            if total > 0 and n_rows >= wanted or not self.may_hold(wanted):
                break
            with nogil:
                give_way()
            self.look()
        if not total > 0 or not n_rows > 0:
            raise EmptyBufferError(
                "there is no row to draw: add some first (or every mass is zero)"
            )
        if not total < INFINITY:
            raise OverflowError("the masses of all shards are too large for their sum")
        if plan.is_unique and plan.n > n_rows:
            raise ValueError(
                "batch_size must be at most the number of rows that can be drawn, "
                f"for unique=True, got {plan.n}"
            )
        for s in range(self.n_shards):
            plan.mass_share[s] = self.shard[s].total / total
            plan.row_share[s] = self.shard[s].n_rows / n_rows
            plan.planned[s] = self.shard[s].total * (1 + plan.headroom)
            plan.planned_rows[s] = self.shard[s].n_rows * (1 + plan.headroom)
            plan.drawn_mass[s], plan.drawn_rows[s] = self.shard[s].total, self.shard[s].n_rows
            bounds += plan.planned[s]
        with nogil:
            self.choose(plan, bounds)
            plan.sort()
            plan.note_factors(n_rows)

    cdef void choose(self, Plan plan, double total) noexcept nogil:
        """Draw points in [0, total), and find their shards and remainders."""
        cdef double u[CHUNK]
        cdef double point, alike = plan.share * total, before = 0
        cdef double left, stratum, end
        cdef int64_t i, k, s = 0, n = plan.n, first
        cdef bint stratified = plan.is_stratified
        for first from 0 <= first < n by CHUNK:
            k = min(<int64_t>CHUNK, n - first)
            fill_uniform(self.key, self.counter, u, k)
            self.counter += (k + PER_COUNTER - 1) // PER_COUNTER
            for i in range(first, first + k):
                if plan.handle[i].index >= 0:
                    continue
                if stratified:
                    point = (i + u[i - first]) * (1.0 / n) * total
                else:
                    point = u[i - first] * total
                # of the same kind, so that both keep their shares
                if plan.is_drawn_anew and plan.is_alike[i] != UNKNOWN:
                    point = alike * u[i - first] if plan.is_alike[i] else (
                        alike + (total - alike) * u[i - first]
                    )
                else:
                    plan.is_alike[i] = plan.share > 0 and (plan.share >= 1 or point < alike)
                if plan.is_alike[i]:
                    # drawn independently, also where points are stratified: what counts is where
                    # in its stratum a point is
                    left = point / alike
                    if stratified:
                        stratum = floor(point / total * n)
                        end = plan.share * n
                        left = (point / total * n - stratum) / min(1.0, end - stratum)
                    self.find_alike(plan, i, left)
                    continue
                if plan.share > 0:
                    point = (point - alike) / (1 - plan.share)
                if point < before:  # not in ascending order
                    s, before = 0, 0
                while s + 1 < self.n_shards and point >= before + plan.planned[s]:
                    before += plan.planned[s]
                    s += 1
                point -= before
                while plan.planned[s] <= 0:  # rounding: the last shard with mass is it
                    s -= 1
                    before -= plan.planned[s]
                    point = plan.planned[s]
                plan.shard[i] = s
                plan.point[i] = point

    cdef bint may_hold(self, int64_t n):
        """Whether there may be n rows once those are there that are being written into shards here.

        Rows of others are those that are known.
        """
        cdef int64_t s
        cdef double n_rows = 0
        cdef Reader reader
        for s in range(self.n_shards):
            if self.shard[s].is_here:
                reader = <Reader>self.readers[s]
                reader.slots.block.enter()
                with nogil:
                    n_rows += reader.slots.n_to_come()
            elif self.shard[s].total > 0:
                n_rows += self.shard[s].n_rows
        return n_rows >= n

    cdef void find_alike(self, Plan plan, int64_t i, double left) noexcept nogil:
        """Find the shard of a row that is drawn from all rows alike, for ``left`` in [0, 1)."""
        cdef int64_t s = 0
        while s + 1 < self.n_shards and left >= plan.row_share[s]:
            left -= plan.row_share[s]
            s += 1
        while s > 0 and plan.row_share[s] <= 0:
            s -= 1
            left = plan.row_share[s]
        plan.shard[i] = s
        plan.point[i] = min(left / plan.row_share[s], 1 - 2.0**-53)

    def columns(self, Plan plan, dict out=None):
        """Return arrays for a batch, those of ``out`` or new ones: fields, weight, index, handle.

        Raises TypeError or ValueError if one of ``out`` does not fit.
        """
        cdef cnp.npy_intp n = plan.n
        cdef dict arrays = {}
        cdef Reader reader = self.template
        cdef char** column = <char**>malloc(self.n_fields * sizeof(char*))
        if column == NULL:
            raise MemoryError(f"no memory for a batch of {n}; use a smaller one")
        try:
            reader.add_columns(n, self.n_fields, out, arrays, column)
        finally:
            free(column)
        arrays["importance_weight"] = column_of("importance_weight", 1, &n, FLOAT32, out)
        arrays["index"] = column_of("index", 1, &n, INT64, out)
        arrays["handle"] = column_of("handle", 1, &n, HANDLE, out)
        return arrays

    def read(self, Plan plan, dict arrays):
        """Read the rows that shards here have to draw into ``arrays``; see Plan.n_missing."""
        cdef int64_t s, k, end
        cdef int f
        cdef Reader reader
        cdef Draw batch
        cdef list names
        self.refuse_old(plan)
        batch.n, batch.n_fields, batch.stratified = plan.n, self.n_fields, False
        batch.mass, batch.handle = plan.mass, plan.handle
        batch.column = <char**>malloc(self.n_fields * sizeof(char*))
        if batch.column == NULL:
            raise MemoryError(f"no memory for a batch of {plan.n}; use a smaller one")
        try:
            names = self.template.slots.names
            for f in range(self.n_fields):
                batch.column[f] = <char*>cnp.PyArray_DATA(<cnp.ndarray>arrays[names[f]])
            for s in range(self.n_shards):
                k, end = plan.first[2 * s], plan.first[2 * s + 2]
                # a bound is looked at although no point fell there: that it did not is no reason
                # to believe it
                if not self.shard[s].is_here or (k == end and plan.headroom <= 0):
                    continue
                reader = <Reader>self.readers[s]
                reader.slots.block.enter()
                with nogil:
                    reader.slots.settle()
                    self.read_shard(reader, plan, s, &batch)
        finally:
            free(batch.column)
        plan.is_stratified, plan.is_drawn_anew = False, True

    cdef void read_shard(self, Reader reader, Plan plan, int64_t s, Draw* batch) noexcept nogil:
        """Draw and read the rows that one shard has to draw."""
        cdef Selector* selector = reader.slots.selector
        cdef int64_t* rows = plan.order + plan.first[2 * s]
        cdef int64_t n_alike = plan.first[2 * s + 1] - plan.first[2 * s]
        cdef int64_t n = plan.first[2 * s + 2] - plan.first[2 * s]
        cdef double* point = plan.spare
        cdef int64_t* slot = plan.slot
        cdef double extent = selector.extent()
        cdef double n_rows = rows_of(reader), extent_now, rows_now
        cdef double scale = extent / plan.planned[s] if plan.planned[s] > 0 else 0
        cdef int64_t i, j, run, attempts
        if plan.headroom <= 0 and (extent <= 0 or n_rows <= 0):
            return  # all its rows are gone: the root draws anew
        if plan.headroom > 0:
            n = self.read_accepted(reader, plan, s, batch, extent, n_rows)
        fetch_add_relaxed(&reader.slots.header.n_sampled, n)  # relaxed: a count, read by itself
        if plan.headroom > 0:
            return
        for i in range(n):
            point[i] = plan.point[rows[i]]
            if i >= n_alike and extent != plan.planned[s]:
                point[i] *= scale
        if n_alike > 0:
            selector.draw_alike(point, slot, n_alike)
        if n > n_alike:
            selector.draw_by_mass(
                point + n_alike, slot + n_alike, n - n_alike,
                n - n_alike if plan.is_stratified else 0,
            )
        i = 0
        while i < n:  # rows that follow each other in the batch, too
            run = 1
            while i + run < n and run < CHUNK and rows[i + run] == rows[i] + run:
                run += 1
            if reader.read_rows(slot + i, run, batch, rows[i]) == run:
                self.note(plan, rows[i], run, extent, n_rows)
                i += run
                continue
            for j in range(i, i + run):
                attempts, extent_now, rows_now = 0, extent, n_rows
                while plan.handle[rows[j]].index < 0 and attempts < PATIENCE:
                    attempts += 1
                    self.draw_again(reader, plan, rows[j], batch, &extent_now, &rows_now)
                if plan.handle[rows[j]].index >= 0:
                    self.note(plan, rows[j], 1, extent_now, rows_now)
            i += run

    cdef int64_t read_accepted(
        self, Reader reader, Plan plan, int64_t s, Draw* batch, double extent, double n_rows
    ) noexcept nogil:
        """Read the rows of one shard whose points are below what there is; return how many.

        Points refer to bounds. Those beyond what the shard has are left to the root, which draws
        anew among all shards: a row that is accepted has been drawn in proportion to the mass that
        it has now. Where a bound does not hold, no row of the batch may stay.
        """
        cdef Selector* selector = reader.slots.selector
        cdef int64_t i, row, slot, accepted = 0
        cdef double point
        self.shard[s].total, self.shard[s].n_rows = max(extent, 0.0), n_rows
        plan.drawn_mass[s], plan.drawn_rows[s] = self.shard[s].total, n_rows
        if extent > plan.planned[s] or n_rows > plan.planned_rows[s]:
            plan.is_broken = True
            return 0
        for i in range(plan.first[2 * s], plan.first[2 * s + 2]):
            row = plan.order[i]
            point = plan.point[row]
            if plan.is_alike[row]:
                point *= plan.planned_rows[s]
                if point >= n_rows:
                    continue
                point /= n_rows
                selector.draw_alike(&point, &slot, 1)
            elif point < extent:
                selector.draw_by_mass(&point, &slot, 1, 0)
            else:
                continue
            if reader.read_rows(&slot, 1, batch, row) == 1:
                self.note(plan, row, 1, 1, 1)
                accepted += 1
        return accepted

    cdef void draw_again(
        self, Reader reader, Plan plan, int64_t row, Draw* batch, double* extent, double* n_rows
    ) noexcept nogil:
        """Draw another row of the same shard in place of one that a writer took.

        What is divided now becomes ``extent`` and ``n_rows``, for this row alone.
        """
        cdef Selector* selector = reader.slots.selector
        cdef double u
        cdef int64_t slot
        extent[0] = selector.extent()
        n_rows[0] = rows_of(reader)
        if extent[0] <= 0 or n_rows[0] <= 0:
            return
        fill_uniform(self.key, self.counter, &u, 1)
        self.counter += 1
        if plan.is_alike[row]:
            selector.draw_alike(&u, &slot, 1)
        else:
            u *= extent[0]
            selector.draw_by_mass(&u, &slot, 1, 0)
        reader.read_rows(&slot, 1, batch, row)

    cdef void note(
        self, Plan plan, int64_t row, int64_t n, double extent, double n_rows
    ) noexcept nogil:
        """Note how likely n rows of a batch, from ``row`` on, were within their shard."""
        cdef double* by_mass = plan.by_mass + row
        cdef double* by_count = plan.by_count + row
        cdef const double* mass = plan.mass + row
        cdef int64_t i
        for i in range(n):
            by_mass[i] = mass[i] / extent
            by_count[i] = 1 / n_rows
        plan.n_missing -= n

    def points_for(self, list plans, int64_t s):
        """Return what a shard elsewhere has to draw for some batches, planned at one moment.

        That is float64 [rows], the points of rows drawn alike before those of rows drawn by mass;
        how many of the former there are; and the mass and the number of rows that points refer to.
        """
        cdef cnp.npy_intp n = 0
        cdef int64_t n_alike = 0, i, alike = 0, by_mass
        cdef Plan plan
        cdef cnp.ndarray points
        cdef double* point
        for plan in plans:
            self.refuse_old(plan)
            n += plan.first[2 * s + 2] - plan.first[2 * s]
            n_alike += plan.first[2 * s + 1] - plan.first[2 * s]
        points = cnp.PyArray_EMPTY(1, &n, cnp.NPY_FLOAT64, 0)
        point = <double*>cnp.PyArray_DATA(points)
        by_mass = n_alike
        for plan in plans:
            for i in range(plan.first[2 * s], plan.first[2 * s + 1]):
                point[alike] = plan.point[plan.order[i]]
                alike += 1
            for i in range(plan.first[2 * s + 1], plan.first[2 * s + 2]):
                point[by_mass] = plan.point[plan.order[i]]
                by_mass += 1
        plan = plans[0]
        return points, n_alike, plan.planned[s], plan.planned_rows[s]

    def place(
        self, list plans, int64_t s, list columns, cnp.ndarray by_mass, cnp.ndarray by_count,
        cnp.ndarray handles, list arrays, double total, double n_rows,
    ):
        """Take over the rows that a shard elsewhere has drawn for `points_for`.

        It had the mass ``total`` and ``n_rows`` rows then.

        Those whose handles have the index -1 it has not got. All arrays are contiguous, and have
        the fields' dtypes and shapes. Raises ShardError if there are more or fewer rows.
        """
        cdef int64_t n = 0, alike = 0, mass = 0
        cdef int64_t k
        cdef Plan plan
        for plan in plans:
            self.refuse_old(plan)
            n += plan.first[2 * s + 2] - plan.first[2 * s]
            mass += plan.first[2 * s + 1] - plan.first[2 * s]
        if cnp.PyArray_SIZE(handles) != n:
            raise ShardError(f"a shard has drawn {handles.size} rows instead of {n}")
        for plan, into in zip(plans, arrays):
            plan.drawn_mass[s], plan.drawn_rows[s] = total, n_rows
            k = plan.first[2 * s + 1] - plan.first[2 * s]
            self.place_part(
                plan, plan.first[2 * s], k, alike, columns, by_mass, by_count, handles, into
            )
            alike += k
            k = plan.first[2 * s + 2] - plan.first[2 * s + 1]
            self.place_part(
                plan, plan.first[2 * s + 1], k, mass, columns, by_mass, by_count, handles, into
            )
            mass += k

    cdef int place_part(
        self, Plan plan, int64_t first, int64_t n, int64_t at, list columns, cnp.ndarray by_mass,
        cnp.ndarray by_count, cnp.ndarray handles, dict into,
    ) except -1:
        """Take over n rows, from ``at`` on in the answer and from ``first`` on in the order."""
        cdef const Handle* handle = <const Handle*>cnp.PyArray_DATA(handles) + at
        cdef const double* mass = <const double*>cnp.PyArray_DATA(by_mass) + at
        cdef const double* count = <const double*>cnp.PyArray_DATA(by_count) + at
        cdef const int64_t* row = plan.order + first
        cdef Slots slots = self.template.slots
        cdef Py_ssize_t nbytes
        cdef char* to
        cdef const char* given
        cdef int64_t i
        cdef int f
        if n == 0:
            return 0
        for f in range(self.n_fields):
            nbytes = self.template.drawn_nbytes(f)
            given = <const char*>cnp.PyArray_DATA(<cnp.ndarray>columns[f]) + at * nbytes
            to = <char*>cnp.PyArray_DATA(<cnp.ndarray>into[slots.names[f]])
            if row[n - 1] - row[0] == n - 1:
                memcpy(to + row[0] * nbytes, given, n * nbytes)
                continue
            for i in range(n):
                memcpy(to + row[i] * nbytes, given + i * nbytes, nbytes)
        for i in range(n):
            if handle[i].index >= 0 and not (0 < mass[i] < INFINITY and 0 < count[i] <= 1):
                raise ShardError(f"a shard has drawn a row of mass {mass[i]}, of {1 / count[i]}")
        for i in range(n):
            if handle[i].index >= 0:
                plan.handle[row[i]] = handle[i]
                plan.by_mass[row[i]], plan.by_count[row[i]] = mass[i], count[i]
                plan.n_missing -= 1
        return 0

    def serve(self, points, int64_t n_alike, double planned, double planned_rows, double headroom):
        """Draw rows of the only shard for a root elsewhere, at points that the root has chosen.

        The first ``n_alike`` points are those of rows drawn alike; the others refer to a total of
        ``planned``. Returns the fields' columns, each row's part of the shard's mass and of its
        rows, and the handles, of which the index is -1 where there is no row, in place of which
        the root draws another.
        """
        cdef cnp.ndarray checked = points
        cdef const double* given = <const double*>cnp.PyArray_DATA(checked)
        cdef cnp.npy_intp n = cnp.PyArray_SIZE(checked)
        cdef Plan plan = Plan(n, 1, False, False, 0, headroom)
        cdef cnp.ndarray by_mass = cnp.PyArray_EMPTY(1, &n, cnp.NPY_FLOAT64, 0)
        cdef cnp.ndarray by_count = cnp.PyArray_EMPTY(1, &n, cnp.NPY_FLOAT64, 0)
        cdef cnp.ndarray handles = np.empty(n, HANDLE_DTYPE)
        cdef dict arrays
        cdef int64_t i
        plan.planned[0], plan.planned_rows[0] = planned, planned_rows
        for i in range(n):
            plan.point[i], plan.shard[i], plan.is_alike[i] = given[i], 0, i < n_alike
        plan.sort()
        arrays = self.columns(plan)
        self.read(plan, arrays)
        for i in range(n):  # nothing leaves this machine that lay in its memory by chance
            if plan.handle[i].index < 0:
                plan.by_mass[i] = plan.by_count[i] = 0
                for array in arrays.values():
                    array[i] = 0
        memcpy(cnp.PyArray_DATA(by_mass), plan.by_mass, n * sizeof(double))
        memcpy(cnp.PyArray_DATA(by_count), plan.by_count, n * sizeof(double))
        memcpy(cnp.PyArray_DATA(handles), plan.handle, n * sizeof(Handle))
        return arrays, by_mass, by_count, handles, plan.is_broken

    def finish(self, Plan plan, double beta, dict arrays):
        """Write importance weights, slots and handles, when all rows are there."""
        cdef float* weight = <float*>cnp.PyArray_DATA(<cnp.ndarray>arrays["importance_weight"])
        cdef int64_t* index = <int64_t*>cnp.PyArray_DATA(<cnp.ndarray>arrays["index"])
        cdef ShardedHandle* handle = (
            <ShardedHandle*>cnp.PyArray_DATA(<cnp.ndarray>arrays["handle"])
        )
        cdef int64_t i, n = plan.n
        cdef int32_t s
        assert plan.n_missing == 0
        self.refuse_old(plan)
        with nogil:
            plan.relate(plan.spare)
            for i in range(n):
                s = plan.shard[i]
                index[i] = plan.handle[i].index
                handle[i].shard, handle[i].epoch = s, self.shard[s].epoch
                handle[i].index, handle[i].generation = index[i], plan.handle[i].generation
                handle[i].relative = plan.spare[i]
            weigh(plan.spare, n, plan.share <= 0, beta, weight)
            # accepted rows have the probabilities of one tree, whatever was known
            self.distance = self.distance_of(plan) if plan.headroom <= 0 else 0

    cdef double distance_of(self, Plan plan) noexcept nogil:
        """Return how far the law of a batch is from that of one tree: a bound of total variation.

        It is the distance itself where no share of the draws is uniform.
        """
        cdef double total = 0, n_rows = 0, by_mass = 0, by_count = 0
        cdef int64_t s
        for s in range(self.n_shards):
            total += self.shard[s].total
            n_rows += self.shard[s].n_rows
        if not total > 0 or not n_rows > 0:
            return 1
        for s in range(self.n_shards):
            by_mass += fabs(plan.mass_share[s] - self.shard[s].total / total)
            by_count += fabs(plan.row_share[s] - self.shard[s].n_rows / n_rows)
        return 0.5 * ((1 - plan.share) * by_mass + plan.share * by_count)


cdef inline double rows_of(Reader reader) noexcept nogil:
    """Return how many rows of a shard have mass."""
    # relaxed: any recent value will do, for weights come from the one that was used
    return max(<double>load_relaxed(&reader.slots.header.n_with_mass), 0.0)


cdef void weigh(
    const double* relative, int64_t n, bint to_largest, double beta, float* weight
) noexcept nogil:
    """Write relative ** -beta, over its largest in the batch where no bound is known."""
    cdef double least = smallest_of(relative, n) if to_largest else 1
    cdef int64_t i
    if raise_to(relative, 1 / least, 0, -beta, weight, n) == 0:
        return
    for i in range(n):  # by logarithms, for a quotient may be infinite
        weight[i] = <float>exp2(-beta * (log2(relative[i]) - log2(least)))
