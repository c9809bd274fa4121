"""Values in files: tensors are stored as tensors, everything else as one JSON document.

A value is a tensor, a number, a text, None, or a dictionary (its keys are texts or whole numbers), list, tuple or
`serializable` dataclass of such values. No code in a file is ever run: a file names classes, and only registered
classes, solvers of the library and their states are created from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from typing import Any

from torch import Tensor

from .. import hypergradients, solvers
from .._serializable import SERIALIZABLE, declared_types, matches
from .._serializable import serializable as serializable
from ..errors import InvalidInputError
from ..hypergradients import smoothing


class TensorStore:
    """Tensors by name in the file; a tensor that occurs twice is stored once."""

    def __init__(self) -> None:
        self.stored: dict[str, Tensor] = {}
        self._names: dict[int, str] = {}
        self._kept: list[Tensor] = []  # keeps the ids of `_names` from being used again

    def add(self, name: str, tensor: Tensor) -> dict[str, Any]:
        # The dimensions from slowest to fastest: a transposed tensor comes back transposed. Products of matrices
        # may differ in the last bit between the two layouts, and a resumed run must not.
        order = sorted(range(tensor.ndim), key=lambda d: -tensor.stride(d))
        if id(tensor) not in self._names:
            while name in self.stored:
                name += "'"
            self._names[id(tensor)] = name
            self._kept.append(tensor)
            self.stored[name] = tensor.detach().permute(order).to("cpu", copy=True).contiguous()
        entry: dict[str, Any] = {"tensor": self._names[id(tensor)]}
        if order != list(range(tensor.ndim)):
            entry["order"] = order
        return entry


def encode(name: str, value: Any, tensors: TensorStore) -> Any:
    """JSON for a value; its tensors go to the store, under names that begin with `name`."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, Tensor):
        return tensors.add(name, value)
    if _class_named(type(value).__name__) is type(value):
        return {"object": type(value).__name__, "content": _content(name, value, tensors)}
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, encode(f"{name}/{key}", entry, tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        entries = [encode(f"{name}/{i}", entry, tensors) for i, entry in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": entries}
    raise InvalidInputError(
        f"{name} is of type {type(value).__name__}, which cannot be stored: files hold tensors, "
        "numbers, texts, None, dictionaries (with text keys), lists and tuples of them, and states of solvers, which "
        "derive from bilevel.solvers.State"
    )


def _content(name: str, value: Any, tensors: TensorStore) -> Any:
    if isinstance(value, Enum):
        return value.name
    content = {}
    for part in _stored_fields(type(value)):
        try:
            content[part.name] = encode(f"{name}/{part.name}", getattr(value, part.name), tensors)
        except InvalidInputError:
            if not part.metadata.get("or_text"):
                raise
            content[part.name] = repr(getattr(value, part.name))
    return content


def decode(value: Any, stored: dict[str, Tensor]) -> Any:
    """The inverse of `encode`; raises `InvalidInputError` for invalid content."""
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise InvalidInputError("there is a list in place of a value")
        return value
    kind = next(iter(value), "nothing")
    content: Any = value.get(kind)
    if kind == "tensor":
        return _decode_tensor(content, value.get("order"), stored)
    if kind == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if kind == "object":
        return _decode_object(content, value["content"], stored)
    if kind == "dict":
        return {_checked_key(key): decode(entry, stored) for key, entry in content}
    if kind in ("list", "tuple"):
        entries = [decode(entry, stored) for entry in content]
        return entries if kind == "list" else tuple(entries)
    raise InvalidInputError(f"a value of unknown kind {kind!r}")


def _decode_tensor(name: str, order: list[int] | None, stored: dict[str, Tensor]) -> Tensor:
    if name not in stored:
        raise InvalidInputError(f"the tensor {name!r} is missing")
    tensor = stored[name]
    if order is None:
        return tensor
    if sorted(order) != list(range(tensor.ndim)):
        raise InvalidInputError(f"the tensor {name!r} of {tensor.ndim} dimensions has the invalid order {order}")
    return tensor.permute([order.index(d) for d in range(tensor.ndim)])


def _decode_object(name: str, content: Any, stored: dict[str, Tensor]) -> Any:
    cls = _class_named(name)
    if cls is None:
        raise InvalidInputError(f"the file holds a {name!r}, which is unknown: import the module that defines it")
    if issubclass(cls, Enum):
        if content not in cls.__members__:
            raise InvalidInputError(f"the {name.lower()} {content!r} is unknown")
        return cls[content]
    values = {key: decode(entry, stored) for key, entry in content.items()}
    declared = {part.name: str(part.type) for part in _stored_fields(cls)}
    later = {part.name for part in _stored_fields(cls) if part.metadata.get("later")}  # not in files of older versions
    if not set(declared) - later <= set(values) <= set(declared):
        raise InvalidInputError(f"a {name} has the fields {sorted(declared)}, the file has {sorted(values)}")
    for key, kind in declared_types(cls).items():
        if key in values and not matches(values[key], kind):
            shown = NAMES.get(declared[key], declared[key])
            raise InvalidInputError(f"{name}.{key} is {values[key]!r:.100}, where a file has {shown}")
    return cls(**values)


def is_vector(value: Any) -> bool:
    return all(isinstance(entry, Tensor) for entry in (value.values() if isinstance(value, dict) else [value]))


NAMES = {"int": "a whole number", "float": "a number", "str": "a text", "Vector": "a tensor or tensors by name"}


def _class_named(name: str) -> type | None:
    """A serializable class, a state of a solver, or a solver of the library or a part of one."""
    for known in (SERIALIZABLE, vars(solvers), vars(hypergradients), vars(smoothing)):
        found = known.get(name)
        if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum)):
            return found
    return None


def _stored_fields(cls: type) -> list[Field[Any]]:
    """The fields of a dataclass that files hold."""
    return [part for part in fields(cls) if part.metadata.get("stored", True)]


def _checked_key(value: Any) -> str | int:
    if type(value) not in (str, int):
        raise InvalidInputError(f"the key {value!r} is neither a text nor a number")
    return value
