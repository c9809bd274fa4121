"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings of each.

    images_background.zip    30 alphabets, 964 characters
    images_evaluation.zip    20 alphabets, 659 characters    members PART/ALPHABET/characterNN/DDDD_DD.png

The zips, repacked ones too, or folders unpacked from them. Drawings of 105 x 105 black and white pixels are reduced to
28 x 28 by averaging areas; ink is 255, paper 0.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch

from .._files import document_writer, load_document, write_atomically
from ..errors import BilevelError, InvalidInputError, MissingExtraError
from .catalogue_entry import ImageClasses
from .untrusted_bytes import Files, bounded, damaged, reading, require

CHARACTERS = {"images_background": 964, "images_evaluation": 659}
DRAWINGS, SIDE, SIZE = 20, 105, 28
TRAINING_CLASSES = 1200
LARGEST_ZIP = 100_000_000  # bytes; the official ones have under ten million
LARGEST_PICTURE = 50_000  # bytes; the largest official one has under a thousand
_MEMBER = re.compile(r"(images_\w+)/([^/\\]+)/(character\d\d)/(\d{4}_\d\d)\.png")
_CLUTTER = re.compile(r"__MACOSX/.*|(.*/)?(\.DS_Store|Thumbs\.db)|.*/")

FORMAT, VERSION = "bilevel.DecodedImages", 1

Pictures = tuple[np.ndarray, tuple[str, ...]]
"""Images (classes, per_class, channels, height, width) uint8, and the names of the classes."""
OpenMember = Callable[[str], IO[bytes]]
Split = Literal["train", "validation", "test", "background", "evaluation", "all"]


def read(root: Path, characters: Mapping[str, int] = CHARACTERS) -> ImageClasses:
    """All characters, background before evaluation, each part in the order of its names."""
    files = Files(root)
    paths = [files.first(f"omniglot/{part}.zip", f"omniglot/{part}", dataset="omniglot") for part in characters]
    for path in paths:
        if path.is_dir():
            files.record_folder(path, "*/*/*.png", limit=LARGEST_PICTURE)
        else:
            files.record(path, limit=LARGEST_ZIP)

    def decode() -> Pictures:
        decoded: dict[str, np.ndarray] = {}
        for path, (part, count) in zip(paths, characters.items(), strict=True):
            with reading(path), (_folder if path.is_dir() else _zip)(path) as (members, open_member):
                for name, drawings in _checked(members, part, count, path).items():
                    decoded[name] = _character(drawings, open_member, path)
        return np.stack(list(decoded.values())), tuple(decoded)

    images, names = _cached(root / "omniglot", files.sha256, decode)
    return ImageClasses("omniglot", images, names, sha256=files.sha256)


def _cached(folder: Path, sources: Mapping[str, str], decode: Callable[[], Pictures]) -> Pictures:
    """What `decode` returns, or returned before for files with the same SHA-256; a cache that fails is done without."""
    key = hashlib.sha256("\n".join(f"{digest} {name}" for name, digest in sources.items()).encode()).hexdigest()
    path = folder / f"decoded-{key[:16]}.safetensors"

    def stored(document: dict, tensors: dict[str, torch.Tensor]) -> Pictures:
        images, names = tensors["images"].numpy(), tuple(map(str, document["class_names"]))
        if document["sources"] != key or images.ndim != 5 or images.dtype != np.uint8 or len(images) != len(names):
            raise InvalidInputError("these are pictures of other sources")
        return images, names

    with suppress(BilevelError):
        _check_ours(path)
        return load_document(path, stored, format=FORMAT, version=VERSION, what="decoded pictures")
    images, names = decode()
    document = {"format": FORMAT, "version": VERSION, "sources": key, "class_names": list(names)}
    with suppress(BilevelError, OSError):
        writer = document_writer(document, {"images": torch.from_numpy(images)}, too_long="")
        write_atomically(path, writer, overwrite=True)
        path.chmod(0o600)
    return images, names


def _check_ours(path: Path) -> None:
    """Raise if others may have written this file: its checksum says nothing about who did, or from which pictures."""
    if path.exists() and hasattr(os, "getuid"):
        found, folder = path.stat(), path.parent.stat()  # in a folder that others may write they may exchange it
        if found.st_uid != os.getuid() or found.st_mode & 0o022 or folder.st_mode & 0o002:
            raise InvalidInputError(f"{path} may have been written by others")


@contextmanager
def _zip(path: Path) -> Iterator[tuple[list[str], OpenMember]]:
    with zipfile.ZipFile(path) as archive:
        yield [name for name in archive.namelist() if not _CLUTTER.fullmatch(name)], archive.open


@contextmanager
def _folder(path: Path) -> Iterator[tuple[list[str], OpenMember]]:
    names = [file.relative_to(path.parent).as_posix() for file in path.glob("*/*/*.png")]
    yield names, lambda name: (path.parent / name).open("rb")


