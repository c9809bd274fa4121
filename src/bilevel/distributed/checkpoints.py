"""Checkpoints that all ranks write together, complete or not at all, and that any number of ranks can go on from.

    run/current.json                     which folder is complete, and which one was before it
    run/000012/rank-00000-of-00002.safetensors, rank-00001-of-00002.safetensors
    run/000011/...

Each rank writes its rows to a new folder; when all have done so, rank 0 renames a new current.json into its place.
Every file has a checksum, which ranks verify before they read anything; nothing is pickled. The entries of x, and all
that a state has one of per row, are divided; everything else must be the same on every rank, which is checked before
it is written.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from ..checkpoints import Checkpoint, CheckpointFiles, CheckpointWarning, Fact
from ..errors import BilevelError, InvalidInput
from ..files import Damaged, FileExists, FileMissing, NotWritten, is_intact, write_atomically
from ..journal import check_same_work
from ..solution import Solution
from ..storage import VERSION, TensorStore, decode, decode_solution, encode, encode_solution
from .fingerprint import fingerprint
from .ranks import Ranks
from .row_files import Layout, RowPart, load_rows, read_documents, save_rows

POINTER = "current.json"
DIVIDED = (
    "x",
    "noise",
    "noisy",
    "upper_momentum",
    "upper_moment",
    "upper_floor",
    "gradient",
    "momentum",
    "upper_correction",
)
"""Names of what has one entry per row, where its first dimension says so too."""


@dataclass(frozen=True)
class ShardedCheckpoint(Checkpoint):
    """Where and how often ranks write the state of a run whose rows are divided among them; also what to resume.

    Parameters
    ----------
    path
        The folder.
    every, about
        As in `Checkpoint`.
    rows
        How many rows this rank holds.
    ranks
        Who writes it; default those of torch.distributed, or this process alone.
    identity
        What makes this run this run, by name, beside the rows, labels and settings of the problem, which `minimize`
        adds: to go on, all of it must be the same.

    Examples
    --------
    >>> import tempfile, torch
    >>> from bilevel.distributed import ShardedCleaningProblem, minimize
    >>> rows, labels = torch.tensor([[1.0], [2.0], [-1.0]]), torch.tensor([1, 0, 0])
    >>> problem = ShardedCleaningProblem(rows, labels, torch.tensor([[1.5], [-1.5]]), torch.tensor([1, 0]))
    >>> checkpoint = ShardedCheckpoint(tempfile.mkdtemp() + "/run", rows=len(labels))
    >>> solution = minimize(problem, problem.start(), steps=100, checkpoint=checkpoint)
    >>> more = minimize(problem, resume=checkpoint, steps=20, checkpoint=checkpoint)
    >>> more.stats["steps"]
    120
    """

    rows: int = field(kw_only=True)
    ranks: Ranks = field(default_factory=Ranks, kw_only=True)
    identity: Mapping[str, Fact] = field(default_factory=dict, kw_only=True)

    @property
    def folder(self) -> CheckpointFolder:
        """What is on the disk."""
        return CheckpointFolder(Path(self.path), self.ranks, self.rows)

    def load(self) -> Solution:
        """The newest complete state of the run."""
        document, stored = self.folder.read()
        if document.get("solution", {}).get("version") not in range(1, VERSION + 1):
            raise InvalidInput(f"{self.path} holds no run of minimize, or one of a later version of bilevel")
        check_same_work(document.get("identity", {}), self.identity, self.path)
        return decode_solution(document["solution"], stored)

    def load_values(self, *, format: str, version: int, what: str) -> dict[str, Any]:
        """The newest complete state of work in stages; see `bilevel.journal`."""
        document, stored = self.folder.read()
        if document.get("kind") != format or document.get("of_version") not in range(1, version + 1):
            raise InvalidInput(f"{self.path} does not hold {what}")
        values = decode(document["values"], stored)
        if not isinstance(values, dict):
            raise InvalidInput(f"{self.path}: the values are not a dictionary")
        return values

    def start(self, resumed: Path | None = None) -> ShardedFiles:
        """The files of a run that is about to begin or goes on from `resumed`."""
        return ShardedFiles(self, resumed)


class ShardedFiles(CheckpointFiles):
    """The checkpoints of one run over several ranks, as they are on the disk."""

    settings: ShardedCheckpoint

    def __init__(self, settings: ShardedCheckpoint, resumed: Path | None = None) -> None:
        self.settings, self.path, self.step = settings, Path(settings.path), None
        self.resumed = resumed is not None and resumed.resolve() == self.path.resolve()
        self.remedy = f"minimize(..., resume=ShardedCheckpoint({str(self.path)!r}, ...))"
        self._folder = settings.folder
        with settings.ranks.together("preparing its checkpoints"):
            if not self.resumed and self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise FileExists(
                    f"{self.path} exists and was left as it is: resume it, or choose another name for a new run"
                )
        with settings.ranks.together("preparing its checkpoints"):
            if settings.ranks.rank == 0:
                self.path.mkdir(exist_ok=True)  # its parent must be there

    def holds(self, step: int) -> bool:
        """What one rank alone could save after an error is no checkpoint: the newest one stays."""
        return True

    def write(self, solution: Solution) -> bool:
        identity = dict(self.settings.identity)

        def make(tensors: TensorStore) -> dict[str, Any]:
            return {"identity": identity, "solution": {"version": VERSION, **encode_solution(solution, tensors)}}

        return self._write(make, solution.state.step)

    def write_values(self, values: Mapping[str, Any], step: int | str, *, format: str, version: int) -> bool:
        return self._write(
            lambda tensors: {"kind": format, "of_version": version, "values": encode("values", values, tensors)}, step
        )

    def _write(self, make: Callable[[TensorStore], dict[str, Any]], step: int | str) -> bool:
        try:
            self._folder.write(make)
        except NotWritten as error:
            warnings.warn(f"{error}. {self}", CheckpointWarning, stacklevel=4)
            return False
        self.step = step
        return True


class RowStore(TensorStore):
    """Tensors by name, and which of them are divided: along which dimension of what is stored."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows, self.divided = rows, dict[str, int]()

    def add(self, name: str, tensor: Tensor) -> dict[str, Any]:
        known = set(self.stored)
        entry = super().add(name, tensor)
        named = set(name.split("/")) & set(DIVIDED)
        if entry["tensor"] not in known and named and tensor.ndim and len(tensor) == self.rows:
            self.divided[entry["tensor"]] = entry.get("order", list(range(tensor.ndim))).index(0)
        return entry


