# cython: language_level=3, cdivision=True
# distutils: language = c++
"""All slots: copied, restored, checked.

What is of one moment has writers wait for it; readers never do.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy as np

cimport numpy as cnp

from ..validation import as_count, as_fraction, as_real

from .block cimport (
    Attachment, Header, Noise, acquire, generation_of, is_published, is_settled, is_vacant, kCount,
    load_acquire, load_relaxed, pause, read_field, release, renew_max_mass, resume, store_relaxed,
    store_release, vacated,
)
from .slots cimport Selector, Slots

cnp.import_array()

cdef extern from "ranked.hpp" namespace "kary" nogil:
    const int kRanks

cdef extern from "copies.hpp" namespace "kary" nogil:
    ctypedef struct Copies:
        double* mass
        double* priority
        uint32_t* seen
        int64_t n

    const int64_t kGroup
    void announce_copies(const Attachment* attachment)
    void end_copies(const Attachment* attachment)
    int64_t copy_groups(Header* header, const Selector* selector, Copies* copies, bint all)


def n_touched(Slots slots):
    """Return the number of slots ever used: no row lies behind them. Any recent value."""
    return load_relaxed(&slots.header.n_touched)


def offsets(Slots slots):
    """Return where each field begins in a row."""
    return [slots.places[f].offset for f in range(slots.n_fields)]


def copy_rows(Slots slots, int64_t first, cnp.ndarray into):
    """Copy whole rows, generations first, from slot ``first`` on, without a lock.

    ``into`` is a contiguous uint8 array [n * row_nbytes]. A row that is written meanwhile may
    arrive torn: its generation, looked at again later, then differs from the one copied.
    """
    cdef Py_ssize_t row_nbytes = slots.row_nbytes
    cdef char* to = <char*>cnp.PyArray_DATA(into)
    cdef int64_t n = cnp.PyArray_NBYTES(into) // row_nbytes, i
    cdef char* row
    assert 0 <= first and first + n <= slots.capacity, "no such rows"
    with nogil:
        for i in range(n):
            row = slots.rows + (first + i) * row_nbytes
            # [publish-slot] acquire: pairs with the release in Slots.publish (slots.pyx)
            (<uint64_t*>(to + i * row_nbytes))[0] = load_acquire(<uint64_t*>row)
            read_field(row, to + i * row_nbytes + 8, 8, row_nbytes - 8)


def changed(Slots slots, const uint64_t[::1] copied):
    """Return the slots, ascending, of rows whose generations are not these, or that are written.

    int64. It is of some recent moment, and nobody waits for it.
    """
    cdef int64_t n_touched = load_relaxed(&slots.header.n_touched), i
    cdef cnp.ndarray differs = np.ones(n_touched, np.bool_)
    cdef char* differ = <char*>cnp.PyArray_DATA(differs)
    cdef uint64_t generation
    with nogil:
        for i in range(min(n_touched, <int64_t>copied.shape[0])):
            generation = load_relaxed(generation_of(slots.header, i))
            differ[i] = copied[i] != generation or not _is_whole(generation)
    return np.flatnonzero(differs)


cdef bint _is_whole(uint64_t generation) noexcept nogil:
    """Whether nobody is writing the row: only who reserves the slot, or a reset, changes it."""
    return generation & 1 == 0 or is_vacant(generation)


# What has changed since, is in the slots that `position` has passed since, and in those that were
# being written.
cdef struct Moment:
    int64_t position
    int64_t n_passed


cdef Moment _now(Slots slots) noexcept nogil:
    cdef Moment now
    acquire(slots.header)
    now.position, now.n_passed = slots.header.position, slots.header.n_passed
    release(slots.header)
    return now


cdef _passed(Slots slots, Moment since, Moment now, const uint64_t[::1] copied):
    """Return the slots that were reserved between two moments, or that changed, if these are all.

    ``copied``: the generations in the copy.
    """
    cdef int64_t n = now.n_passed - since.n_passed
    if n >= slots.capacity:
        return changed(slots, copied)
    return (since.position + np.arange(n)) % slots.capacity


cdef _copy_again(Slots slots, const int64_t[::1] which, uint64_t[::1] copied, cnp.ndarray into):
    """Copy the rows of some slots without a lock; return the slots that were being written.

    The generations of the others go into ``copied``.
    """
    cdef Py_ssize_t nbytes = slots.row_nbytes
    cdef char* to = <char*>cnp.PyArray_DATA(into)
    cdef cnp.ndarray torn = np.zeros(len(which), np.bool_)
    cdef char* is_torn = <char*>cnp.PyArray_DATA(torn)
    cdef uint64_t* row
    cdef uint64_t generation
    cdef int64_t i
    with nogil:
        for i in range(which.shape[0]):
            row = generation_of(slots.header, which[i])
            # [publish-slot] acquire: pairs with the release in Slots.publish (slots.pyx)
            (<uint64_t*>to)[0] = load_acquire(row)
            read_field(<char*>row, to + 8, 8, nbytes - 8)
            # [reserve-slot] relaxed: the acquires of read_word (atomic.hpp) keep it behind them
            generation = (<uint64_t*>to)[0]
            is_torn[i] = not _is_whole(generation) or load_relaxed(row) != generation
            copied[which[i]] = 0 if is_torn[i] else generation
            to += nbytes
    return np.asarray(which)[torn]


cdef enum:
    CUT_NBYTES = 1 << 19   # of rows, that may be copied while writers wait
    MANY_NBYTES = 1 << 24  # of rows, that are copied again only while they become fewer
    MAX_LOOKS = 16         # for what has changed, before writers have to wait for the rest
    FEW_GROUPS = 256       # of slots, whose masses are copied while writers wait


def snapshot(Slots slots, known=None):
    """Return everything as a dict of numbers and arrays: a consistent cut, for which writers wait.

    ``known`` spares the rows that the caller has copied before: uint64 [n], the generations of rows
    0 … n - 1 in that copy. Then "rows" has only the others, in the order of "changed", their slots.

    Rows, masses and priorities are copied without a lock, and what was written meanwhile is copied
    again, until it is little. Writers wait for the last of it.
    """
    slots.block.enter()
    with nogil:
        announce_copies(slots.attachment)
    try:
        return _cut(slots, known)
    finally:
        with nogil:
            end_copies(slots.attachment)


cdef _cut(Slots slots, known):
    """Do what `snapshot` says, while changes of masses are counted."""
    cdef Header* header = slots.header
    cdef Selector* selector = slots.selector
    cdef Py_ssize_t nbytes = slots.row_nbytes
    cdef cnp.ndarray rows, which, again
    cdef cnp.ndarray masses = None, priorities = None, ranking = None, seen = None
    cdef uint64_t[::1] copied = np.zeros(slots.capacity, np.uint64)
    cdef int64_t n_changed = 0, room = 0, n_leaves = -1, n_before, n_again
    cdef int64_t n_looked = 0, n_were = 0
    cdef int64_t n_touched = 0, n_started = 0, position = 0, n_added = 0
    cdef uint64_t n_sampled = 0, random_counter = 0
    cdef double alpha = 0, max_priority = 0
    cdef bint is_whole = True, is_cut = False, is_copied = False
    cdef double* ranks = NULL
    cdef Noise noise
    cdef Moment since, now
    cdef Copies copies
    cdef int looks
    cdef list parts = []
    copies.mass = copies.priority = NULL
    copies.seen = NULL
    copies.n = 0
    if known is not None:
        np.asarray(copied)[: len(known)] = known
    with nogil:
        since = _now(slots)
    again = changed(slots, copied)
    while not is_cut:
        if load_relaxed(&header.n_touched) > n_leaves:
            # Room first, lock after: an allocation may run a finalizer that wants the lock. And all
            # of it is touched, for the system gives memory only then: copies.hpp copies all once.
            n_leaves = load_relaxed(&header.n_touched)
            n_leaves = min(slots.capacity, n_leaves + n_leaves // 8 + 1024)
            masses = np.empty(n_leaves if selector.leaf != NULL else 0)
            priorities, ranking = np.empty_like(masses), np.zeros(selector.n_ranking)
            seen = np.zeros((len(masses) + kGroup - 1) // kGroup, np.uint32)
            copies.mass = <double*>cnp.PyArray_DATA(masses)
            copies.priority = <double*>cnp.PyArray_DATA(priorities)
            copies.seen = <uint32_t*>cnp.PyArray_DATA(seen)
            copies.n = len(masses)
            ranks = <double*>cnp.PyArray_DATA(ranking)
            is_copied = False
        is_patient = len(parts) < MAX_LOOKS
        while is_patient and len(again) * nbytes > CUT_NBYTES // 2:
            n_before = len(again)
            rows = np.empty(n_before * nbytes, np.uint8)
            parts.append((again, rows))
            with nogil:
                now = _now(slots)
            torn = _copy_again(slots, again, copied, rows)
            again = np.union1d(torn, _passed(slots, since, now, copied))
            since = now
            is_patient = len(parts) < MAX_LOOKS and (
                len(again) * nbytes <= MANY_NBYTES or len(again) < n_before
            )
        room = len(again) + CUT_NBYTES // nbytes + 64 if is_patient else n_leaves
        room = min(room, n_leaves)
        rows, which = np.empty(room * nbytes, np.uint8), np.zeros(room, np.int64)
        rows[: 2 * CUT_NBYTES].fill(0)
        n_again = len(again)
        with nogil:
            # as long as they become fewer: rows change meanwhile, and are looked at no more
            for looks in range(MAX_LOOKS):
                n_looked = copy_groups(header, selector, &copies, not is_copied)
                is_copied = True
                if n_looked <= FEW_GROUPS or (looks > 0 and 10 * n_looked > 9 * n_were):
                    break
                n_were = n_looked
            pause(slots.attachment)
            # One by one: some of these numbers others change without the lock.
            n_touched, n_started = header.n_touched, header.n_started
            now.position, now.n_passed = header.position, header.n_passed
            is_cut = n_touched <= n_leaves and (
                room == n_leaves or n_again + now.n_passed - since.n_passed <= room
            )
            if is_cut:
                position, n_added = header.position, header.n_added
                alpha, max_priority, noise = header.alpha, header.max_priority, header.noise
                is_whole = is_settled(header)
                n_sampled = load_relaxed(&header.n_sampled)
                random_counter = load_relaxed(&header.random_counter)
                n_changed = _copy_last(slots, again, since, copied, which, rows)
                copy_groups(header, selector, &copies, False)
                if selector.ranking != NULL:
                    memcpy(ranks, selector.ranking, selector.n_ranking * sizeof(double))
            resume(slots.attachment)
        if not is_cut:
            again = np.union1d(again, _passed(slots, since, now, copied))
            since = now
    parts.append((which[:n_changed], rows[: n_changed * nbytes]))
    which, rows = _merged(parts, nbytes, n_touched)
    if not is_whole:  # masses as they will be
        scratch = np.empty(2 * n_started)
        _derive(selector, alpha, priorities, masses, n_started, ranking, scratch)
    return {
        "row_nbytes": nbytes,
        "n_touched": n_touched,
        "rows": rows,
        "changed": which,
        "mass": None if selector.leaf == NULL else masses[:n_started],
        "priority": None if selector.priority == NULL else priorities[:n_started],
        "ranking": None if selector.ranking == NULL else ranking,
        "position": position,
        "n_started": n_started,
        "alpha": alpha,
        "max_priority": max_priority,
        "noise": _numbers_of(noise),
        "n_added": n_added,
        "n_sampled": n_sampled,
        "random": (header.random_key[0], header.random_key[1], random_counter),
    }


cdef int64_t _copy_last(
    Slots slots, cnp.ndarray again, Moment since, uint64_t[::1] copied, cnp.ndarray which,
    cnp.ndarray into,
) noexcept nogil:
    """Copy the rows of ``again``, and those reserved since, where they changed; return how many.

    The caller holds the lock, and nobody is writing. There is room for all of them.
    """
    cdef Header* header = slots.header
    cdef Py_ssize_t nbytes = slots.row_nbytes
    cdef const int64_t* given = <const int64_t*>cnp.PyArray_DATA(again)
    cdef int64_t* slot = <int64_t*>cnp.PyArray_DATA(which)
    cdef char* to = <char*>cnp.PyArray_DATA(into)
    cdef int64_t n_given = cnp.PyArray_SIZE(again), n = 0, at, i
    cdef int64_t n_passed = header.n_passed - since.n_passed
    if n_passed >= slots.capacity:  # all of them
        n_given, n_passed, since.position = 0, header.n_touched, 0
    for i in range(n_given + n_passed):
        at = given[i] if i < n_given else (since.position + i - n_given) % slots.capacity
        if at >= header.n_touched or copied[at] == load_relaxed(generation_of(header, at)):
            continue
        slot[n] = at
        memcpy(to + n * nbytes, generation_of(header, at), nbytes)
        copied[at] = load_relaxed(generation_of(header, at))
        n += 1
    return n


cdef _merged(list parts, Py_ssize_t nbytes, int64_t n_touched):
    """Return the slots of parts, ascending, and their rows, of the last part that has them."""
    slots, rows = parts[0]
    which = np.unique(np.concatenate([slots for slots, _ in parts]))
    which = which[which < n_touched]
    if not np.array_equal(which, slots):
        rows = np.empty(len(which) * nbytes, np.uint8)
    table = rows.reshape(len(which), nbytes)
    for slots, part in parts:
        if part is not rows:
            is_there = slots < n_touched
            place = np.searchsorted(which, slots[is_there])
            table[place] = part.reshape(len(slots), nbytes)[is_there]
    return which, rows


cdef void _derive(
    Selector* selector, double alpha, cnp.ndarray priorities, cnp.ndarray masses, int64_t n,
    cnp.ndarray ranking, cnp.ndarray scratch,
) noexcept:
    """Give n copied rows with mass those that a sweep (sweep.hpp) would give them."""
    cdef const double* priority = <const double*>cnp.PyArray_DATA(priorities)
    cdef double* mass = <double*>cnp.PyArray_DATA(masses)
    cdef double* ranks = <double*>cnp.PyArray_DATA(ranking)
    cdef double* rest = <double*>cnp.PyArray_DATA(scratch)
    with nogil:
        selector.derive_masses(alpha, priority, mass, n, ranks, rest)


def restore(Slots slots, dict state, read_rows=None):
    """Take over a snapshot, or raise ValueError if it contradicts itself.

    Nobody else may be using these slots yet. ``read_rows``, if given, is called with the place of
    all rows, a uint8 array, to put there what ``state`` lacks. After an error the slots are of no
    use.
    """
    cdef Header* header = slots.header
    cdef Selector* selector = slots.selector
    cdef Py_ssize_t nbytes = slots.row_nbytes
    cdef int64_t n_started, position, n_touched, n_added, i
    cdef uint64_t n_sampled, generation
    cdef double alpha, max_priority, largest = selector.largest
    cdef Noise noise
    cdef cnp.ndarray priorities, ranking = None
    if state["row_nbytes"] != nbytes:
        raise ValueError(
            f"the saved rows have {state['row_nbytes']} bytes, these {nbytes}: another layout"
        )
    n_touched = as_count("n_touched", state["n_touched"], slots.capacity, least=0)
    if read_rows is None:
        rows = np.asarray(state["rows"])
        if rows.dtype != np.uint8 or rows.shape != (n_touched * nbytes,):
            raise _contradiction(f"rows are the bytes of {n_touched} rows of {nbytes} bytes")
    n_started = as_count("n_started", state["n_started"], n_touched, least=0)
    # below n_started: who was writing there died
    last = min(n_started, slots.capacity - 1)
    position = as_count("position", state["position"], last, least=0)
    n_added = as_count("n_added", state["n_added"], 2**62 - 1, least=0)
    n_sampled = as_count("n_sampled", state["n_sampled"], 2**62 - 1, least=0)
    alpha = as_fraction("alpha", state["alpha"])
    max_priority = as_real("max_priority", state["max_priority"])
    if not 1 <= max_priority <= largest:
        raise ValueError(f"max_priority must be from 1 to {largest:.3g}, got {max_priority}")
    noise = _checked_noise(state.get("noise"))
    random_state = tuple(
        as_count("a number of random", number, 2**64 - 1, least=0) for number in state["random"]
    )
    into = slots.bytes_of(n_touched)
    if read_rows is None:
        into[:] = rows
    else:
        read_rows(into)
    generations = into.reshape(n_touched, nbytes)[:, :8].copy().view(np.uint64).ravel()
    is_row = _checked_generations(generations)[:n_started]
    if (selector.leaf == NULL) != (state["mass"] is None) or (
        selector.leaf == NULL and state["priority"] is not None
    ):
        raise _contradiction("there are masses without a tree, or none for it")
    if (selector.ranking == NULL) != (state["ranking"] is None):
        raise _contradiction("there are ranks without a table for them, or none for it")
    if selector.leaf != NULL:
        masses, priorities = _checked_priorities(slots, state, is_row)
        if selector.ranking != NULL:
            ranking = _checked_ranking(state["ranking"], alpha, selector.n_ranking)
            memcpy(selector.ranking, cnp.PyArray_DATA(ranking), ranking.nbytes)
        slots.tree.set(np.arange(n_started), masses)
        memcpy(selector.priority, cnp.PyArray_DATA(priorities), n_started * sizeof(double))
        if n_started:
            max_priority = max(max_priority, priorities.max())
    # rows from before a reset, as older versions left them
    for i in range(n_started, n_touched):
        generation = load_relaxed(generation_of(slots.header, i))
        store_release(generation_of(slots.header, i), vacated(generation))
    header.n_touched = n_touched
    header.n_started = n_started
    store_relaxed(&header.n_published, <int64_t>np.count_nonzero(is_row))
    header.position = position
    header.n_added = n_added
    store_relaxed(&header.n_sampled, n_sampled)
    header.alpha = alpha
    header.max_priority = max_priority
    header.noise = noise
    renew_max_mass(header)
    slots.block.set_random_state(random_state)


def check_invariants(Slots slots):
    """Raise AssertionError naming the first broken invariant: the tree's, I4 or I5."""
    cdef Header* header = slots.header
    cdef Selector* selector = slots.selector
    cdef int64_t i, slot = -1, n_started = 0, n_writing = 0, n_published = 0, position = 0
    cdef int64_t n_vacant = 0, n_with_mass = 0, n_masses = 0
    cdef uint64_t generation = 0
    cdef double mass = 0, priority = 0
    cdef bint is_row
    cdef int broken = 0
    slots.block.enter()
    if slots.tree is not None:
        slots.tree.check_invariants()
    with nogil:  # look first, raise after the lock is gone, as in SumTree.check_invariants
        pause(slots.attachment)
        n_started, n_writing = header.n_started, header.n_writing
        n_published, position = header.n_published, header.position
        n_with_mass = header.n_with_mass
        for i in range(slots.capacity):
            generation = load_relaxed(generation_of(slots.header, i))
            is_row = i < n_started and is_published(generation)
            if is_vacant(generation):
                n_vacant += i < n_started
            elif generation & 1:
                broken = 1
            elif i < n_started and generation == 0:
                broken = 2
            if selector.leaf != NULL:
                mass = selector.leaf[i]
                n_masses += mass > 0
                priority = selector.priority[i]
                if mass != 0 and not is_row:
                    broken = 3
                elif is_row and (mass > 0) != (priority > 0):
                    broken = 4
            if broken:
                slot = i
                break
        resume(slots.attachment)
    # Raised, not asserted, for `python -O` removes assertions.
    if broken == 1:
        raise AssertionError(
            f"I5: slot {slot} has the odd generation {generation}, and nobody is writing it"
        )
    if broken == 2:
        raise AssertionError(f"I5: slot {slot} counts as used and has generation 0")
    if broken == 3:
        raise AssertionError(f"I4: slot {slot} holds no row and has mass {mass}")
    if broken == 4:
        raise AssertionError(f"I4: slot {slot} has mass {mass} and priority {priority}")
    if n_masses != n_with_mass:
        raise AssertionError(f"I4: {n_with_mass} rows count as having mass, and {n_masses} do")
    if n_writing != 0:
        raise AssertionError(
            f"I5: {n_writing} slots count as being written, and nobody is writing"
        )
    if n_published != n_started - n_vacant:
        raise AssertionError(
            f"I5: {n_published} rows are published, {n_vacant} of {n_started} used slots vacant, "
            "nobody is writing"
        )
    if not 0 <= position < slots.capacity:
        raise AssertionError(f"I5: position {position} is not a slot")


