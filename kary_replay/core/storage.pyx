# cython: language_level=3
# distutils: language = c++
"""A storage of rows: slots, a reader and a writer."""

from libc.stdint cimport int64_t

from .frame_reader cimport FrameReader
from .reader cimport Reader
from .slots cimport Slots
from .writer cimport Writer


cdef class Storage:
    """Slots for rows, with what reads rows out of them and what writes rows into them.

    ``frames``, if given, is the (n_frame_fields, width) of a FrameReader. The other arguments are
    those of Slots. Private to the package.
    """

    cdef readonly Slots slots
    cdef readonly Reader reader
    cdef readonly Writer writer

    def __cinit__(
        self, capacity, list names, list fields, int64_t selection, seed,
        bint shared=False, directory=None, int file=-1, frames=None,
    ):
        self.slots = Slots(capacity, names, fields, selection, seed, shared, directory, file)
        self.reader = Reader(self.slots) if frames is None else FrameReader(self.slots, *frames)
        self.writer = Writer(self.slots)
