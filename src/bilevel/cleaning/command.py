"""The commands `bilevel clean` and `bilevel predict`: they read and write files and print a summary.

    clean      table with doubtful labels + trusted rows  ->  weights.csv, model.safetensors, report.html
    predict    model.safetensors + table                  ->  predictions.csv

Errors in the files are reported before training starts, and all outputs are written together.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from .._files import write_together
from ..errors import InvalidInputError, MissingExtraError, escape_control_chars
from ..ranks import TIMEOUT, Ranks, connect
from ..run.checkpoint import Checkpoint, previous_of
from .estimator import HyperCleaner
from .headers import distinct
from .model_file import SavedCleaner, cleaner_writer, load_cleaner
from .options import CleanOptions, check_output
from .prepare import CleaningData, prepare
from .result import ADVICE_TEXTS, CleaningResult, collect, quality_text
from .table_files import read_table, read_vectors
from .tables import Table, check_columns, table_writer

try:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text
except ImportError:
    raise MissingExtraError("bilevel clean", "apps") from None

FINISHED, INTERRUPTED = 0, 130
"""Exit codes."""
SHOWN = 10
"""The number of suspicious rows in the summary."""
ACCEPTED = "these options were accepted"


# --- bilevel clean ----------------------------------------------------------------------------------------------------


def clean(options: CleanOptions, arguments: Sequence[str] = (), training: Table | None = None) -> int:
    """Clean a table, write the requested files and print a summary; return the exit code.

    Parameters
    ----------
    options
        The options of the command.
    arguments
        The words of the command line, to show them and to explain how to resume.
    training
        The training table, if it was read already.
    """
    if options.report is not None:
        from . import report  # noqa: F401  (a missing package is named before the long work)
    with connect(options.timeout or TIMEOUT) as ranks:
        with ranks.guard("looking at the options"):
            options = _after_restart(options, ranks)
            options.check()
        ranks.agree(
            {f"--{name}": str(value) for name, value in vars(options).items()}, "start all with one command line"
        )
        ranks.remember(ACCEPTED)
        if ranks.rank == 0 and training is None:
            together = f" in {ranks.size} processes" if ranks.size > 1 else ""
            print_note(
                f"reading {options.table}{together}" + (f", to resume from {options.resume}" * bool(options.resume))
            )
        if ranks.size == 1 and training is not None:
            print_note(f"encoding {len(training.columns):,} columns of {len(training):,} rows")
        data = prepare(options, ranks, training)
        cleaner, seconds, notes = train(options, data, ranks, command_line(arguments))
        command = shlex.join(["bilevel", *arguments])
        if ranks.rank == 0 and data.measured is not None:
            print_note("measuring accuracy")
        result = collect(options, data, cleaner, ranks, seconds=seconds, notes=notes, command=command)
        model = None if options.model is None else cleaner.gathered(ranks)
        with ranks.guard("writing the files"):
            if ranks.rank == 0 and options.report is not None:
                print_note("writing the report")
            if ranks.rank == 0:
                write_outputs(options, data, model, result)
        if ranks.rank == 0:
            show(options, result)
    return INTERRUPTED if result.status == "interrupted" else FINISHED


def _after_restart(options: CleanOptions, ranks: Ranks) -> CleanOptions:
    """Let processes that `torchrun` has started again resume from the checkpoint of the earlier ones.

    They do not if the earlier ones ended because of invalid options, such as an existing output file.
    """
    if not ranks.remembers(ACCEPTED):
        return options
    if options.checkpoint is not None and any(map(Path.exists, (options.checkpoint, previous_of(options.checkpoint)))):
        options = replace(options, checkpoint=None, resume=options.checkpoint)
    return replace(options, force=True)  # what is there now was written by the processes that ended


def train(
    options: CleanOptions, data: CleaningData, ranks: Ranks, command: str
) -> tuple[HyperCleaner, float, tuple[str, ...]]:
    """Fit a cleaner with a progress bar on standard error; return it with its seconds and warnings."""
    cleaner = HyperCleaner(**options.settings(corrects=data.corrects), verbose=True)
    path = options.checkpoint or options.resume
    checkpoint = None if path is None else Checkpoint(path, about={"command_line": command})
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if data.corrects:
            cleaner.set_params(callback=lambda event: print_note(f"learning: {event.stage}"))
            checked = (data.trusted.features, data.trusted.labels) if len(data.trusted) else (None, None)
            cleaner.fit(
                data.noisy.features, data.noisy.labels, X_trusted=checked[0], y_trusted=checked[1],
                verified=data.verified, wrong=data.wrong, groups=data.groups,
            )  # fmt: skip
        else:
            cleaner.fit(
                data.noisy.features, data.noisy.labels, X_trusted=data.trusted.features, y_trusted=data.trusted.labels,
                checkpoint=checkpoint, resume=options.resume, ranks=ranks,
            )  # fmt: skip
    return cleaner, time.perf_counter() - began, tuple(dict.fromkeys(str(warning.message) for warning in caught))


def command_line(arguments: Sequence[str]) -> str:
    """The command line of the user, without the names of checkpoints."""
    named = ("--checkpoint", "--resume")
    words = zip(("", *arguments), arguments, strict=False)
    kept = (word for before, word in words if before not in named and word.partition("=")[0] not in named)
    return shlex.join(["bilevel", *kept])


def write_outputs(
    options: CleanOptions, data: CleaningData, model: HyperCleaner | None, result: CleaningResult
) -> None:
    """Write all requested files together."""
    writers: dict[Path, Any] = {}
    if options.out is not None:
        writers[options.out] = table_writer(
            pd.concat([result.rows, result.names], axis=1), options.out, raw=options.raw
        )
    if options.cleaned is not None:
        writers[options.cleaned] = table_writer(cleaned_table(options, data, result), options.cleaned, raw=options.raw)
    if options.next_out is not None:
        writers[options.next_out] = table_writer(rows_to_check(options, result), options.next_out, raw=options.raw)
    if options.model is not None:
        writers[options.model] = cleaner_writer(model, data.encoder, options.label)
    if options.report is not None:
        from .report import render_report

        page = render_report(result)
        writers[options.report] = lambda temporary: temporary.write_text(page, encoding="utf-8")
    write_together(writers, overwrite=options.force)


def cleaned_table(options: CleanOptions, data: CleaningData, result: CleaningResult) -> pd.DataFrame:
    """The table with suggested labels, all else as in the file; the original labels are in the last column."""
    typed = options.cleaned is not None and options.cleaned.suffix.lower() in (".parquet", ".pq")
    texts = {options.label} if typed else data.file_columns  # 007 stays 007 in a file of texts
    table = read_table(options.table, texts=texts, label=options.label).frame
    if len(table) != len(result.rows):
        raise InvalidInputError(f"{options.table} has changed since it was read: run the command again")
    rows, given = result.rows.reset_index(drop=True), table[options.label].astype(object)
    spellings = Counter(zip(rows["given_label"], given, strict=True))
    spelled = {label: text for (label, text), _ in reversed(spellings.most_common())}  # TRUE, where the label is True
    suggested = rows["suggested_label" if "suggested_label" in rows else "predicted_label"]
    changed = rows["is_label_issue"] | rows["given_label"].isna()
    table[options.label] = given.where(~changed, suggested.map(lambda label: spelled.get(label, label)))
    *_, original = distinct([*table.columns, f"given_{options.label}"])
    return table.assign(**{original: given})


def rows_to_check(options: CleanOptions, result: CleaningResult) -> pd.DataFrame:
    """A table to fill in: the rows whose check would help most, for --verified."""
    rows = result.to_check.merge(result.rows, on="row", how="left")
    names = ["row", "given_label", "suggested_label", "label_quality", "drawn_at_random"]
    rows = rows[names].assign(verified_label="", verdict="")
    if result.pixels is not None:
        return rows
    cells = result.features[[name for name in result.features if name not in rows]].assign(row=result.rows["row"])
    return rows.merge(cells, on="row", how="left")


# --- the screen -------------------------------------------------------------------------------------------------------


def show(options: CleanOptions, result: CleaningResult) -> None:
    """A summary on standard output, or one JSON document; notes on standard error."""
    for note in result.notes:
        print_note(note)
    if result.status == "interrupted":
        print_note("stopped by Ctrl-C: the results so far are kept and marked as interrupted")
        if options.outputs and (options.checkpoint or options.resume):
            print_note("to resume, add --force as well, because the files of the interrupted run exist now")
    elif result.status != "finished":
        print_note(f"training did not end as planned: {result.status}")
    if options.json:
        outputs = {option.lstrip("-"): str(path) for option, path in options.outputs.items()}
        document = {**result.to_json(), "outputs": outputs}
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
        return
    console = Console(highlight=False)
    console.print(summary(result))
    console.print(suspicious_rows(result))
    if result.to_check is not None:
        console.print(next_rows(result))
    for option, path in options.outputs.items():
        console.print(Text(f"{option.lstrip('-'):>7}: ", style="dim") + Text(str(path), style="bold"), soft_wrap=True)
    if not options.outputs:
        console.print("No file was written: --out, --model and --report name the files to write.", style="dim")


def print_note(text: str) -> None:
    """A line on standard error."""
    sys.stderr.write(f"bilevel: {escape_control_chars(text)}\n")


def summary(result: CleaningResult) -> Grid:
    """The summary, a rich table."""
    grid = Grid(box=box.SIMPLE, show_header=False, title=Text(f"Which labels of {result.table} are wrong?", "bold"))
    grid.title_justify = "left"
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    share = result.issues / len(result.rows)
    grid.add_row("suspected labels", Text(f"{result.issues:,} of {len(result.rows):,} rows ({share:.1%})", "bold"))
    if result.wrong_suspected is not None:
        low, high, total = result.wrong_suspected
        text = f"of {total:,} unchecked ones, {low:,} to {high:,} are wrong (95 % interval, by the verified rows)"
        grid.add_row("", printable(text))
    if result.trusted_rows or not result.verified_rows:
        grid.add_row(
            "trusted rows",
            printable(f"{result.trusted_rows:,} from {result.trusted_from}" if result.trusted_rows else "none"),
        )
    if result.verified_rows:
        grid.add_row("verified rows", f"{result.verified_rows:,} of the table")
    if result.measurement is None:
        grid.add_row("accuracy", printable(f"not measured: {result.unmeasured}"))
    else:
        measurement = result.measurement
        verdict = measurement.comparisons[0].verdict
        for entry in measurement.models:
            style = "bold green" if entry is measurement.comparisons[0].after and not verdict else ""
            text = f"{entry.share:.1%} ± {entry.standard_error:.1%}"
            grid.add_row(f"accuracy, {entry.model}", Text(text, style))
        grid.add_row("", printable(f"on {measurement.where}, whose labels are assumed right", "dim"))
        for sentence in filter(None, (measurement.caution, verdict if result.advice is None else "")):
            grid.add_row("", printable(sentence))
    if result.advice is not None:
        grid.add_row("advice", Text(ADVICE_TEXTS[result.advice.choice], "bold"))
    grid.add_row("noise model", printable(result.noise))
    grid.add_row("training", printable(f"{result.seconds:.1f} s, {result.status}"))
    return grid


def suspicious_rows(result: CleaningResult) -> Grid:
    """The first few rows a person should look at, a rich table."""
    return rows_grid("Most suspicious rows", result.suspects(SHOWN), "predicted label", "predicted_label")


def next_rows(result: CleaningResult) -> Grid:
    """The rows whose check would help most, a rich table."""
    rows = result.to_check.merge(result.rows, on="row")
    return rows_grid("Rows to check next", rows, "suggested label", "suggested_label")


def rows_grid(title: str, rows: pd.DataFrame, heading: str, other: str) -> Grid:
    """A table of rows with their given and another label, and whether they were drawn at random, if that is known."""
    grid = Grid(box=box.SIMPLE_HEAD, title=Text(title, "bold"), title_justify="left")
    grid.add_column("row", justify="right")
    grid.add_column("given label", overflow="fold")
    grid.add_column(heading, overflow="fold")
    grid.add_column("quality", justify="right")
    drawn = "drawn_at_random" in rows
    if drawn:
        grid.add_column("drawn at random")
    for row in rows.to_dict("records"):
        cells = (printable(str(row["given_label"])), printable(str(row[other])), quality_text(row["label_quality"]))
        grid.add_row(str(row["row"]), *cells, *(["yes" if row["drawn_at_random"] else ""] if drawn else []))
    return grid


def printable(text: str, style: str = "") -> Text:
    """Text of the user for a terminal: no markup, and no control characters.

    Examples
    --------
    >>> printable("[red]a\\x1b[2Jb").plain
    '[red]a\\\\x1b[2Jb'
    """
    return Text(escape_control_chars(text).replace("\n", "\\n"), style)


# --- bilevel predict --------------------------------------------------------------------------------------------------


def predict(
    model: Path,
    table: Path,
    *,
    out: Path | None = None,
    force: bool = False,
    raw: bool = False,
    features: Path | None = None,
) -> int:
    """The labels that a saved cleaner predicts for the rows of a table, with the probability of each label."""
    if out is not None:
        if out.resolve() in (model.resolve(), table.resolve()):
            raise InvalidInputError(f"--out {out} would replace an input file: choose another name")
        check_output("--out", out, force=force)
    saved = load_cleaner(model)
    rows = read_table(table, texts=() if saved.encoder is None else saved.encoder.texts_)
    for note in rows.notes:
        print_note(note)
    if features is not None:
        rows = rows.beside(read_vectors(features, len(rows), table.name))
    frame = predictions(saved.cleaner, features_of(saved, rows, model.name))
    if out is None:
        table_writer(frame, Path("-.csv"), raw=raw)(sys.stdout)  # type: ignore[arg-type]
        return FINISHED
    write_together({out: table_writer(frame, out, raw=raw)}, overwrite=force)
    print_note(f"{len(frame):,} predictions are in {out}")
    return FINISHED


def features_of(saved: SavedCleaner, rows: Table, model: str) -> Any:
    """The rows in the form that the model expects."""
    encoder, cleaner = saved.encoder, saved.cleaner
    size: int = cleaner.n_features_in_  # type: ignore[assignment]
    if encoder is not None:
        check_columns(rows, encoder.columns_, model)
        if unseen := encoder.unseen(rows.frame):
            counts = ", ".join(f"{count:,} in column {name!r}" for name, count in unseen.items())
            print_note(f"{rows.name} has cells unknown to {model}, which count as none of the known values: {counts}")
        return encoder.transform(rows.frame)
    if (names := getattr(cleaner, "feature_names_in_", None)) is not None:
        check_columns(rows, list(names), model)
        return rows.frame[list(names)]
    if len(rows.columns) != size:
        raise InvalidInputError(f"{model} takes {size} columns of numbers, and {rows.name} has {len(rows.columns)}")
    return rows.frame.to_numpy()


def predictions(cleaner: Any, features: Any) -> pd.DataFrame:
    """A table with the number of each row, its predicted label and the probability of each label."""
    labels, columns = cleaner.predict(features), [f"probability_{label}" for label in cleaner.classes_]
    frame = pd.DataFrame({"row": np.arange(1, len(labels) + 1), "predicted_label": labels})
    return pd.concat([frame, pd.DataFrame(cleaner.predict_proba(features), columns=columns)], axis=1)