# ------------------------------------------------------------------- what a snapshot must look like


def _contradiction(what):
    return ValueError(f"the saved state contradicts itself, it is damaged: {what}")


def _numbers(name, values, n):
    """Return n float64 numbers of a snapshot as a contiguous array."""
    values = np.asarray(values)
    if values.dtype != np.float64 or values.shape != (n,):
        raise _contradiction(
            f"{name} has dtype {values.dtype} and shape {values.shape} "
            f"instead of float64 and ({n},)"
        )
    return np.ascontiguousarray(values)


def _checked_generations(generations):
    """Return which slots hold a row, bool [n]; the others must be vacant."""
    counts, owners = generations & np.uint64(kCount), generations >> np.uint64(48)
    is_row = (counts % 2 == 0) & (owners == 0)
    is_nobodys = (counts % 2 == 1) & (owners == 0xFFFF)
    is_used_up = counts > np.uint64(kCount // 2)
    bad = np.flatnonzero(~(is_row | is_nobodys) | (counts == 0) | is_used_up)
    if bad.size:
        raise _contradiction(f"slot {bad[0]} has the generation {generations[bad[0]]}")
    return is_row


def _checked_priorities(Slots slots, dict state, is_row):
    """Return the masses and priorities of a snapshot's slots in use, float64 [n_started] each."""
    cdef int64_t n = len(is_row)
    largest = slots.selector.largest
    masses = _numbers("mass", state["mass"], n)
    priorities = state["priority"]
    if priorities is None:  # of format 1, which stored masses
        priorities = _priorities_behind(masses, state, largest)
    priorities = np.where(is_row, _numbers("priority", priorities, n), 0.0)
    for name, values in (("mass", masses), ("priority", priorities)):
        bad = np.flatnonzero(~((values >= 0) & (values <= largest)))  # NaN fails too
        if bad.size:
            raise _contradiction(f"slot {bad[0]} has {name} {values[bad[0]]}")
    bad = np.flatnonzero((masses > 0) != (priorities > 0))
    if bad.size:
        slot = bad[0]
        row = "a row" if is_row[slot] else "no row"
        raise _contradiction(
            f"slot {slot} holds {row} of priority {priorities[slot]} and has mass {masses[slot]}"
        )
    if state["ranking"] is None:  # what a priority says counts, but for rounding
        derived = np.where(priorities > 0, priorities ** state["alpha"], 0.0)
        masses = np.where(np.abs(masses - derived) <= 1e-6 * derived, masses, derived)
    return masses, priorities


def _priorities_behind(masses, dict state, largest):
    """Return the priorities whose masses these are, for format 1 saved masses alone."""
    if state["ranking"] is not None:
        ranking = np.asarray(state["ranking"])
        return ranking[_TABLE : _TABLE + len(masses)] * (masses > 0)
    if state["alpha"] == 0:
        return state["max_priority"] * (masses > 0)
    with np.errstate(over="ignore", under="ignore"):
        priorities = masses ** (1 / state["alpha"])
    return np.where(masses > 0, np.clip(priorities, np.nextafter(0, 1), largest), 0.0)


cdef list _numbers_of(Noise noise):
    """Return what is known of the noise of batches, as numbers in the order of the struct."""
    cdef Py_ssize_t i
    return [(<double*>&noise)[i] for i in range(_N_NOISE)]


cdef Py_ssize_t _N_NOISE = sizeof(Noise) // sizeof(double)


cdef Noise _checked_noise(saved) except *:
    """Return what was known of the noise of batches: nothing, where an older version saved."""
    cdef Noise noise
    cdef Py_ssize_t n = _N_NOISE, i
    numbers = [0.0] * n if saved is None else [as_real("a number of noise", one) for one in saved]
    if len(numbers) != n or not all(0 <= number < np.inf for number in numbers):
        raise _contradiction(f"noise must be {n} finite numbers of at least 0, got {saved}")
    for i in range(n):
        (<double*>&noise)[i] = numbers[i]
    return noise


cdef Py_ssize_t _TABLE = 3 + 4 * kRanks  # numbers in a Ranking


def _checked_ranking(saved, double alpha, int64_t n):
    """Return the table of ranks as the memory of a Ranking, float64 [n]."""
    saved = np.asarray(saved)
    if saved.dtype != np.float64 or saved.ndim != 1 or len(saved) < _TABLE:
        raise _contradiction(f"ranking has dtype {saved.dtype} and shape {saved.shape}")
    ranking = np.zeros(n)  # contiguous, whatever the saved one is
    ranking[:_TABLE] = saved[:_TABLE]
    n_changed, n_bounds, n_on_top = ranking[:3].view(np.int64).tolist()
    if not (0 <= n_bounds <= kRanks and 0 <= n_changed < 2**62 and 0 <= n_on_top < 2**62):
        raise _contradiction(
            f"the ranking has {n_bounds} bounds, {n_changed} changes, {n_on_top} on top"
        )
    priority, rank, mass, total = ranking[3:_TABLE].reshape(4, kRanks)[:, :n_bounds]
    with np.errstate(all="ignore"):  # NaN fails every comparison
        due = rank**-alpha
        steps, gains = np.diff(rank, prepend=0.0), np.diff(total, prepend=0.0)
        before = np.concatenate([mass[:1], mass[:-1]])
        is_whole = [
            np.isfinite(priority), priority > 0, np.diff(priority) <= 0,
            rank == np.rint(rank), rank[:1] == 1, steps >= 1, rank <= 2.0**53,
            np.abs(mass - due) <= 1e-9 * due,
            # The masses between two bounds lie between theirs.
            gains >= steps * mass * (1 - 1e-6), gains <= steps * before * (1 + 1e-6),
        ]
    if not all(condition.all() for condition in is_whole):
        raise _contradiction("the ranking's bounds are not those of ranks")
    return ranking
