"""The tables of the paper, as data: see paper_values.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Printed(NamedTuple):
    """A cell of the paper: mean and standard deviation over its runs ("standard variance"), in percent."""

    mean: float
    std: float


@dataclass(frozen=True)
class PrintedTable:
    """A table of the paper.

    Parameters
    ----------
    name, caption : str
        ``"Table 2"``, and what it is about.
    varies : str
        What distinguishes its columns: ``"method"``, or a setting of DMLCBO.
    columns : tuple
        Names of methods, or values of the setting.
    cells : dict
        ``cells[dataset][column]``.
    figure : str
        Name of the figure that shows the same runs against time; empty if there is none.
    application : str
        ``"hyper-cleaning"`` or ``"few-shot"``.

    Examples
    --------
    >>> TABLES["table-2"].cells["mnist"]["dmlcbo"]
    Printed(mean=94.24, std=0.01)
    >>> TABLES["table-4"].cells["madelon"][5]
    Printed(mean=56.67, std=1.24)
    """

    name: str
    caption: str
    varies: str
    columns: tuple[str | float, ...]
    cells: dict[str, dict[str | float, Printed]]
    figure: str = ""
    application: str = "hyper-cleaning"


def printed_table(experiment: str) -> PrintedTable:
    """The table of the paper; for an experiment that is not in it a table without printed cells.

    Examples
    --------
    >>> printed_table("table-5").varies, printed_table("my sweep").cells
    ('eta', {})
    """
    return TABLES.get(experiment) or PrintedTable(experiment, "not in the paper", "method", (), {})


def _table(columns: list[str | float], cells: dict[str, list[list[float]]], **about: str) -> PrintedTable:
    rows = {name: dict(zip(columns, (Printed(*cell) for cell in row), strict=True)) for name, row in cells.items()}
    return PrintedTable(columns=tuple(columns), cells=rows, **about)


_DOCUMENT: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SOURCE: str = _DOCUMENT["source"]
RUNS: int = _DOCUMENT["runs"]
DATASETS: dict[str, str] = _DOCUMENT["datasets"]
METHODS: dict[str, str] = _DOCUMENT["methods"]
TABLES = {name: _table(**table) for name, table in _DOCUMENT["tables"].items()}
"""The paper's tables, by the name of the experiment that repeats them."""
