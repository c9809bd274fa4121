"""The checkpoint of work in several stages: what the finished ones gave, and how far the present one is.

    stage 1 -> stage 2 -> ... -> stage n        each is a function of the input, the seed and the stages before it

Work that is resumed takes the results of finished stages from the file and goes on within the present one, so that it
ends with the same bits as if it had never been stopped. The input is not in the file, but its digest is, and the
settings as texts: other ones are refused.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .checkpoints import Checkpoint, CheckpointFiles, Fact, load_newest, start_checkpoints
from .errors import Incompatible, InvalidInput, InvalidType
from .storage import load_values

FORMAT, VERSION = "bilevel.Journal", 1
"""A file of every version is in tests/fixtures, and stays readable."""
WHAT = "a checkpoint of work in stages"
PARTS = {"about": dict, "identity": dict, "finished": dict, "stage": str, "present": dict, "progress": dict}
"""What is in a file, each with its type."""


class Journal:
    """Results by stage, kept in memory and, if there is a checkpoint, on the disk.

    Parameters
    ----------
    checkpoint
        Where it is written: after every step of a stage, or every so many (`Checkpoint(path, every=...)`), and when a
        stage ends. None: nowhere.
    resume
        The file to go on from.
    earlier
        What `load_journal(resume)` gave.
    identity
        What makes this work this work, by name; the work to resume must agree in all of it.
    call
        How a user goes on, for messages, such as "HyperCleaner.fit".

    Examples
    --------
    >>> journal = Journal()
    >>> journal.once("sum", lambda: {"total": 3})
    {'total': 3}
    >>> journal.once("sum", lambda: 1 / 0)  # never done again
    {'total': 3}
    """

    def __init__(
        self,
        checkpoint: str | Path | Checkpoint | None = None,
        *,
        resume: str | Path | None = None,
        earlier: Mapping[str, Any] | None = None,
        identity: Mapping[str, Fact] | None = None,
        call: str = "",
    ) -> None:
        self.identity = dict(identity or {})
        self.finished: dict[str, Any] = {}
        self.stage, self.present = "", {}
        self.progress: dict[str, Any] = {}
        self.stopped = False  # what comes after Ctrl-C is for the user, not for the file
        self.about: dict[str, Fact] = {}
        if earlier is not None:
            check_same_work(earlier["identity"], self.identity, resume)
            self.finished, self.stage, self.present = earlier["finished"], earlier["stage"], earlier["present"]
            self.progress, self.about = earlier["progress"], earlier["about"]
        self._written, self._steps = True, 0
        self.files = start_checkpoints(checkpoint, resume)
        if self.files is not None:
            self._begin(self.files, call)

    def _begin(self, files: CheckpointFiles, call: str) -> None:
        self.about = {**self.about, **files.settings.about}
        files.remedy = remedy(self.about, files.path, call)
        if files.resumed:
            files.step = self.place
        else:
            self._write()  # a place that cannot be written is known before the first step

    def once(self, stage: str, compute: Callable[[], Any]) -> Any:
        """What a stage gives: from the file if it was finished there, else computed and written."""
        if stage not in self.finished:
            result = compute()
            if self.stopped:
                return result
            self.finished[stage] = result
            self.stage, self.present = f"{stage}, finished", {}
            self._write()
        return self.finished[stage]

    def reached(self, stage: str) -> dict[str, Any] | None:
        """How far this stage was when the work was stopped; None if it had not begun or made no step."""
        return self.present if self.stage.partition(",")[0] == stage and self.present else None

    def step(self, stage: str, number: int, present: dict[str, Any], progress: dict[str, Any]) -> None:
        """A step of a stage was made: `present` is all that the next one needs, `progress` what the user is shown."""
        if self.stopped:
            return
        self.stage, self.present, self.progress, self._written = f"{stage}, step {number}", present, progress, False
        self._steps += 1
        if self.files is not None and self._steps % (self.files.settings.every or 1) == 0:
            self._write()

    def stop(self) -> None:
        """Ctrl-C: the newest complete step is the last that is written."""
        if not self.stopped:
            self.stopped = True
            if not self._written:
                self._write()

    @contextmanager
    def rescued(self) -> Iterator[None]:
        """Work whose errors leave the newest complete step on the disk and name the file."""
        try:
            yield
        except BaseException as error:
            self.stop()
            if self.files is not None:
                error.add_note(str(self.files))
            raise

    @property
    def place(self) -> str:
        """Where the work is, for people."""
        return place_of(self.stage)

    def _write(self) -> None:
        if self.files is not None:
            values = {name: getattr(self, name) for name in PARTS}
            self._written = self.files.write_values(values, self.place, format=FORMAT, version=VERSION)

    def __str__(self) -> str:
        return "" if self.files is None else str(self.files)


def load_journal(path: str | Path) -> dict[str, Any]:
    """The newest state of work in stages; if `path` is damaged or missing the one before it, with a warning."""
    if not isinstance(path, str | Path):
        raise InvalidType(f"resume must be the path of a checkpoint, got {path!r}")
    return load_newest(Path(path), _load, lambda values: place_of(values["stage"]))


def checked_journal(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The values of a file, each of the type that it should be."""
    for name, kind in PARTS.items():
        if not isinstance(values.get(name), kind):
            raise InvalidInput(f"{path}: {name} is not a {kind.__name__}")
    return dict(values)


