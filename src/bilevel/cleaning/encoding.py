"""From the columns of a table to numbers: standardised numbers, one column of zeros and ones per category.

    number     (value - mean) / standard deviation
    pixel      value / largest pixel of the table     (pictures: a pixel that is almost always 0 must not be blown up)
    category   one 0/1 column for each of its values

An `Encoder` holds only names and numbers, so that JSON can hold it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..errors import InvalidInputError, MissingExtraError
from ..ranks import Ranks
from .design import replicated, spaced_rows
from .inputs import PIXEL
from .tables import Table, category_column, check_columns, listed, number_column, numbers_in, shortened

try:
    from scipy import sparse
    from sklearn.preprocessing import StandardScaler
except ImportError:
    raise MissingExtraError("Encoding tables", "apps") from None

WIDE, SPARSE_BELOW = 1000, 0.3
"""A matrix with more columns than the first number and a smaller share of non-zero cells than the second is sparse."""
SAMPLE = 100_000
"""Rows that means and standard deviations are learned from, at most, so that every rank can have them."""
MOSTLY = 0.8
"""A column with at least this share of numbers is meant to hold numbers."""
MOST_CATEGORIES = 10_000
"""Different texts of a column that a rank tells the others, or half as many as it has rows: more are names of rows."""


@dataclass(frozen=True)
class Encoder:
    """What `fit` learned about the columns of a table.

    Parameters
    ----------
    numbers
        Columns of numbers.
    means, scales
        One for each of them: (value - mean) / scale.
    categories
        For each other column its values, sorted.
    ignored
        Columns that were left out on purpose: no table needs them, and nobody wonders when one has them.
    """

    numbers: tuple[str, ...]
    means: tuple[float, ...]
    scales: tuple[float, ...]
    categories: dict[str, tuple[str, ...]]
    ignored: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls,
        tables: Sequence[Table],
        categorical: Collection[str] = (),
        pixels: Collection[str] = (),
        ranks: Ranks | None = None,
    ) -> Encoder:
        """Learn the columns of the first table from the rows of all of them.

        Parameters
        ----------
        tables
            Tables with the columns of the first one, of which ranks hold parts; every rank has the others whole.
        categorical
            Columns of numbers that are names of categories all the same.
        pixels
            Columns that are pixels of a picture, and share one scale.
        ranks
            Those that divide the first table; they all end with the same encoder.
        """
        first, ranks = tables[0], Ranks() if ranks is None else ranks
        texts = category_names(first, categorical, pixels, ranks)
        numbers = [name for name in first.columns if name not in texts]
        values: list[np.ndarray] = []
        with ranks.guard(f"reading the columns of {first.name}"):
            values = [number_frame(table, numbers).to_numpy() for table in tables]
        means, scales = _scaling(first, values, np.isin(numbers, list(pixels)), ranks)
        if not np.isfinite(means).all() or not np.isfinite(scales).all():
            worst = numbers[int(np.flatnonzero(~np.isfinite(means + scales))[0])]
            raise InvalidInputError(f"{first.name}: the numbers in column {worst!r} are too large to be standardised")
        categories = {name: _categories(tables, name, ranks) for name in texts}
        return cls(tuple(numbers), tuple(means.tolist()), tuple(scales.tolist()), categories)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        return (*self.numbers, *self.categories)

    @property
    def feature_names(self) -> list[str]:
        """The names of the columns of what `transform` returns."""
        return [*self.numbers, *(f"{name}={value}" for name, values in self.categories.items() for value in values)]

    def transform(self, table: Table, *, of: str, allow_unknown: bool = False) -> Any:
        """The rows as numbers, shape (rows, features): a NumPy array, or a SciPy CSR matrix when it is wide and sparse.

        Parameters
        ----------
        table
            A table with these columns; others are ignored.
        of
            What the columns were learned from, for messages.
        allow_unknown
            Let a value that was never seen count as none of the known ones; refused otherwise.
        """
        check_columns(table, self.columns, of)
        numbers = (number_frame(table, self.numbers).to_numpy() - np.array(self.means)) / np.array(self.scales)
        if not self.categories:
            return numbers
        ones = []
        for name, values in self.categories.items():
            codes = pd.Index(values).get_indexer(category_column(table, name))  # -1: unknown
            if not allow_unknown and (codes < 0).any():
                raise _unknown_value(table, name, codes < 0, values, of)
            known = np.flatnonzero(codes >= 0)
            shape = (len(table), len(values))
            ones.append(sparse.csr_matrix((np.ones(len(known)), (known, codes[known])), shape=shape))
        if self._sparse:
            return sparse.csr_matrix(sparse.hstack([numbers, *ones]))
        return np.hstack([numbers, sparse.hstack(ones).toarray()])

    def unknown_cells(self, table: Table) -> dict[str, int]:
        """How many cells of each column of categories hold a value that was never seen; columns without are absent."""
        counts = {
            name: int((~pd.Series(category_column(table, name)).isin(values)).sum())
            for name, values in self.categories.items()
        }
        return {name: count for name, count in counts.items() if count}

    @property
    def _sparse(self) -> bool:
        width = len(self.feature_names)
        return width > WIDE and len(self.columns) < SPARSE_BELOW * width

    # --- as JSON ---

    def to_json(self) -> dict[str, Any]:
        """Names and numbers that JSON holds without loss."""
        return {
            "numbers": [list(column) for column in zip(self.numbers, self.means, self.scales, strict=True)],
            "categories": [[name, list(values)] for name, values in self.categories.items()],
            "ignored": list(self.ignored),
        }

    @classmethod
    def from_json(cls, content: Any) -> Encoder:
        """The encoder that `to_json` described; anything else is refused."""
        rows = content["numbers"]
        for name, mean, scale in rows:
            if not (isinstance(name, str) and np.isfinite(mean) and np.isfinite(scale) and scale > 0):
                raise InvalidInputError(f"the scaling of column {name!r} is damaged")
        categories = {name: tuple(values) for name, values in content["categories"]}
        for name, values in categories.items():
            if not values or not all(isinstance(text, str) for text in (name, *values)):
                raise InvalidInputError(f"the categories of column {name!r} are damaged")
        ignored = tuple(content.get("ignored", ()))  # absent in older files
        if not all(isinstance(name, str) for name in ignored):
            raise InvalidInputError(f"the names of the columns left out are damaged: {listed(ignored)}")
        return cls(
            numbers=tuple(row[0] for row in rows),
            means=tuple(float(row[1]) for row in rows),
            scales=tuple(float(row[2]) for row in rows),
            categories=categories,
            ignored=ignored,
        )


def category_names(
    table: Table, categorical: Collection[str] = (), pixels: Collection[str] = (), ranks: Ranks | None = None
) -> list[str]:
    """The columns that hold categories: those named so, and those that are no pixels and hold few numbers."""
    ranks = Ranks() if ranks is None else ranks
    asked = [name for name in table.columns if name not in categorical and name not in pixels]
    counts = torch.zeros(len(asked), 2)
    with ranks.guard(f"looking at the columns of {table.name}"):
        counts = torch.tensor([numbers_in(table, name) for name in asked]).reshape(-1, 2)
    counts = ranks.sum(counts).tolist()
    numbers = {name for name, (count, filled) in zip(asked, counts, strict=True) if filled and count >= MOSTLY * filled}
    return [name for name in table.columns if name not in numbers and name not in pixels]


def number_frame(table: Table, names: Sequence[str]) -> pd.DataFrame:
    """Columns of numbers as floating point; the first cell that is none is named."""
    frame = table.frame[list(names)]
    if all(kind.kind in "iuf" for kind in frame.dtypes) and np.isfinite(frame.to_numpy()).all():
        return frame.astype(float)  # the usual case, at once; otherwise the column and the cell are named
    return pd.DataFrame({name: number_column(table, name) for name in names}, index=range(len(table)))


def _scaling(
    table: Table, values: Sequence[np.ndarray], pixels: np.ndarray, ranks: Ranks
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each column; for pixels 0 and the largest of all."""
    if not len(pixels):
        return np.zeros(0), np.zeros(0)
    sample = replicated(values[0][spaced_rows(table.first, len(table), table.total, SAMPLE)], ranks)
    # In the order of a data frame's columns in memory, in which sums over rows are most exact.
    scaler: Any = StandardScaler().fit(np.asfortranarray(np.vstack([sample, *values[1:]])))
    largest = max(float(np.abs(part[:, pixels]).max(initial=0.0)) for part in values)
    shared = float(ranks.max(torch.tensor(largest, dtype=torch.float64))) or 1.0
    return np.where(pixels, 0.0, scaler.mean_), np.where(pixels, shared, scaler.scale_)


