"""Recorded graphs as native programs: what `kary_replay.native` runs without torch's dispatch.

The shapes, strides and dtypes of a recording are known, so all that torch finds out at each call is
decided once: where each tensor lies, which views are no work at all, and what can be done together.
A graph with an operation, a dtype or a layout that is not known here is not translated.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...native.program import CODES, WORDS, Program
from .tape import active

__all__ = ["NativeProgram", "UntranslatableError", "translated"]

aten: Any = torch.ops.aten
Node = Any  # torch.fx.Node, whose arguments have types that are too wide to work with
LANE = 16  # numbers in the widest vector; buffers begin at multiples of it
# operations whose results depend on the shapes of tensors, and not on their values
OF_SHAPES = {
    aten.new_zeros.default,
    aten.zeros_like.default,
    aten.new_ones.default,
    aten.ones_like.default,
}
PANEL = 64  # columns of a product that are computed together, at most
FEW = 4  # columns of a product that are rather computed as dot products
LARGE = 2**18  # numbers of a matrix that memory brings no faster than a product needs them
MUCH = 2**22  # multiplications of a convolution that threads share
ROWS_OF_THREAD = 48  # numbers of a window whose gradient a thread computes, at least
LARGEST_WHOLE = 2**24  # up to which a float32 counts exactly
BYTES = (torch.uint8, torch.bool)
# what comes from outside and is no float32; their numbers are those of `widen`
WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64)
OTHERS = (*BYTES, *WHOLE, torch.float64)


class UntranslatableError(Exception):
    """A graph has something that native programs do not know."""


@dataclass(eq=False)
class Buffer:
    """Numbers in a program's own memory."""

    n: int
    first: int | None = None  # operation that writes it
    last: float = -1  # operation that reads it
    offset: int = 0
    value: Tensor | None = None  # what it has from the beginning


@dataclass(frozen=True)
class Place:
    """Where a tensor is: in a buffer, or in a piece of memory that comes from outside."""

    holder: Buffer | int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype = torch.float32  # one of OTHERS, as inputs may be; all else are float32

    @property
    def n(self) -> int:
        """How many numbers the tensor has."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether the numbers lie one after another, in order."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def transposed(self) -> Place:
        """Return the place of a matrix with rows and columns exchanged."""
        return replace(self, shape=self.shape[::-1], strides=self.strides[::-1])

    def columns(self, begin: int, end: int) -> Place:
        """Return the place of some columns of a matrix."""
        offset = self.offset + begin * self.strides[1]
        return replace(self, offset=offset, shape=(self.shape[0], end - begin))

    def expanded(self, shape: Sequence[int]) -> Place:
        """Return the place of the tensor, broadcast to a shape."""
        missing = len(shape) - len(self.shape)
        old, strides = (1,) * missing + self.shape, (0,) * missing + self.strides
        return replace(
            self,
            shape=tuple(shape),
            strides=tuple(
                0 if was == 1 and size != 1 else stride
                for was, size, stride in zip(old, shape, strides, strict=True)
            ),
        )


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor."""
    return tuple(math.prod(shape[number + 1 :]) for number in range(len(shape)))


class NativeProgram:
    """A graph as a native program, called with tensors as it was translated for.

    It has as many threads as torch has when it is made, and the same bits with any number. The
    tensors that it returns are always the same, which the next call overwrites.
    """

    def __init__(self, graph: Any, n_inputs: int) -> None:
        n_threads = torch.get_num_threads()
        translation = Translation(graph, n_inputs, n_threads)
        with torch.inference_mode(False):
            memory = torch.zeros(translation.plan(), dtype=torch.float32, device="cpu")
            for buffer in translation.buffers:
                if buffer.value is not None:
                    memory[buffer.offset : buffer.offset + buffer.n] = buffer.value.reshape(-1)
            self._outputs = tuple(
                memory.as_strided(place.shape, place.strides, place.offset + place.holder.offset)
                for place in translation.outputs
                if isinstance(place.holder, Buffer)
            )
        n_pieces = 1 + n_inputs + len(translation.constants)
        self._program = Program(*translation.tables(), n_pieces, n_threads)
        self._own, self._constants = [memory], list(translation.constants)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        pieces = [*self._own, *tensors, *self._constants]
        tape = active()
        if tape is not None:
            tape.program(self._program, pieces)
        # asked for at each call: a tensor may have got other memory
        self._program.run([tensor.data_ptr for tensor in pieces])
        return self._outputs


def translated(graph: Any, tensors: Sequence[Tensor]) -> NativeProgram | None:
    """Return a graph as a native program, or None if that cannot be."""
    try:
        return NativeProgram(graph, len(tensors))
    except (UntranslatableError, ArithmeticError, LookupError, TypeError, ValueError, RuntimeError):
        return None  # by the others: a form of an operation that its rule was not written for


