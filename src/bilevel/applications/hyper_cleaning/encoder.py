"""From the columns of a table to numbers: standardised numbers, one column of zeros and ones per category.

    number     (value - mean) / standard deviation
    pixel      value / largest pixel of the table     (pictures: a pixel that is almost always 0 must not be blown up)
    category   one 0/1 column for each of its values

scikit-learn's ColumnTransformer does it. An `Encoder` holds only names and numbers, so that JSON can hold it, and makes
the transformer from them; a fresh one gives the same bits.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ...errors import InvalidInput, MissingExtra
from .tables import Table, category_column, check_columns, holds_numbers, listed, number_column, shortened

WIDE, SPARSE_BELOW = 1000, 0.3
"""A matrix with more columns than the first number and a smaller share of non-zero cells than the second is sparse."""

PIXEL = re.compile(r"(?:pixel|px)[ _-]?(\d+)", re.IGNORECASE)


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
    def fit(cls, tables: Sequence[Table], categorical: Collection[str] = (), pixels: Collection[str] = ()) -> Encoder:
        """Learn the columns of the first table from the rows of all of them.

        Parameters
        ----------
        tables
            Tables with the columns of the first one.
        categorical
            Columns of numbers that are names of categories all the same.
        pixels
            Columns that are pixels of a picture, and share one scale.
        """
        transformer_class, scaler_class, _ = _scikit_learn()
        first = tables[0]
        texts = category_names(first, categorical, pixels)
        numbers = [name for name in first.columns if name not in texts]
        means, scales = np.zeros(len(numbers)), np.ones(len(numbers))
        if numbers:
            values: Any = pd.concat([number_frame(table, numbers) for table in tables])
            scaler = (
                transformer_class([("numbers", scaler_class(), numbers)]).fit(values).named_transformers_["numbers"]
            )
            shared = float(np.abs(values[list(pixels)].to_numpy()).max(initial=0.0)) or 1.0
            means = np.where(np.isin(numbers, list(pixels)), 0.0, scaler.mean_)
            scales = np.where(np.isin(numbers, list(pixels)), shared, scaler.scale_)
        if not np.isfinite(means).all() or not np.isfinite(scales).all():
            worst = numbers[int(np.flatnonzero(~np.isfinite(means + scales))[0])]
            raise InvalidInput(f"{first.name}: the numbers in column {worst!r} are too large to be standardised")
        categories = {name: _categories(tables, name) for name in texts}
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
        frame = number_frame(table, self.numbers).copy()
        for name, values in self.categories.items():
            frame[name] = category_column(table, name)
            if not allow_unknown:
                _refuse_unknown(table, name, frame[name], values, of)
        encoded = self._transformer.transform(frame)
        if not self._sparse:
            return encoded
        from scipy.sparse import csr_matrix

        return csr_matrix(encoded)

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

    @functools.cached_property
    def _transformer(self) -> Any:
        """A fitted ColumnTransformer: fitted to one row, then given the numbers that were learned."""
        transformer_class, scaler_class, one_hot_class = _scikit_learn()
        parts: list[Any] = []
        if self.numbers:
            parts.append(("numbers", scaler_class(), list(self.numbers)))
        if self.categories:
            one_hot = one_hot_class(
                categories=[np.array(values, dtype=object) for values in self.categories.values()],
                handle_unknown="ignore",
                sparse_output=self._sparse,
            )
            parts.append(("categories", one_hot, list(self.categories)))
        row = {name: [0.0] for name in self.numbers} | {name: [values[0]] for name, values in self.categories.items()}
        transformer = transformer_class(parts, sparse_threshold=1.0 if self._sparse else 0.0).fit(pd.DataFrame(row))
        if self.numbers:
            scaler = transformer.named_transformers_["numbers"]
            scaler.mean_, scaler.scale_ = np.array(self.means), np.array(self.scales)
        return transformer

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
                raise InvalidInput(f"the scaling of column {name!r} is damaged")
        categories = {name: tuple(values) for name, values in content["categories"]}
        for name, values in categories.items():
            if not values or not all(isinstance(text, str) for text in (name, *values)):
                raise InvalidInput(f"the categories of column {name!r} are damaged")
        ignored = tuple(content.get("ignored", ()))  # absent in older files
        if not all(isinstance(name, str) for name in ignored):
            raise InvalidInput(f"the names of the columns left out are damaged: {listed(ignored)}")
        return cls(
            numbers=tuple(row[0] for row in rows),
            means=tuple(float(row[1]) for row in rows),
            scales=tuple(float(row[2]) for row in rows),
            categories=categories,
            ignored=ignored,
        )


def category_names(table: Table, categorical: Collection[str] = (), pixels: Collection[str] = ()) -> list[str]:
    """The columns that hold categories: those named so, and those of texts that are no pixels."""
    return [
        name for name in table.columns if name in categorical or (name not in pixels and not holds_numbers(table, name))
    ]


def number_frame(table: Table, names: Sequence[str]) -> pd.DataFrame:
    """Columns of numbers as floating point; the first cell that is none is named."""
    frame = table.frame[list(names)]
    if all(kind.kind in "iuf" for kind in frame.dtypes) and np.isfinite(frame.to_numpy()).all():
        return frame.astype(float)  # the usual case, at once; otherwise the column and the cell are named
    return pd.DataFrame({name: number_column(table, name) for name in names}, index=range(len(table)))


def _categories(tables: Sequence[Table], name: str) -> tuple[str, ...]:
    values = {value for table in tables for value in category_column(table, name)}
    rows = sum(len(table) for table in tables)
    if len(values) > max(20, rows / 2):
        raise InvalidInput(
            f"{' and '.join(table.name for table in tables)}: column {name!r} holds {len(values)} different texts in "
            f"{rows} rows, such as "
            f"{listed(sorted(values), 2)}: that is a name of each row rather than a category. Leave it out with "
            f"--ignore {name}"
        )
    return tuple(sorted(values))


def _refuse_unknown(table: Table, name: str, found: Any, known: Sequence[str], of: str) -> None:
    unknown = ~found.isin(known).to_numpy()
    if unknown.any():
        row = int(np.flatnonzero(unknown)[0])
        others = f" ({int(unknown.sum())} such cells in this column)" if unknown.sum() > 1 else ""
        raise InvalidInput(
            f"{table.cell(row, name)}: {shortened(found[row])} does not occur in {of}, where the values are "
            f"{listed(known)}{others}; --allow-unknown lets it count as none of them"
        )


def _scikit_learn() -> tuple[Any, Any, Any]:
    try:
        from sklearn.compose import ColumnTransformer
        from sklearn.preprocessing import OneHotEncoder, StandardScaler
    except ImportError:
        raise MissingExtra("Encoding tables", "apps") from None
    return ColumnTransformer, StandardScaler, OneHotEncoder


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
            raise InvalidInput(
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
        raise InvalidInput(f"--image-shape {text}: write height and width as in 28x28, or 32x32x3 for colours")
    return tuple(int(size) for size in text.split("x"))
