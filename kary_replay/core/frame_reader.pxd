"""Rows that refer to the frames of other rows, drawn together with them."""

from libc.stdint cimport int64_t

from .reader cimport Draw, Reader


cdef class FrameReader(Reader):
    # The first fields are the frame's, each drawn as [B, width, ...]; the next one is the history.
    cdef int n_frame_fields
    cdef int64_t width        # frames drawn with a row: those of its history, then its own
    cdef bint read_history(self, char* row, const Draw* batch, int64_t number) noexcept nogil
    cdef void read_frame(
        self, char* row, const Draw* batch, int64_t at, const char* following
    ) noexcept nogil
    cdef const char* first_frame(self, int64_t slot) noexcept nogil
    cdef void prefetch_head(self, int64_t slot) noexcept nogil
