"""What `torchrun -m bilevel clean` does: each rank cleans its rows, rank 0 writes and speaks.

    shards + trusted rows  ->  weights.csv, model.safetensors

Every rank finds the same mistakes in the input and raises the same error. What each row got is written by its rank to a
part beside --out, and rank 0 puts the parts one after the other, in the order of the rows.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.parquet as parquet
import torch
from rich import box
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text
from sklearn.linear_model import LogisticRegression

from ..applications.hyper_cleaning.command import (
    FINISHED,
    INTERRUPTED,
    SHOWN,
    command_line,
    print_note,
    printable,
    versions,
)
from ..applications.hyper_cleaning.estimator import HyperCleaner, seed_of, trained_elsewhere, without_rows
from ..applications.hyper_cleaning.model_file import cleaner_writer
from ..applications.hyper_cleaning.preparation import Request, check_request
from ..applications.hyper_cleaning.progress import shown
from ..applications.hyper_cleaning.result import ROW_COLUMNS, Accuracy, plain, quality_text
from ..applications.hyper_cleaning.tables import PARQUET_FILES
from ..applications.hyper_cleaning.training import Cleaned
from ..errors import InvalidInput
from ..files import FileExists, FileMissing, check_writable, write_together
from .checkpoints import POINTER
from .cleaning import clean_rows
from .preparation import ShardedData, prepare
from .ranks import TIMEOUT, Ranks, connect


def clean(request: Request, *, timeout: float | None = None) -> int:
    """Clean a table on all ranks, write what was asked for and show a summary; returns the exit code."""
    with connect(timeout=TIMEOUT if timeout is None else timeout) as ranks:
        with ranks.together("looking at the arguments"):
            check_sharded(request)
            request = after_restart(request, ranks)
            check_request(replace(request, checkpoint=None, resume=None))
            _check_checkpoint(request)
        settings = {name: value for name, value in vars(request).items() if name in AGREED}
        given = {f"--{name} is given": getattr(request, name) is not None for name in GIVEN}
        settings = {f"--{name}": _plain(value) for name, value in settings.items()}
        ranks.agree(settings | given, "start all with one command line")
        ranks.remember(ACCEPTED)
        return _clean(request, ranks)


AGREED = ("label", "noise", "radius", "solver", "steps", "seed", "holdout", "ignore", "categorical", "image_shape")
"""Arguments that must be the same on every rank."""
GIVEN = ("out", "model", "test", "checkpoint", "resume")
"""Arguments that every rank has or none: the ranks meet where they are used."""
ACCEPTED = "these arguments were accepted"
UNSUPPORTED = {
    "trusted_column": "write the trusted rows to a table of their own and name it with --trusted",
    "report": "make it in one process, from a sample of the rows",
}
"""Arguments that are for one process, and what to do instead."""


@dataclass(frozen=True)
class Result:
    """What a rank knows at the end; the numbers are those of all rows."""

    rows: Any  # a pandas data frame of this rank's rows
    cleaner: HyperCleaner
    cleaned: Cleaned
    issues: int
    suspects: list[dict[str, Any]]
    accuracy: list[Accuracy]
    seconds: float
    notes: list[str]


def _clean(request: Request, ranks: Ranks) -> int:
    if ranks.rank == 0:
        again = f", and go on from {request.resume}" if request.resume is not None else ""
        count = "1 process reads its part" if ranks.size == 1 else f"{ranks.size} processes read their parts"
        print_note(f"{count} of {request.table}{again}")
        if request.noise == "auto":
            print_note("several processes learn one weight per row (--noise rows)")
    notes: list[str] = []
    with _quiet(notes):
        data = prepare(request, ranks)
        notes += data.notes
        began = time.perf_counter()
        cleaned = _train(request, data, ranks)
        result = _collect(request, data, cleaned, ranks, time.perf_counter() - began, notes)
        _write(request, data, result, ranks)
    if ranks.rank == 0:
        show(request, data, result, ranks.size)
    return INTERRUPTED if cleaned.status == "interrupted" else FINISHED


# --- arguments --------------------------------------------------------------------------------------------------------


def check_sharded(request: Request) -> None:
    """Refuse, by name and with the remedy, what several processes do not do."""
    for name, remedy in UNSUPPORTED.items():
        if getattr(request, name) is not None:
            raise InvalidInput(f"--{name.replace('_', '-')} is for one process: {remedy}")
    if request.noise not in ("auto", "rows"):
        raise InvalidInput(
            f"--noise {request.noise} is for one process, which learns it from a sample of the rows anyway: several "
            "processes learn one weight per row (--noise rows, or nothing)"
        )


def after_restart(request: Request, ranks: Ranks) -> Request:
    """When `torchrun` has started the processes anew, they go on from the checkpoint of those that ended.

    Unless those ended because their arguments were refused, for example not to replace a file: so are these.
    """
    if not ranks.remembers(ACCEPTED):
        return request
    path = request.checkpoint
    if path is not None and (path / POINTER).exists():
        request = replace(request, checkpoint=None, resume=path)
    return replace(request, force=True)  # what is there now was written by the processes that ended


def _check_checkpoint(request: Request) -> None:
    if request.checkpoint is not None and request.resume is not None:
        raise InvalidInput("--resume FOLDER goes on writing FOLDER: leave --checkpoint out")
    path = request.checkpoint or request.resume
    if path is None:
        return
    if path.is_file():
        raise InvalidInput(f"{path} is a file, and the checkpoint of several processes is a folder: give another name")
    if path.resolve() in {other.resolve() for other in (request.table, *request.outputs.values())}:
        raise InvalidInput(f"{path} is also the name of another file or folder of this command: choose another name")
    check_writable(path / POINTER if path.is_dir() else path, overwrite=True)
    there = (path / POINTER).exists()
    if request.resume is not None and not there:
        raise FileMissing(f"--resume {path}: no complete checkpoint is there; --checkpoint {path} starts a new run")
    if request.checkpoint is not None and there:
        raise FileExists(
            f"--checkpoint {path}: the folder holds a run and was left as it is; --resume {path} goes on from it, and "
            "a new run needs another name"
        )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value


# --- training ---------------------------------------------------------------------------------------------------------


def _train(request: Request, data: ShardedData, ranks: Ranks) -> Cleaned:
    path = request.checkpoint or request.resume
    with shown(verbose=ranks.rank == 0) as progress:
        return clean_rows(
            data.features,
            torch.from_numpy(np.searchsorted(data.classes, data.given)),
            data.trusted.features,
            torch.from_numpy(np.searchsorted(data.classes, data.trusted.labels)),
            ranks=ranks,
            classes=len(data.classes),
            radius=request.radius,
            solver=request.solver,
            steps=request.steps,
            seed=seed_of(request.seed),
            checkpoint=None if path is None else str(path),
            resume=request.resume is not None,
            identity=_identity(request, data),
            about={"command_line": f"torchrun -m {command_line(request)}"},
            show=progress,
        )


def _identity(request: Request, data: ShardedData) -> dict[str, Any]:
    """What a run that is resumed must have beside the settings of training."""
    return {
        "the label": request.label,
        "the rows and labels": data.fingerprint,
        "the number of rows": data.part.total,
        "the columns left out": " ".join(sorted(request.ignore)),
        "the trusted rows": f"{len(data.trusted)} of {data.trusted_rows}, {_checksum(data.trusted)}",
    }


def _checksum(rows: Any) -> str:
    """Rounded: the last bits of standardised numbers depend on how rows are divided."""
    weights = np.cos(np.arange(1, rows.features.shape[0] + 1))
    sums = weights @ (rows.features @ np.sin(np.arange(1, rows.features.shape[1] + 1)))
    return f"{float(sums):.6g}"


def _collect(
    request: Request, data: ShardedData, cleaned: Cleaned, ranks: Ranks, seconds: float, notes: list[str]
) -> Result:
    """What is written and shown."""
    cleaner = HyperCleaner(
        noise="rows", radius=request.radius, solver=request.solver, steps=request.steps, random_state=request.seed
    )
    trained_elsewhere(cleaner, cleaned, data.classes, data.features, data.given)
    issues: Any = cleaner.label_issues()
    numbers = np.arange(data.part.first + 1, data.part.first + len(data.given) + 1)
    names = ("given_label", "predicted_label", "label_quality", "is_label_issue")
    columns = (numbers, *(issues[name].to_numpy() for name in names), cleaner.sample_weight_)
    rows = pd.DataFrame(dict(zip(ROW_COLUMNS, columns, strict=True)))
    mine = rows.sort_values(["label_quality", "row"]).head(SHOWN).to_dict("records")
    told = ranks.gather([{str(key): plain(value) for key, value in row.items()} for row in mine])
    suspects = sorted((row for part in told for row in part), key=lambda row: (row["label_quality"], row["row"]))
    if cleaned.poor:
        notes.append(f"the cleaned model is poor: {cleaned.poor}")
    count = int(ranks.total(float(rows["is_label_issue"].to_numpy().sum()))[0])
    return Result(rows, cleaner, cleaned, count, suspects[:SHOWN], _accuracy(data, cleaner), seconds, notes)


def _accuracy(data: ShardedData, cleaner: Any) -> list[Accuracy]:
    """The cleaned model, and one of the trusted rows alone, on rows kept from training; the same on every rank."""
    if data.measured is None:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its 100 iterations are plenty for a comparison
        plain_model = LogisticRegression(C=0.1).fit(data.trusted.features, data.trusted.labels)
    models = {"trusted rows only": plain_model, "cleaned": cleaner}
    right = {name: model.predict(data.measured.features) == data.measured.labels for name, model in models.items()}
    return [Accuracy(name, int(hits.sum()), len(hits)) for name, hits in right.items()]


@contextmanager
def _quiet(notes: list[str]) -> Iterator[None]:
    """Warnings become notes, which rank 0 shows."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    notes += dict.fromkeys(str(warning.message) for warning in caught)


