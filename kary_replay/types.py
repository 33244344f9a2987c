"""Fields, which describe the rows of a buffer, and batches and handles, which come out of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .errors import FieldError
from .validation import as_count

__all__ = ["HANDLE_DTYPE", "SHARDED_HANDLE_DTYPE", "Batch", "Field", "UniformShare"]

MAX_AXES = 31  # NumPy 1 arrays have at most 32 axes, and the batch axis is one of them
MAX_NBYTES = 1 << 40  # of one value

UniformShare = float | Literal["auto"]
"""The share of draws that go to all rows alike, 0 to 1, or "auto": what TD errors show to pay."""

HANDLE_DTYPE = np.dtype([("index", np.int64), ("generation", np.uint64)])
"""A handle: the slot of a drawn row, and the count of that slot's reuses when it was drawn."""

SHARDED_HANDLE_DTYPE = np.dtype(
    [
        ("shard", np.int32),
        ("epoch", np.uint32),
        ("index", np.int64),
        ("generation", np.uint64),
        ("relative", np.float64),
    ]
)
"""A handle of a row in a shard; the epoch counts the shards that have had that number.

``relative`` is how many times as often as by uniform replay the row was drawn.
"""


@dataclass(frozen=True)
class Field:
    """Shape and dtype of one field of a transition.

    Parameters
    ----------
    shape : int or tuple of int
        The shape of one transition's value, without the batch axis; ``()`` for a scalar. Every axis
        is at least 1.
    dtype : dtype-like
        A boolean, integer, floating or complex dtype of fixed size.

    Raises
    ------
    TypeError, ValueError
        If the shape or the dtype is of another kind.

    Examples
    --------
    >>> Field((4, 84, 84), "uint8").nbytes
    28224
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __init__(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> None:
        axes = (shape,) if isinstance(shape, (int, np.integer)) else shape
        try:
            axes = tuple(as_count("an axis of shape", n) for n in axes)
        except TypeError:
            raise TypeError(f"shape must be a tuple of integers, got {shape!r}") from None
        if len(axes) > MAX_AXES:
            raise ValueError(f"shape must have at most {MAX_AXES} axes, got {len(axes)}")
        try:
            kind = np.dtype(dtype).newbyteorder("=")
        except TypeError:
            kind = None
        if dtype is None or kind is None or kind.kind not in "biufc":
            raise TypeError(f"dtype must be boolean, integer, floating or complex, got {dtype!r}")
        if math.prod(axes) * kind.itemsize > MAX_NBYTES:
            raise ValueError(f"shape {axes} of {kind} has more than {MAX_NBYTES} bytes")
        object.__setattr__(self, "shape", axes)
        object.__setattr__(self, "dtype", kind)

    @property
    def nbytes(self) -> int:
        """The number of bytes of one transition's value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def cast(self, name: str, value: npt.ArrayLike) -> tuple[npt.NDArray[Any], int | None]:
        """Return ``value`` as a C-contiguous array of this dtype, and its batch size.

        Parameters
        ----------
        name : str
            What messages call the value.
        value : array-like of shape ``shape`` or ``(B, *shape)``
            The value of one transition, or of B.

        Returns
        -------
        tuple of array and (int or None)
            The array, and B; None in place of B for one transition.

        Raises
        ------
        FieldError
            If the shape is another one, or a value would not survive the cast. Floats never become
            integers, integers become other numbers only if each keeps its value, and no finite
            float becomes infinite.
        """
        if isinstance(value, np.ma.MaskedArray):
            raise FieldError(
                f"{name} is a masked array, whose mask would be lost: "
                "fill it first, with .filled(value)"
            )
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise FieldError(f"{name} must be an array of {self._shapes()}: {error}") from None
        if array.dtype != self.dtype:
            array = self._convert(name, array)
        n_axes = len(self.shape)
        if array.ndim == n_axes and array.shape == self.shape:
            batch_size = None
        elif array.ndim == n_axes + 1 and array.shape[1:] == self.shape:
            batch_size = array.shape[0]
        else:
            raise FieldError(f"{name} must have shape {self._shapes()}, got {array.shape}")
        return np.asarray(array, order="C"), batch_size  # ascontiguousarray would add an axis

    def _shapes(self) -> str:
        return f"{self.shape} or (B, {', '.join(map(str, self.shape))})"

    def _convert(self, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if array.size == 0:
            return array.astype(self.dtype)
        refusal = f"{name} has dtype {array.dtype}, which cannot be cast safely to {self.dtype}"
        if self.dtype.kind in "iu" and array.dtype.kind in "iu":
            limits = np.iinfo(self.dtype)
            if int(array.min()) < limits.min or int(array.max()) > limits.max:
                raise FieldError(f"{refusal}: values must lie in {limits.min} … {limits.max}")
            return array.astype(self.dtype)
        if self.dtype.kind in "fc" and array.dtype.kind in "iu":
            return self._converted_integers(refusal, array)
        if array.dtype.kind not in "biufc" or not np.can_cast(array.dtype, self.dtype, "same_kind"):
            raise FieldError(
                f"{refusal}; convert it first, for example with .astype({self.dtype.name!r})"
            )
        if np.can_cast(array.dtype, self.dtype, "safe"):
            return array.astype(self.dtype)
        try:
            with np.errstate(over="raise"):
                return array.astype(self.dtype)
        except FloatingPointError:
            limit = np.finfo(self.dtype).max
            raise FieldError(f"{refusal}: a finite value is beyond {limit}") from None

    def _converted_integers(self, refusal: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return integers as floats or complex numbers of the same value, or raise FieldError."""
        precision, limits = np.finfo(self.dtype).nmant + 1, np.iinfo(array.dtype)
        if -(2**precision) <= limits.min and limits.max <= 2**precision:
            return array.astype(self.dtype)
        if -(2**precision) <= array.min() and array.max() <= 2**precision:
            return array.astype(self.dtype)
        # A larger number keeps its value if its bits without the trailing zeros fit the precision.
        unsigned = array.astype(np.uint64)
        magnitude = np.where(array < 0, -unsigned, unsigned)
        lowest_bit = magnitude & -magnitude
        lost = magnitude // np.maximum(lowest_bit, 1) > 2**precision
        with np.errstate(over="ignore"):
            converted = array.astype(self.dtype)
        lost |= ~np.isfinite(converted)
        if lost.any():
            value = array[lost][0]
            raise FieldError(f"{refusal}: {value} would become {converted[lost][0]:.0f}")
        return converted


class Batch:
    """Rows drawn from a buffer: one attribute per field, each with a leading axis B.

    A nested field is a dict of arrays. Every batch has ``index`` (int64 [B], the slots) and
    ``handle`` ([B] of ``HANDLE_DTYPE``, for ``update_priorities``). A batch of a prioritized buffer
    has ``importance_weight`` (float32 [B]; the largest is 1, unless draws have a uniform share).
    The arrays belong to the caller: nothing writes to them later, unless they are drawn into again
    (``out`` of ``sample``). A batch can be read like a mapping, too: ``batch["reward"]``,
    ``batch.keys()``, ``dict(batch)``.
    """

    index: npt.NDArray[np.int64]
    handle: npt.NDArray[np.void]
    importance_weight: npt.NDArray[np.float32]

    def __init__(self, columns: dict[str, Any]) -> None:
        self.__dict__ = columns

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the batch has no field {name!r}; it has {', '.join(self.__dict__)}")

    def __getitem__(self, name: str) -> Any:
        try:
            return self.__dict__[name]
        except KeyError:
            raise KeyError(f"{name!r}; the batch has {', '.join(self.__dict__)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __len__(self) -> int:
        return len(self.index)

    def keys(self) -> Any:
        """Return the names of the fields, followed by index, handle and importance_weight."""
        return self.__dict__.keys()

    def __repr__(self) -> str:
        shapes = (f"{name}={_shape(value)}" for name, value in self.__dict__.items())
        return f"Batch({', '.join(shapes)})"


def _shape(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_shape(part)}" for name, part in value.items()) + "}"
    return f"{value.dtype}{list(value.shape)}"
