"""The methods of the tables: from settings of a configuration to a solver. A new method is one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InvalidInput
from ..hypergradients import Neumann
from ..smoothing import Exact, Perturbed, TwoPoint
from ..solvers import DMLCBO, RMDPCD, VPBGD, Approx, Implicit, Solver

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
        raise InvalidInput(f"there is no solver {name!r}: choose one of {', '.join(SOLVERS)}")
    given = dict(settings)
    if given.pop("upper_step_per_row", False):
        given["upper_step"] = float(given["upper_step"]) * rows
    try:
        return SOLVERS[name](**given)
    except TypeError as error:
        raise InvalidInput(f"the settings of {name} do not fit: {error}") from None
