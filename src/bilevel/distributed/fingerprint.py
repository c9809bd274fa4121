"""A short name of a value's content: ranks that hold the same tensors and numbers have the same fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

LETTERS = 16


def fingerprint(value: Any) -> str:
    """SHA-256 of tensors, arrays, numbers, texts, and what mappings, lists and dataclasses hold of them.

    Of any other object only its class is looked at: its text may be another in every process.
    """
    found = hashlib.sha256()
    _add(found, value)
    return found.hexdigest()[:LETTERS]


def _add(found: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        plain = value.detach().cpu().reshape(-1).clone(memory_format=torch.contiguous_format)
        found.update(f"{value.dtype}{tuple(value.shape)}".encode())
        found.update(plain.view(torch.uint8).numpy().data)
    elif isinstance(value, np.ndarray) and value.dtype != object:
        _add(found, torch.as_tensor(np.ascontiguousarray(value)))
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            _add(found, str(name))
            _add(found, entry)
    elif isinstance(value, list | tuple):
        found.update(f"list{len(value)}".encode())
        for entry in value:
            _add(found, entry)
    elif is_dataclass(value) and not isinstance(value, type):
        _add(found, {part.name: getattr(value, part.name) for part in fields(value)})
    elif value is None or isinstance(value, str | bytes | bool | int | float | torch.dtype | torch.device):
        found.update(f"{type(value).__name__}:{value!r};".encode())
    else:
        found.update(f"{type(value).__module__}.{type(value).__qualname__};".encode())


def of_rows(columns: Iterable[np.ndarray], first: int) -> int:
    """A number that other rows or another order of them would change: the sum over blocks of rows is that of them all.

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
