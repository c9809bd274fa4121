"""A short name of a value's content: ranks that hold the same tensors and numbers have the same fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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