# --- files ------------------------------------------------------------------------------------------------------------


def _write(request: Request, data: ShardedData, result: Result, ranks: Ranks) -> None:
    """All files that were asked for, together, by rank 0; rows come from the parts that every rank writes."""
    parts = None if request.out is None else request.out.with_name(f".{request.out.name}.parts")
    if parts is not None:
        with ranks.together("preparing --out"):
            if ranks.rank == 0:
                shutil.rmtree(parts, ignore_errors=True)  # of processes that were killed
                parts.mkdir()
        with ranks.together("writing its rows"):
            names = data.ignored[[name for name in data.ignored if name not in ROW_COLUMNS]]
            frame = pd.concat([result.rows, names.reset_index(drop=True)], axis=1)
            frame.to_parquet(_part(parts, ranks.rank, ranks.size), index=False)
    with ranks.together("writing the files"):
        if ranks.rank == 0:
            writers: dict[Path, Any] = {}
            if parts is not None and request.out is not None:
                files = [_part(parts, rank, ranks.size) for rank in range(ranks.size)]
                writers[request.out] = joined_writer(files, request.out)
            if request.model is not None:
                writers[request.model] = cleaner_writer(without_rows(result.cleaner), data.encoder, request.label)
            write_together(writers, overwrite=request.force)
            if parts is not None:
                shutil.rmtree(parts, ignore_errors=True)


