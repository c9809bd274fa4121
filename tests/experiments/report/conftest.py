"""Runs as a sweep would store them, with numbers that a test can compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bilevel.experiments.paper_values import TABLES
from bilevel.experiments.run_folder import RunRecord

ENVIRONMENT = {"python": "3.12.1", "torch": "2.6.0", "numpy": "2.1.0", "bilevel": "0.1.0", "threads": 1, "cores": 2,
               "dtype": "float64", "machine": "x86_64"}  # fmt: skip


def record(**given: Any) -> RunRecord:
    """A run of table 2; its curve rises to `accuracy` in 100 evaluations of `pace` seconds each."""
    accuracy, pace = given.pop("accuracy", 0.94), given.pop("pace", 0.5)
    few_shot = given.get("experiment") == "table-3"
    values: dict[str, Any] = {
        "experiment": "table-2", "role": "final", "dataset": "mnist", "method": "dmlcbo", "seed": 0,
        "settings": {"gamma": 0.1, "tau": 1.0}, "status": "iterations", "processor_seconds": 60.0,
        "environment": ENVIRONMENT | {"data": f"hash of {given.get('dataset', 'mnist')}"},
        "curve": few_shot_curve(accuracy, pace) if few_shot else cleaning_curve(accuracy, pace),
        "counts": {"steps": 10_000, "projections": 10_001},
    } | given  # fmt: skip
    names = ("experiment", "role", "dataset", "method", "seed")
    values.setdefault("identity", " ".join(str(values[name]) for name in names) + str(values["settings"]))
    return RunRecord(**{"training_seconds": 100 * pace} | values)


def cleaning_curve(accuracy: float, pace: float) -> dict[str, list[float]]:
    step = np.arange(0, 10_001, 100)
    rise = accuracy - (accuracy - 0.5) * np.exp(-step / 1000)
    rise[-1] = accuracy
    columns = {
        "step": step, "training_seconds": pace * step / 100, "upper_value": 0.6 - 0.1 * rise, "accuracy": rise,
        "solved_upper_value": 1.0 - 0.5 * rise, "solved_accuracy": rise - 0.02, "zero_share": 0.065 + 0 * rise,
        "own_zero_share": 0.001 + 0 * rise, "nonzeros": 3 + 0 * step, "own_nonzeros": 700 + 0 * step,
    }  # fmt: skip
    return {name: column.tolist() for name, column in columns.items()}


def few_shot_curve(accuracy: float, pace: float) -> dict[str, list[float]]:
    cleaning = cleaning_curve(accuracy, 10 * pace)
    return {name: cleaning[name] for name in ("step", "training_seconds", "accuracy")} | {
        "half_width": [0.002] * 101,
        "training_class_accuracy": [accuracy + 0.01] * 101,
    }


@pytest.fixture(scope="session")
def full_sweep() -> list[RunRecord]:
    """All tables with three seeds, a search of step sizes; one run diverged, one failed, one cell has no runs."""
    records = []
    for experiment, table in TABLES.items():
        for dataset, row in table.cells.items():
            for place, (column, printed) in enumerate(row.items()):
                ablation = {} if table.varies == "method" else {table.varies: column}
                for seed in range(3):
                    records.append(
                        record(
                            experiment=experiment,
                            dataset=dataset,
                            seed=seed,
                            pace=0.05 * (1 + 4 * place),
                            method=str(column) if table.varies == "method" else "dmlcbo",
                            settings={"gamma": 0.1, "tau": 1.0} | ablation,
                            accuracy=min(printed.mean / 100 + 0.002 * (seed - 1), 0.999),
                        )
                    )
    records = [run for run in records if (run.experiment, run.dataset, run.method) != ("table-2", "madelon", "approx")]
    records += [
        record(dataset="cod-rna", method="vpbgd", seed=3, status="diverged", reason="x is <not> finite | at step 7"),
        record(dataset="cod-rna", method="vpbgd", seed=4, status="failed", reason="out of memory", curve={}),
        record(dataset="mnist", method="implicit", seed=0),
        *(record(role="grid", settings={"gamma": g, "tau": 0.1}, processor_seconds=30.0) for g in (1.0, 0.1, 0.01)),
    ]
    return records