def _categories(tables: Sequence[Table], name: str, ranks: Ranks) -> tuple[str, ...]:
    """The texts of a column in all rows of all ranks, sorted."""
    here: set[str] = set()
    with ranks.guard(f"reading column {name!r} of {tables[0].name}"):
        here = {value for table in tables for value in category_column(table, name)}
        if ranks.size > 1 and len(here) > max(MOST_CATEGORIES, len(tables[0]) / 2):
            raise _too_many_texts(tables, name, here)
    values = {value for part in ranks.gather(sorted(here)) for value in part}
    if len(values) > max(20, sum(table.total for table in tables) / 2):
        raise _too_many_texts(tables, name, values)
    return tuple(sorted(values))


def _too_many_texts(tables: Sequence[Table], name: str, values: Collection[str]) -> InvalidInputError:
    return InvalidInputError(
        f"{' and '.join(table.name for table in tables)}: column {name!r} holds {len(values)} different texts in "
        f"{sum(table.total for table in tables)} rows, such as {listed(sorted(values), 2)}: that is a name of each row "
        f"rather than a category. Leave it out with --ignore {name}"
    )


def _unknown_value(table: Table, name: str, unknown: np.ndarray, known: Sequence[str], of: str) -> InvalidInputError:
    row = int(np.flatnonzero(unknown)[0])
    others = f" ({int(unknown.sum())} such cells in this column)" if unknown.sum() > 1 else ""
    return InvalidInputError(
        f"{table.cell(row, name)}: {shortened(category_column(table, name)[row])} does not occur in {of}, where the "
        f"values are {listed(known)}{others}; --allow-unknown lets it count as none of them"
    )


