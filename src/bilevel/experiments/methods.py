"""The methods of the tables: from settings of a configuration to a solver. A new method is one entry of `SOLVERS`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

from ..errors import BilevelError, InvalidInputError, did_you_mean
from ..hypergradients import Neumann
from ..hypergradients.smoothing import Exact, Perturbed, TwoPoint
from ..solvers import DMLCBO, RMDPCD, VPBGD, Approx, Implicit, Solver
from .configuration import Configuration, Method, Value

PER_ROW = "upper_step_per_row"
"""A setting of every method: see `make_solver`."""

SMOOTHINGS: dict[str, Callable[[float], Any]] = {
    "exact": lambda delta: Exact(),
    "perturbed": lambda delta: Perturbed(radius=delta),
    "two-point": lambda delta: TwoPoint(radius=delta),
}


Solvers = tuple[Iterable[str], Callable[[str], tuple[str, ...]], Callable[[str, Mapping[str, Any]], Any]]
"""The solvers of an application, the settings that each knows, and how to build one."""


def series_dmlcbo(
    *,
    Q: int = 3,
    eta: float = 0.5,
    delta: float = 1e-6,
    jacobian: str = "perturbed",
    truncation: Any = "random",
    **settings: Any,
) -> DMLCBO:
    """DMLCBO with a Neumann series: Q terms, truncated at random by default, step eta, smoothing radius delta."""
    if jacobian not in SMOOTHINGS:
        raise InvalidInputError(f"jacobian must be one of {', '.join(SMOOTHINGS)}, got {jacobian!r}")
    series = Neumann(terms=Q, eta=eta, truncation=truncation, smoothing=SMOOTHINGS[jacobian](delta))
    return DMLCBO(hypergradient=series, **settings)


def as_published(*, upper_step: float, lower_step: float, Q: int = 3, eta: float = 0.5, delta: float = 1e-6) -> DMLCBO:
    """`DMLCBO.as_published` with the names of settings that tables vary."""
    return DMLCBO.as_published(upper_step, lower_step, eta=eta, terms=Q, delta=delta)


SOLVERS: dict[str, Callable[..., Solver]] = {
    "dmlcbo": series_dmlcbo,
    "dmlcbo-as-published": as_published,
    "dmlcbo-linear-solve": DMLCBO,
    "vpbgd": VPBGD,
    "approx": Approx,
    "rmd-pcd": RMDPCD,
    "implicit": Implicit,
}


def make_solver(name: str, settings: Mapping[str, Any], *, rows: int) -> Solver:
    """The solver with these settings.

    `upper_step_per_row = true` multiplies the upper step by the number of rows: the paper prints sums over rows, here f
    and g are means (erratum 12), and a method that does not scale its hypergradient needs steps in those units.

    Examples
    --------
    >>> make_solver("approx", {"upper_step": 0.1, "upper_step_per_row": True}, rows=200).upper_step
    20.0
    """
    given = dict(settings)
    for setting in given:
        _check_setting(name, setting, known_settings(name))
    if given.pop(PER_ROW, False):
        if "upper_step" not in given:
            raise InvalidInputError(
                f"{PER_ROW} multiplies upper_step, which is missing: give it, or leave {PER_ROW} out"
            )
        given["upper_step"] = float(given["upper_step"]) * rows
    return SOLVERS[name](**given)


def known_settings(name: str) -> tuple[str, ...]:
    """The settings of a solver that a configuration can hold: numbers and words.

    Examples
    --------
    >>> known_settings("dmlcbo")[:6]
    ('Q', 'eta', 'delta', 'jacobian', 'truncation', 'upper_step')
    """
    parts = (series_dmlcbo, DMLCBO) if name == "dmlcbo" else (SOLVERS[name],)
    found = dict.fromkeys(setting for part in parts for setting in signature(part).parameters)
    return (*(setting for setting in found if setting not in ("hypergradient", "settings")), PER_ROW)


def check_settings(table: Configuration) -> None:
    """Build every method with every value of its settings, so that a mistake is found before the first run.

    Examples
    --------
    >>> from bilevel.experiments import load_configuration
    >>> check_settings(load_configuration("table-2"))
    """
    cleaning: Solvers = (SOLVERS, known_settings, partial(make_solver, rows=1))
    solvers, known_to, build = cleaning if table.application == "hyper-cleaning" else _few_shot_solvers()
    for name, method in table.methods.items():
        if method.solver not in solvers:
            raise InvalidInputError(
                f"method {name}: there is no solver {method.solver!r}: choose one of {', '.join(solvers)}."
                f"{did_you_mean(method.solver, solvers)}"
            )
        attempts = {f"[methods.{name}]: the first values of its settings": {}}
        for where, setting, values in _all_settings(table, name, method):
            _check_setting(method.solver, setting, known_to(method.solver), f"{where}: ")
            if not values:
                raise InvalidInputError(f"{where}: {setting} has no values: give at least one")
            attempts |= {f"{where}: {setting} = {value!r}": {setting: value} for value in values}
        start = method.settings | {setting: values[0] for setting, values in method.grid.items()}
        for where, changed in attempts.items():
            try:
                build(method.solver, start | changed)
            except (BilevelError, TypeError, ValueError) as error:
                raise InvalidInputError(f"{where} cannot be used: {error}") from None


def _all_settings(table: Configuration, name: str, method: Method) -> Iterator[tuple[str, str, Sequence[Value]]]:
    """Where each setting stands in the file, its name, and its values."""
    for setting, value in method.settings.items():
        yield f"[methods.{name}.settings]", setting, [value]
    for part, grid in (("grid", method.grid), ("quick", method.quick)):
        for setting, values in grid.items():
            yield f"[methods.{name}.{part}]", setting, values
    if table.vary is not None and table.vary.method == name:
        yield "[vary]", table.vary.setting, table.vary.values


def _few_shot_solvers() -> Solvers:
    from ..few_shot.options import SOLVERS, Experiment

    def build(solver: str, settings: Mapping[str, Any]) -> None:
        if "upper_step" not in settings:
            raise InvalidInputError("upper_step is missing: give it in settings or grid")
        method: Any = {"solver": solver, "step": float(settings["upper_step"])}
        Experiment(dataset="generated", width=1, **method).learner()

    return SOLVERS, lambda solver: ("upper_step", "tasks_per_step"), build


def _check_setting(solver: str, setting: str, known: Iterable[str], where: str = "") -> None:
    if setting not in known:
        raise InvalidInputError(
            f"{where}{solver} has no setting {setting!r}.{did_you_mean(setting, known)} Known: {', '.join(known)}"
        )
