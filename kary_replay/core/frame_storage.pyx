# cython: language_level=3, cdivision=True
# distutils: language = c++
"""Rows that refer to the frames of other rows, drawn together with them; docs/frames.md says what for.

A row's history names the rows, by handle, whose frames were there before its own. A handle whose
generation has moved on names a row that has been overwritten: no frame can be taken for another.
Generations only rise, so a row whose history is gone in part is lost for good; whoever notices
takes its mass, and it is not drawn again.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memset

cimport numpy as cnp

from .block cimport acquire, load_acquire, load_relaxed, prefetch_far, read_field, read_field_ahead, release, store_release
from .reader cimport CHUNK, Handle
from .slots cimport Place
from .storage cimport Storage
from .sum_tree cimport recompute

cnp.import_array()

cdef enum:
    AHEAD = 4  # rows whose head and history are asked for ahead


cdef class FrameStorage(Storage):
    """Storage with a tree, whose rows are drawn with the frames of their history. Private to the package."""

    def set_frames(self, int n_frame_fields, int64_t width):
        """Say which fields are the frame's, the first ones; the next one is the history, of width - 1 handles."""
        assert self.tree is not None and 0 < n_frame_fields < self.n_fields and width > 1
        assert self.places[n_frame_fields].nbytes == (width - 1) * <int64_t>sizeof(Handle), "the history has another length"
        self.n_frame_fields = n_frame_fields
        self.width = width

    cdef int drawn_shape(self, int f, cnp.npy_intp* shape) noexcept nogil:
        """Write the shape that field f has in a drawn row, and return its number of axes."""
        cdef Place* place = self.places + f
        cdef int is_frame = f < self.n_frame_fields
        shape[0] = self.width
        memcpy(shape + is_frame, place.shape, place.n_axes * sizeof(shape[0]))
        return place.n_axes + is_frame

    cdef void read_rows(self, const int64_t* slot, int64_t n, char** column, int64_t first, Handle* handle,
                        double* mass) noexcept nogil:
        """Copy at most CHUNK slots' rows, and the frames of their histories, into rows ``first`` … of the columns.

        A handle's index becomes -1 where the row is missing, empty, being written, or changed
        during the copy, or a frame of its history is gone.
        """
        cdef Handle lost[CHUNK]
        cdef int64_t i, n_lost = 0
        cdef int f
        cdef bint complete
        cdef char* row
        cdef char* following
        cdef uint64_t generation
        cdef Place place
        for i in range(min(<int64_t>AHEAD, n)):
            self.prefetch_row(slot[i])
        for i in range(n):
            if i + AHEAD < n:
                self.prefetch_row(slot[i + AHEAD])
            row = self.rows + slot[i] * self.row_nbytes
            handle[i].index = -1
            # [publish-slot] acquire: pairs with the release in publish
            generation = load_acquire(<uint64_t*>row)
            if generation == 0 or generation & 1:
                continue
            # [leaf] acquire: pairs with the releases in reserve, publish and update
            mass[i] = load_acquire(self.tree.leaf + slot[i])
            if mass[i] <= 0:
                continue
            for f in range(self.n_frame_fields, self.n_fields):
                place = self.places[f]
                read_field(row, column[f] + (first + i) * place.nbytes, place.offset, place.nbytes)
            complete = self.read_history(row, column, first + i)
            following = self.first_frame(slot[i + 1]) if i + 1 < n else row
            self.read_frame(row, column, (first + i + 1) * self.width - 1, following)
            # [reserve-slot] relaxed: the acquire of each word above keeps this second look behind
            # it
            if load_relaxed(<uint64_t*>row) != generation:
                continue
            if complete:
                handle[i].index = slot[i]
                handle[i].generation = generation
            else:
                lost[n_lost].index = slot[i]
                lost[n_lost].generation = generation
                n_lost += 1
        if n_lost:
            self.retire(lost, n_lost)

    cdef bint read_history(self, char* row, char** column, int64_t number) noexcept nogil:
        """Copy the frames that precede a row's own into row ``number`` of the columns; False if one is gone.

        ``row`` may be overwritten meanwhile, and its history, in the columns already, be any
        numbers: the caller looks again.
        """
        cdef const Handle* source = <const Handle*>(column[self.n_frame_fields] + number * (self.width - 1) * sizeof(Handle))
        cdef int64_t j, at
        cdef int f
        cdef char* found
        cdef char* following
        for j in range(self.width - 1):
            at = number * self.width + j
            if source[j].generation == 0:
                for f in range(self.n_frame_fields):
                    memset(column[f] + at * self.places[f].nbytes, 0, self.places[f].nbytes)
                continue
            if not 0 <= source[j].index < self.capacity:
                return False
            found = self.rows + source[j].index * self.row_nbytes
            # [publish-slot] acquire: pairs with the release in publish
            if load_acquire(<uint64_t*>found) != source[j].generation:
                return False
            following = row
            if j + 1 < self.width - 1 and 0 <= source[j + 1].index < self.capacity:
                following = self.rows + source[j + 1].index * self.row_nbytes
            self.read_frame(found, column, at, following)
            # [reserve-slot] relaxed: the acquire of each word above keeps this second look behind
            # it
            if load_relaxed(<uint64_t*>found) != source[j].generation:
                return False
        return True

    cdef void read_frame(self, char* row, char** column, int64_t at, const char* following) noexcept nogil:
        """Copy a row's frame to place ``at`` of the columns, and ask for that of the row that follows."""
        cdef int f
        cdef Place place
        for f in range(self.n_frame_fields):
            place = self.places[f]
            read_field_ahead(row, column[f] + at * place.nbytes, place.offset, place.nbytes, following + place.offset)

    cdef char* first_frame(self, int64_t slot) noexcept nogil:
        """Guess the row with the first frame of a row's history: whatever it is, it is only asked for."""
        cdef char* row = self.rows + slot * self.row_nbytes
        # relaxed: a row that is overwritten meanwhile names another one, or none
        cdef int64_t index = load_relaxed(<int64_t*>(row + self.places[self.n_frame_fields].offset))
        return self.rows + index * self.row_nbytes if 0 <= index < self.capacity else row

    cdef void retire(self, const Handle* handle, int64_t n) noexcept nogil:
        """Take the priority of rows that can never be drawn whole again; at most CHUNK."""
        cdef int64_t scratch[CHUNK]
        cdef int64_t i, n_retired = 0
        acquire(self.header)
        for i in range(n):
            # Generations change only under the lock: this is the row that was looked at, or its
            # slot has another one now.
            if load_relaxed(self.generation(handle[i].index)) == handle[i].generation:
                # no transition any more: no later update gives it mass again
                self.priority[handle[i].index] = 0
                # [leaf] pairs with the acquire in read_rows
                store_release(self.tree.leaf + handle[i].index, 0.0)
                scratch[n_retired] = handle[i].index
                n_retired += 1
        if n_retired:
            recompute(self.tree.tree, scratch, n_retired)
        release(self.header)

    cdef void prefetch_row(self, int64_t slot) noexcept nogil:
        """Ask for the head of a row and for its history."""
        cdef char* row = self.rows + slot * self.row_nbytes
        prefetch_far(row)
        prefetch_far(row + self.places[self.n_frame_fields].offset)
