"""Short names of contents: equal values have equal fingerprints, in every process and on every machine of one kind."""

from __future__ import annotations

import copyreg
import hashlib
import sys
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN = str | bytes | bool | int | float | complex | type | torch.dtype | torch.device | None
BLOCK = 1 << 23
INSTALLED = {*sys.stdlib_module_names, "bilevel", "torch", "numpy", "scipy", "pandas", "sklearn"}
"""Modules whose classes are known by name; the code of other classes is a part of their objects."""


def fingerprint(*values: Any) -> str:
    """SHA-256 of tensors, arrays, sparse matrices, texts, numbers and functions, and of objects by their fields.

    Sets of `bilevel.sets` are hashed by their parameters, so that two sets with the same `repr` and different tensors
    differ. Functions, and methods of a user's classes, are hashed by their code and the values that it refers to.

    Examples
    --------
    >>> import bilevel
    >>> fingerprint("a", None) == fingerprint("a", None) != fingerprint("a")
    True
    >>> balls = [bilevel.sets.L1Ball(torch.tensor([1.0, radius])) for radius in (2.0, 3.0)]
    >>> repr(balls[0]) == repr(balls[1]), fingerprint(balls[0]) == fingerprint(balls[1])
    (True, False)
    """
    total = hashlib.sha256()
    _add(total, values, ())
    return f"sha256:{total.hexdigest()}"


def _add(total: Any, value: Any, around: tuple[int, ...]) -> None:
    """Add a value contained in others, whose `id`s are `around`; a cyclic reference adds nothing."""
    total.update(f"{type(value).__qualname__}:".encode())
    if isinstance(value, PLAIN):
        total.update(f"{value!r};".encode())
    elif isinstance(value, Tensor):
        flat = value.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
        total.update(f"{value.dtype}{tuple(value.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        _add_array(total, np.atleast_1d(value))
    elif id(value) not in around:
        for part in _parts(value):
            _add(total, part, (*around, id(value)))


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return [len(value), *(part for pair in value.items() for part in pair)]
    if isinstance(value, list | tuple):
        return [len(value), *value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Set):
        return sorted(fingerprint(part) for part in value)
    if isinstance(value, FunctionType):
        return [value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__, _globals_of(value)]
    if isinstance(value, CellType):
        return [] if value == CellType() else [value.cell_contents]
    if isinstance(value, CodeType):
        return [value.co_code, value.co_names, value.co_consts]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, ModuleType | BuiltinFunctionType):
        return [value.__name__]
    if hasattr(value, "indptr"):  # a sparse matrix of SciPy
        return [value.shape, value.indptr, value.indices, value.data]
    return [*_fields(value), *_methods(type(value))]


def _globals_of(function: FunctionType) -> dict[str, Any]:
    """The numbers, texts, tensors, arrays and functions of its module that a function refers to."""
    kinds = PLAIN | Tensor | np.ndarray | FunctionType
    known = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    return {name: value for name, value in known.items() if isinstance(value, kinds) and not _is_installed(value)}


def _is_installed(value: Any) -> bool:
    return getattr(value, "__module__", "").partition(".")[0] in INSTALLED


def _fields(value: Any) -> list[Any]:
    """The fields of an object."""
    if is_dataclass(value):
        return [getattr(value, part.name) for part in fields(value)]
    named = getattr(value, "parameters", None)
    if named and isinstance(named, tuple):  # a set, which may also hold what it has computed of them
        return [getattr(value, name) for name in named]
    if getattr(value, "__dict__", None):
        return [vars(value)]
    try:  # as for a pickle: objects with slots, paths, ranges, patterns, functions of C
        reduced = copyreg.dispatch_table.get(type(value), lambda object: object.__reduce_ex__(2))(value)
    except TypeError:
        return []
    return [reduced] if isinstance(reduced, str) else list(reduced[1:])


def _methods(cls: type) -> list[Any]:
    """The methods of a user's classes, since two versions of one class may have the same name and fields."""
    own = [part for part in cls.__mro__ if not _is_installed(part)]
    return [vars(part)[name] for part in own for name in sorted(vars(part)) if _is_method(vars(part)[name])]


def _is_method(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__code__.co_filename != "<string>"  # those of dataclasses are made


def _add_array(total: Any, array: np.ndarray) -> None:
    total.update(f"{array.dtype}{array.shape}".encode())
    rows = max(BLOCK // max(array[:1].nbytes, 1), 1)
    for first in range(0, len(array), rows):
        total.update(array[first : first + rows].tobytes())


def row_fingerprint(columns: Iterable[np.ndarray], first: int) -> int:
    """A number that identifies rows and their order; the numbers of blocks of rows add up to that of all rows.

    The sum modulo 2^64, over the rows i = first, first + 1, ..., of mix(i + mix(sum over columns of c_j bits(a_ij))).

    Parameters
    ----------
    columns
        Numbers of 64 bits or fewer, each (n,).
    first
        The number of the first row.
    """
    factors, rows = np.random.default_rng(0), np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            bits = np.ascontiguousarray(column).view(f"u{column.dtype.itemsize}").astype(np.uint64)
            factor = factors.integers(2**63, dtype=np.uint64) | np.uint64(1)
            rows = _mixed(rows + factor * bits)
        places = np.arange(first, first + len(rows), dtype=np.uint64)
        return int(_mixed(places + _mixed(rows)).sum(dtype=np.uint64).astype(np.int64))


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Each number scrambled: the finaliser of splitmix64 (Steele, Lea & Flood, 2014)."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
