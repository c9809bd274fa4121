"""Solutions on disk: one safetensors file, written atomically, read without ever running anything from it.

Tensors are stored as tensors. All else (status, history, counts, the structure of the state) is one JSON document in
the file's metadata, and a SHA-256 over every byte of the file tells damage from content. `Solution.save` and
`Solution.load` are the public names.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ._version import __version__
from .errors import InvalidInput
from .randomness import Seeds
from .solution import OUTPUTS, Record, Solution, Status
from .solvers.base import State
from .spaces import Vector

FORMAT, VERSION = "bilevel.Solution", 1

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

LARGEST_HEADER = 100_000_000  # of the safetensors format
_UNSIGNED = "0" * 64
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # quotes inside the document are escaped: it cannot match there


class FileExists(InvalidInput, FileExistsError):
    """A file is in the way and may not be replaced."""


class FileMissing(InvalidInput, FileNotFoundError):
    """A file or folder that was named is not there."""


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


def save_solution(solution: Solution, path: str | Path, overwrite: bool = False) -> Path:
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
    """
    tensors = _Tensors()
    document = {
        "format": FORMAT,
        "version": VERSION,
        "bilevel": __version__,
        "x": _encode("x", solution.x, tensors),
        "y": _encode("y", solution.y, tensors),
        "status": solution.status.name,
        "output": solution.output,
        "solver": solution.solver,
        "message": solution.message,
        "history": [_encode("history", asdict(record), tensors) for record in solution.history],
        "stats": _encode("stats", dict(solution.stats), tensors),
        "state": _encode_state(solution.state, tensors),
    }
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    if len(text) > LARGEST_HEADER // 2:
        raise InvalidInput(
            f"the history of {len(solution.history)} records is too long for one file: raise evaluate_every"
        )
    metadata = {"format": "pt", "bilevel": text, "sha256": _UNSIGNED}

    def write(temporary: Path) -> None:
        save_file(tensors.stored, temporary, metadata=metadata)
        _sign(temporary)

    return write_atomically(Path(path), write, overwrite=overwrite)


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
    path = Path(path)
    try:
        _verify(path)
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            text = (file.metadata() or {}).get("bilevel", "")
            # clone: memory of our own, aligned as torch aligns it, instead of pages of the file.
            stored = {name: file.get_tensor(name).clone().to(device) for name in file.keys()}  # noqa: SIM118
        return _decode_document(json.loads(text), stored)
    except InvalidInput as error:
        raise type(error)(f"{path}: {error}") from None
    except FileNotFoundError:
        raise FileMissing(f"{path}: there is no such file") from None
    except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InvalidInput(f"{path}: this is not a solution saved by bilevel ({error})") from error


# --- the document -----------------------------------------------------------------------------------------------------


class _Tensors:
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


