"""Which dataclasses and enumerations a file may hold, and whether what it holds is of their types."""

from __future__ import annotations

import functools
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import InvalidInputError

Class = TypeVar("Class", bound=type)
SERIALIZABLE: dict[str, type] = {}
"""Dataclasses and enumerations that a file may hold, by name; the states of solvers are among them."""


def serializable(cls: Class) -> Class:
    """Let files hold the objects of a dataclass, field by field, or of an enumeration; a class decorator.

    A field with the metadata {"stored": False} is left out, and has its default in an object from a file.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @serializable
    ... @dataclass
    ... class Point:
    ...     step: int
    >>> SERIALIZABLE["Point"] is Point
    True
    """
    known = SERIALIZABLE.get(cls.__name__, cls).__module__
    if known != cls.__module__ and known.startswith("bilevel."):
        raise InvalidInputError(f"{cls.__name__} is the name of a class of the library: rename yours")
    SERIALIZABLE[cls.__name__] = cls
    return cls


def matches(value: Any, kind: Any) -> bool:
    """Whether a value from a file has the declared type of its field.

    Examples
    --------
    >>> matches((1.0, 2), tuple[float, int]), matches([1.0], tuple[float, ...]), matches(None, int | None)
    (True, False, True)
    """
    parts, outer = get_args(kind), get_origin(kind) or kind
    if outer is Any or getattr(outer, "_is_protocol", False):
        return True
    if outer in (Union, UnionType):
        return any(matches(value, part) for part in parts)
    if outer is float:
        return type(value) in (int, float)
    if outer is int:
        return type(value) is int
    if outer is tuple and parts:
        each = parts[:1] * len(value) if isinstance(value, tuple) and parts[-1] is Ellipsis else parts
        return isinstance(value, tuple) and len(value) == len(each) and all(map(matches, value, each))
    if outer is dict and parts:
        return isinstance(value, dict) and all(
            matches(each, kind) for pair in value.items() for each, kind in zip(pair, parts, strict=True)
        )
    if outer is list and parts:
        return isinstance(value, list) and all(matches(entry, parts[0]) for entry in value)
    return isinstance(value, outer) if isinstance(outer, type) else True


@functools.cache
def declared_types(cls: type) -> dict[str, Any]:
    """The types of the fields of a class; empty if one of their names is only known to type checkers."""
    try:
        return get_type_hints(cls)
    except NameError:
        return {}
