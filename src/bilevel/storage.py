"""Solutions on disk: one safetensors file, written atomically, read without ever running anything from it.

Tensors are stored as tensors; status, history, counts and the structure of the state are one JSON document beside them.
`Solution.save` and `Solution.load` are the public names.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import InvalidInput
from .files import load_document, save_document
from .randomness import Seeds
from .solution import OUTPUTS, Record, Solution, Status
from .solvers.base import State
from .spaces import Vector

FORMAT, VERSION = "bilevel.Solution", 2
"""Version 2 added the plan of the run. A file of every version is in tests/fixtures, and stays readable."""

LATER = frozenset({"carried"})
"""Fields of states with a default that files of this version may lack."""

STATES: dict[str, str | type[State]] = {
    "AiPODState": ".solvers.aipod",
    "State": ".solvers.base",
    "BiCGAFFAState": ".solvers.bic_gaffa",
    "DMLCBOState": ".solvers.dmlcbo",
    "IGALState": ".solvers.ig_al",
    "ImplicitState": ".solvers.implicit_loop",
    "LVHBAState": ".solvers.lv_hba",
    "MEHAState": ".solvers.meha",
    "PenaltyMomentumState": ".solvers.penalty_momentum",
    "ProjectedSOBAState": ".solvers.projected_soba",
    "RMDPCDState": ".solvers.rmd_pcd",
    "SIGDState": ".solvers.sigd",
    "DSBLOState": ".solvers.sigd",
    "VPBGDState": ".solvers.vpbgd",
}
"""The classes a file may name, each with its module (imported when needed) or itself. A new solver adds a line."""


def register_state(state_class: type[State]) -> type[State]:
    """Let files hold the states of your own solver; also a class decorator.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @register_state
    ... @dataclass(kw_only=True)
    ... class MyState(State):
    ...     momentum: torch.Tensor
    """
    if not (isinstance(state_class, type) and issubclass(state_class, State)):
        raise InvalidInput(f"a state class derives from bilevel.solvers.State, got {state_class!r}")
    name = state_class.__name__
    if name in STATES and isinstance(STATES[name], str):
        raise InvalidInput(f"{name} is the name of a state of the library: rename yours")
    STATES[name] = state_class
    return state_class


def save_solution(
    solution: Solution, path: str | Path, overwrite: bool = False, *, previous: Path | None = None
) -> Path:
    """Write a solution, its state included, to one safetensors file.

    The file appears complete or not at all: it is written beside its place, flushed to the disk and renamed.

    Parameters
    ----------
    solution
        What `minimize` returned.
    path
        The file to make, usually NAME.safetensors.
    overwrite
        Replace an existing file; refused otherwise.
    previous
        Keep the file that is replaced under this name.
    """
    tensors = TensorStore()
    document = {"format": FORMAT, "version": VERSION, **encode_solution(solution, tensors)}
    too_long = f"the history of {len(solution.history)} records is too long for one file: raise evaluate_every"
    return save_document(
        Path(path), document, tensors.stored, too_long=too_long, overwrite=overwrite, previous=previous
    )


def encode_solution(solution: Solution, tensors: TensorStore) -> dict[str, Any]:
    """What a file holds of a solution, in the version `VERSION`, as JSON; its tensors go to the store."""
    return {
        "x": encode("x", solution.x, tensors),
        "y": encode("y", solution.y, tensors),
        "status": solution.status.name,
        "output": solution.output,
        "solver": solution.solver,
        "message": solution.message,
        "plan": encode("plan", dict(solution.plan), tensors),
        "history": [encode("history", asdict(record), tensors) for record in solution.history],
        "stats": encode("stats", dict(solution.stats), tensors),
        "state": encode_state(solution.state, tensors),
    }


def load_solution(path: str | Path, *, device: str | torch.device = "cpu") -> Solution:
    """Read a solution that `save_solution` wrote; `minimize(problem, resume=...)` continues it with the same bits.

    Every byte is checked against the file's SHA-256 before anything is believed; nothing is unpickled.

    Parameters
    ----------
    path
        The file.
    device
        Where its tensors go.
    """
    return load_document(Path(path), decode_solution, format=FORMAT, version=VERSION, what="a solution", device=device)


def save_values(
    values: Mapping[str, Any],
    path: Path,
    *,
    format: str,
    version: int,
    overwrite: bool = False,
    previous: Path | None = None,
) -> Path:
    """Write tensors, numbers, texts, states of solvers, and dictionaries, lists and tuples of them, to one file."""
    tensors = TensorStore()
    document = {"format": format, "version": version, "values": encode("values", values, tensors)}
    too_long = "the values beside the tensors are too long for one file"
    return save_document(path, document, tensors.stored, too_long=too_long, overwrite=overwrite, previous=previous)


def load_values(path: Path, *, format: str, version: int, what: str) -> dict[str, Any]:
    """Read what `save_values` wrote, with the checks of `load_solution`."""

    def checked(document: dict[str, Any], stored: dict[str, Tensor]) -> dict[str, Any]:
        values = decode(document["values"], stored)
        if not isinstance(values, dict):
            raise InvalidInput("the values are not a dictionary")
        return values

    return load_document(path, checked, format=format, version=version, what=what)


# --- the document -----------------------------------------------------------------------------------------------------


class TensorStore:
    """Tensors by name in the file; the same tensor met twice is stored once."""

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
    """JSON for a tensor, a number, a text, None, Seeds, a State, or a dictionary, list or tuple of such values."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, Tensor):
        return tensors.add(name, value)
    if isinstance(value, Seeds):
        return {"seeds": asdict(value)}
    if isinstance(value, State):
        return {"state": encode_state(value, tensors)}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": [[key, encode(f"{name}/{key}", entry, tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        entries = [encode(f"{name}/{i}", entry, tensors) for i, entry in enumerate(value)]
        return {type(value).__name__: entries} if type(value) in (list, tuple) else {"tuple": entries}
    raise InvalidInput(
        f"{name} is of type {type(value).__name__}, which has no place in a file: a solution holds tensors, "
        "numbers, texts, None, Seeds, and dictionaries (with text keys), lists and tuples of them"
    )


