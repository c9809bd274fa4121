"""Every method of a table is built before the first run: a mistake in its settings costs no run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import BilevelError, InvalidInput, meant
from .configuration import Configuration, Method, Value
from .methods import SOLVERS, known_settings, solver_of

Given = tuple[str, str, Sequence[Value]]
"""Where a setting stands in the file, its name, and its values."""


def rehearse(table: Configuration) -> None:
    """Refuse settings, in fixed parts, grids, quick looks and ablations, that the solver of a method does not take.

    Examples
    --------
    >>> from bilevel.experiments import load_configuration
    >>> rehearse(load_configuration("table-2"))
    """
    for name, method in table.methods.items():
        known = _known(table.application, name, method.solver)
        given = list(_given(table, name, method))
        for where, setting, values in given:
            if setting not in known:
                raise InvalidInput(
                    f"{where}: {method.solver} has no setting {setting!r}.{meant(setting, known)} "
                    f"Known: {', '.join(known)}"
                )
            if not values:
                raise InvalidInput(f"{where}: {setting} has no values: give at least one")
        _build_all(table.application, name, method, given)
    searched = {setting for method in table.methods.values() for setting in method.grid}
    each = table.grid.best_of_each
    if each is not None and each not in searched:
        raise InvalidInput(f"grid.best_of_each: no method searches {each!r}.{meant(each, searched)}")


def _known(application: str, name: str, solver: str) -> tuple[str, ...]:
    solvers: Mapping[str, Any] = SOLVERS
    if application == "few-shot":
        from ..applications.few_shot.experiment import SOLVERS as solvers
    if solver not in solvers:
        raise InvalidInput(
            f"method {name}: there is no solver {solver!r}: choose one of {', '.join(solvers)}.{meant(solver, solvers)}"
        )
    return ("upper_step",) if application == "few-shot" else known_settings(solver)


def _given(table: Configuration, name: str, method: Method) -> Iterator[Given]:
    for setting, value in method.settings.items():
        yield f"[methods.{name}.settings]", setting, [value]
    for part, grid in (("grid", method.grid), ("quick", method.quick)):
        for setting, values in grid.items():
            yield f"[methods.{name}.{part}]", setting, values
    if table.vary is not None and table.vary.method == name:
        yield "[vary]", table.vary.setting, table.vary.values


def _build_all(application: str, name: str, method: Method, given: Sequence[Given]) -> None:
    """The method with the first values of its grid, and with each other value in place of the first."""
    start = method.settings | {setting: values[0] for setting, values in method.grid.items()}
    if application == "few-shot" and "upper_step" not in start:
        raise InvalidInput(f"[methods.{name}]: upper_step is missing: give it in settings or grid")
    others = [
        (f"{where}: {setting} = {value!r}", {setting: value}) for where, setting, values in given for value in values
    ]
    for where, changed in [(f"[methods.{name}]: the first values of its settings", {}), *others]:
        try:
            _build(application, method.solver, start | changed)
        except (BilevelError, TypeError, ValueError) as error:
            raise InvalidInput(f"{where} cannot be used: {error}") from None


def _build(application: str, solver: str, settings: Mapping[str, Value]) -> None:
    if application == "hyper-cleaning":
        solver_of(solver, settings, rows=1)
        return
    from ..applications.few_shot.experiment import Experiment

    Experiment(dataset="generated", solver=solver, step=float(settings["upper_step"]), width=1).learner()