@dataclass(frozen=True)
class CheckpointFolder:
    """The newest complete checkpoint and the one before it. All ranks must call its methods together.

    Parameters
    ----------
    path
        The folder.
    ranks
        Who writes and reads.
    rows
        How many rows this rank holds.
    """

    path: Path
    ranks: Ranks
    rows: int

    @property
    def layout(self) -> Layout:
        """Which rows these are."""
        counts = self.ranks.gather(self.rows)
        return Layout(sum(counts[: self.ranks.rank]), self.rows, sum(counts))

    def write(self, make: Callable[[TensorStore], dict[str, Any]]) -> None:
        """A new checkpoint of the document that `make` gives; `NotWritten` on every rank when one could not write."""
        store, document = RowStore(self.rows), {}
        with self.ranks.together("collecting its checkpoint"):
            document = {**make(store), "divided": store.divided}
        self.ranks.agree(_common(store), "ranks must hold the same model: this is a mistake of the program")
        layout = self.layout
        tensors = {name: _part(name, tensor, store, layout) for name, tensor in store.stored.items()}
        if self.ranks.rank > 0:  # what is whole is on every rank
            document, tensors = {}, {name: tensor for name, tensor in tensors.items() if name in store.divided}
        new = self._each(lambda: self._new_folder() if self.ranks.rank == 0 else "")[0]
        self._each(lambda: save_rows(self._file(new, self.ranks.rank, self.ranks.size), tensors, document))
        self._each(lambda: self._make_current(new) if self.ranks.rank == 0 else None)

    def read(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The document and the tensors, of those that are divided the rows of this rank, of the newest intact one."""
        told: list[str] = []
        for name, count in self._complete():
            files = [self._file(name, rank, count) for rank in range(count)]
            damage = [text for texts in self.ranks.gather(self._damage(files)) for text in texts]
            if not damage:
                found = self._read_folder(files)
                if told:
                    used = f"{'; '.join(told)}. The one before it is used: {self.path / name}"
                    warnings.warn(used, CheckpointWarning, stacklevel=3)
                return found
            told += damage
        raise Damaged(f"{self.path} has no checkpoint that is intact: {'; '.join(told)}")

    def _read_folder(self, files: Sequence[Path]) -> tuple[dict[str, Any], dict[str, Tensor]]:
        layout, document, stored = self.layout, {}, {}
        with self.ranks.together(f"reading {files[0].parent}"):
            try:
                documents = read_documents(files)
                document = documents[0]
                stored = load_rows(files, documents, document["divided"], layout)
            except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
                if isinstance(error, BilevelError):
                    raise
                raise InvalidInput(f"{files[0].parent}: these are no checkpoints of bilevel ({error})") from error
        return document, stored

    def _damage(self, files: Sequence[Path]) -> list[str]:
        """What is wrong with the files that this rank looks at: together the ranks look at all."""
        mine = files[self.ranks.rank :: self.ranks.size]
        missing = [f"{path}: there is no such file" for path in mine if not path.exists()]
        return missing + [f"{path} is damaged" for path in mine if path.exists() and not is_intact(path)]

    def _complete(self) -> list[tuple[str, int]]:
        """The names of the newest complete folder and of the one before it, and how many ranks wrote them."""
        found: list[list[Any]] = []
        with self.ranks.together("looking for its checkpoint"):
            if self.path.is_file():
                raise InvalidInput(f"{self.path} is a file, the checkpoint of one process: that one goes on from it")
            if not (self.path / POINTER).exists():
                raise FileMissing(f"{self.path} holds no complete checkpoint: start a new run")
            try:
                found = [[str(name), int(count)] for name, count in json.loads((self.path / POINTER).read_text())]
            except (ValueError, TypeError) as error:
                raise Damaged(f"{self.path / POINTER} is damaged ({error}): use an older copy") from None
            if not all(name.isdigit() and 0 < count < 10**6 for name, count in found):
                raise Damaged(f"{self.path / POINTER} is damaged: use an older copy")
        self.ranks.agree({f"what {self.path / POINTER} says": found}, "every rank must see the same folder")
        return [(name, count) for name, count in found]

    def _file(self, folder: str, rank: int, size: int) -> Path:
        return self.path / folder / f"rank-{rank:05d}-of-{size:05d}.safetensors"

    def _new_folder(self) -> str:
        numbers = [int(entry.name) for entry in self.path.iterdir() if entry.name.isdigit()]
        name = f"{max(numbers, default=0) + 1:06d}"
        (self.path / name).mkdir()
        return name

    def _make_current(self, name: str) -> None:
        """Name the new folder, keep the one before it if it is there, and forget all others."""
        pointer = self.path / POINTER
        before = json.loads(pointer.read_text())[:1] if pointer.exists() else []
        kept = [[name, self.ranks.size], *before]
        write_atomically(pointer, lambda temporary: temporary.write_text(json.dumps(kept)), overwrite=True)
        for entry in self.path.iterdir():
            if entry.name.isdigit() and entry.name not in [number for number, _ in kept]:
                shutil.rmtree(entry, ignore_errors=True)

    def _each(self, work: Callable[[], Any]) -> list[Any]:
        """What the work of each rank gave; a disk that is full on one rank is `NotWritten` on all."""
        result, problem = None, ""
        try:
            result = work()
        except (OSError, ValueError) as error:
            problem = f"rank {self.ranks.rank}: {error}"
        told = self.ranks.gather([result, problem])
        if problems := [text for _, text in told if text]:
            raise NotWritten(f"the checkpoint {self.path} could not be written ({'; '.join(problems)})")
        return [each for each, _ in told]


def _part(name: str, tensor: Tensor, store: RowStore, layout: Layout) -> Tensor:
    return RowPart.of(tensor, layout, store.divided[name]) if name in store.divided else tensor


def _common(store: RowStore) -> dict[str, Any]:
    """What must be the same on all ranks: shapes but for rows, and the bits of tensors that are not divided."""
    common: dict[str, Any] = {}
    for name, tensor in store.stored.items():
        shape, bits = list(tensor.shape), ""
        if name in store.divided:
            shape[store.divided[name]] = -1
        else:
            bits = fingerprint(tensor)
        common[f"the tensor {name!r}"] = [str(tensor.dtype), shape, bits]
    return common
