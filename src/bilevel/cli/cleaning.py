"""`bilevel clean` and `bilevel predict`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ..errors import InvalidInput
from .common import check_there, examples, given, one_thread

if TYPE_CHECKING:
    from cyclopts import App


def add_to(app: App) -> None:
    """Give the program these commands."""
    app.command(
        clean,
        help_epilogue=examples(
            "# train.csv has doubtful labels in the column species; checked.csv has the same columns and right labels",
            "bilevel clean train.csv --label species --trusted checked.csv --report report.html",
            "",
            "# everything that can be kept: a weight per row, a model for later, a page for a colleague",
            "bilevel clean train.csv --label species --trusted checked.csv \\",
            "    --out weights.csv --model model.safetensors --report report.html",
            "",
            "# a long run: after a crash, or after Ctrl-C, the same command with --resume goes on",
            "bilevel clean train.csv --label species --trusted checked.csv --out w.csv --checkpoint run.safetensors",
            "bilevel clean train.csv --label species --trusted checked.csv --out w.csv --resume run.safetensors",
            "",
            "# the table itself says which rows were checked; leave the name of each row out",
            "bilevel clean train.parquet --label species --trusted-column checked --ignore name",
            "",
            "# more rows than one process can hold: a folder of Parquet files, divided among eight",
            "torchrun --nproc-per-node 8 -m bilevel clean folder --label species --trusted checked.csv --out w.parquet",
            "",
            "# for programs",
            "bilevel clean train.csv --label species --trusted checked.csv --json | jq .label_issues",
        ),
    )
    app.command(
        predict,
        help_epilogue=examples(
            "bilevel predict model.safetensors new.csv                        # to the screen, as CSV",
            "bilevel predict model.safetensors new.parquet --out predicted.parquet",
        ),
    )


def clean(
    table: Path,
    /,
    *,
    label: str,
    trusted: Path | None = None,
    trusted_column: str | None = None,
    out: Path | None = None,
    model: Path | None = None,
    report: Path | None = None,
    test: Path | None = None,
    noise: Literal["auto", "rows", "class-pairs", "transition"] = "auto",
    radius: float | Literal["auto"] = "auto",
    solver: str = "auto",
    steps: int | None = None,
    seed: int = 0,
    holdout: float = 0.2,
    ignore: list[str] | None = None,
    categorical: list[str] | None = None,
    image_shape: str | None = None,
    json: bool = False,
    checkpoint: Path | None = None,
    resume: Path | None = None,
    force: bool = False,
    timeout: float | None = None,
) -> int:
    """Find the wrong labels of a table, and train a model that is not fooled by them.

    You have a table of training rows with doubtful labels, and a few rows whose labels you have checked (fifty are a
    good start, several per label). The command learns how far each label can be believed such that a model trained on
    the rows does well on the checked ones. You see which labels are suspicious, and how accurate logistic regression is
    on all rows and on those that are kept, next to the cleaned model. Tables are CSV files (UTF-8, with a header) or
    Parquet files; texts are taken as categories.

    Tables too large for one process: `torchrun --nproc-per-node 8 -m bilevel clean folder ...` divides the rows among
    processes. The table is then a Parquet file, a folder of Parquet or CSV files, or one of `rows-*.npy` and
    `labels-*.npy`, and a checkpoint is a folder.

    Ctrl-C ends training early and keeps the best found so far. With --checkpoint FILE a run that is stopped or killed
    loses nothing: the same command with --resume FILE instead goes on, and ends with the same bits as if it had never
    been stopped.
    Exit codes: 0 done, 2 a mistake that the message names (nothing is written), 130 stopped by Ctrl-C.

    Parameters
    ----------
    table
        The table with doubtful labels.
    label
        Its column of labels.
    trusted
        A table with the same columns, whose labels are right.
    trusted_column
        Instead of --trusted: a column of the table that is true (yes, x, 1) in rows whose label is right; no, 0 or an
        empty cell in the others.
    out
        Write a table with a line per row: row, given_label, predicted_label, label_quality (probability of the given
        label, 0 to 1), is_label_issue, weight; columns of --ignore follow.
    model
        Write the trained model, a .safetensors file; `bilevel predict` uses it.
    report
        Write a page with the results, an .html file that needs no network.
    test
        A table with right labels to measure accuracy on. Without it some trusted rows are kept aside for that.
    noise
        How labels go wrong: each row on its own (rows), or by pairs of labels (class-pairs, transition). auto takes the
        first of transition, class-pairs and rows whose Brier score on trusted rows held out is within one standard
        error of the smallest.
    radius
        Size of the l1 ball that holds the model: smaller is sparser. auto chooses it on the trusted rows.
    solver
        The method of bilevel optimisation: dmlcbo, approx, implicit, vpbgd (needs a number as --radius), rmd-pcd,
        projected-soba, or auto.
    steps
        Steps of the solver for each model of noise. More is not always better: early steps learn what many rows share.
    seed
        For everything drawn at random; the same seed gives the same result.
    holdout
        Share of the trusted rows kept aside to measure accuracy, when there is no --test; 0 for none.
    ignore
        Columns to learn nothing from, such as the name of each row: one or more, after the table. They are shown.
    categorical
        Columns of numbers that are names of categories: one or more, after the table.
    image_shape
        The columns are pixels of pictures of this height and width, such as 28x28; the report then shows them. Columns
        named pixel0, pixel1, ... are taken for pictures anyway.
    json
        Print one JSON document instead of tables.
    checkpoint
        A .safetensors file for the state of training, written after every step; --resume goes on from it.
    resume
        The checkpoint of this command with these tables and settings, to go on from. New checkpoints replace it.
    force
        Replace files that exist.
    timeout
        With torchrun: the seconds that a process waits for the others, 300 by default.
    """
    several = bool(os.environ.get("WORLD_SIZE"))  # torchrun, or who else starts processes that find each other
    if timeout is not None and not several:
        raise InvalidInput(f"--timeout {timeout:g} goes with torchrun: there are no other processes to wait for")
    if not several:
        check_there(table, trusted, test)
    from ..applications.hyper_cleaning import command

    one_thread()
    request = command.Request(
            table=table, label=label, trusted=trusted, trusted_column=trusted_column, test=test, out=out, model=model,
            report=report, noise=noise, radius=radius, solver=solver, steps=steps, seed=seed, holdout=holdout,
            ignore=ignore or (), categorical=categorical or (), image_shape=image_shape, json=json,
            checkpoint=checkpoint, resume=resume, force=force, arguments=tuple(given),
        )  # fmt: skip
    if several:
        from ..distributed import command as on_ranks

        return on_ranks.clean(request, timeout=timeout)
    return command.clean(request)


def predict(
    model: Path,
    table: Path,
    /,
    *,
    out: Path | None = None,
    allow_unknown: bool = False,
    force: bool = False,
) -> int:
    """Predict the labels of new rows with a model that `bilevel clean --model` saved.

    Parameters
    ----------
    model
        The .safetensors file.
    table
        A CSV or Parquet file with the columns of the table that the model was trained on; a label column is ignored.
    out
        Write a table with a line per row: row, predicted_label and the probability of each label. Without it the
        table is printed as CSV.
    allow_unknown
        Let a category that the model has never seen count as none of the known ones, instead of refusing it.
    force
        Replace a file that exists.
    """
    check_there(model, table)
    from ..applications.hyper_cleaning import command

    one_thread()
    return command.predict(model, table, out=out, allow_unknown=allow_unknown, force=force)