def _part(folder: Path, rank: int, size: int) -> Path:
    return folder / f"part-{rank:05d}-of-{size:05d}.parquet"


def joined_writer(parts: list[Path], path: Path) -> Any:
    """What `write_together` calls to write tables one after the other, of which one at a time is in memory."""

    def write(temporary: Path) -> None:
        if path.suffix.lower() in PARQUET_FILES:
            schema = pyarrow.unify_schemas([parquet.read_schema(part) for part in parts], promote_options="permissive")
            with parquet.ParquetWriter(temporary, schema.remove_metadata()) as writer:
                for part in parts:
                    writer.write_table(parquet.read_table(part).cast(schema.remove_metadata()))
            return
        separator = "\t" if path.suffix.lower() == ".tsv" else ","
        with temporary.open("w", encoding="utf-8", newline="") as file:
            for i, part in enumerate(parts):
                parquet.read_table(part).to_pandas().to_csv(file, index=False, sep=separator, header=i == 0)

    return write


# --- the screen -------------------------------------------------------------------------------------------------------


def show(request: Request, data: ShardedData, result: Result, size: int) -> None:
    """A summary on standard output, or one JSON document; notes on standard error."""
    for note in dict.fromkeys(result.notes):
        print_note(note)
    if result.cleaned.status == "interrupted":
        print_note("stopped by Ctrl-C: what was found until then is kept, marked as interrupted")
        if path := request.checkpoint or request.resume:
            force = ", and with --force: the files of the interrupted run are there now" if request.outputs else ""
            print_note(f"to go on: the same command with --resume {path} in place of --checkpoint {path}{force}")
    if request.json:
        sys.stdout.write(json.dumps(to_json(request, data, result, size), indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    console.print(summary(request, data, result, size))
    console.print(suspicious_rows(result))
    for option, path in request.outputs.items():
        console.print(Text(f"{option.lstrip('-'):>7}: ", style="dim") + Text(str(path), style="bold"), soft_wrap=True)
    if not request.outputs:
        console.print("Nothing was written: --out and --model name files to make.", style="dim")


def summary(request: Request, data: ShardedData, result: Result, size: int) -> Grid:
    """What was found, a rich table."""
    grid = Grid(
        box=box.SIMPLE, show_header=False, title=Text(f"Which labels of {request.table.name} are wrong?", "bold")
    )
    grid.title_justify = "left"
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    share = result.issues / data.part.total
    grid.add_row("suspected labels", Text(f"{result.issues:,} of {data.part.total:,} rows ({share:.1%})", "bold"))
    grid.add_row("trusted rows", printable(f"{data.trusted_rows:,} from {request.trusted_from}"))
    for entry in result.accuracy:
        grid.add_row(f"accuracy, {entry.model}", Text(f"{entry.share:.1%} ± {entry.standard_error:.1%}"))
    grid.add_row(
        "" if result.accuracy else "accuracy", printable(f"{'on' if result.accuracy else 'not measured:'} {data.where}")
    )
    grid.add_row("training", printable(f"{result.seconds:.1f} s on {size} processes, {result.cleaned.status}"))
    return grid


def suspicious_rows(result: Result) -> Grid:
    """The first few rows a person should look at, a rich table."""
    grid = Grid(box=box.SIMPLE_HEAD, title=Text("Most suspicious rows", "bold"), title_justify="left")
    grid.add_column("row", justify="right")
    for name in ("given label", "the model sees"):
        grid.add_column(name, overflow="fold")
    grid.add_column("quality", justify="right")
    for row in result.suspects:
        labels = (printable(str(row["given_label"])), printable(str(row["predicted_label"])))
        grid.add_row(str(row["row"]), *labels, quality_text(row["label_quality"]))
    return grid


def to_json(request: Request, data: ShardedData, result: Result, size: int) -> dict[str, Any]:
    """The summary as numbers, texts, lists and dictionaries, named as by one process."""
    accuracy = {"where": data.where, "rows": result.accuracy[0].rows} if result.accuracy else None
    if accuracy is not None:
        accuracy |= {entry.model: entry.share for entry in result.accuracy}
    radius = result.cleaned.radius
    return {
        "status": result.cleaned.status,
        "table": request.table.name,
        "rows": data.part.total,
        "processes": size,
        "trusted_rows": data.trusted_rows,
        "classes": [plain(label) for label in data.classes],
        "label_issues": result.issues,
        "accuracy": accuracy,
        "noise": "rows",
        "radius": radius if radius is not None and math.isfinite(radius) else None,
        "most_suspicious_rows": result.suspects,
        "seconds": round(result.seconds, 3),
        "versions": versions(),
        "notes": list(dict.fromkeys(result.notes)),
        "outputs": {option.lstrip("-"): str(path) for option, path in request.outputs.items()},
    }
