"""From files to arrays: what could be wrong with the arguments and the tables is found here, before training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...checkpoints import previous_of
from ...errors import InvalidInput
from ...files import FileExists, FileMissing, check_writable
from ...solvers.base import FIXED_SET, needs_of
from .encoder import Encoder, category_names, parse_image_shape, pixel_columns
from .estimator import SOLVERS, solver_of
from .tables import (
    Table,
    category_column,
    check_columns,
    check_ending,
    labels_of,
    listed,
    marks_of,
    matched_labels,
    read_table,
)

FEWEST_ROWS, FEWEST_TRUSTED, FEWEST_ASIDE = 10, 4, 10
"""Training rows, trusted rows and rows kept aside below which nothing can be learned or measured."""
BLOCK_ROWS = 1000
"""Sparse rows that are made dense at a time."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `bilevel clean`; `bilevel.cli.cleaning.clean` says what each is."""

    table: Path
    label: str
    trusted: Path | None = None
    trusted_column: str | None = None
    test: Path | None = None
    out: Path | None = None
    model: Path | None = None
    report: Path | None = None
    noise: str = "auto"
    radius: float | Literal["auto"] = "auto"
    solver: str = "auto"
    steps: int | None = None
    seed: int = 0
    holdout: float = 0.2
    ignore: Sequence[str] = ()
    categorical: Sequence[str] = ()
    image_shape: str | None = None
    json: bool = False
    checkpoint: Path | None = None
    resume: Path | None = None
    force: bool = False
    arguments: Sequence[str] = ()

    @property
    def outputs(self) -> dict[str, Path]:
        """The files to make, by option."""
        named = {"--out": self.out, "--model": self.model, "--report": self.report}
        return {option: path for option, path in named.items() if path is not None}

    @property
    def trusted_from(self) -> str:
        """Where the trusted rows come from, for people."""
        return self.trusted.name if self.trusted is not None else f"the column {self.trusted_column!r}"


@dataclass(frozen=True)
class Rows:
    """Encoded rows, shape (n, features), and their labels, shape (n,)."""

    features: Any
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def pick(self, mask: np.ndarray) -> Rows:
        """The rows where the mask is true."""
        return Rows(self.features[np.flatnonzero(mask)], self.labels[mask])


@dataclass(frozen=True, kw_only=True)
class Data:
    """What was read, in the form that training takes.

    Parameters
    ----------
    table
        The training table without its label and the columns that are left out.
    ignored
        A pandas data frame of the columns left out by --ignore, which tell people which row is which.
    given
        Its labels, shape (n,).
    marked
        Which of its rows are trusted, shape (n,): none when trusted rows come from another file.
    encoder
        From the columns of the table to features.
    pixels
        Names of the columns that are pixels and the shape of the pictures, or None.
    noisy
        The rows of the table that are not trusted.
    trusted
        The trusted rows that train.
    trusted_rows
        How many trusted rows there are, with those kept aside.
    measured
        Rows that do not train, to measure on: those of --test, or trusted rows kept aside; None when there are none.
    where
        Which rows these are, for people, or why there are none.
    seen
        How many of these have the features of a row that trains.
    notes
        What the user should know.
    """

    table: Table
    ignored: Any
    given: np.ndarray
    marked: np.ndarray
    encoder: Encoder
    pixels: tuple[list[str], tuple[int, ...]] | None
    noisy: Rows
    trusted: Rows
    trusted_rows: int
    measured: Rows | None
    where: str
    seen: int
    notes: tuple[str, ...]


# --- arguments --------------------------------------------------------------------------------------------------------


def check_request(request: Request) -> None:
    """Refuse what cannot end well before any table is read."""
    if request.trusted is None and request.trusted_column is None:
        raise InvalidInput(
            "no trusted rows: name a table of rows whose labels you have checked with --trusted FILE, or a column of "
            "the table that says which rows you trust with --trusted-column COLUMN. Fifty rows are a good start"
        )
    if request.trusted is not None and request.trusted_column is not None:
        raise InvalidInput("--trusted and --trusted-column both name the trusted rows: give one of them")
    if not 0 <= request.holdout < 1:
        raise InvalidInput(f"--holdout {request.holdout:g}: the share of trusted rows kept aside is 0 or more, below 1")
    if request.steps is not None and request.steps < 1:
        raise InvalidInput(f"--steps {request.steps}: at least one step is needed")
    if not 0 <= request.seed < 2**32:
        raise InvalidInput(f"--seed {request.seed}: a seed is a whole number from 0 to {2**32 - 1}")
    if isinstance(request.radius, float) and not 0 < request.radius < math.inf:
        raise InvalidInput(f"--radius {request.radius:g}: a radius is a positive number, or auto")
    _check_solver(request)
    inputs: dict[Path, str] = {}
    for name, path in (("the table", request.table), ("--trusted", request.trusted), ("--test", request.test)):
        if path is not None and (other := inputs.setdefault(path.resolve(), name)) != name:
            raise InvalidInput(f"{other} and {name} both name the file {path}: they must hold different rows")
    for option, path in request.outputs.items():
        if path.resolve() in inputs:
            raise InvalidInput(f"{option} {path} would replace a table that is read: choose another name")
        check_output(option, path, force=request.force)
    if len({path.resolve() for path in request.outputs.values()}) < len(request.outputs):
        raise InvalidInput(f"{' and '.join(request.outputs)} must name different files")
    _check_checkpoint(request, {*inputs, *(path.resolve() for path in request.outputs.values())})


