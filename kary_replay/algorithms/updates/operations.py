"""The operations that a function of tensors carries out, as a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["graph_of", "is_recording"]

aten: Any = torch.ops.aten
# operations that return no tensor, and ask for no value
OF_SHAPES = {aten.is_same_size.default, aten._has_same_storage_numel.default}


def graph_of(
    function: Callable[..., Sequence[Tensor]], tensors: Sequence[Tensor]
) -> torch.fx.GraphModule:
    """Carry out a function, and return a graph of what it did below autograd.

    Each node has in ``meta["val"]`` what its operation returned. The graph reads other tensors than
    its inputs, such as parameters, where they are.

    Raises
    ------
    RuntimeError
        If the function asks for the value of an input or of what an operation has returned, or
        does what a graph cannot repeat.
    """
    # torch.fx's make_fx does the same, and imports torch's compiler first, which takes a second.
    # Every input is an object of its own: one tensor may come twice, or be a parameter, too.
    tensors = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]
    recorder = Recorder(tensors)
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # what it has kept of parameters would be constants
    try:
        with recorder:
            results = function(*tensors)
    finally:
        torch.set_autocast_cache_enabled(caches)
    recorder.graph.output(tuple(map(recorder.node_of, results)))
    return torch.fx.GraphModule(recorder.constants, recorder.graph)


def is_recording() -> bool:
    """Return whether this thread is carrying out a function for its graph."""
    return isinstance(_get_current_dispatch_mode(), Recorder)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operation that is carried out, and whose results it takes."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = torch.fx.Graph()
        self.constants: dict[str, Tensor] = {}
        self._nodes: dict[int, torch.fx.Node] = {}
        self._kept: list[Tensor] = []  # so that no other tensor gets the identity of one of these
        self._allocated: set[int] = set()  # storages of results
        for number, tensor in enumerate(tensors):
            self._note(tensor, self.graph.placeholder(f"input_{number}"))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would import its compiler to keep it away from `__torch_dispatch__`.
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():  # else autograd has taken operations apart
            with self:
                parts = function.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        if function is aten.lift_fresh.default:
            # A literal is copied each time, because what is done with it in place must not last.
            function = aten.lift_fresh_copy.default
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = function(*args, **kwargs)
        returned = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if not returned and not function._schema.is_mutable:
            # what is learned has another value the next time, whether it was used before or not
            knows = any(id(tensor) in self._nodes or tensor.requires_grad for tensor in read)
            if knows and function._schema.returns and function not in OF_SHAPES:
                raise RuntimeError(
                    f"{function} asks for the value of a tensor, which cannot be recorded: "
                    "the recording could not ask again"
                )
            return result
        node = self.graph.call_function(function, *tree_map(self._argument, (args, kwargs)))
        self._allocated |= set(map(_storage_of, returned)) - set(map(_storage_of, read))
        if isinstance(result, Tensor):
            self._note(result, node)
        elif result is not None:
            for number, one in enumerate(result):
                if isinstance(one, Tensor):
                    self._note(one, self.graph.call_function(operator.getitem, (node, number)))
        return result

    def node_of(self, tensor: Tensor) -> torch.fx.Node:
        """Return the node that stands for a tensor; an unknown one becomes a constant."""
        node = self._nodes.get(id(tensor))
        if node is None and _storage_of(tensor) in self._allocated:
            node = self._node_of_alias(tensor)
        if node is None:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = tensor
            node = self.graph.get_attr(name)
            self._note(tensor, node)
        return node

    def _node_of_alias(self, tensor: Tensor) -> torch.fx.Node:
        """Return a node for what an operation has returned, as another object: nn.Parameter(…)."""
        for known in reversed(self._kept):
            if _place_of(known) == _place_of(tensor):
                node = self.graph.call_function(aten.detach.default, (self.node_of(known),))
                self._note(tensor, node)
                return node
        raise RuntimeError(
            "memory of an operation's result is used in another shape without an operation, which "
            "cannot be recorded"
        )

    def _argument(self, value: Any) -> Any:
        if isinstance(value, torch.Generator):
            raise RuntimeError(
                "a generator of its own cannot be recorded: leave out generator=, and seed with "
                "torch.manual_seed"
            )
        return self.node_of(value) if isinstance(value, Tensor) else value

    def _note(self, tensor: Tensor, node: torch.fx.Node) -> None:
        node.meta["val"] = tensor
        self._nodes[id(tensor)] = node
        self._kept.append(tensor)


def _storage_of(tensor: Tensor) -> int:
    if tensor.layout != torch.strided:
        return id(tensor)
    storage: Any = tensor.untyped_storage()
    return int(storage._cdata)


def _place_of(tensor: Tensor) -> tuple[Any, ...]:
    if tensor.layout != torch.strided:
        return (id(tensor),)
    offset = tensor.storage_offset()
    return _storage_of(tensor), offset, tensor.dtype, tensor.shape, tensor.stride()
