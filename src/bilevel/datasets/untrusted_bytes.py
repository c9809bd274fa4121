"""The bytes of untrusted files: never more than expected, never written anywhere, each with its SHA-256.

Every reader states how many bytes an unpacked file may have. A file with more raises an error before memory is
allocated, a file with fewer is damaged; both errors name the file and the remedy.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .._files import CorruptFileError, MissingFileError
from ..errors import BilevelError, InvalidInputError

BROKEN = (EOFError, OSError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile, tarfile.TarError)
"""Errors that the unpackers of the standard library raise for invalid bytes."""
OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}


class Files:
    """The files of one set: reads them, and keeps the SHA-256 of each under its path in the data folder.

    Parameters
    ----------
    root
        The data folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sha256: dict[str, str] = {}

    def first(self, *candidates: str, dataset: str) -> Path:
        """The first of the candidate paths that exists."""
        for candidate in candidates:
            if (self.root / candidate).exists():
                return self.root / candidate
        raise MissingFileError(
            f"{dataset}: there is no {candidates[0]} in {self.root}. Get it with `bilevel data fetch {dataset}`, "
            f"or place it there (also accepted: {', '.join(candidates[1:]) or 'nothing else'})"
        )

    def unpacked(self, path: Path, *, limit: int) -> bytes:
        """The content of a plain, .gz or .bz2 file, which may have up to `limit` bytes."""
        self.record(path, limit=limit + limit // 50 + 10_000)  # packing what cannot be packed costs little
        with reading(path), OPENERS.get(path.suffix, open)(path, "rb") as file:
            return bounded(file, limit, path)

    def record(self, path: Path, *, limit: int) -> str:
        """Take the SHA-256 of a file, which may have up to `limit` bytes."""
        require_regular(path)
        size = path.stat().st_size
        require(size <= limit, path, f"has {size:,} bytes, more than the {limit:,} it may have")
        with reading(path), path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self.sha256[path.relative_to(self.root).as_posix()] = digest
        return digest

    def record_folder(self, path: Path, pattern: str, *, limit: int) -> str:
        """Take the SHA-256 of the lines `SHA-256  NAME` of the files of a folder, in the order of their names."""
        lines = hashlib.sha256()
        for file in sorted(path.glob(pattern), key=lambda file: file.as_posix()):
            require_regular(file)
            with reading(file), file.open("rb") as opened:
                content = bounded(opened, limit, file)
            lines.update(f"{hashlib.sha256(content).hexdigest()}  {file.relative_to(path).as_posix()}\n".encode())
        self.sha256[path.relative_to(self.root).as_posix()] = lines.hexdigest()
        return lines.hexdigest()


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors of the block into errors of the library that name the file."""
    try:
        yield
    except BilevelError:
        raise
    except PermissionError as error:
        raise InvalidInputError(
            f"{path}: the file may not be read: change its permissions, or use another folder"
        ) from error
    except BROKEN as error:
        raise damaged(path, f"cannot be unpacked or read ({error or type(error).__name__})") from error


def bounded(file: IO[bytes], limit: int, where: Path | str) -> bytes:
    """All bytes of an open file, of which there may be `limit`."""
    content = file.read(limit + 1)
    if len(content) > limit:
        raise damaged(where, f"holds more than the {limit:,} bytes it may have")
    return content


def damaged(path: Path | str, reason: str) -> CorruptFileError:
    """The error for a damaged file."""
    return CorruptFileError(
        f"{path}: the file {reason}. Delete it and fetch or copy it again; `bilevel data verify` checks it"
    )


def require(condition: bool, path: Path | str, reason: str) -> None:
    """Raise if the structure of a file is wrong."""
    if not condition:
        raise damaged(path, reason)


def require_regular(path: Path) -> None:
    """Raise for folders, and for devices and pipes, which may be endless."""
    if not path.is_file():
        raise CorruptFileError(f"{path}: this is not a regular file. Put the official file in its place")
