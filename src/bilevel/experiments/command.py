"""The commands `bilevel reproduce`, `bilevel status` and `bilevel results export`."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._files import check_writable
from ..datasets import data_folder
from ..errors import BilevelError, CorruptFileError, InvalidInputError, OutputExistsError
from ..run import progress as shown
from ..run.progress import readable
from .configuration import CleaningData, Configuration, FewShotData, load_configuration, select_parts
from .data import has_files
from .export import export
from .methods import check_settings
from .notes import QUICK, report_notes
from .options import RESULTS, ReproduceOptions
from .paper_values import TABLES
from .plan import catalogue_names, count_runs, planned_runs
from .report import write_report
from .report.provenance import core_hours
from .report.writing import plain_table
from .run_folder import group_runs
from .store import ResultsStore
from .sweep import Progress, hash_data, sweep
from .worker_pools import DaskScheduler, InProcess, LocalProcesses, Pool

SUCCESS, FAILURE = 0, 2
TARGETS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in TABLES},
    **{table.figure: (name,) for name, table in TABLES.items() if table.figure},
    "all": tuple(TABLES),
}
"""The tables and figures that can be reproduced, and the tables whose runs they need."""


def reproduce(options: ReproduceOptions, command: str) -> int:
    """Sweep, then report; `command` is what the user typed."""
    tables, data = load_tables(options), data_folder(options.data).absolute()
    if options.quick:
        log(QUICK)
    pool = _pool(options, data)
    driver = {"command": command, "pid": os.getpid(), "node": platform.node()}
    store = ResultsStore(options.folder)
    with store.only_driver():

        def show(now: Progress, state: str = "running", bar: shown.Progress | None = None) -> None:
            store.set_status(**driver, state=state, text=str(now), share=now.share)
            if bar is not None:
                bar.show(now.share, f"{100 * now.share:.0f} %", str(now))

        show(Progress(*count_runs(tables)), "starting")
        try:
            with pool, shown.Progress() as bar:
                progress = sweep(tables, store, data, pool, show=lambda now: show(now, bar=bar))
        except BaseException as error:
            with suppress(BilevelError):  # a full disk; the error itself is raised
                store.set_status(**{**store.status(), "state": "stopped"})
            if isinstance(error, KeyboardInterrupt):
                stored = f"{len(store.identities())} runs are in {options.folder}"
                raise KeyboardInterrupt(f"{stored}; the same command continues from there") from None
            raise
        show(progress, "ended, with some runs lost" if progress.lost else "finished")
        for identity, reason in progress.lost.items():
            log(f"run {identity} {reason}: the same command tries it again")
        report_runs(options, command, tables, store, data)
    return FAILURE if progress.lost else SUCCESS


def load_tables(options: ReproduceOptions) -> list[Configuration]:
    """The tables, with what the options change."""
    tables = [load_configuration(name) for name in options.configuration or ()]
    for path, table in zip(options.configuration or (), tables, strict=True):
        name = table.experiment
        if name in TARGETS and name not in TARGETS[options.target]:
            raise InvalidInputError(
                f"{path} is a configuration of {name}, and the target is {options.target}: ask for {name}, or change "
                "its `experiment`"
            )
    tables = tables or [load_configuration(name) for name in TARGETS[options.target]]
    for table in tables:
        check_settings(table)
    if options.quick:
        tables = [table.quick_look() for table in tables]
    if options.quick and not options.configuration and not options.datasets:
        tables = [without_downloads(table, data_folder(options.data).absolute()) for table in tables]
    tables = [table.limit(seeds=options.seeds, budget=options.budget) for table in tables]
    if len(tables) == 1:
        return [tables[0].select(datasets=options.datasets, methods=options.methods)]
    selected = list(select_parts(tables, options.datasets or None, options.methods or None))
    if not selected:
        raise InvalidInputError(
            f"no table has the datasets {', '.join(options.datasets or ['any'])} and the methods "
            f"{', '.join(options.methods or ['any'])}: name those of a table"
        )
    return selected


def without_downloads(table: Configuration, folder: Path) -> Configuration:
    """The table with those of its datasets that are in the data folder; without any, with one that needs no files."""
    names = catalogue_names(table)
    missing = sorted({name for name in names.values() if not has_files(name, folder)})
    if not missing:
        return table
    there = [name for name, kind in names.items() if kind not in missing]
    packaged: dict[str, Any] = {"digits": CleaningData(classes=(3, 8), rows=150, trusted=80, scaling="standard")}
    if table.application == "few-shot":
        packaged = {"generated-5way": FewShotData(images="generated", ways=5)}
    used = ", ".join(there or packaged)
    log(f"not downloaded: {', '.join(missing)} (bilevel data fetch {' '.join(missing)}); this quick look uses {used}")
    return table.select(datasets=there) if there else table.model_copy(update={"datasets": packaged})


def _pool(options: ReproduceOptions, data: Path) -> Pool:
    if options.workers is not None and options.workers < 0:
        raise InvalidInputError(f"workers must be at least 0 (0: in this process), got {options.workers}")
    if options.scheduler is not None:
        return DaskScheduler(data, options.scheduler, notify=log)
    return InProcess(data) if options.workers == 0 else LocalProcesses(data, workers=options.workers, notify=log)


def report_runs(
    options: ReproduceOptions, command: str, tables: Sequence[Configuration], store: ResultsStore, data: Path
) -> None:
    """The report of the runs of these tables, and of no others that the folder may hold."""
    hashes, finished = hash_data(tables, data), {record.identity: record for record in store.records()}
    planned = {spec.identity for table in tables for spec in planned_runs(table, hashes, finished)}
    records = [record for identity, record in finished.items() if identity in planned]
    if any(record.role == "final" for record in records):
        seeds = {table.experiment: table.run.seeds for table in tables}
        notes = report_notes(tables, quick=options.quick)
        page, *_ = write_report(records, options.folder / "report", command=command, notes=notes, seeds=seeds)
        print(plain_table(records, seeds))
        print(f"report: {page}")
    print(f"{len(records)} runs; as a table: bilevel results export --results {options.folder} --out runs.csv")
    if options.quick:
        print(QUICK)


def status(folder: Path | None) -> int:
    """Print the progress of a sweep and the stored runs."""
    folder = folder or _default_folder()
    store = ResultsStore(folder, reading=True)
    sweep_status, records = store.status(), store.records(curves=False)
    print(f"{folder}:")
    if sweep_status:
        print(_sweep_text(sweep_status, folder))
    groups = group_runs(records, "experiment", "role", "dataset", "method")
    for (experiment, role, dataset, method), runs in groups:
        bad = sum(run.status in ("failed", "diverged") for run in runs)
        note = f", {bad} failed or diverged" if bad else ""
        seconds = readable(sum(run.processor_seconds for run in runs))
        print(f"{experiment}  {role:5}  {dataset:14}  {method:14}  {len(runs):4} runs, {seconds}{note}")
    print(f"{len(records)} runs, {core_hours(records):.2f} core-hours")
    return SUCCESS


def _sweep_text(status: Mapping[str, Any], folder: Path) -> str:
    try:
        ago = readable(max(0.0, time.time() - status["updated"]))
        share = f"{100 * status['share']:.0f} % of the time allowed"
        return f"{status['command']}\n    {_state(status)}, {status['text']} ({share}), {ago} ago"
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise CorruptFileError(f"{folder / 'status.json'} is damaged ({error!r}): delete it, no run is lost") from error


def _state(status: Mapping[str, Any]) -> str:
    """The state that a sweep stored, unless its process was killed."""
    if status["state"] in ("starting", "running") and status["node"] == platform.node():
        try:
            os.kill(status["pid"], 0)
        except ProcessLookupError:
            return "was killed (the same command continues)"
        except OSError:  # of another user
            pass
    return status["state"]


def export_results(
    folder: Path | None, out: Path, *, kind: str | None, experiment: str | None, timing: bool, force: bool
) -> int:
    """Write the table of all runs; Parquet where the name ends in .parquet and no format is given."""
    if out.is_file() and not force:
        raise OutputExistsError(f"{out} exists and was left as it is: choose another name, or add --force")
    check_writable(out, overwrite=force)
    records = ResultsStore(folder or _default_folder(), reading=True).records(curves=False)
    known = sorted({record.experiment for record in records})
    if experiment is not None and experiment not in known:
        raise InvalidInputError(
            f"there are no runs of {experiment!r} there: name one of {', '.join(known) or 'nothing yet'}"
        )
    records = [record for record in records if experiment in (None, record.experiment)]
    kind = kind or ("parquet" if out.suffix == ".parquet" else "csv")
    export(records, out, kind=kind, timing=timing, overwrite=force)
    log(f"{len(records)} runs: {out}")
    return SUCCESS


def _default_folder() -> Path:
    """The default folder, or that of a quick look if there are no other results."""
    only_quick = (RESULTS / "quick").is_dir() and not (RESULTS / "runs").is_dir()
    return RESULTS / "quick" if only_quick else RESULTS


def log(text: str) -> None:
    """Print a line about the progress on standard error."""
    print(text, file=sys.stderr, flush=True)
