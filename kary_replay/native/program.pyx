# distutils: language = c++
"""Programs of operations on float32 numbers, run without Python and without torch.

`algorithms/updates/translation.py` makes them of recorded graphs. Memory comes as addresses: this
module knows no tensors, and torch is not needed to compile it.
"""

from libc.math cimport pow, sqrt
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

import numpy as np

from cpython.mem cimport PyMem_Free, PyMem_Malloc

cdef extern from "program.hpp" namespace "kary" nogil:
    const int kWords
    const int kNumberOfSets
    const int kNumberOfCodes
    const char** kCodes

    cppclass Code:
        pass

    struct Operation:
        int64_t code
        int64_t word[22]
        double number[2]

    struct Step "kary::Adam":
        float* parameters
        float* mean
        float* square
        const float* gradient
        int64_t n
        float rest_1
        float rest_2
        float root
        float epsilon
        float step_size

    struct Set:
        const char* name
        bint (*usable)() noexcept nogil
        bint (*run)(const Operation*, int64_t, char**, int) noexcept nogil
        void (*adam)(const Step&, int) noexcept nogil
        void (*approach)(float*, const float*, int64_t, float, int) noexcept nogil

    const Set kSets[]

__all__ = ["CODES", "SETS", "WORDS", "Program", "Sequence", "adam", "approach", "in_use", "use"]

CODES = tuple(kCodes[i].decode() for i in range(kNumberOfCodes))
"""The operations by name; their codes are the places here."""
WORDS = kWords
SETS = tuple(kSets[i].name.decode() for i in range(kNumberOfSets) if kSets[i].usable())
"""The sets of vector instructions that this processor can run, the best first."""

cdef const Set* chosen = &kSets[kNumberOfSets - 1]


def in_use():
    """Return the set of vector instructions that programs are run with."""
    return chosen.name.decode()


def use(str name):
    """Run all programs with a set of vector instructions; return which one they had.

    Raises
    ------
    ValueError
        If this processor does not have it.
    """
    global chosen
    if name not in SETS:
        raise ValueError(f"instructions must be one of {', '.join(SETS)}, got {name!r}")
    former = in_use()
    for i in range(kNumberOfSets):
        if kSets[i].name.decode() == name:
            chosen = &kSets[i]
    return former


use(SETS[0])


cdef class Program:
    """A list of operations.

    Parameters
    ----------
    words : int64 [n, 1 + WORDS]
        The code of each operation and its arguments, as program.hpp describes them.
    numbers : float64 [n, 2]
        Their arguments that are no integers.
    n_pieces : int
        How many pieces of memory they work on.
    n_threads : int
        On how many threads large operations are carried out; the spare memory of convolutions is
        for so many. They do not change the bits.
    """

    cdef Operation* operations
    cdef readonly int n_operations, n_pieces, n_threads

    def __cinit__(self, words, numbers, int n_pieces, int n_threads=1):
        cdef int64_t[:, ::1] word = np.ascontiguousarray(words, np.int64)
        cdef double[:, ::1] number = np.ascontiguousarray(numbers, np.float64)
        self.n_operations, self.n_pieces, self.n_threads = word.shape[0], n_pieces, n_threads
        if word.shape[1] != 1 + kWords or number.shape[0] != word.shape[0] or number.shape[1] != 2:
            raise ValueError(f"words must be [n, {1 + kWords}] and numbers [n, 2], got "
                             f"{np.shape(words)} and {np.shape(numbers)}")
        if n_threads < 1:
            raise ValueError(f"n_threads must be 1 or more, got {n_threads}")
        self.operations = <Operation*>PyMem_Malloc(self.n_operations * sizeof(Operation) + 1)
        if self.operations is NULL:
            raise MemoryError
        for i in range(self.n_operations):
            memcpy(&self.operations[i].code, &word[i, 0], sizeof(int64_t))
            memcpy(self.operations[i].word, &word[i, 1], kWords * sizeof(int64_t))
            memcpy(self.operations[i].number, &number[i, 0], 2 * sizeof(double))

    def __dealloc__(self):
        PyMem_Free(self.operations)

    def run(self, list pieces):
        """Carry out the operations.

        Threads may do so at once, if they give memory of their own.

        Parameters
        ----------
        pieces : list of functions
            Each returns the address of a piece of memory, as ``Tensor.data_ptr`` does.

        Raises
        ------
        IndexError
            If an index that the operations read is out of range.
        """
        cdef vector[char*] memory
        cdef bint done = False
        if len(pieces) != self.n_pieces:
            raise ValueError(f"the program works on {self.n_pieces} pieces, got {len(pieces)}")
        memory.reserve(self.n_pieces)
        for piece in pieces:
            memory.push_back(<char*><uintptr_t>piece())
        with nogil:
            done = chosen.run(self.operations, self.n_operations, memory.data(), self.n_threads)
        if not done:
            raise IndexError("an index is out of range: actions count from 0")


cdef Step counted(float* parameters, const float* gradient, float* mean, float* square, int64_t n,
                  float* n_steps, double learning_rate, double beta1, double beta2,
                  double epsilon) noexcept nogil:
    """Count a step of Adam, and return what it comes to."""
    cdef Step step
    step.parameters, step.gradient = parameters, gradient
    step.mean, step.square, step.n = mean, square, n
    n_steps[0] += 1
    step.rest_1, step.rest_2 = <float>(1 - beta1), <float>(1 - beta2)
    step.root = <float>(1 / sqrt(1 - pow(beta2, n_steps[0])))
    step.epsilon = <float>epsilon
    step.step_size = <float>(learning_rate / (1 - pow(beta1, n_steps[0])))
    return step