def _checked(members: list[str], part: str, count: int, path: Path) -> dict[str, list[str]]:
    """The names of the drawings of every character, all in order; nothing has been unpacked yet."""
    classes: dict[str, list[str]] = {}
    for name in sorted(members):
        match = _MEMBER.fullmatch(name)
        require(match is not None and match[1] == part, path, f"holds {name!r}, which is no drawing of {part}")
        classes.setdefault(name.rsplit("/", 1)[0], []).append(name)
    require(len(classes) == count, path, f"holds {len(classes):,} characters instead of {count}")
    for character, drawings in classes.items():
        distinct = len(set(drawings))
        complete = distinct == len(drawings) == DRAWINGS
        require(complete, path, f"holds {distinct} different drawings of {character} instead of {DRAWINGS}")
    return classes


def _character(drawings: list[str], open_member: OpenMember, path: Path) -> np.ndarray:
    """The drawings of one character, (20, 1, 28, 28) uint8."""
    ink = []
    for name in drawings:
        with open_member(name) as file:
            ink.append(_ink(bounded(file, LARGEST_PICTURE, f"{path}: {name}"), f"{path}: {name}"))
    return reduced(np.stack(ink))[:, None]


def _ink(content: bytes, where: str) -> np.ndarray:
    """True where there is ink, (105, 105)."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Reading Omniglot", "apps") from None
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as picture:
            size = picture.size
            if size == (SIDE, SIDE):  # known before anything is decoded
                return np.asarray(picture.convert("L")) < 128
    except Exception as error:  # Pillow's words for a broken picture are many
        raise damaged(where, f"is no PNG picture ({error})") from error
    raise damaged(where, f"has {size[0]} x {size[1]} pixels instead of {SIDE} x {SIDE}")


def reduced(ink: np.ndarray) -> np.ndarray:
    """255 W ink W' as uint8 with W_ij the share of pixel j of 105 in pixel i of 28: means over areas; (n, 105, 105)."""
    shares = _shares()
    return np.rint(255 * (shares @ ink.astype(np.float32) @ shares.T)).astype(np.uint8)


@cache
def _shares() -> np.ndarray:
    edges, pixels = np.linspace(0, SIDE, SIZE + 1)[:, None], np.arange(SIDE)
    overlap = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    return (np.clip(overlap, 0, None) * (SIZE / SIDE)).astype(np.float32)


def omniglot_split(data: ImageClasses, split: Split = "train", *, validation: int = 0, seed: int = 0) -> ImageClasses:
    """Some characters of Omniglot: by default 1,200 to train and the other 423 to test.

    The characters are sorted by the SHA-256 of `SEED/ALPHABET/characterNN`, a random order that is the same on every
    machine. The first 1,200 are for training, of which the last `validation` may be held out, and the last 423 for
    testing. `background` and `evaluation` are the two official files.

    Parameters
    ----------
    data
        The result of `load("omniglot")`.
    split
        train, validation, test, background, evaluation or all.
    validation
        The number of the 1,200 characters that are used for validation instead of training.
    seed
        A text that selects another order.

    Returns
    -------
    ImageClasses
        The images of these characters, (characters, 20, 1, 28, 28) uint8.

    Examples
    --------
    >>> import numpy as np
    >>> from bilevel.datasets import Cifar100, ImageClasses, TrainTestRows, fc100_split, omniglot_split
    >>> characters = tuple(f"images_background/Greek/character{k:02d}" for k in range(1623))
    >>> data = ImageClasses("omniglot", np.zeros((1623, 1, 1, 2, 2), np.uint8), characters, sha256={})
    >>> len(omniglot_split(data, "train").images), len(omniglot_split(data, "test").images)
    (1200, 423)
    """
    names = [name.split("/", 1) for name in data.class_names]
    order = sorted(range(len(names)), key=lambda i: hashlib.sha256(f"{seed}/{names[i][1]}".encode()).digest())
    if not 0 <= validation < TRAINING_CLASSES:
        raise InvalidInputError(f"validation must be between 0 and {TRAINING_CLASSES - 1} characters, got {validation}")
    border = TRAINING_CLASSES - validation
    chosen = {
        "train": order[:border],
        "validation": order[border:TRAINING_CLASSES],
        "test": order[TRAINING_CLASSES:],
        "background": [i for i, name in enumerate(names) if name[0] == "images_background"],
        "evaluation": [i for i, name in enumerate(names) if name[0] == "images_evaluation"],
        "all": list(range(len(names))),
    }
    if split not in chosen:
        raise InvalidInputError(f"split must be one of {', '.join(chosen)}, got {split!r}")
    if not chosen[split]:
        raise InvalidInputError(f"split {split!r} is empty: pass validation=100, say, to keep 100 characters aside")
    return replace(
        data, images=data.images[chosen[split]], class_names=tuple(data.class_names[i] for i in chosen[split])
    )
