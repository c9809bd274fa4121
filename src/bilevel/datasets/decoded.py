"""Pictures that were decoded once, kept beside the files they came from.

The name of the kept file holds the SHA-256 of its sources, so that other sources never meet old pictures. It is a
convenience: where it cannot be written or read, the pictures are decoded again.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch

from ..errors import BilevelError, InvalidInput
from ..files import load_document, save_document

FORMAT, VERSION = "bilevel.DecodedImages", 1

Pictures = tuple[np.ndarray, tuple[str, ...]]
"""Images (classes, per_class, channels, height, width) uint8, and the names of the classes."""


def kept(folder: Path, sources: Mapping[str, str], decode: Callable[[], Pictures]) -> Pictures:
    """What `decode` returns, or returned for the same sources before.

    Parameters
    ----------
    folder
        Where the pictures are kept.
    sources
        The SHA-256 of every file they come from.
    """
    key = hashlib.sha256("\n".join(f"{digest} {name}" for name, digest in sources.items()).encode()).hexdigest()
    path = folder / f"decoded-{key[:16]}.safetensors"
    with contextlib.suppress(BilevelError):
        return load_document(path, lambda document, tensors: _pictures(document, tensors, key),
                             format=FORMAT, version=VERSION, what="decoded pictures")  # fmt: skip
    images, names = decode()
    document = {"format": FORMAT, "version": VERSION, "sources": key, "class_names": list(names)}
    with contextlib.suppress(BilevelError, OSError):
        save_document(path, document, {"images": torch.from_numpy(images)}, too_long="", overwrite=True)
    return images, names


def _pictures(document: dict, tensors: dict[str, torch.Tensor], key: str) -> Pictures:
    images, names = tensors["images"].numpy(), tuple(map(str, document["class_names"]))
    if document["sources"] != key or images.ndim != 5 or images.dtype != np.uint8 or len(images) != len(names):
        raise InvalidInput("these are pictures of other sources")
    return images, names