def adam(uintptr_t parameters, uintptr_t gradient, uintptr_t mean, uintptr_t square, int64_t n,
         uintptr_t n_steps, double learning_rate, double beta1, double beta2, double eps,
         int n_threads=1):
    """Take a step of Adam with n float32 numbers at each address, and count it in ``n_steps``.

    Kingma & Ba (2015), arXiv:1412.6980, algorithm 1, in the form of ``torch.optim.Adam``.
    """
    with nogil:
        chosen.adam(counted(
            <float*>parameters, <const float*>gradient, <float*>mean, <float*>square, n,
            <float*>n_steps, learning_rate, beta1, beta2, eps,
        ), n_threads)


def approach(uintptr_t to, uintptr_t source, int64_t n, double share, int n_threads=1):
    """Move n float32 numbers by a share of the way to others; a share of 1 copies them."""
    with nogil:
        chosen.approach(<float*>to, <const float*>source, n, share, n_threads)


cdef enum Kind:
    PROGRAM
    ADAM
    APPROACH


cdef struct Call:
    Kind kind
    size_t first             # of its addresses
    const Operation* operations
    int64_t n                # of operations, or of numbers
    double number[3]         # betas and epsilon, or a share
    int n_threads


cdef class Sequence:
    """Programs, steps of Adam and `approach`, carried out one after another in one call.

    An address is a pair: the number of a piece of memory, and how many bytes from its beginning.
    A program has its own number of threads, and a step or a move those that it is given.
    """

    cdef vector[Call] calls
    cdef vector[int] piece        # of each address
    cdef vector[int64_t] offset
    cdef list programs            # whose operations these are
    cdef int n_rates

    def __cinit__(self):
        self.programs = []

    cdef void append(self, Kind kind, list places, const Operation* operations, int64_t n,
                     double first, double second, double third, int n_threads):
        cdef Call call
        call.kind, call.first, call.operations, call.n = kind, self.piece.size(), operations, n
        call.n_threads = n_threads
        call.number[0], call.number[1], call.number[2] = first, second, third
        for piece, offset in places:
            self.piece.push_back(piece)
            self.offset.push_back(offset)
        self.calls.push_back(call)

    def add_program(self, Program program, list places):
        """Append a program, with an address for each of its pieces."""
        if len(places) != program.n_pieces:
            raise ValueError(f"the program works on {program.n_pieces} pieces, got {len(places)}")
        self.programs.append(program)
        self.append(PROGRAM, places, program.operations, program.n_operations, 0, 0, 0,
                    program.n_threads)

    def add_adam(self, list places, int64_t n, double beta1, double beta2, double eps,
                 int n_threads=1):
        """Append `adam`: addresses of parameters, gradient, mean, square and n_steps."""
        if len(places) != 5:
            raise ValueError(f"a step of Adam has 5 addresses, got {len(places)}")
        self.n_rates += 1
        self.append(ADAM, places, NULL, n, beta1, beta2, eps, n_threads)

    def add_approach(self, list places, int64_t n, double share, int n_threads=1):
        """Append `approach`: addresses of what is moved, and of where to."""
        if len(places) != 2:
            raise ValueError(f"a move has 2 addresses, got {len(places)}")
        self.append(APPROACH, places, NULL, n, share, 0, 0, n_threads)

    def run(self, list pieces, list learning_rates):
        """Carry everything out.

        Threads may do so at once, if they give memory of their own.

        Parameters
        ----------
        pieces : list of functions
            Each returns the address of a piece of memory, as ``Tensor.data_ptr`` does.
        learning_rates : list of float
            One for each step of Adam.

        Raises
        ------
        IndexError
            If an index that a program reads is out of range. What comes before it is done then.
        """
        cdef vector[char*] base, memory
        cdef vector[double] rate
        cdef bint done = True
        if len(learning_rates) != self.n_rates:
            raise ValueError(f"{self.n_rates} steps of Adam, got {len(learning_rates)} rates")
        for piece in pieces:
            base.push_back(<char*><uintptr_t>piece())
        for number in learning_rates:
            rate.push_back(number)
        memory.reserve(self.piece.size())
        for i in range(self.piece.size()):
            if not 0 <= self.piece[i] < <int>base.size():
                raise ValueError(f"address {i} is in piece {self.piece[i]} of {base.size()}")
            memory.push_back(base[self.piece[i]] + self.offset[i])
        with nogil:
            done = self.carry_out(memory.data(), rate.data())
        if not done:
            raise IndexError("an index is out of range: actions count from 0")

    cdef bint carry_out(self, char** memory, const double* rate) noexcept nogil:
        cdef const Call* call
        cdef char** at
        cdef size_t i
        for i in range(self.calls.size()):
            call = &self.calls[i]
            at = memory + call.first
            if call.kind == PROGRAM:
                if not chosen.run(call.operations, call.n, at, call.n_threads):
                    return False
            elif call.kind == ADAM:
                chosen.adam(counted(
                    <float*>at[0], <const float*>at[1], <float*>at[2], <float*>at[3], call.n,
                    <float*>at[4], rate[0], call.number[0], call.number[1], call.number[2],
                ), call.n_threads)
                rate += 1
            else:
                chosen.approach(<float*>at[0], <const float*>at[1], call.n, <float>call.number[0],
                                call.n_threads)
        return True
