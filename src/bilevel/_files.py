"""Files that appear complete or not at all, and documents with tensors whose every byte is checked.

A document is one safetensors file: tensors are stored as tensors, all else is one JSON text in the file's metadata,
and a SHA-256 over every byte of the file tells damage from content. Nothing in a file is ever run.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from safetensors import SafetensorError, safe_open

from ._version import __version__
from .errors import (
    BilevelError,
    CorruptFileError,
    InvalidInputError,
    MissingFileError,
    OutputExistsError,
    WriteError,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:  # `bilevel status` and the workers of a sweep start without torch
    import torch
    from torch import Tensor

LARGEST_HEADER = 100_000_000  # of the safetensors format
OLD_FORMATS = ("bilevel.Solution", "bilevel.Journal", "bilevel.MetaLearner")
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError, AssertionError)
"""Errors that Python and torch raise when the content of a file has unexpected types, shapes or names."""
NOT_LOCKED, LOCKING_SECONDS = ".new", 60.0
"""The ending of temporary folders until they are locked, and more seconds than locking takes."""
_UNSIGNED = "0" * 64
_DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')  # quotes inside the document are escaped: it cannot match there

Content = TypeVar("Content")


# --- documents --------------------------------------------------------------------------------------------------------


def document_writer(
    document: Mapping[str, Any], tensors: dict[str, Tensor], *, too_long: str
) -> Callable[[Path], None]:
    """Return a function for `write_atomically` and `write_together` that writes JSON and tensors to a safetensors file.

    Parameters
    ----------
    document
        What JSON can hold, without NaN and infinities; the version of bilevel is added to it.
    tensors
        Contiguous, on the CPU, no two of one memory.
    too_long
        The message when the document does not fit into the header of a file.
    """
    text = json.dumps({**document, "bilevel": __version__}, allow_nan=False, separators=(",", ":"))
    if len(text) > LARGEST_HEADER // 2:
        raise InvalidInputError(too_long)
    metadata = {"format": "pt", "bilevel": text, "sha256": _UNSIGNED}

    def write(temporary: Path) -> None:
        from safetensors.torch import save_file

        try:
            save_file(tensors, temporary, metadata=metadata)
        except SafetensorError as error:  # its word for what the system calls an OSError
            raise OSError(str(error)) from None
        sign(temporary)

    return write


def load_document(
    path: Path,
    decode: Callable[[dict[str, Any], dict[str, Tensor]], Content],
    *,
    format: str,
    version: int,
    what: str,
    device: str | torch.device = "cpu",
) -> Content:
    """Read a file of `document_writer`: the result of `decode` for its document and tensors.

    Every byte is checked against the file's SHA-256 before its content is used; nothing is unpickled.

    Parameters
    ----------
    path
        The file.
    decode
        Called with the document and the tensors; errors it raises become errors of the library.
    format, version
        The format that the document must have, and its newest version; `decode` also gets documents of older versions.
    what
        What should be in the file, for messages: "a solution".
    device
        Where the tensors go.
    """
    try:
        if path.exists() and not path.is_file():  # a folder, or a device or pipe, which need not end
            raise InvalidInputError("this is not a regular file")
        _verify(path, what)
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            text = (file.metadata() or {}).get("bilevel", "")
            # clone: memory of our own, aligned as torch aligns it, instead of pages of the file.
            stored = {name: file.get_tensor(name).clone().to(device) for name in file.keys()}  # noqa: SIM118
        for name, tensor in stored.items():
            if tensor.is_complex() or (tensor.dtype.itemsize == 1 and tensor.is_floating_point()):
                raise InvalidInputError(f"the tensor {name!r} is of type {tensor.dtype}, which bilevel does not store")
        return decode(_checked_format(json.loads(text), format, version), stored)
    except InvalidInputError as error:
        raise type(error)(f"{path}: {error}") from None
    except FileNotFoundError:
        raise MissingFileError(f"{path}: there is no such file") from None
    except OSError as error:
        kind = CorruptFileError if error.errno == errno.EIO else InvalidInputError
        raise kind(f"{path}: the file cannot be read ({error.strerror})") from None
    except (SafetensorError, *MALFORMED) as error:
        raise InvalidInputError(f"{path}: this is not {what} saved by bilevel ({str(error)[:200]})") from error


def _checked_format(document: Any, format: str, version: int) -> dict[str, Any]:
    if isinstance(document, dict) and document.get("format") in OLD_FORMATS and document["format"] != format:
        raise InvalidInputError("the file was written by version 0.1 and cannot be read: start the run again")
    if not isinstance(document, dict) or document.get("format") != format:
        raise InvalidInputError(f"this file holds no {format}")
    if document.get("version") not in range(1, version + 1):
        raise InvalidInputError(
            f"the file has format version {document.get('version')} (bilevel {document.get('bilevel')}), this is "
            f"bilevel {__version__} which reads versions up to {version}: upgrade bilevel"
        )
    return document


def sign(path: Path) -> None:
    """Put the SHA-256 of the file, taken with 64 zeros in its place, into the header."""
    with path.open("r+b") as file:
        header = _read_header(file, path.stat().st_size)
        found = _DIGEST.search(header)
        assert found is not None
        digest = _digest(file, header)
        file.seek(8 + found.start(1))
        file.write(digest.encode())


def _verify(path: Path, what: str) -> None:
    with path.open("rb") as file:
        header = _read_header(file, path.stat().st_size)
        found = _DIGEST.findall(header)
        if len(found) != 1:
            raise CorruptFileError(f"this is not {what} saved by bilevel (no checksum)")
        if _digest(file, _DIGEST.sub(b'"sha256":"' + _UNSIGNED.encode() + b'"', header)) != found[0].decode():
            raise CorruptFileError("the file is damaged or incomplete (its checksum does not fit): use an older copy")


def is_intact(path: Path) -> bool:
    """Whether every byte of a document is as it was written."""
    try:
        _verify(path, "a document")
    except (InvalidInputError, OSError):
        return False
    return True


def _read_header(file: BinaryIO, size: int) -> bytes:
    """The safetensors header; its length is held against the size of the file before any memory is asked for."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, LARGEST_HEADER):
        raise CorruptFileError(f"this is not a safetensors file, or it is cut off ({size} bytes)")
    return file.read(length)


