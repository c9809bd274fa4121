"""What `bilevel clean` and `bilevel predict` do: from files to files, with a summary on the screen.

    clean      table with doubtful labels + trusted rows  ->  weights.csv, model.safetensors, report.html
    predict    model.safetensors + table                  ->  predictions.csv

Everything that could be wrong with the files is found before the long work, and all outputs appear together.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..._version import __version__
from ...checkpoints import Checkpoint
from ...errors import InvalidInput, MissingExtra, shown
from ...files import write_together
from .estimator import HyperCleaner
from .model_file import SavedCleaner, cleaner_writer, load_cleaner
from .preparation import Data, Request, Rows, check_output, check_request, prepare
from .result import ROW_COLUMNS, Accuracy, CleaningResult, Measurement, quality_text
from .tables import Table, check_columns, listed, number_column, read_table, table_writer

try:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text
    from sklearn.linear_model import LogisticRegression
except ImportError:
    raise MissingExtra("bilevel clean", "apps") from None

FINISHED, INTERRUPTED = 0, 130
"""Exit codes."""
LARGE = 10_000_000
"""Bytes of a table that takes seconds to read."""
SHOWN = 10
"""Suspicious rows on the screen."""


# --- bilevel clean ----------------------------------------------------------------------------------------------------


def clean(request: Request) -> int:
    """Clean a table, write what was asked for and show a summary; returns the exit code."""
    check_request(request)
    if request.report is not None:
        from . import report  # noqa: F401  (a missing package is named before the long work)
    if request.table.is_file() and request.table.stat().st_size > LARGE:
        print_note(f"reading {request.table}")
    data = prepare(request)
    fitted = train(request, data)
    result = collect(request, data, fitted)
    write_outputs(request, data, fitted, result)
    show(request, result)
    return INTERRUPTED if result.status == "interrupted" else FINISHED


@dataclass(frozen=True)
class Fitted:
    """A cleaner, how long its training took, and what it warned of."""

    cleaner: HyperCleaner
    seconds: float
    warnings: tuple[str, ...]

    @property
    def status(self) -> str:
        """For people: finished, interrupted, or what went wrong."""
        return self.cleaner.status_


def train(request: Request, data: Data) -> Fitted:
    """Fit the cleaner, with a progress bar on standard error."""
    cleaner = HyperCleaner(
        noise=request.noise, radius=request.radius, solver=request.solver, steps=request.steps,
        random_state=request.seed, verbose=True,
    )  # fmt: skip
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cleaner.fit(
            data.noisy.features, data.noisy.labels, X_trusted=data.trusted.features, y_trusted=data.trusted.labels,
            checkpoint=checkpoint_of(request), resume=request.resume,
        )  # fmt: skip
    texts = tuple(dict.fromkeys(str(warning.message) for warning in caught))
    return Fitted(cleaner, time.perf_counter() - began, texts)


def checkpoint_of(request: Request) -> Checkpoint | None:
    """Where the state of training is written, with the command line that goes on from there but for its --resume."""
    path = request.checkpoint or request.resume
    if path is None:
        return None
    return Checkpoint(path, about={"command_line": command_line(request)})


def command_line(request: Request) -> str:
    """What the user typed, without the names of checkpoints."""
    words = iter(request.arguments)
    return shlex.join(["bilevel", *(word for word in words if not _names_checkpoint(word, words))])


def _names_checkpoint(word: str, rest: Iterator[str]) -> bool:
    """Whether this word names the checkpoint, or says that the next one does, which is then left out as well."""
    if word in ("--checkpoint", "--resume"):
        next(rest, None)
        return True
    return word.startswith(("--checkpoint=", "--resume="))


def measure(cleaner: Any, data: Data) -> Measurement | None:
    """Logistic regression trained on various rows, and the cleaned model, on rows kept from training."""
    if data.measured is None:
        return None
    print_note("measuring accuracy")

    plain = LogisticRegression(C=0.1)
    everything = joined(data.noisy, data.trusted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its 100 iterations are plenty for a comparison
        models = {
            "all rows as they are": copy(plain).fit(everything.features, everything.labels),
            "trusted rows only": copy(plain).fit(data.trusted.features, data.trusted.labels),
            "rows that are kept": cleaner.refit(plain),
            "cleaned": cleaner,
        }
    right = {name: model.predict(data.measured.features) == data.measured.labels for name, model in models.items()}
    before, trusted_only, after, cleaned = (Accuracy(name, int(hits.sum()), len(hits)) for name, hits in right.items())
    differing = int((right[before.model] != right[after.model]).sum())
    return Measurement(
        where=data.where, before=before, others=(trusted_only,), after=after, cleaned=cleaned, differing=differing,
        seen=data.seen,
    )  # fmt: skip


def joined(first: Rows, second: Rows) -> Rows:
    """The rows of both."""
    from scipy import sparse

    stack: Any = sparse.vstack if sparse.issparse(first.features) else np.vstack
    features = stack([first.features, second.features])
    return Rows(
        features.tocsr() if sparse.issparse(features) else features, np.concatenate([first.labels, second.labels])
    )


def rows_frame(cleaner: Any, data: Data) -> pd.DataFrame:
    """One row for each row of the table, in its order. Trusted rows count fully and are never suspected."""
    size, marked = len(data.given), data.marked
    issues = cleaner.label_issues()
    predicted, quality = np.empty(size, cleaner.classes_.dtype), np.empty(size)
    suspected, weight = np.zeros(size, bool), np.ones(size)
    predicted[~marked], quality[~marked] = issues["predicted_label"], issues["label_quality"]
    suspected[~marked], weight[~marked] = issues["is_label_issue"], cleaner.sample_weight_
    if marked.any():
        features = data.encoder.transform(data.table.rows(marked), of=data.table.name)
        given = np.searchsorted(cleaner.classes_, data.given[marked])
        predicted[marked] = cleaner.predict(features)
        quality[marked] = np.take_along_axis(cleaner.predict_proba(features), given[:, None], axis=1)[:, 0]
    columns = (np.arange(1, size + 1), data.given, predicted, quality, suspected, weight)
    return pd.DataFrame(dict(zip(ROW_COLUMNS, columns, strict=True)))


def collect(request: Request, data: Data, fitted: Fitted) -> CleaningResult:
    """All that is shown, as plain data."""
    cleaner, status = fitted.cleaner, fitted.status
    try:
        measurement, unmeasured = measure(cleaner, data), data.where
    except KeyboardInterrupt:
        measurement, unmeasured, status = None, "interrupted", "interrupted"
    return CleaningResult(
        table=request.table.name,
        rows=rows_frame(cleaner, data),
        trusted=data.marked,
        trusted_rows=data.trusted_rows,
        trusted_from=request.trusted_from,
        classes=list(cleaner.classes_),
        measurement=measurement,
        unmeasured=unmeasured,
        noise=cleaner.noise_,
        selection=cleaner.selection_,
        radius=cleaner.radius_,
        transition=cleaner.transition_,
        history=cleaner.history_,
        status=status,
        seconds=fitted.seconds,
        features=pd.concat([data.ignored, data.table.frame], axis=1),
        pixels=data.pixels,
        command=shlex.join(["bilevel", *request.arguments]),
        versions=versions(),
        date=datetime.now().astimezone(),
        settings={"solver": request.solver, "steps": cleaner.n_iter_, "seed": request.seed},
        notes=(*data.notes, *fitted.warnings),
    )


def versions() -> dict[str, str]:
    """Of what computed this."""
    others = {name: importlib.metadata.version(name) for name in ("torch", "scikit-learn", "pandas", "numpy")}
    return {"bilevel": __version__, **others, "Python": platform.python_version()}


def write_outputs(request: Request, data: Data, fitted: Fitted, result: CleaningResult) -> None:
    """All files that were asked for, together."""
    writers: dict[Path, Any] = {}
    if request.out is not None:
        names = data.ignored[[name for name in data.ignored if name not in ROW_COLUMNS]]
        writers[request.out] = table_writer(pd.concat([result.rows, names], axis=1), request.out)
    if request.model is not None:
        writers[request.model] = cleaner_writer(fitted.cleaner, data.encoder, request.label)
    if request.report is not None:
        from .report import render_report

        page = render_report(result)
        writers[request.report] = lambda temporary: temporary.write_text(page, encoding="utf-8")
    write_together(writers, overwrite=request.force)


# --- the screen -------------------------------------------------------------------------------------------------------


def show(request: Request, result: CleaningResult) -> None:
    """A summary on standard output, or one JSON document; notes on standard error."""
    for note in result.notes:
        print_note(note)
    if result.status == "interrupted":
        print_note("stopped by Ctrl-C: what was found until then is kept, marked as interrupted")
        if request.outputs and (request.checkpoint or request.resume):
            print_note("to go on, add --force as well: the files of the interrupted run are there now")
    elif result.status != "finished":
        print_note(f"training did not end as planned: {result.status}")
    if request.json:
        outputs = {option.lstrip("-"): str(path) for option, path in request.outputs.items()}
        document = {**result.to_json(), "outputs": outputs}
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    console.print(summary(result))
    console.print(suspicious_rows(result))
    for option, path in request.outputs.items():
        console.print(Text(f"{option.lstrip('-'):>7}: ", style="dim") + Text(str(path), style="bold"), soft_wrap=True)
    if not request.outputs:
        console.print("Nothing was written: --out, --model and --report name files to make.", style="dim")


def print_note(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"bilevel: {shown(text)}\n")


def summary(result: CleaningResult) -> Grid:
    """What was found, a rich table."""
    grid = Grid(box=box.SIMPLE, show_header=False, title=Text(f"Which labels of {result.table} are wrong?", "bold"))
    grid.title_justify = "left"
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    share = result.issues / len(result.rows)
    grid.add_row("suspected labels", Text(f"{result.issues:,} of {len(result.rows):,} rows ({share:.1%})", "bold"))
    grid.add_row("trusted rows", printable(f"{result.trusted_rows:,} from {result.trusted_from}"))
    if result.measurement is None:
        grid.add_row("accuracy", printable(f"not measured: {result.unmeasured}"))
    else:
        measurement = result.measurement
        for entry in measurement.models:
            style = "bold green" if entry is measurement.after and not measurement.verdict else ""
            text = f"{entry.share:.1%} ± {entry.standard_error:.1%}"
            grid.add_row(f"accuracy, {entry.model}", Text(text, style))
        grid.add_row("", printable(f"on {measurement.where}, whose labels are assumed right", "dim"))
        for sentence in filter(None, (measurement.caution, measurement.verdict)):
            grid.add_row("", printable(sentence))
    grid.add_row("noise model", printable(result.noise))
    grid.add_row("training", printable(f"{result.seconds:.1f} s, {result.status}"))
    return grid


def suspicious_rows(result: CleaningResult) -> Grid:
    """The first few rows a person should look at, a rich table."""
    grid = Grid(box=box.SIMPLE_HEAD, title=Text("Most suspicious rows", "bold"), title_justify="left")
    grid.add_column("row", justify="right")
    grid.add_column("given label", overflow="fold")
    grid.add_column("the model sees", overflow="fold")
    grid.add_column("quality", justify="right")
    for row in result.suspects(SHOWN).to_dict("records"):
        labels = (printable(str(row["given_label"])), printable(str(row["predicted_label"])))
        grid.add_row(str(row["row"]), *labels, quality_text(row["label_quality"]))
    return grid


def printable(text: str, style: str = "") -> Text:
    """Text of the user for a terminal: no markup, and no control characters.

    Examples
    --------
    >>> printable("[red]a\\x1b[2Jb").plain
    '[red]a\\\\x1b[2Jb'
    """
    return Text(shown(text).replace("\n", "\\n"), style)


# --- bilevel predict --------------------------------------------------------------------------------------------------


def predict(
    model: Path, table: Path, *, out: Path | None = None, allow_unknown: bool = False, force: bool = False
) -> int:
    """The labels that a saved cleaner predicts for the rows of a table, with the probability of each label."""
    if out is not None:
        if out.resolve() in (model.resolve(), table.resolve()):
            raise InvalidInput(f"--out {out} would replace a file that is read: choose another name")
        check_output("--out", out, force=force)
    saved = load_cleaner(model)
    texts = saved.encoder.categories if saved.encoder is not None else ()
    rows = read_table(table, texts=texts)
    features = features_of(saved, rows, model.name, allow_unknown=allow_unknown)
    frame = predictions(saved.cleaner, features)
    if out is None:
        table_writer(frame, Path("-.csv"))(sys.stdout)  # type: ignore[arg-type]
        return FINISHED
    write_together({out: table_writer(frame, out)}, overwrite=force)
    print_note(f"{len(frame):,} predictions are in {out}")
    return FINISHED


def features_of(saved: SavedCleaner, rows: Table, model: str, *, allow_unknown: bool) -> Any:
    """The rows as the model takes them."""
    if saved.encoder is not None:
        known = saved.encoder.columns
        expected = {saved.label, *saved.encoder.ignored}
        extra = [name for name in check_columns(rows, known, model) if name not in expected]
        if extra:
            print_note(f"{rows.name} has columns that {model} does not use, which are ignored: {listed(extra)}")
        features = saved.encoder.transform(rows, of=model, allow_unknown=allow_unknown)
        if unknown := saved.encoder.unknown_cells(rows):
            counts = ", ".join(f"{count:,} in column {name!r}" for name, count in unknown.items())
            print_note(f"{rows.name} has cells unknown to {model}, which count as none of the known values: {counts}")
        return features
    cleaner: Any = saved.cleaner
    named = hasattr(cleaner, "feature_names_in_")
    names = list(cleaner.feature_names_in_) if named else rows.columns
    size = cleaner.n_features_in_
    if len(names) != size:
        raise InvalidInput(f"{model} takes {size} columns of numbers, and {rows.name} has {len(names)}")
    check_columns(rows, names, model)
    frame = pd.DataFrame({name: number_column(rows, name) for name in names})
    return frame if named else frame.to_numpy()


def predictions(cleaner: Any, features: Any) -> pd.DataFrame:
    """One row per row: its number, the predicted label and the probability of each label."""
    chances: Mapping[str, Any] = {
        f"probability_{label}": column
        for label, column in zip(cleaner.classes_, cleaner.predict_proba(features).T, strict=True)
    }
    labels = cleaner.predict(features)
    return pd.DataFrame({"row": np.arange(1, len(labels) + 1), "predicted_label": labels, **chances})
