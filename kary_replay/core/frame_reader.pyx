# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Rows that refer to the frames of other rows, drawn together with them.

docs/frames.md says what this is for. A row's history names, by handle, the rows whose frames were
there before its own. A handle whose generation has moved on names a row that has been overwritten,
so no frame can be taken for another. Generations only rise, so a row whose history is gone in part
is lost for good. The reader that notices takes its mass, and it is not drawn again.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memset

cimport numpy as cnp

from .block cimport (
    Handle, generation_of, load_acquire, load_relaxed, prefetch_far, read_field, read_field_ahead,
)
from .reader cimport CHUNK, Draw, Reader
from .slots cimport Place, Selector, Slots

cnp.import_array()

cdef enum:
    AHEAD = 4  # rows whose head and history are asked for ahead


cdef class FrameReader(Reader):
    """Copies rows with the frames of their histories. Private to the package.

    The first ``n_frame_fields`` fields of a row are its frame; the next one is the history, of
    ``width - 1`` handles.
    """

    cdef int n_frame_fields
    cdef int64_t width        # frames drawn with a row: those of its history, then its own

    def __cinit__(self, Slots slots, int n_frame_fields, int64_t width):
        assert slots.tree is not None and 0 < n_frame_fields < slots.n_fields and width > 1
        cdef int64_t nbytes = (width - 1) * <int64_t>sizeof(Handle)
        assert slots.places[n_frame_fields].nbytes == nbytes, "the history has another length"
        self.n_frame_fields = n_frame_fields
        self.width = width

    cdef int drawn_shape(self, int f, cnp.npy_intp* shape) noexcept nogil:
        """Write the shape that field f has in a drawn row, and return its number of axes."""
        cdef Place* place = self.slots.places + f
        cdef int is_frame = f < self.n_frame_fields
        shape[0] = self.width
        memcpy(shape + is_frame, place.shape, place.n_axes * sizeof(shape[0]))
        return place.n_axes + is_frame

    cdef Py_ssize_t drawn_nbytes(self, int f) noexcept nogil:
        """Return how many bytes field f has in a drawn row."""
        return self.slots.places[f].nbytes * (self.width if f < self.n_frame_fields else 1)

    cdef int64_t read_rows(
        self, const int64_t* slot, int64_t n, const Draw* batch, int64_t first
    ) noexcept nogil:
        """Copy at most CHUNK slots' rows, with their frames, into the rows ``first`` … of a batch.

        Returns how many were there. A handle's index becomes -1 where the row is missing, empty,
        being written, or changed during the copy, or where a frame of its history is gone.
        """
        cdef Handle lost[CHUNK]
        cdef int64_t scratch[CHUNK]
        cdef Selector* selector = self.slots.selector
        cdef Handle* handle = batch.handle + first
        cdef double* mass = batch.mass + first
        cdef Place* place
        cdef uint64_t generation
        cdef int64_t i, n_lost = 0, n_read = 0
        cdef bint is_complete
        cdef char* row
        cdef const char* following
        cdef int f
        for i in range(min(<int64_t>AHEAD, n)):
            self.prefetch_head(slot[i])
        for i in range(n):
            if i + AHEAD < n:
                self.prefetch_head(slot[i + AHEAD])
            row = <char*>generation_of(self.slots.header, slot[i])
            handle[i].index = -1
            # [publish-slot] acquire: pairs with the release in Slots.publish (slots.pyx)
            generation = load_acquire(<uint64_t*>row)
            if generation == 0 or generation & 1:
                continue
            mass[i] = selector.mass_at(slot[i])  # [leaf] see selector.hpp
            if mass[i] <= 0:
                continue
            for f in range(self.n_frame_fields, batch.n_fields):
                place = self.slots.places + f
                read_field(
                    row, batch.column[f] + (first + i) * place.nbytes, place.offset, place.nbytes
                )
            is_complete = self.read_history(row, batch, first + i)
            following = self.first_frame(slot[i + 1]) if i + 1 < n else row
            self.read_frame(row, batch, (first + i + 1) * self.width - 1, following)
            # [reserve-slot] relaxed: the acquires of read_word (atomic.hpp) above keep this second
            # look behind them
            if load_relaxed(<uint64_t*>row) != generation:
                continue
            if is_complete:
                handle[i].index = slot[i]
                handle[i].generation = generation
                n_read += 1
            else:
                lost[n_lost].index = slot[i]
                lost[n_lost].generation = generation
                n_lost += 1
        if n_lost:
            self.slots.retire(lost, n_lost, scratch)
        return n_read

    cdef bint read_history(self, char* row, const Draw* batch, int64_t number) noexcept nogil:
        """Copy the frames before a row's own into row ``number`` of a batch; False if one is gone.

        ``row`` may be overwritten meanwhile, and its history, which is in the batch already, may
        then be any numbers: the caller looks at the generation again.
        """
        cdef const Handle* source = <const Handle*>batch.column[self.n_frame_fields]
        cdef Handle one, other  # what is checked is what is used, whoever else has the memory
        cdef int64_t capacity = self.slots.capacity, n = self.width - 1, j, at
        cdef Place* place
        cdef char* found
        cdef char* following
        cdef int f
        source += number * n
        for j in range(n):
            at = number * self.width + j
            one = source[j]
            if one.generation == 0:
                for f in range(self.n_frame_fields):
                    place = self.slots.places + f
                    memset(batch.column[f] + at * place.nbytes, 0, place.nbytes)
                continue
            if not 0 <= one.index < capacity:
                return False
            found = <char*>generation_of(self.slots.header, one.index)
            # [publish-slot] acquire: pairs with the release in Slots.publish (slots.pyx)
            if load_acquire(<uint64_t*>found) != one.generation:
                return False
            following = row
            if j + 1 < n:
                other = source[j + 1]
                if 0 <= other.index < capacity:
                    following = <char*>generation_of(self.slots.header, other.index)
            self.read_frame(found, batch, at, following)
            # [reserve-slot] relaxed: as in read_rows
            if load_relaxed(<uint64_t*>found) != one.generation:
                return False
        return True

    cdef void read_frame(
        self, char* row, const Draw* batch, int64_t at, const char* following
    ) noexcept nogil:
        """Copy a row's frame to place ``at`` of a batch, and ask for the following row's frame."""
        cdef Place* place
        cdef char* value
        cdef int f
        for f in range(self.n_frame_fields):
            place = self.slots.places + f
            value = batch.column[f] + at * place.nbytes
            read_field_ahead(row, value, place.offset, place.nbytes, following + place.offset)

    cdef const char* first_frame(self, int64_t slot) noexcept nogil:
        """Guess the row with the first frame of a row's history, only to ask for its memory."""
        cdef char* row = <char*>generation_of(self.slots.header, slot)
        cdef Py_ssize_t history_at = self.slots.places[self.n_frame_fields].offset
        # relaxed: a row that is overwritten meanwhile names another one, or none
        cdef int64_t index = load_relaxed(<int64_t*>(row + history_at))
        if not 0 <= index < self.slots.capacity:
            return row
        return <char*>generation_of(self.slots.header, index)

    cdef void prefetch_head(self, int64_t slot) noexcept nogil:
        """Ask for the head of a row and for its history."""
        cdef char* row = <char*>generation_of(self.slots.header, slot)
        prefetch_far(row)
        prefetch_far(row + self.slots.places[self.n_frame_fields].offset)