def _encode(name: str, value: Any, tensors: _Tensors) -> Any:
    """JSON for a tensor, a number, a text, None, Seeds, or a dictionary, list or tuple of such values."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(float(value))}
    if isinstance(value, Tensor):
        return tensors.add(name, value)
    if isinstance(value, Seeds):
        return {"seeds": asdict(value)}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": [[key, _encode(f"{name}/{key}", entry, tensors)] for key, entry in value.items()]}
    if isinstance(value, list | tuple):
        entries = [_encode(f"{name}/{i}", entry, tensors) for i, entry in enumerate(value)]
        return {type(value).__name__: entries} if type(value) in (list, tuple) else {"tuple": entries}
    raise InvalidInput(
        f"{name} is of type {type(value).__name__}, which has no place in a file: a solution holds tensors, "
        "numbers, texts, None, Seeds, and dictionaries (with text keys), lists and tuples of them"
    )


def _decode(value: Any, stored: dict[str, Tensor]) -> Any:
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
    if kind == "dict":
        return {_text(key): _decode(entry, stored) for key, entry in content}
    if kind in ("list", "tuple"):
        entries = [_decode(entry, stored) for entry in content]
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


def _encode_state(state: Any, tensors: _Tensors) -> Any:
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
        "fields": {key: _encode(f"state/{key}", value, tensors) for key, value in content.items()},
    }


def _decode_state(entry: Any, stored: dict[str, Tensor]) -> State | None:
    if entry is None:
        return None
    name = entry["class"]
    if name not in STATES:
        raise InvalidInput(f"the state is a {name!r}, which this program does not know: {sorted(STATES)}")
    state_class = _state_class(name)
    content = _checked_fields("state", entry["fields"], state_class)
    state = state_class(**{key: _decode(value, stored) for key, value in content.items()})
    _vector("state.x", state.x)
    _vector("state.y", state.y)
    if not isinstance(state.seeds, Seeds) or isinstance(state.step, bool) or not isinstance(state.step, int):
        raise InvalidInput("the state has no seeds or no step number")
    return state


def _decode_document(document: Any, stored: dict[str, Tensor]) -> Solution:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidInput(f"this file holds no {FORMAT}")
    if document.get("version") != VERSION:
        raise InvalidInput(
            f"the file has format version {document.get('version')} (bilevel {document.get('bilevel')}), this is "
            f"bilevel {__version__} which reads version {VERSION}: upgrade bilevel"
        )
    if document["status"] not in Status.__members__:
        raise InvalidInput(f"the status {document['status']!r} is unknown")
    if document["output"] not in OUTPUTS:
        raise InvalidInput(f"the output rule {document['output']!r} is unknown")
    history = [_decode(row, stored) for row in document["history"]]
    return Solution(
        x=_vector("x", _decode(document["x"], stored)),
        y=_vector("y", _decode(document["y"], stored)),
        status=Status[document["status"]],
        output=document["output"],
        solver=str(document["solver"]),
        message=str(document.get("message", "")),
        history=[Record(**_checked_fields("a record", row, Record)) for row in history],
        stats=_numbers(_decode(document["stats"], stored)),
        state=_decode_state(document["state"], stored),
    )


def _state_class(name: str) -> type[State]:
    home = STATES[name]
    return getattr(importlib.import_module(home, __package__), name) if isinstance(home, str) else home


def _checked_fields(what: str, content: Any, dataclass: type) -> dict[str, Any]:
    """`content` if it has the fields of the dataclass and no others, and a number where one is declared."""
    declared = {field.name: field.type for field in fields(dataclass)}
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


def _numbers(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or not all(isinstance(entry, int | float) for entry in value.values()):
        raise InvalidInput("stats is not a dictionary of numbers")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f"the key {value!r} is not a text")
    return value


# --- the file ---------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, write: Callable[[Path], Any], *, overwrite: bool = False) -> Path:
    """Make `path` with the content that `write` gives a temporary file beside it: complete, or not at all.

    Parameters
    ----------
    path
        The file to make.
    write
        Called with the path of the temporary file.
    overwrite
        Replace an existing file; `FileExists` otherwise, also when the file appears meanwhile.
    """
    check_writable(path, overwrite=overwrite)
    target = path.resolve()  # a symbolic link stays one
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        write(temporary)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())
        _rename(temporary, target, overwrite)
    finally:
        temporary.unlink(missing_ok=True)
    _flush_folder(target.parent)
    return path


def check_writable(path: Path, *, overwrite: bool = False) -> None:
    """Refuse, before any work is done, a path that could not be written at its end."""
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder: name a file in it, for example {path / 'solution.safetensors'}")
    if not path.resolve().parent.is_dir():
        raise FileMissing(f"the folder {path.resolve().parent} does not exist: create it first")
    if path.exists() and not overwrite:
        raise FileExists(f"{path} exists and was left as it is: choose another name, or pass overwrite=True")


def _rename(temporary: Path, target: Path, overwrite: bool) -> None:
    if overwrite:
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target)  # unlike a rename, fails when the target exists
    except FileExistsError:
        raise FileExists(f"{target} appeared while it was being written, and was left as it is") from None
    except OSError:  # a file system without hard links
        check_writable(target)
        os.replace(temporary, target)


def _flush_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _sign(path: Path) -> None:
    """Put the SHA-256 of the file, taken with 64 zeros in its place, into the header."""
    with path.open("r+b") as file:
        header = _read_header(file, path.stat().st_size)
        found = _DIGEST.search(header)
        assert found is not None
        digest = _digest(file, header)
        file.seek(8 + found.start(1))
        file.write(digest.encode())


def _verify(path: Path) -> None:
    with path.open("rb") as file:
        header = _read_header(file, path.stat().st_size)
        found = _DIGEST.findall(header)
        if len(found) != 1:
            raise InvalidInput("this is not a solution saved by bilevel (no checksum)")
        if _digest(file, _DIGEST.sub(b'"sha256":"' + _UNSIGNED.encode() + b'"', header)) != found[0].decode():
            raise InvalidInput("the file is damaged or incomplete (its checksum does not fit): use an older copy")


def _read_header(file: BinaryIO, size: int) -> bytes:
    """The safetensors header; its length is held against the size of the file before any memory is asked for."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, LARGEST_HEADER):
        raise InvalidInput(f"this is not a safetensors file, or it is cut off ({size} bytes)")
    return file.read(length)


def _digest(file: BinaryIO, header: bytes) -> str:
    """SHA-256 of the length, the given header and the rest of the file, of which the header has been read."""
    digest = hashlib.sha256(len(header).to_bytes(8, "little") + header)
    for block in _blocks(file):
        digest.update(block)
    return digest.hexdigest()


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(1 << 20):
        yield block
