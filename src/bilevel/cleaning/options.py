"""The options of `bilevel clean`, declared once for the command line, the cleaner, the JSON document and the ranks.

This module imports nothing heavy, because `bilevel clean --help` needs it.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import InvalidInputError

SOLVERS: dict[str, str] = {
    "dmlcbo": "DMLCBO",
    "approx": "Approx",
    "implicit": "Implicit",
    "vpbgd": "VPBGD",
    "rmd-pcd": "RMDPCD",
    "projected-soba": "ProjectedSOBA",
}
"""Solvers by the names that `HyperCleaner` and the command line know."""
NEEDS_RADIUS = ("vpbgd",)
"""Those that need a fixed set; a test compares this with what the solvers declare."""


@dataclass(frozen=True)
class CleanOptions:
    """The arguments of `bilevel clean`.

    Parameters
    ----------
    table
        The table with doubtful labels: a CSV, Parquet or rows*.npy file, or a folder of such files.
    label
        The column that contains the labels.
    trusted
        A table with the same columns, whose labels have been checked.
    trusted_column
        Instead of --trusted: a column of the table that is true (yes, x, 1) in rows whose label has been checked, and
        no, 0 or empty in the others.
    verified
        The result of checking rows of the table: a column with the correct label of the checked rows, or a file with
        the columns row, verified_label and verdict (right, wrong or unsure), such as --next-out or the decisions saved
        by the report.
    precision
        With --verified: suspect only so many labels that about this fraction of them is wrong, such as 0.9.
    features
        Further features, such as embeddings of images or texts: a .npy, .npz or Parquet file with one vector per row of
        the table, then one file for --trusted and one for --test if these are given.
    group
        A column with the group of each row, such as a patient: rows of the same group never predict each other.
    out
        Write a table with one line per row: row, given_label, predicted_label, label_quality (probability of the given
        label, 0 to 1), is_label_issue, weight and, with --noise correction, suggested_label and suggested_probability;
        columns of --ignore follow.
    cleaned
        Write the table with suggested labels; the original labels are in the column given_LABEL.
    next
        How many rows to list whose check would help most; a third of them is drawn at random.
    next_out
        Write these rows to a table; fill in its last columns, and pass it as --verified.
    model
        Write the trained model to this file; `bilevel predict` uses it.
    report
        Write a page with the results, an .html file that works offline. Suspicious rows can be checked there, and the
        decisions saved for --verified.
    test
        A table with correct labels to measure accuracy. Without it, some trusted rows are held out for this purpose.
    noise
        The model of label noise. correction: boosting and other models of all labels, corrected by the trusted rows;
        for tables and texts. The others train a linear model with a weight per row (rows) or per pair of labels
        (class-pairs, transition). auto means correction, unless columns are pixels, several processes divide the rows,
        or --solver, --steps, --radius, --checkpoint or --resume is given; then it is the first of transition,
        class-pairs and rows whose Brier score on held-out trusted rows is within one standard error of the smallest.
    radius
        Radius of the l1 ball of the coefficients; a smaller radius gives a sparser model. auto chooses it on the
        trusted rows.
    solver
        The solver of the bilevel problem: dmlcbo, approx, implicit, vpbgd (needs a number as --radius), rmd-pcd,
        projected-soba, or auto.
    steps
        Steps of the solver for each noise model. More steps are not always better, because the model overfits the
        trusted rows.
    seed
        Seed of the random numbers; the same seed gives the same result.
    holdout
        Fraction of the trusted rows held out to measure accuracy if there is no --test; 0 for none.
    ignore
        Columns that are not features, such as the name of each row: one or more, after the table. They are copied to
        --out.
    categorical
        Numerical columns to treat as categories: one or more, after the table.
    text
        Columns to treat as texts.
    number
        Columns to treat as numbers.
    date
        Columns to treat as dates.
    image_shape
        The columns are pixels of images of this height and width, such as 28x28; the report then shows the images.
        Columns named pixel0, pixel1, ... are always treated as pixels.
    json
        Print one JSON document instead of tables.
    checkpoint
        A .safetensors file for the state of training, written after every step; --resume continues from it.
    resume
        Continue from this checkpoint of the same command with the same tables and settings. New checkpoints replace it.
    force
        Replace files that exist.
    raw
        Write texts unchanged. Otherwise a ' is written before texts that a spreadsheet would evaluate as formulas.
    timeout
        With torchrun: how many seconds a process waits for the others (default 300).
    """

    table: Path
    _: KW_ONLY
    label: str
    trusted: Path | None = None
    trusted_column: str | None = None
    verified: str | None = None
    precision: float | None = None
    features: tuple[Path, ...] | None = None
    group: str | None = None
    out: Path | None = None
    cleaned: Path | None = None
    next: int | None = None
    next_out: Path | None = None
    model: Path | None = None
    report: Path | None = None
    test: Path | None = None
    noise: Literal["auto", "correction", "rows", "class-pairs", "transition"] = "auto"
    radius: float | Literal["auto"] = "auto"
    solver: str = "auto"
    steps: int | None = None
    seed: int = 0
    holdout: float = 0.2
    ignore: tuple[str, ...] | None = None
    categorical: tuple[str, ...] | None = None
    text: tuple[str, ...] | None = None
    number: tuple[str, ...] | None = None
    date: tuple[str, ...] | None = None
    image_shape: str | None = None
    json: bool = False
    checkpoint: Path | None = None
    resume: Path | None = None
    force: bool = False
    raw: bool = False
    timeout: float | None = None

    @property
    def inputs(self) -> dict[str, Path]:
        """The tables to read, by option."""
        named = {"the table": self.table, "--trusted": self.trusted, "--test": self.test}
        named |= {f"--features ({place})": path for place, path in enumerate(self.features or (), start=1)}
        return {option: path for option, path in named.items() if path is not None}

    @property
    def named_columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of the table named by options, by option."""
        single = {"--label": self.label, "--trusted-column": self.trusted_column, "--group": self.group}
        lists = {"--ignore": self.ignore, "--categorical": self.categorical, "--text": self.text}
        lists |= {"--number": self.number, "--date": self.date}
        named = {option: (name,) for option, name in single.items() if name is not None}
        if self.verified is not None and not Path(self.verified).is_file():
            named["--verified"] = (self.verified,)
        return named | {option: names for option, names in lists.items() if names}

    @property
    def outputs(self) -> dict[str, Path]:
        """The files to write, by option."""
        named = {"--out": self.out, "--cleaned": self.cleaned, "--next-out": self.next_out}
        named |= {"--model": self.model, "--report": self.report}
        return {option: path for option, path in named.items() if path is not None}

    @property
    def linear_only(self) -> list[str]:
        """The given options that only linear models have."""
        defaults = {"solver": "auto", "radius": "auto", "steps": None, "checkpoint": None, "resume": None}
        return [f"--{name}" for name, default in defaults.items() if getattr(self, name) != default]

    @property
    def trusted_from(self) -> str:
        """A description of the source of the trusted rows."""
        if self.trusted is None and self.trusted_column is None:
            return "nowhere" if self.verified is None else str(self.verified)
        return self.trusted.name if self.trusted is not None else f"the column {self.trusted_column!r}"

    def corrects(self, *, processes: int, pixels: bool) -> bool:
        """Whether noise="correction" is used; otherwise a linear model is trained by a solver."""
        if self.noise == "correction":
            if processes > 1:
                raise InvalidInputError(
                    "--noise correction trains ensembles, which cannot divide rows: start one process, or choose "
                    "rows, class-pairs or transition"
                )
            return True
        return self.noise == "auto" and processes == 1 and not pixels and not self.linear_only

    def settings(self, *, corrects: bool) -> dict[str, Any]:
        """The arguments of `HyperCleaner`."""
        if corrects:
            return {"noise": "correction", "decision": "balanced", "random_state": self.seed}
        names = ("noise", "radius", "solver", "steps")
        return {**{name: getattr(self, name) for name in names}, "random_state": self.seed}

    def check(self) -> None:
        """Raise if the options contradict each other or a file cannot be written, before any table is read."""
        from .._files import check_name

        for path in (*self.inputs.values(), *self.outputs.values(), self.checkpoint, self.resume):
            if path is not None:
                check_name(path)
        if self.trusted is None and self.trusted_column is None and not self.corrects(processes=1, pixels=False):
            raise InvalidInputError(
                "no trusted rows: name a table of rows whose labels you have checked with --trusted FILE, or a column "
                "of the table that marks the rows you trust with --trusted-column COLUMN. Fifty rows are a good start"
            )
        if self.trusted is not None and self.trusted_column is not None:
            raise InvalidInputError("--trusted and --trusted-column both name the trusted rows: give one of them")
        if self.next is None and self.next_out is not None:
            raise InvalidInputError("--next-out FILE needs --next COUNT: how many rows to list")
        if self.precision is not None and not 0 < self.precision < 1:
            raise InvalidInputError(f"--precision {self.precision:g}: a share between 0 and 1, such as 0.9")
        if self.precision is not None and self.verified is None:
            raise InvalidInputError(
                "--precision needs --verified: without rows whose given and correct labels are both known, the "
                "fraction of the suspected labels that is wrong is unknown"
            )
        self._check_features()
        if self.next is not None and self.next < 1:
            raise InvalidInputError(f"--next {self.next}: at least one row")
        if self.noise == "correction" and (self.checkpoint is not None or self.resume is not None):
            raise InvalidInputError("--noise correction takes minutes and no checkpoint: leave --checkpoint out")
        if not 0 <= self.holdout < 1:
            raise InvalidInputError(
                f"--holdout {self.holdout:g}: the fraction of trusted rows to hold out must be at least 0 and below 1"
            )
        if self.steps is not None and self.steps < 1:
            raise InvalidInputError(f"--steps {self.steps}: at least one step is needed")
        if not 0 <= self.seed < 2**32:
            raise InvalidInputError(f"--seed {self.seed}: a seed is a whole number from 0 to {2**32 - 1}")
        if self.radius != "auto" and not 0 < self.radius < math.inf:
            raise InvalidInputError(f"--radius {self.radius:g}: a radius is a positive number, or auto")
        self._check_solver()
        self._check_files()
        self._check_checkpoint()

    def _check_features(self) -> None:
        tables = [name for name in ("the table", "--trusted", "--test") if name in self.inputs]
        if self.features is not None and len(self.features) != len(tables):
            raise InvalidInputError(
                f"--features names {len(self.features)} files: one for each of {', '.join(tables)}, in this order"
            )

    def _check_solver(self) -> None:
        if self.solver not in ("auto", *SOLVERS):
            raise InvalidInputError(
                f"--solver {self.solver}: there is no such solver; choose auto, {', '.join(SOLVERS)}"
            )
        if self.radius == "auto" and self.solver in NEEDS_RADIUS:
            raise InvalidInputError(f"--solver {self.solver} needs a fixed radius: add --radius 1")

    def _check_files(self) -> None:
        inputs: dict[Path, str] = {}
        for name, path in self.inputs.items():
            if (other := inputs.setdefault(path.resolve(), name)) != name:
                raise InvalidInputError(f"{other} and {name} both name the file {path}: they must hold different rows")
        for option, path in self.outputs.items():
            if path.resolve() in inputs:
                raise InvalidInputError(f"{option} {path} would replace an input file: choose another name")
            check_output(option, path, force=self.force)
        if len({path.resolve() for path in self.outputs.values()}) < len(self.outputs):
            raise InvalidInputError(f"{' and '.join(self.outputs)} must name different files")

    def _check_checkpoint(self) -> None:
        """Raise if the checkpoint is also another file of the command, or exists, or is to be resumed and does not."""
        if self.checkpoint is not None and self.resume is not None:
            raise InvalidInputError("--resume FILE continues to write FILE: omit --checkpoint")
        path = self.checkpoint or self.resume
        if path is None:
            return
        from .._files import MissingFileError, OutputExistsError, check_writable
        from ..run.checkpoint import previous_of

        option = "--checkpoint" if self.resume is None else "--resume"
        if path.suffix.lower() != ".safetensors":
            raise InvalidInputError(f"{option} {path}: the name must end in .safetensors")
        others = {other.resolve() for other in (*self.inputs.values(), *self.outputs.values())}
        if {path.resolve(), previous_of(path).resolve()} & others:
            raise InvalidInputError(
                f"{option} {path} is also the name of another file of this command: choose another name"
            )
        check_writable(path, overwrite=True)
        found = next((file for file in (path, previous_of(path)) if file.exists()), None)
        if self.resume is not None and found is None:
            raise MissingFileError(f"--resume {path}: there is no such file; --checkpoint {path} starts a new run")
        if self.checkpoint is not None and found is not None:
            raise OutputExistsError(
                f"--checkpoint {path}: {found} exists and was left as it is; --resume {path} continues from it, and a "
                "new run needs another name"
            )


def check_output(option: str, path: Path, *, force: bool) -> None:
    """Raise if a file could not be written at the end."""
    from .._files import check_writable

    tables = (".csv", ".tsv", ".txt", ".parquet", ".pq")
    endings = {"--model": (), "--report": (".html", ".htm")}.get(option, tables)
    if endings and path.suffix.lower() not in endings:
        raise InvalidInputError(f"{option} {path}: the name must end in {' or '.join(endings)}")
    if path.exists() and not path.is_dir() and not force:
        raise InvalidInputError(f"{option} {path}: the file exists and was left as it is; --force replaces it")
    check_writable(path, overwrite=True)
