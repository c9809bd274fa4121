"""From a configuration to runs: what is known to be needed, given the runs that have finished.

    every pair of step sizes on one seed  ->  the chosen pair with every other seed

`planned_runs` is a pure function: called again when more runs have finished it returns more of them. A run is known by
its identity, a hash over all that its numbers depend on. Step sizes are chosen on validation rows or classes, never on
test accuracy:

    hyper-cleaning   the smallest F(x) = f(x, y*(x)), f the mean loss of the trusted (validation) rows
    few-shot         the largest accuracy on tasks of validation classes
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

from .code_version import code_version
from .configuration import Configuration
from .run_folder import RunRecord

UNLIMITED = 60.0
"""The seconds that a run without a limit is assumed to need."""
TIE = 1e-6
"""Scores that differ by less are equal: F is that of a lower level solved to 1e-7."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """All that a run's numbers depend on; plain values."""

    experiment: str
    role: str
    dataset: str
    method: str
    settings: dict[str, Any]
    seed: int
    application: str
    solver: str
    fixed: dict[str, Any]
    data: dict[str, Any]
    data_hash: str
    iterations: int
    evaluate_every: int
    limit_seconds: float | None
    converged: float | None = None
    code: str = field(default_factory=code_version)
    label: str = ""

    @cached_property
    def identity(self) -> str:
        """First 16 hexadecimal digits of SHA-256 over everything but the label."""
        return _digest(asdict(self) | {"label": ""})

    @property
    def document(self) -> dict[str, Any]:
        """All fields, as a record holds them: values that JSON has."""
        return json.loads(_text(asdict(self)))

    @cached_property
    def work(self) -> str:
        """The same for runs that differ only in the table they stand in or, in few-shot, in the tasks of evaluation."""
        spec = asdict(self)
        for name in ("experiment", "method", "dataset", "label"):
            spec.pop(name)
        spec["data"] = {key: value for key, value in spec["data"].items() if key != "ways"}
        spec["files"] = self.files
        spec["settings"] = spec.pop("fixed") | spec["settings"]
        return _digest(spec)

    @property
    def files(self) -> str:
        """The dataset of the catalogue that the run reads."""
        return catalogue_name(self.application, self.dataset, self.data)

    @property
    def weight(self) -> float:
        """How long it may take, in seconds, for the estimate of the time left."""
        return self.limit_seconds or UNLIMITED

    def __hash__(self) -> int:
        return hash(self.identity)


def catalogue_name(application: str, dataset: str, data: Mapping[str, Any]) -> str:
    """The dataset's name in the catalogue: fc100 is made of cifar-100."""
    if application == "hyper-cleaning":
        return dataset
    return "cifar-100" if data["images"] == "fc100" else str(data["images"])


def catalogue_names(configuration: Configuration) -> dict[str, str]:
    """The catalogue's name of each dataset of a table."""
    kind = configuration.application
    return {name: catalogue_name(kind, name, data.model_dump()) for name, data in configuration.datasets.items()}


def planned_runs(
    configuration: Configuration, hashes: Mapping[str, str], finished: Mapping[str, RunRecord]
) -> Iterator[RunSpec]:
    """The runs known to be needed.

    Parameters
    ----------
    configuration
        The table.
    hashes
        The hash of the files of each dataset of the catalogue that the table reads.
    finished
        By identity: runs that are done.
    """
    for dataset, method in itertools.product(configuration.datasets, configuration.methods):
        yield from _cell(configuration, dataset, method, hashes, finished)


def count_runs(configurations: Iterable[Configuration]) -> tuple[int, float]:
    """How many runs the tables need in all, and the sum of their weights; a grid that two tables share counts once."""
    specs = [planned_runs(table, defaultdict(str), _AllFinished()) for table in configurations]
    weights = {spec.identity: spec.weight for spec in itertools.chain(*specs)}
    return len(weights), sum(weights.values())


class _AllFinished(dict[str, RunRecord]):
    """Every run has finished, with the same score: which pairs are chosen does not change how many there are."""

    def __contains__(self, identity: object) -> bool:
        return True

    def __missing__(self, identity: str) -> RunRecord:
        about: dict[str, Any] = dict.fromkeys(("experiment", "role", "dataset", "method", "status"), "")
        return RunRecord(**about, identity=identity, settings={}, seed=0, final={"solved_upper_value": 0.0})


def _cell(
    configuration: Configuration,
    dataset: str,
    method: str,
    hashes: Mapping[str, str],
    finished: Mapping[str, RunRecord],
) -> Iterator[RunSpec]:
    grid, run, vary = configuration.grid, configuration.run, configuration.vary
    column, data = configuration.methods[method], configuration.datasets[dataset].model_dump()
    search = RunSpec(
        experiment=configuration.like if vary and configuration.like else configuration.experiment,
        role="grid",
        dataset=dataset,
        method=method,
        settings={},
        seed=grid.seed,
        application=configuration.application,
        solver=column.solver,
        fixed=dict(column.settings),
        data=data,
        data_hash=hashes[catalogue_name(configuration.application, dataset, data)],
        iterations=run.iterations,
        evaluate_every=column.evaluate_every or run.evaluate_every,
        limit_seconds=grid.limit_seconds,
        label=column.label,
    )
    pairs = [dict(zip(column.grid, values, strict=True)) for values in itertools.product(*column.grid.values())]
    if len(pairs) > 1:
        searched = [replace(search, settings=pair) for pair in pairs]
        yield from searched
        pairs = _best(searched, finished)
    if vary is not None:
        pairs = [{**pair, vary.setting: value} for pair in pairs for value in vary.values]
    limits = {"limit_seconds": run.limit_seconds, "converged": run.converged}
    final = replace(search, role="final", experiment=configuration.experiment, **limits)
    for pair, seed in itertools.product(pairs, range(run.seeds)):
        yield replace(final, settings=pair, seed=seed)


# --- choice of step sizes ---------------------------------------------------------------------------------------------


def score(record: RunRecord) -> float:
    """What is minimised; infinite for a run that diverged, failed or has no finite value.

    Examples
    --------
    >>> about = dict(identity="", experiment="", role="grid", dataset="", method="", settings={}, seed=0)
    >>> score(RunRecord(**about, status="iterations", curve={"solved_upper_value": [0.7, 0.5], "accuracy": [0.5, 0.9]}))
    0.5
    >>> score(RunRecord(**about, status="diverged", curve={"solved_upper_value": [0.7, 0.5]}))
    inf
    """
    if record.status in ("diverged", "failed"):
        return math.inf
    value = record.final.get("solved_upper_value", -record.final.get("validation_accuracy", -math.inf))
    return value if math.isfinite(value) else math.inf


def _best(specs: Sequence[RunSpec], finished: Mapping[str, RunRecord]) -> list[dict[str, Any]]:
    """The settings of the best run, in a list; an empty one before all have finished.

    Scores that differ by less than `TIE` are equal, and the smallest upper step wins: it is the safest on other seeds.
    When every run diverged or failed, the first settings are returned so that the table shows what happened.
    """
    if any(spec.identity not in finished for spec in specs):
        return []
    scores = {spec: score(finished[spec.identity]) for spec in specs}
    least = min(scores.values())
    equal = [spec for spec in scores if scores[spec] <= least + TIE] if least < math.inf else specs[:1]
    best = min(equal, key=lambda spec: (spec.settings.get("upper_step", 0.0), scores[spec]))
    return [dict(best.settings)]


def _digest(document: Any) -> str:
    return hashlib.sha256(_text(document).encode()).hexdigest()[:16]


def _text(document: Any) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
