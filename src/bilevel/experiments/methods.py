"""The methods of the tables: from settings of a configuration to a solver. A new method is one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from ..errors import InvalidInput, meant
from ..hypergradients import Neumann
from ..smoothing import Exact, Perturbed, TwoPoint
from ..solvers import DMLCBO, RMDPCD, VPBGD, Approx, Implicit, Solver

PER_ROW = "upper_step_per_row"
"""A setting of every method: see `solver_of`."""

SMOOTHINGS: dict[str, Callable[[float], Any]] = {
    "exact": lambda delta: Exact(),
    "perturbed": lambda delta: Perturbed(radius=delta),
    "two-point": lambda delta: TwoPoint(radius=delta),
}


def published(
    *, Q: int = 3, eta: float = 0.5, delta: float = 1e-6, jacobian: str = "perturbed", truncation: Any = "random",
    **rest: Any,
) -> DMLCBO:  # fmt: skip
    """DMLCBO with the paper's estimator: Q terms truncated at random, step eta, smoothing radius delta."""
    if jacobian not in SMOOTHINGS:
        raise InvalidInput(f"jacobian must be one of {', '.join(SMOOTHINGS)}, got {jacobian!r}")
    series = Neumann(terms=Q, eta=eta, truncation=truncation, smoothing=SMOOTHINGS[jacobian](delta))
    return DMLCBO(hypergradient=series, **rest)


SOLVERS: dict[str, Callable[..., Solver]] = {
    "dmlcbo": published,
    "dmlcbo-default": DMLCBO,
    "vpbgd": VPBGD,
    "approx": Approx,
    "rmd-pcd": RMDPCD,
    "implicit": Implicit,
}


def solver_of(name: str, settings: Mapping[str, Any], *, rows: int) -> Solver:
    """The solver with these settings.

    `upper_step_per_row = true` multiplies the upper step by the number of rows: the paper prints sums over rows, here f
    and g are means (erratum 12), and a method that does not scale its hypergradient needs steps in those units.

    Examples
    --------
    >>> solver_of("approx", {"upper_step": 0.1, "upper_step_per_row": True}, rows=200).upper_step
    20.0
    """
    if name not in SOLVERS:
        raise InvalidInput(f"there is no solver {name!r}: choose one of {', '.join(SOLVERS)}.{meant(name, SOLVERS)}")
    known, given = known_settings(name), dict(settings)
    for setting in given:
        if setting not in known:
            raise InvalidInput(f"{name} has no setting {setting!r}.{meant(setting, known)} Known: {', '.join(known)}")
    if given.pop(PER_ROW, False):
        if "upper_step" not in given:
            raise InvalidInput(f"{PER_ROW} multiplies upper_step, which is missing: give it, or leave {PER_ROW} out")
        given["upper_step"] = float(given["upper_step"]) * rows
    return SOLVERS[name](**given)


def known_settings(name: str) -> tuple[str, ...]:
    """The settings of a solver that a configuration can hold: numbers and words.

    Examples
    --------
    >>> known_settings("dmlcbo")[:6]
    ('Q', 'eta', 'delta', 'jacobian', 'truncation', 'upper_step')
    """
    parts = (published, DMLCBO) if SOLVERS[name] is published else (SOLVERS[name],)
    found = dict.fromkeys(setting for part in parts for setting in signature(part).parameters)
    return (*(setting for setting in found if setting not in ("hypergradient", "rest")), PER_ROW)
