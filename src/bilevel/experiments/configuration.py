"""An experiment as data: one TOML file per table, checked key by key.

`load_configuration("table-2")` reads a file of the library, `load_configuration("mine.toml")` one of your own.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from ..errors import InvalidInputError, MissingExtraError, MissingFileError, did_you_mean

try:
    from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
except ImportError:
    raise MissingExtraError("Configurations of experiments", "apps") from None

FOLDER = Path(__file__).parent / "configurations"
TABLES = tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))
"""The configurations of the library, by name."""

Value = float | int | str
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Part(BaseModel):
    """A section of the file; unknown keys are errors."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


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
    """Tasks of one set of images, evaluated with `ways` classes each; the rest as in `bilevel fewshot train`.

    The network with the best accuracy on `validation_tasks` tasks of `validation_ways` classes is evaluated.
    """

    images: Literal["omniglot", "fc100", "generated"]
    ways: Count
    shots: Count = 5
    queries: Count = 5
    train_ways: Count = 20
    width: Count = 32
    normalise: bool = True
    bfloat16: bool = False
    scale: Positive = 10.0
    tasks_per_step: Count = 1
    novel_tasks: Annotated[int, Field(ge=2)] = 50
    validation_ways: Count = 10
    validation_tasks: Annotated[int, Field(ge=2)] = 100
    final_tasks: Annotated[int, Field(ge=2)] = 600


class Method(Part):
    """A column of the table: a solver of `methods.SOLVERS`, its fixed settings, and the values its grid tries.

    `label` is the name of the method in the report. `evaluate_every` replaces that of [run] if the steps of this method
    are so expensive that its curve would have no points.
    """

    solver: str
    label: str = ""
    settings: dict[str, Value] = {}
    grid: dict[str, list[Value]] = {}
    quick: dict[str, list[Value]] = {}
    evaluate_every: Count | None = None


class Limits(Part):
    """How long a final run is, how often it is evaluated, and how many seeds there are.

    With `converged` a run of hyper-cleaning also ends when F has changed by less than this, relatively, in 500 steps.
    """

    iterations: Count
    evaluate_every: Count
    seeds: Count
    limit_seconds: Positive | None = None
    converged: Positive | None = None


class Quick(Limits):
    """The limits with `--quick`, and those of its search of step sizes."""

    grid_limit_seconds: Positive


class Grid(Part):
    """The search of step sizes: all pairs on one seed, with a limit per run."""

    seed: int = 1000
    limit_seconds: Positive | None = None


class Vary(Part):
    """An ablation: one setting of one method takes these values, at the step sizes chosen in the table it is like."""

    method: str
    setting: str
    values: list[Value]