def _check_solver(request: Request) -> None:
    """Refuse, in the words of the command line, a solver that does not exist or needs a ball of fixed radius."""
    if request.solver not in ("auto", *SOLVERS):
        raise InvalidInput(f"--solver {request.solver}: there is no such solver; choose auto, {', '.join(SOLVERS)}")
    if request.radius == "auto" and FIXED_SET in needs_of(solver_of(request.solver)):
        raise InvalidInput(f"--solver {request.solver} needs a fixed radius: add --radius 1")


def _check_checkpoint(request: Request, others: set[Path]) -> None:
    """Refuse a checkpoint that is in the way of other files, or not there to be resumed."""
    if request.checkpoint is not None and request.resume is not None:
        raise InvalidInput("--resume FILE goes on writing FILE: leave --checkpoint out")
    path = request.checkpoint or request.resume
    if path is None:
        return
    option = "--checkpoint" if request.resume is None else "--resume"
    if path.is_dir():
        raise InvalidInput(
            f"{option} {path} is a folder, the checkpoint of several processes: torchrun --nproc-per-node 1 -m bilevel "
            "clean ... takes it"
        )
    if path.suffix.lower() != ".safetensors":
        raise InvalidInput(f"{option} {path}: the name must end in .safetensors")
    if {path.resolve(), previous_of(path).resolve()} & others:
        raise InvalidInput(f"{option} {path} is also the name of another file of this command: choose another name")
    check_writable(path, overwrite=True)
    found = next((file for file in (path, previous_of(path)) if file.exists()), None)
    if request.resume is not None and found is None:
        raise FileMissing(f"--resume {path}: there is no such file; --checkpoint {path} starts a new run")
    if request.checkpoint is not None and found is not None:
        raise FileExists(
            f"--checkpoint {path}: {found} exists and was left as it is; --resume {path} goes on from it, and a new "
            "run needs another name"
        )


def check_output(option: str, path: Path, *, force: bool) -> None:
    """Refuse a path that could not be written at the end."""
    endings = {"--model": (".safetensors",), "--report": (".html", ".htm")}.get(option)
    if endings is None:
        check_ending(path)
    elif path.suffix.lower() not in endings:
        raise InvalidInput(f"{option} {path}: the name must end in {' or '.join(endings)}")
    if path.exists() and not path.is_dir() and not force:
        raise InvalidInput(f"{option} {path}: the file exists and was left as it is; --force replaces it")
    check_writable(path, overwrite=True)


# --- tables -----------------------------------------------------------------------------------------------------------


def prepare(request: Request) -> Data:
    """Read, check and encode the tables."""
    training = _training_table(request)
    given = labels_of(training, request.label)
    marked = np.zeros(len(training), dtype=bool)
    if request.trusted_column is not None:
        marked = marks_of(training, request.trusted_column)
    table = training.without({request.label, request.trusted_column or request.label, *request.ignore})
    if not table.columns:
        raise InvalidInput(f"{table.name}: no column is left to learn from")
    pixels = pixel_columns(table, None if request.image_shape is None else parse_image_shape(request.image_shape))
    columns = _Columns(request, table, np.unique(given[~marked]), pixels[0] if pixels else [])

    tables, trusted_table, trusted_labels = [table], table.rows(marked), given[marked]
    if request.trusted is not None:
        trusted_table, trusted_labels = columns.read(request.trusted)
        tables.append(trusted_table)
    _check_sizes(request, given[~marked], trusted_labels, columns)
    encoder = Encoder.fit(tables, request.categorical, columns.pixels)
    encoder = replace(encoder, ignored=(*request.ignore, *filter(None, [request.trusted_column])))
    columns.note_unmatched(trusted_table, table.rows(~marked), encoder.categories)
    trusted = Rows(encoder.transform(trusted_table, of=table.name), trusted_labels)
    if request.test is None:
        trusted, measured, where = keep_aside(trusted, request.holdout, request.seed)
    else:
        test, labels = columns.read(request.test)
        measured = Rows(encoder.transform(test, of=table.name, allow_unknown=True), labels)
        where = f"the {len(measured):,} rows of {request.test.name}"
    noisy = Rows(encoder.transform(table.rows(~marked), of=table.name), given[~marked])
    seen = 0 if measured is None else shared_rows(measured.features, (noisy.features, trusted.features))
    if seen:
        names = " or ".join(path.name for path in (request.table, request.trusted) if path is not None)
        columns.notes.append(f"{seen:,} of the rows measured on are also in {names}: these accuracies flatter")
    return Data(
        table=table,
        ignored=training.frame[[name for name in training.columns if name in request.ignore]],
        given=given,
        marked=marked,
        encoder=encoder,
        pixels=pixels,
        noisy=noisy,
        trusted=trusted,
        trusted_rows=len(trusted_labels),
        measured=measured,
        where=where,
        seen=seen,
        notes=tuple(columns.notes),
    )


