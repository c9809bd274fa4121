"""`bilevel reproduce`, `bilevel status` and `bilevel results export`, for people."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..datasets import data_folder
from ..errors import BilevelError, InvalidInput
from ..files import FileExists, check_writable
from ..progress import ProgressBar, readable
from .configuration import TARGETS, Configuration, load_configuration
from .export import export
from .lock import only_driver
from .notes import QUICK, notes_of
from .plan import planned
from .pools import InProcess, OnCluster
from .record import RunRecord
from .rehearsal import rehearse
from .report.provenance import core_hours
from .store import ResultsStore
from .sweep import Progress, hash_data, sweep, total

SUCCESS, FAILURE = 0, 2
RESULTS = Path("bilevel-results")
"""Where results go when nothing else is said; a quick look goes to its folder `quick`."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of `bilevel reproduce`."""

    target: str
    seeds: int | None = None
    budget: float | None = None
    methods: Sequence[str] = ()
    datasets: Sequence[str] = ()
    quick: bool = False
    workers: int | None = None
    scheduler: str | None = None
    results: Path | None = None
    data: Path | None = None
    configuration: Path | None = None
    command: str = ""

    @property
    def folder(self) -> Path:
        return self.results or (RESULTS / "quick" if self.quick else RESULTS)


def reproduce(request: Request) -> int:
    """Sweep, then report."""
    tables, data = configurations(request), data_folder(request.data).absolute()
    if request.quick:
        say(QUICK)
    pool = _pool(request, data)
    with only_driver(request.folder), ResultsStore(request.folder) as store:
        _show(Progress(*total(tables)), None, store, request, "starting")
        try:
            with pool, ProgressBar(100, counter="{done:.0f} %", fresh=False) as bar:
                progress = sweep(tables, store, data, pool, show=lambda now: _show(now, bar, store, request, "running"))
        except BaseException as error:
            with suppress(BilevelError):  # a full disk; the error itself is told
                store.say(**{**store.said(), "state": "stopped"})
            if isinstance(error, KeyboardInterrupt):
                stored = len(store.identities())
                told = f"{stored} runs are in {request.folder}; the same command goes on from there"
                raise KeyboardInterrupt(told) from None
            raise
        _show(progress, None, store, request, "ended with runs lost" if progress.lost else "finished")
        for identity, reason in progress.lost.items():
            say(f"run {identity} {reason}: the same command tries it again")
        _report(request, tables, store, data)
    return FAILURE if progress.lost else SUCCESS


def configurations(request: Request) -> list[Configuration]:
    """The tables, with what the options change."""
    if request.configuration is None and request.target not in TARGETS:
        raise InvalidInput(f"there is no {request.target!r} to reproduce: choose one of {', '.join(TARGETS)}")
    names = [request.configuration] if request.configuration else TARGETS[request.target]
    tables = [load_configuration(name) for name in names]
    made = tables[0].experiment
    if (
        request.configuration is not None
        and made in TARGETS
        and made not in TARGETS.get(request.target, TARGETS["all"])
    ):
        raise InvalidInput(
            f"{request.configuration} is a configuration of {made}, and the target is {request.target}: ask for "
            f"{made}, or change its `experiment`"
        )
    for table in tables:
        rehearse(table)
    tables = [table.quickly() if request.quick else table for table in tables]
    tables = [table.limited(seeds=request.seeds, budget=request.budget) for table in tables]
    datasets, methods = list(request.datasets), list(request.methods)
    if len(tables) > 1:  # of `all`, those tables that have what was named
        tables = [table for table in tables if _has(table.datasets, datasets) and _has(table.methods, methods)]
        if not tables:
            raise InvalidInput(f"no table has the datasets {datasets} and methods {methods}: name those of a table")
        return [
            table.only(
                datasets=[name for name in datasets if name in table.datasets],
                methods=[name for name in methods if name in table.methods],
            )
            for table in tables
        ]
    return [table.only(datasets=datasets, methods=methods) for table in tables]


