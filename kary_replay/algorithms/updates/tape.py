"""The native calls of a function of tensors, written down while it runs, and made again later.

A call works on addresses. The tape notes of each whose it is: an input's, which is another tensor
when the calls are made again, or that of memory which stays what it is, such as parameters.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ...native.program import Program
from ...native.program import Sequence as Calls

__all__ = ["Tape", "active"]

aten: Any = torch.ops.aten
LOCAL = threading.local()
CHECK_INTERVAL = 16  # replays; to look where parameters are takes a twentieth of a small one
Address = tuple[int, int]  # the number of a piece of memory, and bytes from its beginning


def active() -> Tape | None:
    """Return the tape of this thread that is being written, if there is one."""
    tape: Tape | None = getattr(LOCAL, "tape", None)
    return tape


class Tape(TorchDispatchMode):
    """What a function does, written down within a ``with`` block, for inputs of one kind.

    Parameters
    ----------
    inputs : list of tensors
        The function's arguments.

    Attributes
    ----------
    is_whole : bool
        False: the function also did something that is not on the tape, so the tape is of no use.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.is_whole = True
        self._inputs = list(inputs)
        self._fixed: list[Tensor] = []  # whose memory stays
        self._calls = Calls()
        self._programs: set[int] = set()  # by the address of their memory
        self._clones: list[tuple[Tensor, Tensor]] = []  # and what they were made of
        self._minimizers: list[Any] = []  # of each step
        self._views: list[tuple[Any, list[Any]]] = []  # of each step's inputs
        self._result: Tensor | None = None
        self._n_replays = 0

    # --------------------------------------------------------------------------------- writing it

    def __enter__(self) -> Tape:
        LOCAL.tape = self
        super().__enter__()
        return self

    def __exit__(self, *how: Any) -> None:
        LOCAL.tape = None
        super().__exit__(*how)

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        result = operation(*arguments, **(keywords or {}))
        if operation is aten.clone.default:
            self._note_clone(result, arguments[0])
        elif not is_view(operation, result, arguments):
            self.is_whole = False
        return result

    def _note_clone(self, clone: Tensor, of: Tensor) -> None:
        """Let a clone stand for what it was made of, if that stays as it is for the rest."""
        source = self._original(of)
        is_result = source.untyped_storage().data_ptr() in self._programs
        if (is_result or self._find_input(source)) and clone.stride() == source.stride():
            self._clones.append((clone, source))
        else:
            self.is_whole = False

    def program(self, program: Program, tensors: Sequence[Tensor]) -> None:
        """Note that a program ran: with its own memory, its inputs, then its constants."""
        memory = tensors[0].untyped_storage().data_ptr()
        if memory in self._programs:  # what it left there the first time is gone
            self.is_whole = False
        self._programs.add(memory)
        self._calls.add_program(program, [self._address(tensor) for tensor in tensors])

    def step(self, minimizer: Any, inputs: Sequence[Any]) -> None:
        """Note what a minimizer takes a step with: inputs, and what came out of programs."""
        self._views.append((minimizer, [self._again(value) for value in inputs]))

    def adam(
        self, minimizer: Any, tensors: Sequence[Tensor], n_threads: int, **constants: float
    ) -> None:
        """Note a step of Adam: parameters, gradient, mean, square and number of steps."""
        self._minimizers.append(minimizer)
        places = [self._address(tensor) for tensor in tensors]
        self._calls.add_adam(places, tensors[0].numel(), **constants, n_threads=n_threads)

    def approach(self, target: Tensor, source: Tensor, share: float, n_threads: int) -> None:
        """Note that a vector was moved towards another one."""
        places = [self._address(target), self._address(source)]
        self._calls.add_approach(places, target.numel(), share, n_threads)

    def returns(self, result: Tensor) -> None:
        """Note what the function returned."""
        self._result = self._original(result)
        if self._result.untyped_storage().data_ptr() not in self._programs:
            self.is_whole = False
        # until they are replayed, the inputs and their clones can go
        self._clones, self._inputs = [], []

    def _original(self, tensor: Tensor) -> Tensor:
        """Return what a clone was made of, and any other tensor itself."""
        for clone, source in self._clones:
            if tensor.untyped_storage().data_ptr() == clone.untyped_storage().data_ptr():
                if is_same(tensor, clone):
                    return source
                self.is_whole = False
        return tensor

    def _find_input(self, tensor: Tensor) -> Address | None:
        """Return where in the inputs a tensor lies, or None: it lies in none of them."""
        start = tensor.data_ptr()
        found = [
            (number, start - one.data_ptr())
            for number, one in enumerate(self._inputs)
            if one.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
            and one.data_ptr() <= start < one.data_ptr() + extent(one)
        ]
        # of several, nobody can tell which one it moves with; and numbers stay what they are
        if len(found) > 1 or (found and self._inputs[found[0][0]].dtype != tensor.dtype):
            self.is_whole = False
        return found[0] if found else None

    def _address(self, tensor: Tensor) -> Address:
        """Return where a tensor lies."""
        tensor = self._original(tensor)
        found = self._find_input(tensor)
        if found is not None:
            return found
        for number, one in enumerate(self._fixed):
            if one is tensor:
                return len(self._inputs) + number, 0
        self._fixed.append(tensor)
        return len(self._inputs) + len(self._fixed) - 1, 0

    def _again(self, value: Any) -> Any:
        """Return what makes an input of a step out of the function's inputs."""
        if isinstance(value, dict):
            parts = {key: self._again(part) for key, part in value.items()}
            return lambda inputs: {key: part(inputs) for key, part in parts.items()}
        if not isinstance(value, Tensor):
            self.is_whole = False
            return lambda inputs: value
        tensor = self._original(value)
        found = self._find_input(tensor)
        if found is None:
            # What is neither was computed in a way that torch has no part in, or is an attribute
            # that may be another one by the next time.
            if tensor.untyped_storage().data_ptr() not in self._programs:
                self.is_whole = False
            return lambda inputs: tensor
        number, offset = found
        shape, strides = tensor.shape, tensor.stride()

        def view(inputs: list[Tensor]) -> Tensor:
            one = inputs[number]
            begin = one.storage_offset() + offset // one.element_size()
            return one.as_strided(shape, strides, begin)

        return view

    # ----------------------------------------------------------------------- making the calls again

    def replay(self, inputs: list[Tensor]) -> Tensor:
        """Make the calls for other inputs, and return what the function would."""
        assert self._result is not None
        if self._n_replays % CHECK_INTERVAL == 0:
            for minimizer in self._minimizers:
                minimizer.check_places()
        self._n_replays += 1
        self._calls.run(
            [tensor.data_ptr for tensor in inputs + self._fixed],
            [minimizer.learning_rate for minimizer in self._minimizers],
        )
        for number, (minimizer, _) in enumerate(self._views):
            minimizer.inputs = self, number, inputs  # looked up when somebody asks
        return self._result.clone()

    def inputs_of(self, number: int, inputs: list[Tensor]) -> tuple[Any, ...]:
        """Return what a step was taken with, when the calls were made for these inputs.

        What came out of a program is what came out of it the last time.
        """
        return tuple([again(inputs) for again in self._views[number][1]])


def is_view(operation: Any, result: Any, arguments: Sequence[Any]) -> bool:
    """Return whether an operation returned tensors in the memory of its arguments, and no more."""
    returned = [one.alias_info for one in operation._schema.returns]
    if not returned or any(one is None or one.is_write for one in returned):
        return False
    # reshape, among others, returns a copy where it must
    tensors = result if isinstance(result, (list, tuple)) else [result]
    given = [one.untyped_storage().data_ptr() for one in arguments if isinstance(one, Tensor)]
    return all(one.untyped_storage().data_ptr() in given for one in tensors)


def is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are the same numbers in the same places."""
    return (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
    )


def extent(tensor: Tensor) -> int:
    """Return how many bytes there are from the beginning of a tensor to its end."""
    if tensor.numel() == 0:
        return 0
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in axes)
    return (last + 1) * tensor.element_size()
