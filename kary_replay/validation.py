"""Checks of arguments.

Each function returns the value in its one form. Otherwise it raises an error that names the
argument, the value and what would be right.
"""

from __future__ import annotations

import operator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .errors import IndexRangeError


def as_count(name: str, value: Any, limit: int | None = None, least: int = 1) -> int:
    """Return ``value`` as an int from ``least`` to ``limit``."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}") from None
    if count < least:
        raise ValueError(f"{name} must be at least {least}, got {count}")
    if limit is not None and count > limit:
        raise ValueError(f"{name} must be at most {limit}, got {count}")
    return count


def as_arity(value: Any) -> int:
    """Return ``value`` as a power of two from 2 to 64."""
    arity = as_count("arity", value)
    if arity not in (2, 4, 8, 16, 32, 64):
        raise ValueError(f"arity must be a power of two from 2 to 64, got {arity}")
    return arity


def as_real(name: str, value: Any) -> float:
    """Return ``value`` as a float; TypeError for strings, complex numbers and arrays."""
    if isinstance(value, (bool, np.bool_, str, bytes)):
        raise TypeError(f"{name} must be a real number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be finite, got a number beyond float64") from None
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a real number, got {value!r}") from None


def as_fraction(name: str, value: Any) -> float:
    """Return ``value``, an exponent or a share, as a float from 0 to 1."""
    number = as_real(name, value)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value!r}")
    return number


def as_share(name: str, value: Any) -> float | Literal["auto"]:
    """Return ``value`` as "auto" or a float from 0 to 1."""
    if isinstance(value, str):
        if value != "auto":
            raise ValueError(f"{name} must be 'auto' or a number from 0 to 1, got {value!r}")
        return "auto"
    return as_fraction(name, value)


def as_positive(name: str, value: Any) -> float:
    """Return ``value`` as a finite float above 0."""
    number = as_real(name, value)
    if not 0 < number < np.inf:
        raise ValueError(f"{name} must be finite and above 0, got {value!r}")
    return number


def as_timeout(timeout_seconds: Any) -> float | None:
    """Return ``timeout_seconds`` as a float of at least 0, or None, which waits for ever."""
    if timeout_seconds is None:
        return None
    number = as_real("timeout_seconds", timeout_seconds)
    if not number >= 0:
        raise ValueError(f"timeout_seconds must be at least 0, got {timeout_seconds}")
    return number


def as_seed(value: Any) -> np.random.SeedSequence:
    """Return the seed sequence of ``value``: integers of at least 0, or None for a random one."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"seed must be None, an integer or a sequence of integers, got {value!r}")
    try:
        return np.random.SeedSequence(value)
    except TypeError:
        raise TypeError(
            f"seed must be None, an integer or a sequence of integers, got {value!r}"
        ) from None
    except ValueError:
        raise ValueError(f"seed must not be negative, got {value!r}") from None


def as_generator(rng: Any) -> np.random.Generator:
    """Return ``rng`` if it is a generator, or a new generator from an integer seed."""
    if isinstance(rng, (bool, np.bool_)) or not isinstance(
        rng, (int, np.integer, np.random.Generator)
    ):
        raise TypeError(
            f"rng must be None, an integer or a numpy.random.Generator, got {type(rng).__name__}"
        )
    if not isinstance(rng, np.random.Generator) and rng < 0:
        raise ValueError(f"rng must not be negative, got {rng}")
    return np.random.default_rng(rng)


def as_array(name: str, value: Any) -> npt.NDArray[Any]:
    """Return ``value`` as an array; its dtype and shape stay what they are."""
    if type(value) is np.ndarray:
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{name} is a masked array, whose mask would be lost: "
            "fill it first, with .filled(value)"
        )
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{name} must be a number or an array of them: {error}") from None


def as_index(index: Any) -> npt.NDArray[np.int64]:
    """Return ``index`` as a contiguous int64 array of at most one axis.

    The caller checks the range: only it knows the capacity.
    """
    array = as_array("index", index)
    if array.dtype != np.int64:
        if array.dtype.kind not in "iu" and array.size:
            raise TypeError(
                f"index must be an integer or an array of integers, got dtype {array.dtype}"
            )
        if array.size and array.max() > np.iinfo(np.int64).max:
            raise IndexRangeError(
                f"index {array.max()} is out of range: it is larger than any capacity"
            )
    if array.ndim > 1:
        raise ValueError(f"index must be an integer or one-dimensional, got shape {array.shape}")
    return np.asarray(array, dtype=np.int64, order="C")


def as_float64(name: str, value: Any) -> npt.NDArray[np.float64]:
    """Return ``value`` as a contiguous float64 array of at most one axis."""
    array = as_array(name, value)
    if array.dtype.kind not in "iuf":
        raise TypeError(
            f"{name} must be a real number or an array of them, got dtype {array.dtype}"
        )
    if array.ndim > 1:
        raise ValueError(f"{name} must be a number or one-dimensional, got shape {array.shape}")
    return np.asarray(array, dtype=np.float64, order="C")
