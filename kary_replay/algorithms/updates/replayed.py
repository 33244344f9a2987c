"""Whole updates as one native call each.

What an update does besides its programs, to look at inputs and to call one thing after another,
takes as long as a program for small networks. It is the same for each batch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

from .recorded import kind_of, leaves
from .tape import Tape

__all__ = ["Replayed"]

MAX_TAPES = 32  # of one function; the oldest goes


class Replayed:
    """A function of tensors whose native calls are written down, and from then on made at once.

    Those are what recorded programs, steps of `Minimizer` and `move_towards` come to.

    Parameters
    ----------
    function : function of a dict of tensors, or of dicts of them, and of anything else
        It trains by minimizers, and returns a tensor that they returned. Its steps depend on
        nothing but the arguments and what is trained, and it writes to tensors only by torch.
    trained : function, optional
        Returns the minimizers, and the vectors besides, that it trains by now. Where they are
        others than before, all that was written down is forgotten.

    Notes
    -----
    The results are those of the function, to the bit. For inputs of a new kind (names, shapes,
    strides, dtypes, and the other arguments) the first call carries the function out, and the
    second writes it down, too. If it does anything that is not native, such as an operation of
    torch, it is carried out at every call. One thread at a time may call it.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        trained: Callable[[], tuple[object, ...]] = tuple,
    ) -> None:
        self.function, self.trained = function, trained
        self._trained: tuple[object, ...] = ()
        self._tapes: dict[Hashable, Tape | None] = {}  # None: not to be replayed
        self._seen: set[Hashable] = set()  # once

    def __call__(self, inputs: Mapping[str, Any], *how: Hashable) -> Tensor:
        tensors = leaves(tuple(inputs.values()))
        trained = self.trained()
        if len(trained) != len(self._trained) or any(map(operator.is_not, trained, self._trained)):
            self._tapes.clear()
            self._seen.clear()
            self._trained = trained
        try:
            kind = how, tuple(inputs), torch.is_autocast_enabled("cpu"), kind_of(tensors)
        except (AttributeError, NotImplementedError):  # of a column that is no plain tensor
            return self.function(inputs, *how)
        tape = self._tapes.get(kind)
        if tape is not None:
            return tape.replay(tensors)
        if kind in self._tapes:
            return self.function(inputs, *how)
        if kind not in self._seen:
            if len(self._seen) >= MAX_TAPES:
                self._seen.clear()
            self._seen.add(kind)
            return self.function(inputs, *how)
        self._seen.discard(kind)
        while len(self._tapes) >= MAX_TAPES:
            del self._tapes[next(iter(self._tapes))]
        tape = Tape(tensors)
        with tape:
            result = self.function(inputs, *how)
            tape.returns(result)
        self._tapes[kind] = tape if tape.is_whole else None
        return result

    def __getstate__(self) -> dict[str, Any]:
        # a copy of a tape would go on changing the parameters of the original
        kept = {"function": self.function, "trained": self.trained}
        return {**kept, "_trained": (), "_tapes": {}, "_seen": set()}
