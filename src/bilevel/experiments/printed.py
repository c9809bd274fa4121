"""What the paper prints: its tables 2 to 5, test accuracy in percent, mean and +- over 10 runs.

Source: *Double Momentum Method for Lower-Level Constrained Bilevel Optimization*, ICML 2024; Table 2 (data
hyper-cleaning), Table 3 (meta-learning), Tables 4 and 5 (ablations of Q and eta, in its appendix).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

SOURCE = "Double Momentum Method for Lower-Level Constrained Bilevel Optimization, ICML 2024"
RUNS = 10
""""We run all the methods 10 times" (section 5.1): what each mean and +- is over."""

DATASETS = {
    "cod-rna": "CodRNA",
    "mnist": "MNIST 6vs9",
    "madelon": "Madelon",
    "fashion-mnist": "FashionMNIST 1vs7",
    "omniglot-5way": "Omniglot, 5 way 5 shot",
    "omniglot-10way": "Omniglot, 10 way 5 shot",
    "fc100-5way": "FC100, 5 way 5 shot",
    "fc100-10way": "FC100, 10 way 5 shot",
}
"""What the paper calls each problem."""

METHODS = {"dmlcbo": "DMLCBO", "vpbgd": "V-PBGD", "approx": "Approx", "rmd-pcd": "RMD-PCD"}
"""What the paper calls each method."""


class Printed(NamedTuple):
    """A cell of the paper: mean and standard deviation over its runs ("standard variance"), in percent."""

    mean: float
    std: float


@dataclass(frozen=True)
class PrintedTable:
    """A table of the paper: what its columns are, and for each dataset and column what is printed there.

    Parameters
    ----------
    name : str
        ``"Table 2"``.
    caption : str
        What it is about.
    varies : {"method", "Q", "eta"}
        What distinguishes its columns: the method, or a setting of DMLCBO.
    columns : tuple
        Names of methods, or values of the setting.
    cells : dict
        ``cells[dataset][column]``.

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


def _table(name: str, caption: str, varies: str, columns: tuple, rows: dict[str, tuple]) -> PrintedTable:
    """The table from rows of (mean, std) in the order of its columns."""
    cells = {
        dataset: dict(zip(columns, (Printed(*cell) for cell in row), strict=True)) for dataset, row in rows.items()
    }
    return PrintedTable(name, caption, varies, columns, cells)


TABLES = {
    "table-2": _table(
        "Table 2",
        "Data hyper-cleaning: test accuracy (%) of all methods",
        "method",
        tuple(METHODS),
        {
            "cod-rna": ((80.42, 0.05), (80.32, 0.09), (77.67, 0.38), (79.43, 0.07)),
            "mnist": ((94.24, 0.01), (93.53, 0.34), (92.29, 0.27), (92.33, 0.29)),
            "madelon": ((56.33, 1.83), (53.91, 1.25), (54.75, 1.08), (55.00, 2.17)),
            "fashion-mnist": ((88.85, 0.60), (85.95, 0.60), (86.03, 0.96), (88.93, 0.68)),
        },
    ),
    "table-3": _table(
        "Table 3",
        "Few-shot meta-learning: test accuracy (%) of all methods",
        "method",
        tuple(METHODS),
        {
            "omniglot-5way": ((99.97, 0.04), (95.67, 1.02), (99.41, 0.25), (99.69, 0.37)),
            "omniglot-10way": ((99.81, 0.19), (98.43, 0.16), (99.57, 0.17), (99.29, 0.17)),
            "fc100-5way": ((85.25, 0.01), (78.14, 1.97), (74.19, 1.35), (84.75, 0.65)),
            "fc100-10way": ((86.93, 0.89), (67.18, 0.75), (69.10, 0.85), (81.18, 0.39)),
        },
    ),
    "table-4": _table(
        "Table 4",
        "Data hyper-cleaning: test accuracy (%) of DMLCBO with different Q",
        "Q",
        (1, 3, 5, 7),
        {
            "cod-rna": ((80.25, 0.07), (80.42, 0.05), (80.55, 0.03), (80.56, 0.04)),
            "mnist": ((93.65, 0.01), (94.24, 0.01), (94.15, 0.01), (94.35, 0.01)),
            "madelon": ((55.23, 1.22), (56.33, 1.83), (56.67, 1.24), (56.23, 1.56)),
            "fashion-mnist": ((88.25, 0.56), (88.85, 0.60), (88.75, 0.40), (88.55, 0.33)),
        },
    ),
    "table-5": _table(
        "Table 5",
        "Data hyper-cleaning: test accuracy (%) of DMLCBO with different eta",
        "eta",
        (0.1, 0.5, 1),
        {
            "cod-rna": ((80.45, 0.04), (80.42, 0.05), (80.33, 0.06)),
            "mnist": ((94.65, 0.01), (94.24, 0.01), (94.35, 0.01)),
            "madelon": ((56.23, 1.14), (56.33, 1.83), (56.23, 1.56)),
            "fashion-mnist": ((88.65, 0.67), (88.85, 0.60), (88.67, 0.23)),
        },
    ),
}
"""The paper's tables, by the name of the experiment that repeats them."""


def printed_table(experiment: str) -> PrintedTable:
    """The table of the paper; for an experiment that is not in it a table without printed cells.

    Examples
    --------
    >>> printed_table("table-5").varies, printed_table("my sweep").cells
    ('eta', {})
    """
    return TABLES.get(experiment) or PrintedTable(experiment, "not in the paper", "method", (), {})
