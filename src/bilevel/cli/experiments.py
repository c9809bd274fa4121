"""`bilevel reproduce`, `bilevel status` and `bilevel results`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .common import examples, given, one_thread

if TYPE_CHECKING:
    from cyclopts import App

Target = Literal["table-2", "table-3", "table-4", "table-5", "figure-1", "figure-2", "all"]


def add_to(app: App) -> None:
    """Give the program these commands."""
    from cyclopts import App

    app.command(
        reproduce,
        help_epilogue=examples(
            "bilevel reproduce table-2 --quick       # a quick look, under five minutes on two cores",
            "bilevel reproduce table-2               # hours; Ctrl-C and the same command again goes on",
            "bilevel reproduce table-2 --datasets mnist madelon --methods dmlcbo approx --seeds 3",
            "bilevel status                          # in another terminal: how far is it?",
            "",
            "# on a cluster, where `dask scheduler` runs and machines joined by `dask worker ADDRESS --nthreads 1`",
            "bilevel reproduce all --scheduler tcp://10.0.0.1:8786 --results /shared/results --data /shared/data",
        ),
    )
    app.command(
        status,
        help_epilogue=examples("bilevel status", "bilevel status --results /shared/results"),
    )
    results = App(
        name="results",
        help="The runs that `bilevel reproduce` has stored.",
        help_epilogue=examples("bilevel results export --out runs.csv"),
    )
    results.command(
        export,
        name="export",
        help_epilogue=examples(
            "bilevel results export --out runs.csv",
            "bilevel results export --format parquet --out runs.parquet --results /shared/results",
        ),
    )
    app.command(results)


def reproduce(
    target: Target,
    /,
    *,
    seeds: int | None = None,
    budget: float | None = None,
    methods: list[str] | None = None,
    datasets: list[str] | None = None,
    quick: bool = False,
    workers: int | None = None,
    scheduler: str | None = None,
    results: Path | None = None,
    data: Path | None = None,
    configuration: Path | None = None,
) -> int:
    """Make a table or a figure of the paper: search step sizes, run the chosen ones with every seed, report.

    Each run is stored as it ends. Whatever stops the command, the same command again does only what is missing. Step
    sizes are chosen on validation rows, never on test accuracy. The data must be there: see `bilevel data`.
    Exit codes: 0 done, 2 a mistake that the message names, 130 stopped by Ctrl-C.

    Parameters
    ----------
    target
        The table or figure; figures 1 and 2 are drawn from the runs of tables 2 and 3.
    seeds
        How many seeds the chosen step sizes run with.
    budget
        Seconds of training for each run at most, in the search and after it (evaluations are not counted).
    methods
        Only these columns of the table: one or more.
    datasets
        Only these datasets: one or more.
    quick
        A quick look: few step sizes, short runs, few seeds.
    workers
        Processes of the local cluster (default: one per core); 0 runs everything in this process.
    scheduler
        The address of a Dask scheduler to use instead, such as tcp://127.0.0.1:8786.
    results
        The folder for results. Default: bilevel-results in this folder, and bilevel-results/quick with --quick.
    data
        The data folder. Default: that of the environment variable BILEVEL_DATA, or the user's cache folder.
    configuration
        A TOML file of your own instead of that of the table.
    """
    from ..experiments import command

    one_thread()
    return command.reproduce(
        command.Request(
            target=target, seeds=seeds, budget=budget, methods=methods or (), datasets=datasets or (), quick=quick,
            workers=workers, scheduler=scheduler, results=results, data=data, configuration=configuration,
            command=" ".join(["bilevel", *given]),
        )
    )  # fmt: skip


def status(*, results: Path | None = None) -> int:
    """Show how far a sweep is, and which runs are stored.

    Parameters
    ----------
    results
        The folder of the results. Default: bilevel-results in this folder, or bilevel-results/quick if that is all.
    """
    from ..experiments import command

    return command.status(results)


def export(
    *,
    out: Path,
    format: Literal["csv", "parquet"] | None = None,
    results: Path | None = None,
    experiment: str | None = None,
    without_timing: bool = False,
    force: bool = False,
) -> int:
    """Write the stored runs as one table: configuration, seed, status, counts, versions and final values of each.

    Parameters
    ----------
    out
        The file.
    format
        csv or parquet. Default: by the name of the file.
    results
        The folder of the results. Default: bilevel-results in this folder, or bilevel-results/quick if that is all.
    experiment
        Only the runs of this table.
    without_timing
        Leave out columns with seconds: what is left has the same bytes wherever runs that stop by iterations are made.
    force
        Replace a file that exists.
    """
    from ..experiments import command

    return command.export_results(
        results, out, kind=format, experiment=experiment, timing=not without_timing, force=force
    )
