"""Rows that refer to the frames of other rows, drawn together with them."""

from libc.stdint cimport int64_t

cimport numpy as cnp

from .reader cimport Handle
from .storage cimport Storage


cdef class FrameStorage(Storage):
    # the first fields are the frame's, each drawn as [B, width, ...]; the next one is the history
    cdef int n_frame_fields
    cdef int64_t width        # frames drawn with a row: those of its history, then its own
    cdef bint read_history(self, char* row, char** column, int64_t number) noexcept nogil
    cdef void read_frame(self, char* row, char** column, int64_t at, const char* following) noexcept nogil
    cdef char* first_frame(self, int64_t slot) noexcept nogil
    cdef void retire(self, const Handle* handle, int64_t n) noexcept nogil