@dataclass
class Translation:
    """The operations of a program, in order, and the memory that they need."""

    graph: Any
    n_inputs: int
    n_threads: int
    constants: list[Tensor] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    outputs: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._operations: list[tuple[str, list[Any], tuple[float, ...]]] = []
        self._places: dict[Node, Place] = {}
        self._fixed: set[Node] = set()  # nodes whose value is the same at every call
        self._copies: dict[Any, Place] = {}  # of places, in another layout
        self._parts: dict[Node, tuple[Node, int]] = {}  # of a cat, written where the cat has them
        self._shared: set[Buffer] = set()  # which hold what other nodes have, too
        self._wanted: dict[Node, tuple[int, int]] = {}  # columns of matrices, where not all are
        nodes = list(self.graph.graph.nodes)
        for node in nodes:
            if node.target is aten.cat.default:
                self._find_parts(node)
        for node in reversed(nodes):
            self._find_wanted(node)
        for node in nodes:
            self._translate(node)

    # ----------------------------------------------------------------- what the program consists of

    def plan(self) -> int:
        """Give each buffer its offset; return how many numbers they need together.

        Buffers that are not in use at once share memory.
        """
        free: list[tuple[int, int]] = []  # offset and size, by offset
        end = 0
        begins: dict[int, list[Buffer]] = {}
        ends: dict[float, list[Buffer]] = {}
        for buffer in self.buffers:
            if buffer.first is not None:
                begins.setdefault(buffer.first, []).append(buffer)
                ends.setdefault(max(buffer.last, buffer.first), []).append(buffer)
        for number in range(-1, len(self._operations)):
            for buffer in begins.get(number, ()):
                size = -(-buffer.n // LANE) * LANE
                fitting = [hole for hole in free if hole[1] >= size]
                if fitting:
                    offset, whole = min(fitting, key=lambda hole: hole[1])
                    free.remove((offset, whole))
                    if whole > size:
                        free.append((offset + size, whole - size))
                else:
                    offset, end = end, end + size
                buffer.offset = offset
            for buffer in ends.get(number, ()):
                free.append((buffer.offset, -(-buffer.n // LANE) * LANE))
            free.sort()
            joined: list[tuple[int, int]] = []
            for offset, size in free:
                if joined and sum(joined[-1]) == offset:
                    joined[-1] = joined[-1][0], joined[-1][1] + size
                else:
                    joined.append((offset, size))
            free = joined
        return max(end, LANE)

    def tables(self) -> tuple[Any, Any]:
        """Return the operations as `Program` takes them, after `plan`."""
        words = np.zeros((len(self._operations), 1 + WORDS), np.int64)
        numbers = np.zeros((len(self._operations), 2))
        for row, (code, arguments, values) in enumerate(self._operations):
            flat: list[int] = [CODES.index(code)]
            for argument in arguments:
                if argument is None:
                    flat += [-1, 0]
                elif not isinstance(argument, Place):
                    flat.append(argument)
                elif isinstance(argument.holder, Buffer):
                    flat += [0, argument.holder.offset + argument.offset]
                else:
                    flat += [argument.holder, argument.offset]
            words[row, : len(flat)] = flat
            numbers[row, : len(values)] = values
        return words, numbers

    def _emit(self, code: str, *arguments: Any, numbers: tuple[float, ...] = ()) -> None:
        for argument in arguments:
            if isinstance(argument, Place) and isinstance(argument.holder, Buffer):
                buffer, now = argument.holder, len(self._operations)
                if buffer.first is None:
                    buffer.first = now
                buffer.last = max(buffer.last, now)
        self._operations.append((code, list(arguments), numbers))

    def _new(self, shape: Sequence[int]) -> Place:
        """Return the place of a new contiguous tensor."""
        buffer = Buffer(math.prod(shape))
        self.buffers.append(buffer)
        return Place(buffer, 0, tuple(shape), contiguous_strides(shape))

    def _result(self, node: Node) -> Place:
        """Return the place of what an operation returns, which lies there as in torch."""
        value = node.meta["val"]
        if not value.is_contiguous() or not value.numel():
            raise UntranslatableError(f"{node.target} returns a tensor that is not contiguous")
        if node in self._parts:
            cat, offset = self._parts[node]
            if cat not in self._places:
                self._places[cat] = self._new(cat.meta["val"].shape)
            holder = self._places[cat].holder
            place = Place(holder, offset, tuple(value.shape), contiguous_strides(value.shape))
        elif node in self._wanted:  # the columns that are read, side by side
            begin, end = self._wanted[node]
            place = self._new((value.shape[0], end - begin))
            place = replace(place, offset=-begin, shape=tuple(value.shape))
        else:
            place = self._new(value.shape)
        self._places[node] = place
        return place

    # --------------------------------------------------------------------------- looking ahead

    def _find_parts(self, cat: Node) -> None:
        """Note which operations can write their results where a cat along rows wants them."""
        parts, dim = cat.args[0], cat.args[1] if len(cat.args) > 1 else 0
        if dim != 0 or cat.kwargs or not cat.meta["val"].is_contiguous():
            return
        offset = 0
        for part in parts:
            root, value = part, part.meta["val"]
            while (source := _viewed(root)) is not None:
                root = source
            whole = root.meta.get("val")
            if (
                root.op == "call_function"
                and whole is not None
                and whole.dtype == torch.float32
                and root not in self._parts
                and root.target is not aten.cat.default
                and whole.numel() == value.numel()
                and whole.is_contiguous()
                and value.is_contiguous()
            ):
                self._parts[root] = cat, offset
            offset += value.numel()

    def _find_wanted(self, node: Node) -> None:
        """Note which columns of a product, or of a sum of products, its users read."""
        if node.target not in (aten.mm.default, aten.add.Tensor) or not node.users:
            return
        value, found = node.meta["val"], []
        for user in node.users:
            if user.target is aten.slice.Tensor and len(user.args) == 4 and user.args[1] == 1:
                if not user.meta["val"].numel() or any(_viewed(r) is user for r in user.users):
                    return
                found.append((user.args[2], min(user.args[3], value.shape[1])))
            elif (
                user.target is aten.add.Tensor
                and user in self._wanted
                and user.meta["val"].shape == value.shape
            ):
                found.append(self._wanted[user])
            else:
                return
        begins, ends = zip(*found, strict=True)
        if value.dim() == 2 and min(begins) >= 0 and min(ends) > 0:
            self._wanted[node] = min(begins), max(ends)

    # --------------------------------------------------------------------------- node by node

    def _translate(self, node: Node) -> None:
        value = node.meta.get("val")
        if node.target is operator.getitem and node in self._places:
            return  # its operation has put it there
        if node.op == "placeholder":
            number = len([known for known in self._places if known.op == "placeholder"])
            self._places[node] = self._widened(_outside(1 + number, value))
        elif node.op == "get_attr":
            tensor = attrgetter(node.target)(self.graph)
            self.constants.append(tensor)
            place = _outside(self.n_inputs + len(self.constants), tensor)
            self._places[node] = self._widened(place)
        elif node.op == "output":
            self._return(node)
        elif _is_fixed(node, self._fixed):
            self._fixed.add(node)
        elif (source := _viewed(node)) is not None:
            if source in self._fixed:
                raise UntranslatableError("a view of a constant in another way")
            self._view(node, source)
        elif node.target in OPERATIONS:
            is_known = value is None or value.dtype in (torch.float32, torch.bool)
            if not is_known and node.target not in OF_OTHERS:
                raise UntranslatableError(f"{node.target} returns {value.dtype}")
            OPERATIONS[node.target](self, node)
        elif value is not None or node.target._schema.is_mutable:
            raise UntranslatableError(f"{node.target} is not known")

    def _widened(self, place: Place) -> Place:
        """Return where bytes from outside are as float32 numbers; other places as they are."""
        return self.rounded(place) if place.dtype in BYTES else place

    def rounded(self, place: Place) -> Place:
        """Return where numbers from outside are as float32, rounded if they must be."""
        if place.dtype == torch.float32:
            return place
        if not place.is_contiguous:
            raise UntranslatableError(f"{place.dtype} that are not contiguous")
        if place not in self._copies:
            floats = self._copies[place] = self._new(place.shape)
            self._emit("widen", place, floats, place.n, OTHERS.index(place.dtype))
            assert isinstance(floats.holder, Buffer)
            self._shared.add(floats.holder)
        return self._copies[place]

    def _view(self, node: Node, source: Node) -> None:
        if source not in self._places:
            raise UntranslatableError("a view of what is computed later")
        place, value = self._places[source], node.meta["val"]
        if source in self._wanted:
            begin = node.args[2]
            self._places[node] = place.columns(begin, begin + value.shape[1])
            return
        seen = source.meta["val"]
        for size, here, there in zip(seen.shape, place.strides, seen.stride(), strict=True):
            if size != 1 and here != there:
                raise UntranslatableError("a view of what lies otherwise than in torch")
        offset = place.offset + value.storage_offset() - seen.storage_offset()
        self._places[node] = replace(
            place, offset=offset, shape=tuple(value.shape), strides=tuple(value.stride())
        )

    def _return(self, node: Node) -> None:
        for result in node.args[0]:
            place = self._place(result)
            if not isinstance(place.holder, Buffer) or result.meta["val"].dtype != torch.float32:
                raise UntranslatableError("a result that is an input, or no float32")
            place.holder.last = math.inf
            self.outputs.append(place)

    def _place(self, node: Any) -> Place:
        """Return where a node's value is."""
        if node in self._fixed and node not in self._places:
            value = node.meta["val"]
            if value.dtype not in (torch.float32, torch.bool, torch.int64):
                raise UntranslatableError(f"a constant is {value.dtype}")
            if value.dtype == torch.int64 and (value.abs() > LARGEST_WHOLE).any():
                raise UntranslatableError("a constant is too large")
            place = self._new(value.shape)
            assert isinstance(place.holder, Buffer)
            place.holder.value = value.detach().float().clone()
            place.holder.first, place.holder.last = -1, math.inf
            self._places[node] = place
        if node not in self._places:
            raise UntranslatableError("a value that is computed later, or never")
        return self._places[node]

    def _floats(self, node: Any) -> Place:
        """Return where a node's numbers are, which must be float32; or a place, as it is."""
        place = node if isinstance(node, Place) else self._place(node)
        if place.dtype != torch.float32:
            raise UntranslatableError(f"{place.dtype} are counted with")
        return place

    def whole(self, node: Any) -> Place:
        """Return where numbers of parts are: float32, or int64 from outside."""
        place = self._place(node)
        if place.dtype not in (torch.float32, torch.int64):
            raise UntranslatableError(f"parts by numbers that are {place.dtype}")
        return place

    def are_whole(self, numbers: Node, constant: Node) -> bool:
        """Return whether both are whole numbers, and the constant's are those of float32 alone."""
        return (
            self._place(numbers).dtype in WHOLE
            and constant in self._fixed
            and not constant.meta["val"].is_floating_point()
            and bool((constant.meta["val"].abs() < LARGEST_WHOLE).all())
        )

    def _dense(self, place: Place) -> Place:
        """Return a contiguous copy of a tensor, or its place if it is contiguous."""
        if place.is_contiguous:
            return place
        if place not in self._copies:
            self._copies[place] = self._new(place.shape)
            self._copy(place, self._copies[place])
        return self._copies[place]

    def _copy(self, source: Place, to: Place) -> None:
        """Copy a tensor to one of the same shape."""
        axes = [
            axis for axis in zip(to.shape, source.strides, to.strides, strict=True) if axis[0] != 1
        ]
        merged: list[tuple[int, int, int]] = []
        for size, from_step, to_step in axes:
            if merged and merged[-1][1:] == (from_step * size, to_step * size):
                merged[-1] = (merged[-1][0] * size, from_step, to_step)
            else:
                merged.append((size, from_step, to_step))
        if len(merged) > 4:
            raise UntranslatableError("a tensor has more than four axes")
        shape, from_steps, to_steps = zip(*([(1, 0, 0)] * 4 + merged)[-4:], strict=True)
        self._emit("copy", source, to, *shape, *from_steps, *to_steps)

    def _operand(self, argument: Any, shape: Sequence[int]) -> tuple[Place, int]:
        """Return the place of an operand and the step from one number to the next: 1 or 0."""
        place = self._floats(argument)
        if place.n == 1:
            return place, 0
        return self._dense(place.expanded(shape)), 1

    def elementwise(
        self, code: str, node: Node, *operands: Any, numbers: tuple[float, ...] = ()
    ) -> None:
        """Compute each number of a result by those at the same place of the operands."""
        shape = node.meta["val"].shape
        if node in self._wanted:
            wanted = self._wanted[node]
            places = [self._floats(each).expanded(shape).columns(*wanted) for each in operands]
            pairs = [(self._dense(place), 1) for place in places]
            to = self._result(node).columns(*wanted)
        else:
            pairs = [self._operand(each, shape) for each in operands]
            to = self._result(node)
        words: list[Any] = []
        for number in range(3):
            words += pairs[number] if number < len(pairs) else [None, 0]
        self._emit(code, to, to.n, *words, numbers=numbers)

    def product(
        self,
        a: Place,
        b: Place,
        to: Place,
        bias: Place | None = None,
        mask: Place | None = None,
        relu: bool = False,
        of_rows: bool = False,
        turned: bool = False,
    ) -> None:
        """Multiply two matrices, add a bias to each row or column, and apply relu or a mask.

        B has to lie in rows, or is brought in order, which takes as long as some products. So the
        transposed matrices are multiplied instead where A is the lesser one, and fills whole
        vectors or B is large: each number is the sum of the same products, in the same order.
        ``turned`` says that they are these.
        """
        (m, k), n = a.shape, b.shape[1]
        (a_row, a_column), (b_row, b_column) = a.strides, b.strides
        if n <= FEW and a_column == 1 and b_row == 1 and k > 1 and mask is None and not of_rows:
            b_row = b_column  # the rows of the transposed matrix
            words = [a, a_row, a_column, b, b_row, to, to.strides[0], bias, mask, 0, int(relu)]
            self._emit("dots", *words, m, n, k, None)
            return
        if (
            mask is None
            and not turned
            and (
                n * _padded(m) < 0.8 * m * _padded(n)
                or (
                    b_row == 1
                    and (m % LANE == 0 or n * k >= LARGE)
                    and _padded(m) * (k + n) < n * k
                )
            )
        ):
            other = self._new((n, m))
            self.product(b.transposed(), a.transposed(), other, bias, None, relu, not of_rows, True)
            self._copy(other.transposed(), to)
            return
        if b_column == 1 and b_row > 0 and n % LANE == 0 and (n <= PANEL or m <= 2 * LANE):
            step = b_row
        else:
            b, step = self._packed(b), 0
        words = [a, a_row, a_column, b, step, to, to.strides[0], bias]
        words += [mask, 0 if mask is None else mask.strides[0], int(relu)]
        leaves_out = mask is not None and a_column == 1 and k >= LANE
        spare = self._new((m * k + m,)) if leaves_out else None
        self._emit("product", *words, m, n, k, spare, int(of_rows and bias is not None))

    def _packed(self, b: Place) -> Place:
        key = "packed", b
        if key not in self._copies:
            k, n = b.shape
            self._copies[key] = self._new((k * _padded(n),))
            self._emit("pack", b, self._copies[key], 1, 1, k, n, 0, 0, *b.strides)
        return self._copies[key]

    def convolution(
        self,
        code: str,
        images: Sequence[int],
        windows: Sequence[int],
        steps: Sequence[int],
        one: Place,
        two: Place,
        bias: Place | None,
        to: Place,
        relu: int = 0,
    ) -> None:
        """Compute a convolution of images [B, C, H, W] with windows [O, C, h, w], or a gradient."""
        batch, channels, *sizes = images
        outputs, seen, *window = windows
        if len(sizes) != 2 or len(window) != 2 or seen != channels:
            raise UntranslatableError("a convolution over other than two axes")
        rows, columns = ((sizes[i] - window[i]) // steps[i] + 1 for i in range(2))
        n_places, n_weights = rows * columns, math.prod(windows[1:])
        tables, image = n_places + n_weights, math.prod(images[1:])
        once, for_each_thread, parts = {  # see kernels.hpp
            "convolve": (tables + n_weights * _padded(outputs), n_places * outputs, batch),
            "convolve_weights": (
                tables + n_weights * outputs,
                n_places * _padded(outputs),
                n_weights // ROWS_OF_THREAD,
            ),
            "convolve_inputs": (
                outputs * _padded(n_weights),
                image + max(outputs, n_places) * n_weights,
                batch,
            ),
        }[code]
        is_much = batch * n_places * n_weights * outputs >= MUCH
        n_threads = max(1, min(self.n_threads, parts)) if is_much else 1
        spare = self._new((once + n_threads * for_each_thread,))
        words = one, two, bias, to, spare, batch, channels, *sizes
        self._emit(code, *words, outputs, *window, *steps, relu, n_threads)

    def matrix(self, node: Any) -> Place:
        """Return the place of a matrix."""
        place = self._floats(node)
        if len(place.shape) != 2 or not place.n:
            raise UntranslatableError("a product of what are no matrices")
        return place

    def reduce(self, code: str, node: Node, place: Place, dims: Sequence[int]) -> None:
        """Reduce a tensor over some axes side by side."""
        place, n_dims = self._dense(place), len(place.shape)
        axes = sorted(dim % n_dims for dim in dims) or list(range(n_dims))
        if axes != list(range(axes[0], axes[-1] + 1)):
            raise UntranslatableError("a reduction over axes that are not side by side")
        inner = math.prod(place.shape[axes[-1] + 1 :])
        n = math.prod(place.shape[axes[0] : axes[-1] + 1])
        outer = math.prod(place.shape[: axes[0]])
        self._emit(code, place, self._result(node), outer, n, inner)

    def rows(
        self, code: str, node: Node, place: Place, other: Place | None = None, flag: int = 0
    ) -> None:
        """Compute something of each row of a tensor, along its last axis."""
        place = self._dense(place)
        other = None if other is None else self._dense(other)
        width = place.shape[-1]
        self._emit(code, place, other, self._result(node), place.n // width, width, flag)

    def choose(self, code: str, rows: Place, parts: Place, index: Place, wraps: bool) -> None:
        """Take one part of each row, or add to it: rows [B, count, ...], parts [B, ...]."""
        inner = replace(rows, shape=rows.shape[2:], strides=rows.strides[2:])
        if not inner.is_contiguous or not parts.is_contiguous or len(rows.shape) < 2:
            raise UntranslatableError("parts of rows that are not contiguous")
        words = rows, parts, index, rows.shape[0], rows.shape[1], inner.n, *rows.strides[:2]
        self._emit(code, *words, index.strides[0], int(index.dtype == torch.int64), int(wraps))

    def index_of_rows(self, index: Any, n_rows: int) -> Place:
        """Return the place of an index of parts, given together with the number of each row."""
        if not isinstance(index, (list, tuple)) or len(index) != 2 or None in index:
            raise UntranslatableError("an index in another form")
        rows, parts = index
        if rows not in self._fixed or not torch.equal(rows.meta["val"], torch.arange(n_rows)):
            raise UntranslatableError("an index of other rows")
        place = self.whole(parts)
        if place.shape != (n_rows,):
            raise UntranslatableError("an index in another form")
        return place

    def forget_copies(self) -> None:
        """Take it that what was copied may have changed."""
        self._copies.clear()


def _padded(n: int) -> int:
    return -(-n // LANE) * LANE


def _outside(number: int, tensor: Tensor) -> Place:
    """Return the place of a tensor that comes from outside."""
    is_known = tensor.dtype in (torch.float32, *OTHERS)
    if not is_known or tensor.layout != torch.strided or not tensor.is_cpu:
        raise UntranslatableError(f"a tensor is {tensor.dtype} on {tensor.device}")
    if tensor.is_conj() or tensor.is_neg() or not tensor.numel():
        raise UntranslatableError("a tensor is empty or a lazy view")
    return Place(number, 0, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def _viewed(node: Node) -> Node:
    """Return the node of whose memory another one is a view, or None."""
    value = node.meta.get("val")
    if node.op != "call_function" or value is None:
        return None
    source: Any = node.args[0] if node.target is operator.getitem else node
    is_call = isinstance(source, torch.fx.Node) and source.op == "call_function"
    if not is_call or source.target._schema.is_mutable:
        return None
    for parent in source.all_input_nodes:
        seen = parent.meta.get("val")
        if seen is not None and _storage(seen) == _storage(value):
            return parent if seen.dtype == value.dtype else None
    return None


def _storage(tensor: Tensor) -> int:
    storage: Any = tensor.untyped_storage()
    return int(storage._cdata)


def _is_fixed(node: Node, fixed: set[Node]) -> bool:
    """Return whether an operation returns the same at every call, and nothing changes it."""
    if node.op != "call_function" or node.meta.get("val") is None:
        return False
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags or node.target is operator.getitem:
        return False
    if node.target._schema.is_mutable:
        return False
    return node.target in OF_SHAPES or all(parent in fixed for parent in node.all_input_nodes)


# --------------------------------------------------------------------------------- the operations

Rule = Callable[..., None]
OPERATIONS: dict[Any, Rule] = {}
# Whose results may have other dtypes than float32 and bool: whole numbers up to the size of a
# tensor, which a float32 holds, and bytes, which are held as float32.
OF_OTHERS = {aten.argmax.default, aten.sum.dim_IntList, aten.cat.default}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register how some of torch's operations are translated."""

    def register(function: Rule) -> Rule:
        OPERATIONS.update(dict.fromkeys(targets, function))
        return function

    return register


def arguments(node: Node, *defaults: Any) -> list[Any]:
    """Return a node's arguments; those that it leaves out are the last of the defaults."""
    if node.kwargs:
        raise UntranslatableError(f"{node.target} with {', '.join(node.kwargs)}")
    given = list(node.args)
    return given + list(defaults)[len(given) :]


def same(node: Node, found: Sequence[Any], known: Sequence[Any]) -> None:
    """Refuse an operation whose options are not the ones known here."""
    if list(found) != list(known):
        raise UntranslatableError(f"{node.target} with {found}")


UNARY = {
    aten.neg.default: "negate",
    aten.abs.default: "magnitude",
    aten.reciprocal.default: "reciprocal",
    aten.exp.default: "exponential",
    aten.log.default: "logarithm",
    aten.tanh.default: "tangent",
}
BINARY = {
    aten.add.Tensor: ("add", "add_number"),
    aten.sub.Tensor: ("subtract", None),
    aten.mul.Tensor: ("multiply", "multiply_number"),
    aten.div.Tensor: ("divide", "divide_number"),
    aten.div.Scalar: (None, "divide_number"),
    aten.mul.Scalar: (None, "multiply_number"),
    aten.add.Scalar: (None, "add_number"),
    aten.eq.Tensor: ("equal", None),
    aten.ge.Scalar: (None, "not_below_number"),
    aten.le.Scalar: (None, "not_above_number"),
}


COMPARISONS = {aten.eq.Tensor, aten.ge.Scalar, aten.le.Scalar}


@rule(*UNARY)
def _unary(t: Translation, node: Node) -> None:
    t.elementwise(UNARY[node.target], node, *arguments(node))


@rule(*BINARY)
def _binary(t: Translation, node: Node) -> None:
    left, right = arguments(node)
    code, with_number = BINARY[node.target]
    is_bool, compares = node.meta["val"].dtype == torch.bool, node.target in COMPARISONS
    same(node, [is_bool], [compares])
    if not isinstance(left, torch.fx.Node):
        raise UntranslatableError(f"{node.target} of a number")
    if compares and left.meta["val"].dtype == torch.uint8:
        raise UntranslatableError("bytes are compared with what torch makes a byte first")
    if isinstance(right, torch.fx.Node) and code:
        if node.target is aten.eq.Tensor and t.are_whole(left, right):
            left = t.rounded(t._place(left))
        t.elementwise(code, node, left, right)
    elif node.target is aten.sub.Tensor and not isinstance(right, torch.fx.Node):
        t.elementwise("add_number", node, left, numbers=(-right,))
    elif with_number and not isinstance(right, torch.fx.Node):
        t.elementwise(with_number, node, left, numbers=(right,))
    else:
        raise UntranslatableError(f"{node.target} of such arguments")


@rule(aten.rsub.Scalar)
def _number_minus(t: Translation, node: Node) -> None:
    x, number = arguments(node)
    t.elementwise("number_minus", node, x, numbers=(number,))


@rule(aten.pow.Tensor_Scalar)
def _power(t: Translation, node: Node) -> None:
    x, exponent = arguments(node)
    same(node, [exponent], [2])
    t.elementwise("square", node, x)


@rule(aten.clamp.default)
def _clamp(t: Translation, node: Node) -> None:
    x, low, high = arguments(node, None, None, None)
    if low is None:
        t.elementwise("at_most", node, x, numbers=(high,))
    elif high is None:
        t.elementwise("at_least", node, x, numbers=(low,))
    else:
        t.elementwise("between", node, x, numbers=(low, high))


@rule(aten.softplus.default)
def _softplus(t: Translation, node: Node) -> None:
    x, *options = arguments(node, None, 1, 20)
    same(node, options, [1, 20])
    t.elementwise("softplus", node, x)


@rule(aten.softplus_backward.default)
def _softplus_gradient(t: Translation, node: Node) -> None:
    gradient, x, *options = arguments(node)
    same(node, options, [1, 20])
    t.elementwise("softplus_gradient", node, gradient, x)


@rule(aten.tanh_backward.default)
def _tangent_gradient(t: Translation, node: Node) -> None:
    t.elementwise("tangent_gradient", node, *arguments(node))


@rule(aten.mse_loss_backward.default)
def _squared_error_gradient(t: Translation, node: Node) -> None:
    *operands, reduction = arguments(node)
    share = _share(node, operands, reduction)
    t.elementwise("squared_error_gradient", node, *operands, numbers=(2 * share,))


@rule(aten.huber_loss_backward.default)
def _huber_gradient(t: Translation, node: Node) -> None:
    *operands, reduction, delta = arguments(node)
    share = _share(node, operands, reduction)
    t.elementwise("huber_gradient", node, *operands, numbers=(delta, share))


def _share(node: Node, operands: Any, reduction: int) -> float:
    """Return which share of a loss's gradient each number of it has."""
    same(node, [reduction in (0, 1, 2)], [True])
    return 1 / operands[1].meta["val"].numel() if reduction == 1 else 1.0


@rule(aten.where.self)
def _where(t: Translation, node: Node) -> None:
    t.elementwise("where", node, *arguments(node))


@rule(aten.logical_and_.default)
def _logical_and(t: Translation, node: Node) -> None:
    first, second = arguments(node)
    place = t._floats(first)
    other, step = t._operand(second, place.shape)
    if first.meta["val"].dtype != torch.bool or second.meta["val"].dtype != torch.bool:
        raise UntranslatableError("a logical operation on numbers")
    is_own = isinstance(place.holder, Buffer) and place.holder not in t._shared
    if not place.is_contiguous or not is_own or first in t._fixed:
        raise UntranslatableError("a tensor of this kind is changed in place")
    t.forget_copies()
    t._emit("multiply", place, place.n, place, 1, other, step, None, 0)
    t._places[node] = place


@rule(aten.relu.default)
def _relu(t: Translation, node: Node) -> None:
    (x,) = arguments(node)
    if x.target in WITH_RELU and len(x.users) == 1:
        WITH_RELU[x.target](t, x, node)
    else:
        t.elementwise("relu", node, x)


@rule(aten.threshold_backward.default)
def _threshold_gradient(t: Translation, node: Node) -> None:
    gradient, x, threshold = arguments(node)
    mask = t._dense(t._floats(x))
    if _is_masked(gradient):
        a, b = map(t.matrix, gradient.args)
        t.product(a, b, t._result(node), mask=mask)
    else:
        t.elementwise("threshold_gradient", node, gradient, x, numbers=(threshold,))


def _is_masked(node: Node) -> bool:
    """Return whether a product is used as the gradient of relu and in no other way."""
    (user, *others) = node.users
    return (
        node.target is aten.mm.default
        and not others
        and user.target is aten.threshold_backward.default
        and user.args[0] is node
        and user.args[2] == 0
    )


def _waits_for_relu(node: Node, relu: Node) -> bool:
    """Return whether an operation is computed when the relu comes that alone uses it."""
    (user, *others) = node.users
    return relu is None and not others and user.target is aten.relu.default


@rule(aten.linear.default)
def _linear(t: Translation, node: Node, relu: Node = None) -> None:
    if _waits_for_relu(node, relu):
        return
    inputs, weight, bias = arguments(node, None, None, None)
    a, b = t.matrix(inputs), t.matrix(weight).transposed()
    place = None if bias is None else t._dense(t._floats(bias).expanded((b.shape[1],)))
    t.product(a, b, t._result(relu or node), bias=place, relu=relu is not None)


@rule(aten.convolution.default)
def _convolution(t: Translation, node: Node, relu: Node = None) -> None:
    if _waits_for_relu(node, relu):
        return
    images, windows, bias, steps, *others = arguments(node)
    same(node, others, PLAIN_CONVOLUTION)
    one, two = (t._dense(t._floats(each)) for each in (images, windows))
    added = None if bias is None else t._dense(t._floats(bias))
    to = t._result(relu or node)
    t.convolution(
        "convolve", one.shape, two.shape, steps, one, two, added, to, int(relu is not None)
    )


@rule(aten.convolution_backward.default)
def _convolution_gradient(t: Translation, node: Node) -> None:
    gradient, images, windows, _, steps, *others, _ = arguments(node)
    same(node, others, PLAIN_CONVOLUTION)
    parts = {user.args[1]: user for user in node.users}  # which of the three gradients are wanted
    shapes = t._floats(images).shape, t._floats(windows).shape
    one = t._dense(t._floats(gradient))
    if 0 in parts:
        two = t._dense(t._floats(windows))
        t.convolution("convolve_inputs", *shapes, steps, one, two, None, t._result(parts[0]))
    if 1 in parts or 2 in parts:
        two = t._dense(t._floats(images))
        to = t._result(parts[1]) if 1 in parts else t._new(shapes[1])
        bias = t._result(parts[2]) if 2 in parts else None
        t.convolution("convolve_weights", *shapes, steps, one, two, bias, to)


@rule(aten._to_copy.default)
def _to_float(t: Translation, node: Node) -> None:
    (x,), options = node.args, node.kwargs
    value, dtype, place = node.meta["val"], x.meta["val"].dtype, t._place(x)
    is_known = dtype in (*BYTES, place.dtype)  # where bytes are float32 already
    same(node, [set(options), value.dtype, is_known], [{"dtype"}, torch.float32, True])
    place = t.rounded(place)
    if not place.is_contiguous or not value.is_contiguous() or not isinstance(place.holder, Buffer):
        t._copy(place, t._result(node))
        return
    t._places[node] = place
    t._shared.add(place.holder)


WITH_RELU: dict[Any, Rule] = {aten.linear.default: _linear, aten.convolution.default: _convolution}
# padding, dilation, is it transposed, output padding, groups
PLAIN_CONVOLUTION = [[0, 0], [1, 1], False, [0, 0], 1]


@rule(aten.mm.default)
def _product(t: Translation, node: Node) -> None:
    if _is_masked(node):
        return  # computed with the gradient of relu
    a, b = map(t.matrix, arguments(node))
    to = t._result(node)
    if node in t._wanted:
        b, to = b.columns(*t._wanted[node]), to.columns(*t._wanted[node])
    t.product(a, b, to)


@rule(aten.bmm.default)
def _batch_product(t: Translation, node: Node) -> None:
    a, b = map(t._floats, arguments(node))
    (batch, m, k), n = a.shape, b.shape[2]
    t._emit("batch_product", a, *a.strides, b, *b.strides, t._result(node), batch, m, n, k)


@rule(aten.cat.default)
def _cat(t: Translation, node: Node) -> None:
    parts, dim = arguments(node, None, 0)
    to = t._places.get(node) or t._result(node)
    begin = 0
    for part in parts:
        place, strides = t._floats(part), to.strides
        offset = to.offset + begin * strides[dim % len(strides)]
        there = replace(to, offset=offset, shape=place.shape)
        if place != there:
            t._copy(place, there)
        begin += place.shape[dim]


REDUCTIONS = {
    aten.sum.dim_IntList: "sum",
    aten.mean.dim: "mean",
    aten.amin.default: "least",
    aten.amax.default: "greatest",
}


@rule(*REDUCTIONS)
def _reduce(t: Translation, node: Node) -> None:
    x, dims, _ = arguments(node, None, (), False)
    if x.meta["val"].dtype not in (torch.float32, torch.bool):
        raise UntranslatableError("a reduction of integers")
    t.reduce(REDUCTIONS[node.target], node, t._floats(x), dims)


@rule(aten.linalg_vector_norm.default)
def _norm(t: Translation, node: Node) -> None:
    (x,) = arguments(node)
    place = t._dense(t._floats(x))
    t.rows("norm", node, replace(place, shape=(place.n,), strides=(1,)))


@rule(aten.argmax.default)
def _greatest_of_rows(t: Translation, node: Node) -> None:
    x, dim, _ = arguments(node, None, None, False)
    place = t._floats(x)
    same(node, [dim in (-1, len(place.shape) - 1)], [True])
    t.rows("greatest_of_rows", node, place)


@rule(aten._softmax.default, aten._log_softmax.default)
def _softmax(t: Translation, node: Node) -> None:
    x, dim, half = arguments(node)
    place = t._floats(x)
    same(node, [dim in (-1, len(place.shape) - 1), half], [True, False])
    t.rows("softmax", node, place, flag=int(node.target is aten._log_softmax.default))


@rule(aten._log_softmax_backward_data.default)
def _softmax_gradient(t: Translation, node: Node) -> None:
    gradient, outcome, dim, dtype = arguments(node)
    place = t._floats(gradient)
    same(node, [dim in (-1, len(place.shape) - 1), dtype], [True, torch.float32])
    t.rows("softmax_gradient", node, place, t._floats(outcome))


@rule(aten.gather.default)
def _gather(t: Translation, node: Node) -> None:
    x, dim, index = arguments(node)
    rows, chosen = t.matrix(x), t.whole(index)
    same(node, [dim, chosen.shape], [1, (rows.shape[0], 1)])
    t.choose("select", rows, t._result(node), chosen, wraps=False)


@rule(aten.scatter_add.default)
def _scatter_add(t: Translation, node: Node) -> None:
    x, dim, index, source = arguments(node)
    chosen, parts = t.whole(index), t._floats(source)
    rows = t._result(node)
    column = (rows.shape[0], 1)
    same(node, [dim, chosen.shape, parts.shape], [1, column, column])
    t._copy(t.matrix(x), rows)
    t.choose("put", rows, t._dense(parts), chosen, wraps=False)


@rule(aten.index.Tensor)
def _index(t: Translation, node: Node) -> None:
    x, index = arguments(node)
    rows = t._floats(x)
    t.choose("select", rows, t._result(node), t.index_of_rows(index, rows.shape[0]), wraps=True)


@rule(aten.index_put.default)
def _index_put(t: Translation, node: Node) -> None:
    x, index, source, adds = arguments(node, None, None, None, False)
    same(node, [adds], [True])
    place, parts = t._floats(x), t._floats(source)
    chosen, rows = t.index_of_rows(index, place.shape[0]), t._result(node)
    same(node, [parts.shape], [(rows.shape[0], *rows.shape[2:])])
    t._copy(place, rows)
    t.choose("put", rows, t._dense(parts), chosen, wraps=True)