def remedy(about: Mapping[str, Fact], path: Path, call: str) -> str:
    """How a user goes on: by the command line that began the work, or else by a call.

    Examples
    --------
    >>> remedy({"command_line": "bilevel clean a.csv"}, Path("a.safetensors"), "fit")
    'bilevel clean a.csv --resume a.safetensors'
    """
    if "command_line" in about:
        return f"{about['command_line']} --resume {shlex.quote(str(path))}"
    return f"{call}(..., resume={str(path)!r})"


def place_of(stage: str) -> str:
    """Where the work is, for people.

    Examples
    --------
    >>> place_of("learning rows, step 3"), place_of("")
    ('"learning rows, step 3"', 'The beginning')
    """
    return f'"{stage}"' if stage else "The beginning"


def _load(path: Path) -> dict[str, Any]:
    return checked_journal(load_values(path, format=FORMAT, version=VERSION, what=WHAT), path)


def check_same_work(was: Mapping[str, Any], now: Mapping[str, Fact], path: Any) -> None:
    """Refuse to go on with work whose settings or data were others, naming what differs."""
    for name in dict.fromkeys([*was, *now]):
        if was.get(name) != now.get(name):
            values = (
                "" if str(was.get(name)).startswith("sha256:") else f": {was.get(name)!r} then, {now.get(name)!r} now"
            )
            raise Incompatible(
                f"{path} cannot be continued, since {name} differs from that of its run{values}; with what the run was "
                "started with it goes on, and a new run needs a new checkpoint"
            )


def digest(*parts: Any) -> str:
    """SHA-256 of NumPy arrays, SciPy sparse matrices (CSR) and texts, with shapes and types; large arrays in blocks.

    Examples
    --------
    >>> digest("a", None) == digest("a", None) != digest("a")
    True
    """
    total = hashlib.sha256()
    for part in parts:
        if hasattr(part, "indptr"):
            total.update(f"csr {part.shape}".encode())
            for array in (part.data, part.indices, part.indptr):
                _add_array(total, array)
        elif hasattr(part, "dtype"):
            _add_array(total, part)
        else:
            total.update(f"{part!r};".encode())
    return f"sha256:{total.hexdigest()}"


def _add_array(total: Any, array: Any, block: int = 1 << 23) -> None:
    total.update(f"{array.dtype} {array.shape};".encode())
    rows = max(block // max(array[:1].nbytes, 1), 1)
    for first in range(0, len(array), rows):
        total.update(array[first : first + rows].tobytes())