def _training_table(request: Request) -> Table:
    training = read_table(request.table, texts={request.label, *request.categorical})
    if len(training.columns) < 2:
        raise InvalidInput(
            f"{request.table} has only the column {listed(training.columns)}: a label column and at least one other "
            "are needed, and the first line must hold their names, separated by commas"
        )
    training.require(request.label, "--label")
    if request.trusted_column is not None:
        training.require(request.trusted_column, "--trusted-column")
    for option, names in (("--ignore", request.ignore), ("--categorical", request.categorical)):
        for name in names:
            training.require(name, option)
    return training


class _Columns:
    """The columns of the training table, which other tables must have; what is odd about these is noted."""

    def __init__(self, request: Request, table: Table, classes: np.ndarray, pixels: list[str]) -> None:
        self.request, self.table, self.classes, self.pixels = request, table, classes, pixels
        self.texts = category_names(table, request.categorical, pixels)
        self.notes: list[str] = []

    def read(self, path: Path) -> tuple[Table, np.ndarray]:
        """Another table, and its labels. What is text in the training table is read as text."""
        label = self.request.label
        rows = read_table(path, texts={label, *self.texts})
        extra = check_columns(rows, [label, *self.table.columns], self.table.name)
        unused = [name for name in extra if name not in self.request.ignore]
        if unused:
            self.notes.append(f"{path} has columns that {self.table.name} has not, which are ignored: {listed(unused)}")
        return rows, matched_labels(rows, label, self.classes, of=self.table.name)

    def note_unmatched(self, trusted: Table, doubtful: Table, names: Iterable[str]) -> None:
        """Note categories that only trusted rows have."""
        for name in names:
            alone = set(category_column(trusted, name)) - set(category_column(doubtful, name))
            if alone:
                self.notes.append(
                    f"Only trusted rows have {listed(sorted(alone))} in column {name!r}: is it spelled as elsewhere?"
                )


def _check_sizes(request: Request, labels: np.ndarray, trusted: np.ndarray, columns: _Columns) -> None:
    """Refuse too few rows; note labels that no trusted row has."""
    if len(trusted) == 0:
        raise InvalidInput(
            f"no trusted rows: the column {request.trusted_column!r} of {request.table} says yes in no row"
        )
    if len(labels) < FEWEST_ROWS:
        raise InvalidInput(f"{request.table} has {len(labels)} rows to clean: at least {FEWEST_ROWS} are needed")
    if len(columns.classes) < 2:
        raise InvalidInput(f"all rows of {request.table} that are not trusted have the same label: nothing to clean")
    if len(trusted) < FEWEST_TRUSTED or len(np.unique(trusted)) < 2:
        raise InvalidInput(
            f"there are {len(trusted)} trusted rows, with the labels {listed(np.unique(trusted))}: at least "
            f"{FEWEST_TRUSTED} with two different labels are needed, and several per label are better"
        )
    strange = sorted(set(trusted.tolist()) - set(columns.classes.tolist()))
    if strange:
        raise InvalidInput(
            f"{request.table}: trusted rows have the label {listed(strange)}, which no other row has: the others have "
            f"{listed(columns.classes)}"
        )
    absent = [label for label in columns.classes if label not in trusted]
    if absent:
        columns.notes.append(
            f"No trusted row has the label {listed(absent)}: wrong labels of that kind are hard to tell from right ones"
        )


def keep_aside(trusted: Rows, share: float, seed: int) -> tuple[Rows, Rows | None, str]:
    """Trusted rows that train, those kept aside to measure on (a share of each label), and what these are."""
    if share == 0:
        return trusted, None, "no trusted rows were kept aside (--holdout 0), and no test table was given (--test)"
    generator = np.random.default_rng(seed)
    aside = np.zeros(len(trusted), dtype=bool)
    for label in np.unique(trusted.labels):
        members = generator.permutation(np.flatnonzero(trusted.labels == label))
        aside[members[: min(round(share * len(members)), len(members) - 1)]] = True
    count = int(aside.sum())
    if count < FEWEST_ASIDE:
        reason = f"{len(trusted)} trusted rows are too few to keep some aside; --test names a table to measure on"
        return trusted, None, reason
    return trusted.pick(~aside), trusted.pick(aside), f"the {count} trusted rows that were kept aside"


def shared_rows(rows: Any, others: Sequence[Any]) -> int:
    """How many of the rows are, number by number, among the others.

    Examples
    --------
    >>> shared_rows(np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]), [np.eye(2), np.array([[1.0, 2.0]])])
    2
    """
    wanted = Counter(_row_bytes(rows))
    found = {row for matrix in others for row in _row_bytes(matrix) if row in wanted}
    return sum(wanted[row] for row in found)


def _row_bytes(matrix: Any) -> Iterator[bytes]:
    for start in range(0, matrix.shape[0], BLOCK_ROWS):
        block = matrix[start : start + BLOCK_ROWS]
        for row in block if isinstance(block, np.ndarray) else block.toarray():
            yield row.tobytes()