# --- pictures ---------------------------------------------------------------------------------------------------------


def pixel_columns(table: Table, shape: tuple[int, ...] | None) -> tuple[list[str], tuple[int, ...]] | None:
    """The columns that are pixels, in their order, and the shape of the pictures; None when rows are no pictures.

    Parameters
    ----------
    table
        The columns without the label.
    shape
        (height, width) or (height, width, 3) when the user says that the columns are pixels. Otherwise they are when
        they are named pixel0, pixel1, ... (or px0; from 0 or 1) and their number is a square.
    """
    if shape is not None:
        if int(np.prod(shape)) != len(table.columns):
            size = "x".join(map(str, shape))
            raise InvalidInputError(
                f"--image-shape {size} means {int(np.prod(shape))} pixels, but {table.name} has {len(table.columns)} "
                "columns besides the label; --ignore leaves columns out"
            )
        return table.columns, shape
    numbered = {int(found[1]): name for name in table.columns if (found := PIXEL.fullmatch(name))}
    side = round(len(numbered) ** 0.5)
    first = min(numbered, default=-1)
    if side < 2 or side * side != len(numbered) or first not in (0, 1) or max(numbered) != first + side * side - 1:
        return None
    return [numbered[place] for place in sorted(numbered)], (side, side)


def parse_image_shape(text: str) -> tuple[int, ...]:
    """Examples
    --------
    >>> parse_image_shape("28x28"), parse_image_shape("32x32x3")
    ((28, 28), (32, 32, 3))
    """
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*(x3)?", text):
        raise InvalidInputError(f"--image-shape {text}: write height and width as in 28x28, or 32x32x3 for colours")
    return tuple(int(size) for size in text.split("x"))
