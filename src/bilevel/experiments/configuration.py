"""What a table of the paper asks for, as data: one TOML file per table, checked key by key.

`load_configuration("table-2")` reads the file of the library, `load_configuration("mine.toml")` one of your own.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from ..errors import InvalidInput, MissingExtra, meant
from ..files import FileMissing

try:
    from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
except ImportError:
    raise MissingExtra("Configurations of experiments", "apps") from None

FOLDER = Path(__file__).parent / "configurations"
TABLES = ("table-2", "table-3", "table-4", "table-5")
TARGETS: dict[str, tuple[str, ...]] = {
    **{table: (table,) for table in TABLES},
    "figure-1": ("table-2",),
    "figure-2": ("table-3",),
    "all": TABLES,
}
"""What can be reproduced, and the tables whose runs it needs."""

Value = float | int | str
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """A table of the file; a key that is not one of its fields is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CleaningData(Part):
    """Rows of one dataset for hyper-cleaning: `rows` to train on, a share of them with flipped labels, `trusted` ones.

    g = mean_i sigmoid(x_i) loss(y.a_i, b_i) + c |y|^2 over |y|_1 <= radius, f the mean loss of the trusted rows.
    """

    classes: tuple[int, int] | None = None
    rows: Count
    trusted: Count
    scaling: Literal["unit", "standard"]
    loss: Literal["logistic", "smoothed hinge", "squared"] = "logistic"
    c: Positive = 1e-3
    radius: Positive = 1.0
    flipped: Annotated[float, Field(ge=0, le=1)] = 0.3


class FewShotData(Part):
    """Tasks of one set of images, judged with so many `ways`; the rest as in `few_shot.experiment.Experiment`.

    The network that is kept is the best on `validation_tasks` tasks of `validation_ways` classes.
    """

    images: Literal["omniglot", "fc100", "generated"]
    ways: Count
    shots: Count = 5
    queries: Count = 5
    train_ways: Count = 20
    width: Count = 32
    normalise: bool = True
    scale: Positive = 10.0
    tasks_per_step: Count = 1
    novel_tasks: Annotated[int, Field(ge=2)] = 50
    validation_ways: Count = 10
    validation_tasks: Annotated[int, Field(ge=2)] = 100
    final_tasks: Annotated[int, Field(ge=2)] = 600


class Method(Part):
    """A column of the table: a solver of `methods.SOLVERS`, its fixed settings, and the values its grid tries.

    `evaluate_every` is that of the run unless the steps of this method are so dear that its curve would have no points.
    """

    solver: str
    settings: dict[str, Value] = {}
    grid: dict[str, list[Value]] = {}
    quick: dict[str, list[Value]] = {}
    evaluate_every: Count | None = None


class Limits(Part):
    """How long a final run is, how often it is looked at, and how many seeds there are."""

    iterations: Count
    evaluate_every: Count
    seeds: Count
    limit_seconds: Positive | None = None


class Grid(Part):
    """The search of step sizes: one seed, a limit per run; optionally a short first look at all pairs.

    After a first look the best pair of each value of the setting `best_of_each` goes on to the limit: a few seconds
    tell which lower step serves an upper step, not which upper step leads furthest.
    """

    seed: int = 1000
    limit_seconds: Positive | None = None
    first_look_seconds: Positive | None = None
    best_of_each: str | None = None

    @model_validator(mode="after")
    def _both(self) -> Grid:
        if (self.first_look_seconds is None) != (self.best_of_each is None):
            raise ValueError("first_look_seconds and best_of_each go together: give both or neither")
        return self


class Quick(Part):
    """What `--quick` does instead."""

    iterations: Count
    evaluate_every: Count
    seeds: Count
    limit_seconds: Positive
    grid_limit_seconds: Positive


class Vary(Part):
    """An ablation: one setting of one method takes these values, at the step sizes chosen in the table it is like."""

    method: str
    setting: str
    values: list[Value]