def _digest(file: BinaryIO, header: bytes) -> str:
    """SHA-256 of the length, the given header and the rest of the file, of which the header has been read."""
    digest = hashlib.sha256(len(header).to_bytes(8, "little") + header)
    for block in iter(partial(file.read, 1 << 20), b""):
        digest.update(block)
    return digest.hexdigest()


# --- any file ---------------------------------------------------------------------------------------------------------


def write_atomically(
    path: Path, write: Callable[[Path], Any], *, overwrite: bool = False, previous: Path | None = None
) -> Path:
    """Write `path` atomically: `write` fills a temporary file next to it, which is then renamed.

    Parameters
    ----------
    path
        The file to make.
    write
        Called with the path of the temporary file.
    overwrite
        Replace an existing file; `OutputExistsError` otherwise, also when the file appears meanwhile.
    previous
        Keep what `path` was under this name, in the same folder.
    """
    write_together({path: write}, overwrite=overwrite, previous={} if previous is None else {path: previous})
    return path


def write_together(
    writers: Mapping[Path, Callable[[Path], Any]],
    *,
    overwrite: bool = False,
    previous: Mapping[Path, Path] | None = None,
) -> None:
    """Several files as by `write_atomically`, none of them before the contents of all are safe on the disk.

    The names appear one after the other. Should one fail, because its file has appeared meanwhile (it is left as it is)
    or the disk refuses, then the files named before it stay, and the error says which these are.
    """
    for path in writers:
        check_writable(path, overwrite=overwrite)
    targets = {path: path.resolve() for path in writers}  # a symbolic link stays one
    temporaries: dict[Path, Path] = {}
    seconds: dict[Path, Path] = {}  # of the files that are kept
    path = next(iter(writers), Path())
    with contextlib.ExitStack() as leftovers:
        try:
            for path, write in writers.items():
                remove_temporaries(path, abandoned=True)
                content = leftovers.enter_context(_private_folder(_temporary(targets[path]))) / "content"
                content.touch()
                mode = content.stat().st_mode  # what the user's settings give new files; safetensors has its own
                write(content)
                content.chmod(mode)
                flush(content)
                temporaries[path] = content
            for path, old in (previous or {}).items():
                second = seconds[old.resolve()] = _temporary(old.resolve())
                leftovers.callback(second.unlink, missing_ok=True)
                _give_second_name(targets[path], second)
            _rename_all(temporaries, targets, overwrite)
            # Only now, so that what was kept before is there until something newer has its place, and at no moment are
            # the two names those of the same bytes. Should it fail, then an older one stays.
            for old, second in seconds.items():
                with contextlib.suppress(OSError):
                    os.replace(second, old)
        except OSError as error:
            if isinstance(error, BilevelError):
                raise
            raise WriteError(
                f"{path} could not be written ({error.strerror or error}), and nothing was changed"
            ) from error
    for folder in {target.parent for target in targets.values()}:
        flush_folder(folder)


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")