def decode(value: Any, stored: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise InvalidInput("a bare list stands where a value should")
        return value
    kind = next(iter(value), "nothing")
    content: Any = value.get(kind)
    if kind == "tensor":
        return _decode_tensor(content, value.get("order"), stored)
    if kind == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if kind == "seeds":
        return Seeds(**_checked_fields("seeds", content, Seeds))
    if kind == "state":
        return decode_state(content, stored)
    if kind == "dict":
        return {_text(key): decode(entry, stored) for key, entry in content}
    if kind in ("list", "tuple"):
        entries = [decode(entry, stored) for entry in content]
        return entries if kind == "list" else tuple(entries)
    raise InvalidInput(f"a value of unknown kind {kind!r}")


def _decode_tensor(name: str, order: list[int] | None, stored: dict[str, Tensor]) -> Tensor:
    if name not in stored:
        raise InvalidInput(f"the tensor {name!r} is missing")
    tensor = stored[name]
    if order is None:
        return tensor
    if sorted(order) != list(range(tensor.ndim)):
        raise InvalidInput(f"the tensor {name!r} of {tensor.ndim} dimensions has them in the order {order}")
    return tensor.permute([order.index(d) for d in range(tensor.ndim)])


def encode_state(state: Any, tensors: TensorStore) -> Any:
    if state is None:
        return None
    name = type(state).__name__
    if name not in STATES or _state_class(name) is not type(state):
        raise InvalidInput(
            f"files can hold the states {sorted(STATES)}, not {name}: "
            "decorate your class with bilevel.storage.register_state"
        )
    content = {field.name: getattr(state, field.name) for field in fields(state)}
    return {
        "class": name,
        "fields": {key: encode(f"state/{key}", value, tensors) for key, value in content.items()},
    }


def decode_state(entry: Any, stored: dict[str, Tensor]) -> State | None:
    if entry is None:
        return None
    name = entry["class"]
    if name not in STATES:
        raise InvalidInput(f"the state is a {name!r}, which this program does not know: {sorted(STATES)}")
    state_class = _state_class(name)
    content = _checked_fields("state", entry["fields"], state_class)
    state = state_class(**{key: decode(value, stored) for key, value in content.items()})
    _vector("state.x", state.x)
    _vector("state.y", state.y)
    if not isinstance(state.seeds, Seeds) or isinstance(state.step, bool) or not isinstance(state.step, int):
        raise InvalidInput("the state has no seeds or no step number")
    return state


def decode_solution(document: dict[str, Any], stored: dict[str, Tensor]) -> Solution:
    """The solution that `encode_solution` described."""
    if document["status"] not in Status.__members__:
        raise InvalidInput(f"the status {document['status']!r} is unknown")
    if document["output"] not in OUTPUTS:
        raise InvalidInput(f"the output rule {document['output']!r} is unknown")
    history = [decode(row, stored) for row in document["history"]]
    return Solution(
        x=_vector("x", decode(document["x"], stored)),
        y=_vector("y", decode(document["y"], stored)),
        status=Status[document["status"]],
        output=document["output"],
        solver=str(document["solver"]),
        message=str(document.get("message", "")),
        plan=_plan(decode(document["plan"], stored)) if document["version"] >= 2 else {},
        history=[Record(**_checked_fields("a record", row, Record)) for row in history],
        stats=_numbers(decode(document["stats"], stored)),
        state=decode_state(document["state"], stored),
    )


def _state_class(name: str) -> type[State]:
    home = STATES[name]
    return getattr(importlib.import_module(home, __package__), name) if isinstance(home, str) else home


def _checked_fields(what: str, content: Any, dataclass: type) -> dict[str, Any]:
    """`content` if it has the fields of the dataclass and no others, and a number where one is declared.

    A field that came later than the file may be missing where the class says what it then is (`LATER`).
    """
    declared = {field.name: field.type for field in fields(dataclass)}
    if isinstance(content, dict):
        declared = {name: kind for name, kind in declared.items() if name in content or name not in LATER}
    if not isinstance(content, dict) or set(content) != set(declared):
        got = sorted(content) if isinstance(content, dict) else type(content).__name__
        raise InvalidInput(f"{what} has the fields {got}, expected {sorted(declared)}")
    for key, kind in declared.items():
        value = content[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        special = isinstance(value, dict) and set(value) == {"float"}
        if (kind == "int" and type(value) is not int) or (kind == "float" and not (number or special)):
            raise InvalidInput(f"{what} has {key} = {value!r} instead of a number")
    return content


def _vector(name: str, value: Any) -> Vector:
    entries = value.values() if isinstance(value, dict) and value else [value]
    if not all(isinstance(entry, Tensor) for entry in entries):
        raise InvalidInput(f"{name} is neither a tensor nor a dictionary of tensors")
    return value


def _plan(value: Any) -> dict[str, Any]:
    """The plan, whose counts are counts: they decide how long a resumed run takes."""
    if not isinstance(value, dict) or not isinstance(value.get("about", {}), dict):
        raise InvalidInput("the plan of the run is not a dictionary")
    for name in ("steps", "evaluate_every"):
        if name in value and (type(value[name]) is not int or value[name] < 1):
            raise InvalidInput(f"the plan of the run has {name} = {value[name]!r} instead of a count")
    logs = value.get("logs", {})
    if not isinstance(logs, dict) or not all(isinstance(kind, str) for kind in logs.values()):
        raise InvalidInput("the logs in the plan of the run are not texts by name")
    if "inner_y" in value:
        _vector("plan.inner_y", value["inner_y"])
    return value


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or not all(isinstance(entry, int | float) for entry in value.values()):
        raise InvalidInput("stats is not a dictionary of numbers")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"the key {value!r} is not a text")
    return value