class Configuration(Part):
    """One table of the paper: datasets x methods, grids of step sizes, seeds and limits.

    Parameters
    ----------
    experiment, title
        "table-2" ..., and what it is about.
    application
        "hyper-cleaning" or "few-shot".
    like
        The table whose parts are taken over where this one has none.
    run, grid, quick
        Iterations, seeds and limits of the chosen runs, of the search for step sizes, and with `--quick`.
    datasets, methods
        By name: sizes and scaling; solver, settings and grid of step sizes.
    vary
        The setting that the columns differ in (tables 4 and 5).

    Examples
    --------
    >>> table = load_configuration("table-2")
    >>> table.run.seeds, sorted(table.datasets)
    (10, ['cod-rna', 'fashion-mnist', 'madelon', 'mnist'])
    >>> len(table.methods["dmlcbo"].grid["upper_step"])  # of 36 pairs
    6
    """

    experiment: str
    title: str
    application: Literal["hyper-cleaning", "few-shot"]
    like: str | None = None
    run: Limits
    grid: Grid = Grid()
    quick: Quick | None = None
    datasets: dict[str, CleaningData | FewShotData]
    methods: dict[str, Method]
    vary: Vary | None = None

    @model_validator(mode="after")
    def _another_seed(self) -> Configuration:
        """Seeds of final runs are 0 ... seeds - 1; one that chose the steps would be judged by its own choice."""
        if 0 <= self.grid.seed < self.run.seeds and any(method.grid for method in self.methods.values()):
            raise ValueError(
                f"the step sizes are searched on seed {self.grid.seed}, which is one of the {self.run.seeds} seeds of "
                "the final runs: choose another grid.seed, or fewer seeds"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _datasets_of_the_application(cls, document: Any) -> Any:
        """Each dataset is checked as what it is, so that an error names its key and not two possible kinds."""
        kind = FewShotData if document.get("application") == "few-shot" else CleaningData
        datasets = document.get("datasets")
        if isinstance(datasets, dict):
            checked = {name: _checked(kind, part, f"datasets.{name}") for name, part in datasets.items()}
            document = {**document, "datasets": checked}
        return document

    def only(self, *, datasets: list[str] | None = None, methods: list[str] | None = None) -> Configuration:
        """The same with some of its datasets and methods."""
        return self.model_copy(
            update={
                "datasets": _chosen("dataset", self.datasets, datasets),
                "methods": _chosen("method", self.methods, methods),
            }
        )

    def limited(self, *, seeds: int | None = None, budget: float | None = None) -> Configuration:
        """The same with so many seeds, and at most `budget` seconds of training for each run."""
        run = self.run.model_dump() | ({} if seeds is None else {"seeds": seeds})
        grid = self.grid.model_dump()
        if budget is not None:
            run["limit_seconds"] = budget
            grid["limit_seconds"] = min(budget, grid["limit_seconds"] or budget)
            if grid["first_look_seconds"] is not None:
                grid["first_look_seconds"] = min(budget, grid["first_look_seconds"])
        parts = {"run": _checked(Limits, run, "--seeds, --budget"), "grid": _checked(Grid, grid, "--budget")}
        return _checked(Configuration, {**dict(self), **parts}, "--seeds, --budget")

    def quickly(self) -> Configuration:
        """A quick look: a few pairs of step sizes, short runs, few seeds."""
        quick = self.quick
        if quick is None:
            raise InvalidInput(f"{self.experiment} has no part [quick]: leave --quick out, or write one")
        run = Limits(**quick.model_dump(exclude={"grid_limit_seconds"}))
        grid = Grid(seed=self.grid.seed, limit_seconds=quick.grid_limit_seconds)
        methods = {
            name: method.model_copy(update={"grid": method.grid | method.quick})
            for name, method in self.methods.items()
        }
        return self.model_copy(update={"run": run, "grid": grid, "methods": methods})


def load_configuration(name: str | Path) -> Configuration:
    """Read and check a configuration.

    Parameters
    ----------
    name
        A table of the paper, or the path of a TOML file.

    Returns
    -------
    Configuration
        Checked: an unknown key is an error that names the nearest one.

    Examples
    --------
    >>> load_configuration("table-2").run.iterations
    10000
    """
    path = FOLDER / f"{name}.toml" if str(name) in TABLES else Path(name)
    document = _read(path)
    if isinstance(document.get("like"), str):
        document = {**_read(FOLDER / f"{document['like']}.toml"), **document}
    configuration = _checked(Configuration, document, str(path.name))
    if configuration.vary is not None:
        configuration = configuration.only(methods=[configuration.vary.method])
    return configuration


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, IsADirectoryError):
        raise FileMissing(f"there is no configuration {path}: name one of {', '.join(TABLES)}, or a file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not TOML: {error}") from None


def _checked(kind: type[Part], document: Any, where: str) -> Any:
    """The part, or an error of ours that names the key and, for a key that is unknown, the nearest that is known."""
    if isinstance(document, kind):
        return document
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise InvalidInput("; ".join(_said(kind, found, where) for found in error.errors())) from None


def _said(kind: type[Part], found: Any, where: str) -> str:
    path = ".".join(str(step) for step in found["loc"])
    if found["type"] == "extra_forbidden":
        return f"{where}: unknown key {path!r}. {_nearest(str(found['loc'][-1]), _fields(kind, found['loc'][:-1]))}"
    return f"{where}: {path or 'this'} = {found['input']!r:.80}: {found['msg']}"


def _fields(kind: Any, location: tuple[Any, ...]) -> list[str]:
    """The keys known at a place of the document."""
    for step in location:
        fields = getattr(kind, "model_fields", {})
        if step in fields:
            options = (fields[step].annotation, *getattr(fields[step].annotation, "__args__", ()))
            kind = next((each for each in options if isinstance(each, type) and issubclass(each, Part)), None)
    return list(getattr(kind, "model_fields", {}))


def _nearest(name: str, known: list[str]) -> str:
    """What was probably meant.

    Examples
    --------
    >>> _nearest("iteratons", ["iterations", "seeds"])
    "Did you mean 'iterations'? Known: iterations, seeds"
    """
    return f"{meant(name, known)} Known: {', '.join(known)}".lstrip()


def _chosen(what: str, known: dict[str, Any], names: list[str] | None) -> dict[str, Any]:
    for name in names or ():
        if name not in known:
            raise InvalidInput(f"there is no {what} {name!r} in this table. {_nearest(name, list(known))}")
    return {name: known[name] for name in names} if names else dict(known)
