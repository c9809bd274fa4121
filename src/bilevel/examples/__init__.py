"""Tables with wrong labels to try `bilevel clean` on. Two are real, two are generated; see LICENSES.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .._files import write_together
from ..errors import InvalidInputError, did_you_mean
from . import tables

if TYPE_CHECKING:
    import pandas as pd


class Example(NamedTuple):
    """A table: what it is, the column with its labels, how many labels are wrong, and its rows."""

    title: str
    label: str
    wrong: float  # fraction of the labels of train.csv
    checked: int
    test: int
    load: Callable[[np.random.Generator], pd.DataFrame]


EXAMPLES = {
    "telco": Example("customers of a telephone company who left or stayed", "churn", 0.3, 100, 400, tables.telco),
    "penguins": Example("field notes about three species of penguins", "Species", 0.2, 40, 80, tables.penguins),
    "digits": Example("8 x 8 images of handwritten digits", "digit", 0.3, 100, 400, tables.digits),
    "tickets": Example("messages to a help desk and the team they belong to", "team", 0.25, 80, 200, tables.tickets),
}


def find(name: str) -> Example:
    """The example of that name."""
    if name not in EXAMPLES:
        raise InvalidInputError(
            f"there is no example {name!r}, only {', '.join(EXAMPLES)}.{did_you_mean(name, EXAMPLES)}"
        )
    return EXAMPLES[name]


def write(name: str, folder: Path, *, overwrite: bool = False) -> dict[str, int]:
    """Write train.csv, checked.csv, test.csv and truth.csv to the folder; returns the number of rows of each.

    truth.csv has the right label of every row of train.csv. The files are the same in every call.
    """
    example = find(name)
    generator = np.random.default_rng(list(name.encode()))
    rows = example.load(generator)
    order = generator.permutation(len(rows))
    checked, test, train = (
        rows.iloc[part].reset_index(drop=True)
        for part in np.split(order, [example.checked, example.checked + example.test])
    )
    truth = train[[example.label]].rename_axis("row").reset_index()
    truth["row"] += 1
    train[example.label] = with_errors(train[example.label], example.wrong, generator)
    parts = {"train": train, "checked": checked, "test": test, "truth": truth}
    writers = {folder / f"{stem}.csv": _writer(part) for stem, part in parts.items()}
    write_together(writers, overwrite=overwrite)
    return {stem: len(part) for stem, part in parts.items()}


def with_errors(labels: pd.Series, fraction: float, generator: np.random.Generator) -> pd.Series:
    """The labels, this fraction of them replaced by another one."""
    names = np.unique(labels)
    code = np.searchsorted(names, labels)
    wrong = generator.permutation(len(code)) < round(fraction * len(code))
    others = (code + generator.integers(1, len(names), len(code))) % len(names)
    return labels.mask(wrong, names[others])


def _writer(frame: pd.DataFrame) -> Callable[[Path], None]:
    return lambda path: frame.to_csv(path, index=False)