@contextlib.contextmanager
def _private_folder(folder: Path) -> Iterator[Path]:
    """A private folder, locked while it is in use: safetensors puts temporary files next to the one it writes."""
    unlocked, handle = folder.with_suffix(NOT_LOCKED), None
    unlocked.mkdir(mode=0o700)
    try:
        if fcntl is not None:
            handle = os.open(unlocked, os.O_RDONLY)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(folder)
        yield folder
    finally:
        for left in (folder, unlocked):
            shutil.rmtree(left, ignore_errors=True)
        if handle is not None:
            os.close(handle)


def _is_abandoned(folder: Path) -> bool:
    """Whether the program that made this temporary folder has ended; False if that cannot be determined."""
    try:
        if folder.suffix == NOT_LOCKED and time.time() - folder.stat().st_mtime < LOCKING_SECONDS:
            return False
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        if fcntl is None:
            return False
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def remove_temporaries(path: Path, *, abandoned: bool = False) -> None:
    """Delete temporary files of a program that was killed while it wrote `path`; if `abandoned`, of no other."""
    target = path.resolve()
    ours = re.compile(re.escape(f".{target.name}.") + rf"[0-9a-f]{{16}}\.(tmp|{NOT_LOCKED[1:]})")
    for left in target.parent.iterdir():
        if not ours.fullmatch(left.name) or (abandoned and not (left.is_dir() and _is_abandoned(left))):
            continue
        if left.is_dir():
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink(missing_ok=True)


def _give_second_name(target: Path, second: Path) -> None:
    """Keep the present content of `target`, if it exists, under a second name when the file is replaced."""
    try:
        os.link(target, second)
    except FileNotFoundError:
        return
    except OSError:  # a file system without hard links
        shutil.copyfile(target, second)
        flush(second)


def check_name(path: Path) -> None:
    """Raise if the path is not a valid file name: too long, with a zero byte, or below something that is no folder."""
    try:
        path.resolve().stat()
    except FileNotFoundError:
        return
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        reason = getattr(error, "strerror", None) or error
        raise InvalidInputError(f"{str(path)[:80]!r} cannot be the name of a file ({reason}): choose another") from None


def check_writable(path: Path, *, overwrite: bool = False) -> None:
    """Raise, before any work is done, if the path could not be written at the end."""
    check_name(path)
    if path.is_dir():
        raise InvalidInputError(f"{path} is a folder: name a file in it, for example {path / 'solution.safetensors'}")
    if not path.resolve().parent.is_dir():
        raise MissingFileError(f"the folder {path.resolve().parent} does not exist: create it first")
    if not os.access(path.resolve().parent, os.W_OK):
        raise InvalidInputError(
            f"the folder {path.resolve().parent} may not be written to: choose another place for {path}"
        )
    if path.exists() and not overwrite:
        raise OutputExistsError(
            f"{path} exists and was left as it is: choose another name, or replace it by "
            "overwrite=True (on the command line: --force)"
        )


def _rename_all(temporaries: Mapping[Path, Path], targets: Mapping[Path, Path], overwrite: bool) -> None:
    written: list[str] = []
    for path, target in targets.items():
        try:
            _rename(temporaries[path], target, overwrite)
        except OSError as error:
            before = f"written before it: {', '.join(written)}" if written else "nothing was written"
            if isinstance(error, InvalidInputError):
                raise type(error)(f"{error}; {before}") from None
            raise InvalidInputError(f"{target} cannot be written ({error.strerror or error}); {before}") from None
        written.append(str(path))


def _rename(temporary: Path, target: Path, overwrite: bool) -> None:
    if overwrite:
        os.replace(temporary, target)
        return
    try:
        os.link(temporary, target)  # unlike a rename, fails when the target exists
    except FileExistsError:
        raise OutputExistsError(f"{target} appeared while it was being written, and was left as it is") from None
    except OSError:  # a file system without hard links
        check_writable(target)
        os.replace(temporary, target)


def flush(path: Path) -> None:
    """Make the content of a file survive a power cut."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
