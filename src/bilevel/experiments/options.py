"""The options of `bilevel reproduce`, declared once. This module loads nothing heavy: `--help` needs it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

RESULTS = Path("bilevel-results")
"""The default folder for results; a quick look goes to its folder `quick`."""

Target = Literal["table-2", "table-3", "table-4", "table-5", "figure-1", "figure-2", "all"]


@dataclass(frozen=True)
class ReproduceOptions:
    """The arguments of `bilevel reproduce`.

    Parameters
    ----------
    target
        The table or figure; figures 1 and 2 are drawn from the runs of tables 2 and 3.
    seeds
        The number of seeds for the chosen step sizes.
    budget
        The maximal seconds of training of each run, in the search and after it (evaluations are not counted).
    methods
        Only these columns of the table: one or more.
    datasets
        Only these datasets: one or more.
    quick
        A quick look: few step sizes, short runs, few seeds.
    workers
        Number of local processes (default: one per core); 0 runs everything in this process.
    scheduler
        The address of a Dask scheduler to use instead, such as tcp://127.0.0.1:8786. Use it on trusted networks only,
        or with TLS (tls://...): Dask runs the code it receives.
    results
        The folder for results. Default: bilevel-results in this folder, and bilevel-results/quick with --quick.
    data
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    configuration
        Your own TOML files instead of those of the tables: one or more.
    """

    target: Target
    _: KW_ONLY
    seeds: int | None = None
    budget: float | None = None
    methods: tuple[str, ...] | None = None
    datasets: tuple[str, ...] | None = None
    quick: bool = False
    workers: int | None = None
    scheduler: str | None = None
    results: Path | None = None
    data: Path | None = None
    configuration: tuple[Path, ...] | None = None

    @property
    def folder(self) -> Path:
        """Where results go."""
        return self.results or (RESULTS / "quick" if self.quick else RESULTS)
