"""Nested mappings of fields: how they are checked, made from spaces, flattened and put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .errors import FieldError
from .types import Field

Fields = Mapping[str, Any]  # each name leads to a Field, or to another mapping of this kind


def checked_fields(fields: Any, name: str) -> dict[str, Any]:
    """Return a private copy of a mapping of fields; TypeError or ValueError if it is none."""
    if not isinstance(fields, Mapping):
        raise TypeError(f"{name} must be a mapping of names to Field, got {type(fields).__name__}")
    if not fields:
        raise ValueError(f"{name} must name at least one field")
    checked: dict[str, Any] = {}
    for key, value in fields.items():
        if not isinstance(key, str):
            raise TypeError(f"{name} must have strings as names, got {key!r}")
        part = f"{name}[{key!r}]"
        if isinstance(value, Field):
            checked[key] = value
        elif isinstance(value, Mapping):
            checked[key] = checked_fields(value, part)
        else:
            kind = type(value).__name__
            raise TypeError(f"{part} must be a Field or a mapping of them, got {kind}")
    return checked


def fields_of_space(space: Any, name: str) -> Any:
    """Return the Field of a gymnasium space, or the nested fields of a Dict space."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {key: fields_of_space(part, f"{name}[{key!r}]") for key, part in parts.items()}
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None or parts is not None:
        raise TypeError(
            f"{name} must be a space of fixed shape and dtype or a Dict of them, got {space!r}; "
            "flatten it first"
        )
    return Field(tuple(shape), dtype)


def leaves_of(
    fields: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Field]]:
    """Yield the path and the Field of every leaf, in order."""
    for name, value in fields.items():
        if isinstance(value, Field):
            yield (*path, name), value
        else:
            yield from leaves_of(value, (*path, name))


def map_leaves(nested: Any, function: Callable[[Any], Any]) -> Any:
    """Return the same nesting with ``function(leaf)`` for everything but mappings, in order."""
    if isinstance(nested, Mapping):
        return {name: map_leaves(value, function) for name, value in nested.items()}
    return function(nested)


def look_up(fields: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the value at a path; KeyError with the name of the field if it is missing."""
    value: Any = fields
    for depth, key in enumerate(path):
        if not isinstance(value, Mapping):
            raise FieldError(
                f"{name_of(path[:depth])} must be a mapping with {key!r}, "
                f"got {type(value).__name__}"
            )
        if key not in value:
            raise KeyError(name_of(path[: depth + 1]))
        value = value[key]
    return value


def missing(name: str) -> FieldError:
    """Return the error for a field that was not given."""
    return FieldError(f"field {name} is missing: every field must be given")


def name_of(path: tuple[str, ...]) -> str:
    """Return a path in the form that messages use: observation['camera']."""
    return path[0] + "".join(f"[{key!r}]" for key in path[1:])


def names_of(paths: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the paths in the form that messages use; ValueError if two paths have one name."""
    names = [name_of(path) for path in paths]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(
            f"fields must have different names, got {twice} twice: "
            "once as the name of a nested field"
        )
    return names


def refuse_unknown(given: Mapping[str, Any], fields: Mapping[str, Any], where: str = "") -> None:
    """Raise FieldError if a name at any depth is not among the fields."""
    for name, value in given.items():
        if name not in fields:
            raise FieldError(f"field {where}{name} is unknown; the fields are {', '.join(fields)}")
        if isinstance(fields[name], Mapping) and isinstance(value, Mapping):
            refuse_unknown(value, fields[name], f"{where}{name}.")
