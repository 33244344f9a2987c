"""Functions of tensors, recorded once and then run without Python and without autograd.

On a CPU a recording becomes a native program, or TorchScript's interpreter runs it if it has what
native programs do not know. On a GPU it is one CUDA graph.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .captured import Captured
from .operations import graph_of, is_recording
from .tape import extent
from .translation import NativeProgram, translated

__all__ = ["Function", "Recorded", "recorded"]

Function = Callable[..., tuple[Tensor, ...]]
MAX_PROGRAMS = 32  # of one function, for inputs of as many shapes; the oldest goes
TRIES = 3  # of a new program
RECORDING = threading.Lock()  # torch's tracers keep their state in globals


class Recorded:
    """A function that is recorded at its first call, and replayed at all later ones.

    Inputs of other shapes, strides or dtypes are recorded anew.

    Parameters
    ----------
    function : function of tensors, or dicts of them, to a tuple of tensors
        Whatever does not depend on its arguments through torch's operations is as it was when it
        was recorded. Other tensors, such as parameters, are taken as they are when it is replayed,
        if they are changed in place.

    Raises
    ------
    RuntimeError
        At the first call, if the function asks for a value that its arguments or parameters
        determine, as ``if`` and ``item`` do, or selects as many rows as some condition holds for:
        the recording could not ask again. Also if it calls what is recorded itself, and on a GPU
        if it uses tensors of another device.

    Notes
    -----
    The same operations on the same numbers give the same results: to within rounding by a native
    program, and bit for bit otherwise, but for ``torch.addmm`` onto a matrix, which TorchScript
    rounds once more. The tensors that are returned are for use under ``torch.inference_mode``;
    outside, clone them, and also if they are to outlast the next call. One thread at a time may
    call it, but any number may ask for ``arrays``.

    At the first call the function is carried out up to three times, so it should change nothing
    besides what it returns. Values that it takes out of torch, as by ``numpy`` or ``tolist``, stay
    as they were then.
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        self.programs: dict[tuple[Any, ...], Function] = {}
        self._lock = threading.Lock()
        EVERY.add(self)

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        check_is_seen()
        tensors = leaves(inputs)
        device = tensors[0].device.type
        casts = torch.is_autocast_enabled(device)
        kind = casts and torch.get_autocast_dtype(device), kind_of(tensors)
        program = self.programs.get(kind)
        if program is None:
            with RECORDING:
                program = self._record(inputs, tensors)
                while len(self.programs) >= MAX_PROGRAMS:
                    del self.programs[next(iter(self.programs))]
                self.programs[kind] = program
        if isinstance(program, NativeProgram):
            return program(*tensors)
        # an operation takes a fifth longer with the bookkeeping of no_grad
        with torch.inference_mode(), without_autocast(device) if casts else nullcontext():
            return program(*tensors)

    def arrays(self, *inputs: Any) -> tuple[npt.NDArray[Any], ...]:
        """Return what a call does, as arrays of their own. Threads wait for each other."""
        check_is_seen()
        with self._lock:
            return tuple(np.array(result.cpu().numpy()) for result in self(*inputs))

    def __getstate__(self) -> Function:
        return self.function  # a copy of a program would go on reading the original's parameters

    def __setstate__(self, function: Function) -> None:
        self.__init__(function)  # type: ignore[misc]

    def _record(self, inputs: tuple[Any, ...], tensors: list[Tensor]) -> Function:
        """Return the function as a program of the leaves of such inputs."""

        def flat_function(*flat: Tensor) -> tuple[Tensor, ...]:
            rest = iter(flat)
            return self.function(
                *(
                    {key: next(rest) for key in sorted(value)}
                    if isinstance(value, dict)
                    else next(rest)
                    for value in inputs
                )
            )

        graph = graph_of(flat_function, tensors)
        for node in graph.graph.nodes:
            if has_unknown_shape(node):
                raise RuntimeError(
                    f"{node.target} returns as many rows as the values of tensors say, which "
                    "cannot be recorded: keep all rows and mask them, for instance with torch.where"
                )
            if node.target is torch.ops.aten.addmm.default and not node.kwargs:
                as_linear(node)
            if node.target is torch.ops.aten.ones_like.default:
                as_ones(node)
        graph.graph.eliminate_dead_code()
        graph.recompile()
        device = tensors[0].device.type
        with without_autocast(device):
            program = PROGRAMS[device](graph, tensors)
        for node in graph.graph.nodes:
            node.meta.clear()  # all that was computed, in cycles that are seldom collected
        return program


EVERY: weakref.WeakSet[Recorded] = weakref.WeakSet()


def free_locks() -> None:
    """Free what threads of a parent held: a forked child has none of them."""
    global RECORDING
    RECORDING = threading.Lock()
    for each in EVERY:
        each._lock = threading.Lock()


os.register_at_fork(after_in_child=free_locks)


def check_is_seen() -> None:
    """Raise RuntimeError if a function is being recorded, which would see nothing of another."""
    if is_recording():
        raise RuntimeError(
            "a function that is recorded calls one that is recorded already, whose operations "
            "cannot be seen: call the function that it was made of"
        )


def compiled(graph: Any, tensors: list[Tensor]) -> Function:
    """Return a recorded graph as a native program, or else as one of TorchScript.

    A native program is tried first. One that does not give what the graph gives, but for rounding,
    is wrongly translated, and not used. It is tried again before that: another thread may have
    changed the parameters in between.
    """
    program = translated(graph, tensors)
    if program is None:
        return scripted(graph, tensors)
    trial = trial_inputs(graph, tensors)
    if any(agrees(program, graph, trial) for _ in range(TRIES)):
        return program
    warnings.warn(
        "a function was translated into a native program that gives other results than torch, so "
        "TorchScript runs it instead, more slowly: please report this, with the function",
        RuntimeWarning,
        stacklevel=2,
    )
    return scripted(graph, tensors)


