"""From a configuration to runs: what is known to be needed, given the runs that have finished.

    first look  ->  the best pair of each upper step goes on to the limit  ->  the chosen pair with every seed

`planned` is a pure function: called again when more runs have finished it names more of them. A run is known by its
identity, a hash over all that its numbers depend on.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from .choose import best_of_each, chosen
from .code_version import code_version
from .configuration import Configuration, Grid, Method
from .record import RunRecord

UNLIMITED = 60.0
"""The seconds that a run without a limit is taken to need."""


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
    code: str = field(default_factory=code_version)

    @cached_property
    def identity(self) -> str:
        """First 16 hexadecimal digits of SHA-256 over everything."""
        return _digest(asdict(self))

    @property
    def document(self) -> dict[str, Any]:
        """All fields, as a record keeps them: values that JSON has."""
        return json.loads(_text(asdict(self)))

    @cached_property
    def work(self) -> str:
        """The same for runs that differ only in the table they stand in or, in few-shot, in the tasks that judge."""
        asked = asdict(self)
        for name in ("experiment", "method", "dataset"):
            asked.pop(name)
        asked["data"] = {key: value for key, value in asked["data"].items() if key != "ways"}
        asked["files"] = self.files
        asked["settings"] = asked["fixed"] | asked["settings"]
        del asked["fixed"]
        return _digest(asked)

    @property
    def files(self) -> str:
        """The dataset of the catalogue that the run reads."""
        return files_of(self.application, self.dataset, self.data)

    @property
    def weight(self) -> float:
        """How long it may take, in seconds, for the time left."""
        return self.limit_seconds or UNLIMITED

    @property
    def cell(self) -> tuple[str, str, str]:
        """Where the run belongs: experiment, dataset and method."""
        return self.experiment, self.dataset, self.method

    def __hash__(self) -> int:
        return hash(self.identity)


def files_of(application: str, dataset: str, data: Mapping[str, Any]) -> str:
    """The name in the catalogue: fc100 is made of cifar-100."""
    if application == "hyper-cleaning":
        return dataset
    return "cifar-100" if data["images"] == "fc100" else str(data["images"])


def planned(
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


def count(configuration: Configuration, *, grids: bool = True) -> tuple[int, float]:
    """How many runs a table needs in all, with or without its grids, and the sum of their weights."""
    total, seconds = 0, 0.0
    for method in configuration.methods.values():
        pairs, grid, run = math.prod(map(len, method.grid.values())), configuration.grid, configuration.run
        variants = 1 if configuration.vary is None else len(configuration.vary.values)
        looks, longer = (0, pairs if pairs > 1 else 0)
        if _has_first_look(grid, method):
            looks, longer = pairs, len(method.grid[str(grid.best_of_each)])
        for number, limit in (
            (looks * grids, grid.first_look_seconds),
            (longer * grids, grid.limit_seconds),
            (run.seeds * variants, run.limit_seconds),
        ):
            total += number * len(configuration.datasets)
            seconds += number * len(configuration.datasets) * (limit or UNLIMITED)
    return total, seconds


def _cell(
    configuration: Configuration,
    dataset: str,
    method: str,
    hashes: Mapping[str, str],
    finished: Mapping[str, RunRecord],
) -> Iterator[RunSpec]:
    grid, run = configuration.grid, configuration.run
    column, data = configuration.methods[method], configuration.datasets[dataset].model_dump()

    def specs(
        role: str, limit: float | None, pairs: list[dict[str, Any]], seeds: list[int], name: str
    ) -> list[RunSpec]:
        return [
            RunSpec(
                experiment=name, role=role, dataset=dataset, method=method, settings=pair, seed=seed,
                application=configuration.application, solver=column.solver, fixed=dict(column.settings), data=data,
                data_hash=hashes[files_of(configuration.application, dataset, data)], iterations=run.iterations,
                evaluate_every=column.evaluate_every or run.evaluate_every, limit_seconds=limit,
            )
            for pair in pairs for seed in seeds
        ]  # fmt: skip

    searched = configuration.like if configuration.vary and configuration.like else configuration.experiment
    pairs = [dict(zip(column.grid, values, strict=True)) for values in itertools.product(*column.grid.values())]
    if _has_first_look(grid, column):
        looks = specs("grid", grid.first_look_seconds, pairs, [grid.seed], searched)
        yield from looks
        pairs = best_of_each(str(grid.best_of_each), looks, finished)
    if len(pairs) > 1:
        search = specs("grid", grid.limit_seconds, pairs, [grid.seed], searched)
        yield from search
        pairs = chosen(search, finished)
    if configuration.vary is not None:
        pairs = [{**pair, configuration.vary.setting: value} for pair in pairs for value in configuration.vary.values]
    yield from specs("final", run.limit_seconds, pairs, list(range(run.seeds)), configuration.experiment)


def _has_first_look(grid: Grid, method: Method) -> bool:
    """Whether there are pairs that differ in something else than what goes on anyway."""
    return grid.best_of_each in method.grid and any(
        len(values) > 1 for name, values in method.grid.items() if name != grid.best_of_each
    )


def _digest(document: Any) -> str:
    return hashlib.sha256(_text(document).encode()).hexdigest()[:16]


def _text(document: Any) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