def status(folder: Path | None) -> int:
    """How far a sweep is, and what the folder holds."""
    folder = folder or _default_folder()
    with ResultsStore(folder, reading=True) as store:
        said, records = store.said(), store.records(curves=False)
    answer(f"{folder}:")
    if said:
        ago = readable(max(0.0, time.time() - said["updated"]))
        answer(f"{said['command']}")
        answer(f"    {_state(said)}, {said['text']} ({100 * said['share']:.0f} % of the time allowed), {ago} ago")
    groups: dict[tuple[str, str, str, str], list[RunRecord]] = {}
    for record in records:
        groups.setdefault((record.experiment, record.role, record.dataset, record.method), []).append(record)
    for (experiment, role, dataset, method), runs in sorted(groups.items()):
        bad = sum(run.status in ("failed", "diverged") for run in runs)
        note = f", {bad} failed or diverged" if bad else ""
        seconds = sum(run.wall_seconds for run in runs)
        answer(f"{experiment}  {role:5}  {dataset:14}  {method:14}  {len(runs):4} runs, {readable(seconds)}{note}")
    answer(f"{len(records)} runs, {core_hours(records):.2f} core-hours")
    return SUCCESS


def _state(said: Mapping[str, Any]) -> str:
    """What a sweep said of itself, unless its process has gone without a word."""
    here = said["state"] in ("starting", "running") and said.get("node") == platform.node()
    return "was killed (the same command goes on)" if here and not _is_alive(said["pid"]) else said["state"]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # of another user
        return True
    return True


def export_results(
    folder: Path | None, out: Path, *, kind: str | None, experiment: str | None, timing: bool, force: bool
) -> int:
    """Write the table of all runs; Parquet where the name ends in .parquet and nothing is said."""
    if out.is_file() and not force:
        raise FileExists(f"{out} exists and was left as it is: choose another name, or add --force")
    check_writable(out, overwrite=force)
    kind = kind or ("parquet" if out.suffix == ".parquet" else "csv")
    with ResultsStore(folder or _default_folder(), reading=True) as store:
        records = store.records(curves=False)
    known = sorted({record.experiment for record in records})
    if experiment is not None and experiment not in known:
        raise InvalidInput(
            f"there are no runs of {experiment!r} there: name one of {', '.join(known) or 'nothing yet'}"
        )
    records = [record for record in records if experiment in (None, record.experiment)]
    export(records, out, kind=kind, timing=timing, overwrite=force)
    say(f"{len(records)} runs: {out}")
    return SUCCESS


def _default_folder() -> Path:
    """Where results are when nothing is said: those of a quick look, if there are no others."""
    only_quick = (RESULTS / "quick").is_dir() and not (RESULTS / "runs").is_dir()
    return RESULTS / "quick" if only_quick else RESULTS


def _pool(request: Request, data: Path) -> InProcess | OnCluster:
    if request.workers is not None and request.workers < 0:
        raise InvalidInput(f"workers must be at least 0 (0: in this process), got {request.workers}")
    if request.workers == 0 and request.scheduler is None:
        return InProcess(data)
    return OnCluster(data, workers=request.workers, scheduler=request.scheduler, say=say)


def _show(now: Progress, bar: ProgressBar | None, store: ResultsStore, request: Request, state: str) -> None:
    if bar is not None:
        bar.show(100 * now.share, str(now))
    driver = {"pid": os.getpid(), "node": platform.node()}
    store.say(command=request.command, state=state, text=str(now), share=now.share, **driver)


def _report(request: Request, tables: Sequence[Configuration], store: ResultsStore, data: Path) -> None:
    """The report of the runs of these tables, and of no others that the folder may hold."""
    hashes, finished = hash_data(tables, data), {record.identity: record for record in store.records()}
    asked = {spec.identity for table in tables for spec in planned(table, hashes, finished)}
    records = [record for identity, record in finished.items() if identity in asked]
    if any(record.role == "final" for record in records):
        from .report import write_report
        from .report.terminal import plain_table

        seeds = {table.experiment: table.run.seeds for table in tables}
        page, *_ = write_report(
            records, request.folder / "report", command=request.command, notes=notes_of(tables, quick=request.quick),
            seeds=seeds,
        )  # fmt: skip
        answer(plain_table([record for record in records if record.role == "final"], seeds))
        answer(f"report: {page}")
    answer(f"{len(records)} runs; as a table: bilevel results export --results {request.folder} --out runs.csv")
    if request.quick:
        answer(QUICK)


def _has(known: Container[str], names: Sequence[str]) -> bool:
    return not names or any(name in known for name in names)


def say(text: str) -> None:
    """What is going on: not part of the result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def answer(text: str) -> None:
    """A line of the result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