def trial_inputs(graph: Any, tensors: list[Tensor]) -> list[Tensor]:
    """Return inputs of the same kind to try a program on: random numbers, integers as they are.

    A learner's first batch is blank. Of zeros, many gradients are zero whatever the program does,
    or nothing but rounding. Where the graph does not take random numbers, or makes none of them,
    the inputs are as they are.
    """
    generator = torch.Generator().manual_seed(0)
    trial = [random_like(tensor, generator) for tensor in tensors]
    try:
        with torch.no_grad():
            results = graph(*trial)
    except (IndexError, RuntimeError):  # bytes, say, that count rows
        return tensors
    return trial if all(bool(result.isfinite().all()) for result in results) else tensors


def random_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard normal numbers, or bytes, that lie in memory as those of a tensor do."""
    is_byte = tensor.dtype == torch.uint8
    if tensor.is_neg() or not (is_byte or tensor.is_floating_point()):
        return tensor
    n = extent(tensor) // tensor.element_size()
    if is_byte:
        numbers = torch.randint(256, (n,), generator=generator, dtype=torch.uint8)
    else:
        numbers = torch.randn(n, generator=generator, dtype=tensor.dtype)
    return numbers.as_strided(tensor.shape, tensor.stride())


def agrees(program: NativeProgram, graph: Any, tensors: list[Tensor]) -> bool:
    """Return whether a program gives what a graph gives, but for rounding.

    Neither draws random numbers: a graph that does is not translated.
    """
    with torch.no_grad():
        expected = graph(*tensors)
    try:
        found = program(*tensors)
    except IndexError:
        return False
    return all(map(is_near, found, expected))


def is_near(found: Tensor, expected: Tensor) -> bool:
    """Return whether numbers differ by less than a hundredth of the largest finite one."""
    finite = expected.isfinite()
    if found.shape != expected.shape or not torch.equal(finite, found.isfinite()):
        return False
    if not expected.is_floating_point():
        return torch.equal(found, expected)
    one, other = found[finite], expected[finite]
    return not len(one) or bool((one - other).abs().max() <= 0.01 * other.abs().max() + 1e-30)


def scripted(graph: Any, tensors: list[Tensor]) -> Function:
    """Return a recorded graph as a program of TorchScript."""
    program: Function = graph
    if any(is_list_of_bools(argument) for node in graph.graph.nodes for argument in node.args):
        # The gradients of convolutions and norms have them, and torch.jit.trace takes none. Run by
        # Python they are still without autograd, and take so long themselves that it does not
        # matter.
        return program
    with warnings.catch_warnings(), torch.no_grad():
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*torch.jit.*", category=FutureWarning)
        trace: Any = torch.jit.trace
        program = trace(graph, tuple(tensors), check_trace=False)
    return program


PROGRAMS: dict[str, Callable[[Any, list[Tensor]], Function]] = {"cpu": compiled, "cuda": Captured}
"""What makes a recorded graph run, by the device that its tensors are on."""


def recorded(function: Function, device: torch.device) -> Function:
    """Return a function recorded, if there are recordings on the device of its tensors."""
    return Recorded(function) if device.type in PROGRAMS else function


def without_autocast(device: str) -> Any:
    """Return a context in which nothing is cast: a recording has the casts among its operations."""
    return torch.autocast(device, enabled=False)


def has_unknown_shape(node: torch.fx.Node) -> bool:
    """Return whether the shape of what an operation returns depends on values."""
    if torch.Tag.dynamic_output_shape not in getattr(node.target, "tags", ()):
        return False
    if node.target is not torch.ops.aten.index.Tensor:
        return True
    indices: Any = node.args[1]
    return any(
        index is not None and index.meta["val"].dtype in (torch.bool, torch.uint8)
        for index in indices
    )


def as_linear(addmm: torch.fx.Node) -> None:
    """Make a linear of an addmm, which TorchScript would take apart, and so round once more."""
    bias, inputs, matrix = cast("tuple[torch.fx.Node, ...]", addmm.args)
    if bias.meta["val"].dim() != 1:
        return
    if matrix.target is torch.ops.aten.t.default:
        weight = matrix.all_input_nodes[0]
    else:
        with addmm.graph.inserting_before(addmm):
            weight = addmm.graph.call_function(torch.ops.aten.t.default, (matrix,))
    addmm.target, addmm.args = torch.ops.aten.linear.default, (inputs, weight, bias)


def as_ones(ones_like: torch.fx.Node) -> None:
    """Make ones of ones like another tensor, as the loss, whose value nothing else needs."""
    ones = ones_like.meta["val"]
    ones_like.target, ones_like.args = torch.ops.aten.ones.default, (tuple(ones.shape),)
    ones_like.kwargs = {"dtype": ones.dtype, "device": ones.device}


def is_list_of_bools(argument: Any) -> bool:
    """Return whether an argument of an operation is that."""
    return (
        isinstance(argument, (list, tuple))
        and bool(argument)
        and all(isinstance(item, bool) for item in argument)
    )


def kind_of(tensors: list[Tensor]) -> tuple[Any, ...]:
    """Return what recordings depend on."""
    return tuple([(t.shape, t.stride(), t.dtype, t.device, t.is_neg()) for t in tensors])


def leaves(inputs: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors in such inputs, those of dicts in the order of their keys."""
    flat: list[Tensor] = []
    for value in inputs:
        flat += [value[key] for key in sorted(value)] if isinstance(value, dict) else [value]
    return flat
