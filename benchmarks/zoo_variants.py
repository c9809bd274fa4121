"""The cases of the zoo by name, also in other units, from a start far away and in single precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bilevel import Problem, sets
from bilevel.spaces import tree_map

from .zoo_further import FURTHER
from .zoo_problems import CASES, Case
from .zoo_small import KINKS, RANDOM
from .zoo_third import THIRD

ALL = {**CASES, **FURTHER, **THIRD, **KINKS, **RANDOM}

VARIANTS = ("f1e-4", "f1e4", "g1e-3", "g1e3", "x1e-2", "x1e2", "y1e-2", "y1e2", "far", "float32")
"""Other units of f, g, x and y, a start that is 8 away in every entry of x, and single precision; there is also "cut",
with derivatives that are wrong."""


def make(name: str, seed: int) -> tuple[Case, Callable[[Any], Any]]:
    """The case "name" or "name~variant", and how its x becomes that of the case itself, in float64."""
    base, _, variant = name.partition("~")
    case = ALL[base](seed, torch.float32 if variant == "float32" else torch.float64)
    scale = float(variant[1:]) if variant[1:2].isdigit() else 1.0
    if variant == "far":
        signs = torch.Generator().manual_seed(1)
        case.x0 = tree_map(lambda u: u + 8.0 * _signs(u, signs), case.x0)
    elif variant == "cut":
        case.problem = _cut(case.problem)
    elif scale != 1.0:
        case = _rescaled(case, variant[0], scale)
    factor = scale if variant.startswith("x") else 1.0
    return case, lambda x: tree_map(lambda u: factor * u.double(), x)


def _signs(u: Tensor, generator: torch.Generator) -> Tensor:
    return torch.ones_like(u) if u.numel() == 1 else torch.randn(u.shape, generator=generator, dtype=u.dtype).sign()


def _cut(problem: Problem) -> Problem:
    """The same problem with half of x cut from the graph of g, as by a forgotten detach(): hypergradients are wrong."""

    def lower(x: Any, y: Any, *batch: Any) -> Tensor:
        return problem.lower(tree_map(lambda u: (u + u.detach()) / 2, x), y, *batch)

    return Problem(
        problem.upper, lower, problem.constraint, upper_constraint=problem.upper_constraint, sampler=problem.sampler
    )


def _rescaled(case: Case, what: str, scale: float) -> Case:
    """The same case in other units: f or g times `scale`, or x or y in units of `scale`."""
    f, g, x, y = (scale if what == name else 1.0 for name in "fgxy")
    old, bounds = case.problem, case.bounds

    def times(vector: Any, factor: float) -> Any:
        return vector if factor == 1.0 else tree_map(lambda u: factor * u, vector)

    def shrunk(constraint: Any, factor: float) -> Any:
        free = isinstance(constraint, sets.FreeSpace) or factor == 1.0
        return constraint if free else sets.Scaled(constraint, 1 / factor)

    def set_at(u: Any) -> Any:
        return shrunk(old.constraint_at(times(u, x)), y)

    problem = Problem(
        lambda u, v, *batch: f * old.upper(times(u, x), times(v, y), *batch),
        lambda u, v, *batch: g * old.lower(times(u, x), times(v, y), *batch),
        set_at if old.moving else shrunk(old.constraint, y),
        upper_constraint=shrunk(old.upper_constraint, x),
        sampler=old.sampler,
    )
    bounds = None if bounds is None else (bounds[0] / x, bounds[1] / x)
    return Case(problem, times(case.x0, 1 / x), times(case.y0, 1 / y), bounds, case.convex)
