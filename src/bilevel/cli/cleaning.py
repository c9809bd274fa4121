"""`bilevel clean` and `bilevel predict`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from ..cleaning.headers import Problems, check_headers
from ..cleaning.options import CleanOptions
from ..errors import InvalidInputError, escape_control_chars
from .common import check_there, command_line, one_thread

if TYPE_CHECKING:
    from ..cleaning.tables import Table


def add_to(app: App) -> None:
    """Give the program these commands."""
    app.command(clean)
    app.command(predict)


def clean(options: Annotated[CleanOptions, Parameter(name="*")]) -> int:
    """Find the wrong labels of a table, and train a model that is not misled by them.

    You have a table of training rows with doubtful labels, and a few rows whose labels you have checked (fifty are a
    good start, several per label). The command learns how far each label can be trusted, so that a model trained on the
    rows does well on the checked ones. It shows which labels are suspicious, and measures whether models get better
    without these rows, or with the suggested labels. Tables are CSV files (with a header; they may be compressed),
    Parquet files, NumPy arrays (`rows.npy` next to `labels.npy`), or folders of such files. Columns may be
    numbers, categories, texts or dates, with missing cells.

    For tables that are too large for one process, `torchrun --nproc-per-node 8 -m bilevel clean folder ...` divides the
    rows among processes. The result and the files are the same as those of one process.

    Ctrl-C ends training early and keeps the best result so far. With --checkpoint FILE, a run that is stopped or killed
    can be continued by the same command with --resume FILE instead; the result has the same bits as that of an
    uninterrupted run.
    Exit codes: 0 success, 2 an error (nothing is written), 130 stopped by Ctrl-C.
    """
    several = bool(os.environ.get("WORLD_SIZE"))  # set by torchrun and similar launchers
    if options.timeout is not None and not several:
        raise InvalidInputError(
            f"--timeout {options.timeout:g} needs torchrun: there are no other processes to wait for"
        )
    training = None if several else first_look(options)
    from ..cleaning import command

    one_thread()
    return command.clean(options, tuple(command_line), training)


def first_look(options: CleanOptions) -> Table:
    """The training table, after wrong options, files and names of columns were reported; without torch."""
    problems = Problems()
    for path in options.inputs.values():
        with problems.collect():
            check_there(path)
    with problems.collect():
        options.check()
    check_headers(options, problems, command_line)
    print(f"bilevel: reading {escape_control_chars(str(options.table))}", file=sys.stderr, flush=True)
    from ..cleaning.table_files import read_training

    return read_training(options)


def predict(
    model: Path,
    table: Path,
    /,
    *,
    out: Path | None = None,
    force: bool = False,
    raw: bool = False,
    features: Path | None = None,
) -> int:
    """Predict the labels of new rows with a model that `bilevel clean --model` saved.

    Parameters
    ----------
    model
        The file.
    table
        A CSV or Parquet file with the columns of the table that the model was trained on; a label column is ignored.
    out
        Write a table with one line per row: row, predicted_label and the probability of each label. Without it, the
        table is printed as CSV.
    force
        Replace a file that exists.
    raw
        Write texts as they are. Otherwise texts that a spreadsheet would take for formulas are written after a '.
    features
        A .npy, .npz or Parquet file with one vector per row, if the model was trained with --features.
    """
    check_there(model, table, features)
    from ..cleaning import command

    one_thread()
    return command.predict(model, table, out=out, force=force, raw=raw, features=features)
