"""One finished run, and its folder: the record as JSON, the curve and the final state.

    IDENTITY/{record.json, curve.csv, state.safetensors}

A folder is written under a temporary name and renamed: a program that is killed leaves it complete or not at all.
"""

from __future__ import annotations

import csv
import io
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._files import flush_folder
from .._serializable import declared_types, matches
from ..errors import CorruptFileError

if TYPE_CHECKING:
    import numpy as np

TIMING = ("processor_seconds", "training_seconds")
"""Fields that differ between two runs of the same configuration."""

Curve = dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run of one method with one setting and one seed on one dataset.

    Parameters
    ----------
    identity : str
        First 16 hexadecimal digits of SHA-256 over configuration, code version and data hash.
    experiment : str
        The `experiment` of its configuration, such as ``"table-2"``.
    role : {"grid", "final"}
        A search of step sizes on one seed, or the chosen pair on all seeds.
    dataset, method : str
        Their names in the configuration, such as ``"mnist"`` and ``"dmlcbo"``.
    settings : dict
        The step sizes, and the setting that an ablation varies.
    configuration : dict
        The fields of its `RunSpec`: solver and fixed settings, sizes and scaling of the data, iterations, evaluations,
        limit.
    seed : int
        Seed of the rows, of the flipped labels and of the method.
    status : {"iterations", "time limit", "converged", "diverged", "failed"}
        The reason why the run ended.
    reason : str
        Why it failed or diverged; empty otherwise.
    processor_seconds, training_seconds : float
        The whole run, and the run without its evaluations.
    counts : dict
        Operations the library counts: steps, gradients, Hessian products, projections.
    environment : dict
        Versions, threads, dtype, data hash and facts of the machine.
    final : dict
        The last row of the curve.
    curve : dict of lists
        Columns of equal length, one row per evaluation.

    Examples
    --------
    >>> record = RunRecord(
    ...     identity="0123456789abcdef",
    ...     experiment="table-2",
    ...     role="final",
    ...     dataset="mnist",
    ...     method="dmlcbo",
    ...     settings={"upper_step": 1.0, "lower_step": 0.1},
    ...     seed=0,
    ...     status="iterations",
    ...     curve={"step": [0, 100], "accuracy": [0.5, 0.94]},
    ... )
    >>> record.final["accuracy"]
    0.94
    """

    identity: str
    experiment: str
    role: str
    dataset: str
    method: str
    settings: dict[str, float | int | str]
    seed: int
    status: str
    configuration: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    processor_seconds: float = 0.0
    training_seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str | int] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    curve: Curve = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.curve.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of a curve have equal lengths; run {self.identity} has {lengths}")
        if not self.final and self.curve:
            object.__setattr__(self, "final", {name: column[-1] for name, column in self.curve.items() if column})


def group_runs(records: Iterable[RunRecord], *names: str) -> list[tuple[tuple[Any, ...], list[RunRecord]]]:
    """The runs by the values of these fields, sorted by them."""
    groups: dict[tuple[Any, ...], list[RunRecord]] = {}
    for record in records:
        groups.setdefault(tuple(getattr(record, name) for name in names), []).append(record)
    return sorted(groups.items())


def append_row(curve: Curve, row: Mapping[str, float]) -> None:
    """One evaluation more."""
    for name, value in row.items():
        curve.setdefault(name, []).append(value)


def sort_key(record: RunRecord) -> tuple[Any, ...]:
    """Runs in a fixed order: by experiment, role, dataset, method, settings and seed."""
    settings = json.dumps(record.settings, sort_keys=True)
    return record.experiment, record.role, record.dataset, record.method, settings, record.seed, record.identity


@dataclass(frozen=True)
class Outcome:
    """A record, and the tensors of the final state as arrays."""

    record: RunRecord
    state: dict[str, np.ndarray] = field(default_factory=dict)


def write_run(outcome: Outcome, place: Path) -> None:
    """Make the folder of a run below `place`, unless it exists."""
    record, folder = outcome.record, place / outcome.record.identity
    if is_complete(folder):
        return
    temporary = place / f".{record.identity}.{secrets.token_hex(4)}.tmp"
    try:
        temporary.mkdir()
        text = csv_text(record.curve, zip(*record.curve.values(), strict=True))
        (temporary / "curve.csv").write_text(text, encoding="utf-8", newline="")
        if outcome.state:
            _write_state(temporary / "state.safetensors", outcome.state)
        values = {each.name: getattr(record, each.name) for each in fields(record) if each.name != "curve"}
        (temporary / "record.json").write_text(json.dumps(values, indent=1), encoding="utf-8")
        for path in temporary.iterdir():
            with path.open("r+b") as file:  # a disk that is full may say so only now
                os.fsync(file.fileno())
        flush_folder(temporary)
        os.rename(temporary, folder)
    except OSError:
        if not is_complete(folder):  # otherwise another program was faster, and its run has the same numbers
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    flush_folder(place)


def is_complete(folder: Path) -> bool:
    """Whether it is the folder of a run; temporary ones have a dot before their name."""
    return not folder.name.startswith(".") and (folder / "record.json").is_file()


def read_record(folder: Path, *, curve: bool = True) -> RunRecord:
    """The record of a run, with or without its curve."""
    path = folder / "record.json"
    with _reading(path):
        values = json.loads(path.read_text(encoding="utf-8"))
        record = RunRecord(**values, curve=_read_curve(folder / "curve.csv") if curve else {})
        for name, kind in declared_types(RunRecord).items():
            if not matches(getattr(record, name), kind):
                raise TypeError(f"{name} is {getattr(record, name)!r:.80}")
        return record


def _read_curve(path: Path) -> Curve:
    with _reading(path):
        head, *rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8")))) or [[]]
        columns = zip(*rows, strict=True) if rows else ([] for _ in head)
        return {name: [_number(cell) for cell in cells] for name, cells in zip(head, columns, strict=True)}


def read_state(folder: Path) -> dict[str, np.ndarray]:
    """The final state of a run, arrays by name; empty if it has none."""
    path = folder / "state.safetensors"
    if not path.exists():
        return {}
    from safetensors.numpy import load_file

    with _reading(path):
        return load_file(path)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except CorruptFileError:
        raise
    except (OSError, RecursionError, AttributeError, ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(
            f"{path} is damaged or missing ({error}): delete the folder {path.parent}; the next `bilevel reproduce` "
            "makes that one run again"
        ) from error


def csv_text(names: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV, with their names first; numbers come back with the same bits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


def _number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def _write_state(path: Path, state: dict[str, np.ndarray]) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file(state, path)
    except SafetensorError as error:  # its word for what the system calls an OSError
        raise OSError(str(error)) from None
