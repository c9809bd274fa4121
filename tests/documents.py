"""Files of bilevel made and changed as others could: by the description of their format, not by the library's code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def write_document(path: Path, document: Any, tensors: dict[str, torch.Tensor]) -> Path:
    """A safetensors file whose metadata have the document and the SHA-256 of the file with zeros in its place."""
    zeros = "0" * 64
    save_file(tensors, path, metadata={"bilevel": json.dumps(document), "sha256": zeros})
    content = path.read_bytes()
    place = content.index(b'"sha256":"' + zeros.encode()) + len('"sha256":"')
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(content[:place] + digest + content[place + len(digest) :])
    return path


def edit(path: Path, change: Callable[[Any, dict[str, torch.Tensor]], Any]) -> Path:
    """Changes a file: `change` alters its document and its tensors, or returns another document."""
    with safe_open(path, framework="pt") as file:
        document = json.loads(file.metadata()["bilevel"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return write_document(path, change(document, tensors) or document, tensors)


def setting(*keys: Any, to: Any) -> Callable[[Any, Any], None]:
    """A change of the value at these keys of the document."""

    def change(document: Any, tensors: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        document[keys[-1]] = to

    return change


def removing(*keys: Any) -> Callable[[Any, Any], None]:
    """A document without the value at these keys."""

    def change(document: Any, tensors: Any) -> None:
        for key in keys[:-1]:
            document = document[key]
        del document[keys[-1]]

    return change
