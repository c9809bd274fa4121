"""One finished run of a sweep: what was asked, what came out, and on what it ran."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

TIMING = ("wall_seconds", "training_seconds")
"""Columns of a row that differ between two runs of the same configuration."""

MAPPINGS = ("settings", "configuration", "counts", "environment", "final", "curve")
"""Fields that a row holds as JSON text."""

Curve = dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run of one method with one setting and one seed on one dataset.

    Parameters
    ----------
    identity : str
        First 16 hexadecimal digits of SHA-256 over configuration, code version and data hash.
    experiment : str
        ``"table-2"`` ... ``"table-5"``; the figures are read off tables 2 and 3.
    role : {"grid", "final"}
        A search of step sizes on one seed, or the chosen pair on all seeds.
    dataset, method : str
        Their names in the configuration, such as ``"mnist"`` and ``"dmlcbo"``.
    settings : dict
        The step sizes and what an ablation varies.
    configuration : dict
        All that was asked for, the fields of its `RunSpec`: solver and fixed settings, sizes and scaling of the data,
        iterations, evaluations, limit; empty in records of versions that did not keep it.
    seed : int
        Seed of the rows, of the flipped labels and of the method.
    status : {"iterations", "time limit", "diverged", "failed"}
        What ended the run.
    reason : str
        Why it failed or diverged; empty otherwise.
    wall_seconds, training_seconds : float
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
    >>> RunRecord.from_row(record.to_row()) == record
    True
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
    wall_seconds: float = 0.0
    training_seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    environment: dict[str, str | int] = field(default_factory=dict)
    final: dict[str, float] = field(default_factory=dict)
    curve: Curve = field(default_factory=dict)

    def __post_init__(self):
        lengths = {name: len(column) for name, column in self.curve.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of a curve have equal lengths; run {self.identity} has {lengths}")
        if not self.final and self.curve:
            object.__setattr__(self, "final", {name: column[-1] for name, column in self.curve.items() if column})

    def to_row(self) -> dict[str, str | int | float]:
        """A flat row: text and numbers as they are, dictionaries as JSON with sorted keys."""
        row = {each.name: getattr(self, each.name) for each in fields(self)}
        return row | {name: json.dumps(row[name], sort_keys=True) for name in MAPPINGS}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "RunRecord":
        """The record that `to_row` wrote; records of versions without a configuration have an empty one."""
        row = {"configuration": "{}", **row}
        values = {each.name: row[each.name] for each in fields(cls)}
        return cls(**values | {name: json.loads(values[name]) for name in MAPPINGS})
