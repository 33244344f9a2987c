"""Recordings on a GPU: captured once as a CUDA graph, whose hundred kernels one call launches."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

__all__ = ["Captured"]

cuda: Any = torch.cuda  # which has no annotations
# calls before the capture, in which libraries choose kernels and allocate what they keep
WARM_UPS = 3


class Captured:
    """A program of CUDA tensors of some shapes and dtypes that does what a recorded graph does.

    Parameters
    ----------
    graph : torch.fx.GraphModule
        As `Recorded` makes it.
    tensors : list of Tensor
        Inputs of the shapes and dtypes that all later ones have.

    Raises
    ------
    RuntimeError
        If an input or what else the graph reads is on another device: a kernel would get the
        value that it has at capture for ever.

    Notes
    -----
    Inputs are copied to where the captured kernels read. Outputs are always the same tensors, which
    the next call overwrites, after what has been asked of them before on the same stream. Other
    threads may use the GPU during the capture.

    See https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs.
    """

    def __init__(self, graph: Any, tensors: list[Tensor]) -> None:
        device = tensors[0].device
        for tensor in [*tensors, *read(graph)]:
            if tensor.device != device:
                raise RuntimeError(
                    f"a tensor on {tensor.device} is used beside others on {device}: make it there"
                )
        self._graph = graph  # which owns constants that the kernels read
        self._inputs = [tensor.clone() for tensor in tensors]
        with cuda.device(device), torch.no_grad():
            stream = cuda.Stream()
            stream.wait_stream(cuda.current_stream())
            with cuda.stream(stream):
                for _ in range(WARM_UPS):
                    graph(*self._inputs)
            cuda.current_stream().wait_stream(stream)
            self._capture = cuda.CUDAGraph()
            # a Prefetcher may be copying
            with cuda.graph(self._capture, stream=stream, capture_error_mode="thread_local"):
                self._outputs = tuple(graph(*self._inputs))

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        torch._foreach_copy_(self._inputs, list(tensors))
        self._capture.replay()
        return self._outputs


def read(graph: Any) -> list[Tensor]:
    """Return the tensors that a graph reads besides its inputs, without literals in the code."""
    nodes = [node for node in graph.graph.nodes if node.op == "get_attr"]
    literal = torch.ops.aten.lift_fresh_copy.default
    return [
        attrgetter(node.target)(graph)
        for node in nodes
        if any(user.target is not literal for user in node.users)
    ]