class Configuration(Part):
    """One table: datasets x methods, grids of step sizes, seeds and limits.

    Parameters
    ----------
    experiment, title
        The name, such as "table-2", and the title of the table.
    application
        "hyper-cleaning" or "few-shot".
    like
        The table of the library whose parts are used where this one has none.
    run, grid, quick
        Iterations, seeds and limits of the final runs, of the search for step sizes, and with `--quick`.
    datasets, methods
        By name: sizes and scaling of the data; solver, settings and grid of step sizes.
    vary
        The setting that differs between the columns (tables 4 and 5).

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
    def _search_on_another_seed(self) -> Configuration:
        """Final runs have the seeds 0 ... seeds - 1; step sizes chosen on one of them would be overfitted to it."""
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
            checked = {name: _validate(kind, part, f"datasets.{name}") for name, part in datasets.items()}
            document = {**document, "datasets": checked}
        return document

    def select(self, *, datasets: Sequence[str] | None = None, methods: Sequence[str] | None = None) -> Configuration:
        """The same with some of its datasets and methods; all of them where none is named."""
        chosen = {"datasets": _select("dataset", self.datasets, datasets)}
        return self.model_copy(update=chosen | {"methods": _select("method", self.methods, methods)})

    def limit(self, *, seeds: int | None = None, budget: float | None = None) -> Configuration:
        """The same with so many seeds, and at most `budget` seconds of training for each run."""
        run = self.run.model_dump() | ({} if seeds is None else {"seeds": seeds})
        grid = self.grid.model_dump()
        if budget is not None:
            run["limit_seconds"] = budget
            grid["limit_seconds"] = min(budget, grid["limit_seconds"] or budget)
        return _validate(Configuration, {**dict(self), "run": run, "grid": grid}, "--seeds, --budget")

    def quick_look(self) -> Configuration:
        """The same with few pairs of step sizes, short runs and few seeds, as its section [quick] says."""
        quick = self.quick
        if quick is None:
            raise InvalidInputError(f"{self.experiment} has no section [quick]: omit --quick, or add the section")
        run = Limits(**quick.model_dump(exclude={"grid_limit_seconds"}))
        grid = Grid(seed=self.grid.seed, limit_seconds=quick.grid_limit_seconds)
        methods = {
            name: method.model_copy(update={"grid": method.grid | method.quick})
            for name, method in self.methods.items()
        }
        return self.model_copy(update={"run": run, "grid": grid, "methods": methods})


def select_parts(
    tables: Iterable[Configuration], datasets: Collection[str] | None, methods: Collection[str] | None
) -> Iterator[Configuration]:
    """Those tables that have some of these datasets and methods (None: any), with these alone."""
    for table in tables:
        rows = [name for name in table.datasets if datasets is None or name in datasets]
        columns = [name for name in table.methods if methods is None or name in methods]
        if rows and columns:
            yield table.select(datasets=rows, methods=columns)


def load_configuration(name: str | Path) -> Configuration:
    """Read and check a configuration.

    Parameters
    ----------
    name
        A table of the paper, or the path of a TOML file.

    Returns
    -------
    Configuration
        The validated configuration; an unknown key is an error that names the nearest known one.

    Examples
    --------
    >>> load_configuration("table-2").run.iterations
    10000
    """
    path = FOLDER / f"{name}.toml" if str(name) in TABLES else Path(name)
    document = _read(path)
    if isinstance(document.get("like"), str):
        document = {**_read(FOLDER / f"{document['like']}.toml"), **document}
    configuration: Configuration = _validate(Configuration, document, str(path.name))
    if configuration.vary is not None:
        configuration = configuration.select(methods=[configuration.vary.method])
    return configuration


def _read(path: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        # Numbers of thousands of digits in hexadecimal, which Python does not print, and those that are not finite.
        json.dumps(document, default=str, allow_nan=False)
        return document
    except (FileNotFoundError, IsADirectoryError):
        raise MissingFileError(
            f"there is no configuration {path}: name one of {', '.join(TABLES)}, or a file"
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a list within lists without end
        raise InvalidInputError(f"{path} is not TOML with finite numbers: {error}") from None
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read ({error.strerror or error})") from None


def _validate(kind: type[Part], document: Any, where: str) -> Any:
    """The part, or an error that names the key and, for an unknown key, the nearest known one."""
    if isinstance(document, kind):
        return document
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        raise InvalidInputError("; ".join(_message(kind, detail, where) for detail in error.errors())) from None


def _message(kind: type[Part], detail: Any, where: str) -> str:
    path = ".".join(str(step) for step in detail["loc"])
    if detail["type"] == "extra_forbidden":
        known = _fields(kind, detail["loc"][:-1])
        return f"{where}: unknown key {path!r}.{did_you_mean(str(detail['loc'][-1]), known)} Known: {', '.join(known)}"
    return f"{where}: {path or 'this'} = {detail['input']!r:.80}: {detail['msg']}"


def _fields(kind: Any, location: tuple[Any, ...]) -> list[str]:
    """The keys known at a place of the document."""
    for step in location:
        fields = getattr(kind, "model_fields", {})
        if step in fields:
            options = (fields[step].annotation, *getattr(fields[step].annotation, "__args__", ()))
            kind = next((each for each in options if isinstance(each, type) and issubclass(each, Part)), None)
    return list(getattr(kind, "model_fields", {}))


def _select(what: str, known: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    for name in names or ():
        if name not in known:
            raise InvalidInputError(
                f"there is no {what} {name!r} in this table.{did_you_mean(name, known)} Known: {', '.join(known)}"
            )
    return {name: known[name] for name in names} if names else dict(known)
