"""Whether a problem is the one of an earlier run: f, g and the sets at two points that depend on shapes alone.

A problem is code, which is not stored in files. A file holds values of the problem instead: f, g, the norms of their
derivatives, the projections, and fingerprints of the parameters of the sets. Values may differ by the rounding of
another machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .._fingerprint import fingerprint
from ..errors import IncompatibleError
from ..lower import uncounted
from ..problem import Problem
from ..sets.base import ConvexSet
from ..spaces import Vector, leaves, tree_map

ROUNDING = {torch.float64: 1e-8}
"""The allowed relative difference between two machines in float64; 1e-4 for other dtypes."""
SCALES = (0.1, 1.0)
"""The sizes of the two points."""

Facts = dict[str, Any]


def problem_identity(problem: Problem, x: Vector, y: Vector) -> Facts:
    """Values that identify the problem: lists of numbers and fingerprints, by the name of the part.

    A part that fails at the points, or is random (dropout, for example), is left out. On several ranks all parts are
    left out, because one rank alone could fail.

    Parameters
    ----------
    problem
        The problem of the user.
    x, y
        Points of the right shapes; their values are not used.
    """
    if problem.ranks.size > 1:
        return {}
    with torch.random.fork_rng(devices=[]):  # a run that draws from the generator finds it as it was
        first, second = (_facts(uncounted(problem), x, y) for _ in range(2))
    return {name: fact for name, fact in first.items() if name in second and _agree(fact, second[name], _rounding(y))}


def check_same_problem(problem: Problem, x: Vector, y: Vector, was: Mapping[str, Any]) -> None:
    """Raise if f, g or a set has other values than in the earlier run, and name it."""
    with torch.random.fork_rng(devices=[]):
        now = _facts(uncounted(problem), x, y) if was and problem.ranks.size == 1 else {}
    for name, fact in was.items():
        if now and not _agree(fact, now.get(name), _rounding(y)):
            raise IncompatibleError(
                f"{name} is not that of the run to resume ({_shown(fact, now.get(name))}): resume with the problem "
                "that the run was started with; to start a run of another problem from this point, pass x0=solution.x, "
                "y0=solution.y"
            )


def _facts(problem: Problem, x: Vector, y: Vector) -> Facts:
    found = _set_facts(problem.upper_constraint, "the set of x")
    found["the sampler"] = ["none" if problem.sampler is None else "of batches"]
    found["the inequality"] = ["none" if problem.inequality is None else "a function"]
    if not problem.moving:
        found |= _set_facts(problem.constraint, "the set of y")
    for scale in SCALES:
        for name, numbers in _numbers(problem, _pattern(x, scale), _pattern(y, scale, shift=0.5)).items():
            found[name] = [*found.get(name, []), *numbers]
    return {name: fact for name, fact in found.items() if all(isinstance(v, str) or math.isfinite(v) for v in fact)}


def _set_facts(constraint: Any, name: str) -> Facts:
    if not isinstance(constraint, ConvexSet):
        return {}
    tensors = constraint.tensor_parameters()
    parameters = {f"{name}, its {part},": [fingerprint(value)] for part, value in tensors.items()}
    return {f"the kind of {name}": [type(constraint).__name__], **parameters}


def _numbers(problem: Problem, x: Vector, y: Vector) -> dict[str, list[float]]:
    """The values of each part of the problem at a point; parts that fail there are left out."""
    found: dict[str, list[float]] = {}

    def add(name: str, compute: Callable[[], list[Any]]) -> None:
        try:
            found[name] = [float(value) for value in compute()]
        except Exception:  # functions of users may refuse points where no run would go
            found[name] = [math.nan]

    add("the set of x", lambda: _moments(problem.upper_constraint.project(_farther(x))))
    try:
        x = problem.project_x(x)
        constraint = problem.constraint_at(x)
        projected = problem.project(constraint, y)
        lin = problem.linearize(x, projected)
    except Exception:
        return found
    space = problem.y_space(constraint)
    add("the set of y", lambda: _moments(constraint.project(_farther(y))))
    add("f", lambda: [lin.upper_value, space.norm(lin.upper_grad_y)])
    add("g", lambda: [lin.lower_value, space.norm(lin.lower_grad_y)])
    add("the derivative of f in x", lambda: [problem.x_space.norm(lin.upper_grad_x)])
    add("the mixed derivative of g", lambda: [problem.x_space.norm(lin.lower_cross(lin.lower_grad_y))])
    if problem.inequality is not None:
        add("the function of the inequality", lambda: _moments(problem.call_inequality(x, projected)))
    return found


def _farther(point: Vector) -> Vector:
    """A point far from the origin, where the boundary of a set matters."""
    return tree_map(lambda part: 10 * part, point)


def _pattern(point: Vector, scale: float, shift: float = 0.0) -> Vector:
    """scale cos(1 + shift), scale cos(2 + shift), ...: different entries without a random generator."""

    def filled(part: Tensor) -> Tensor:
        count = torch.arange(1, part.numel() + 1, device=part.device, dtype=torch.float64)
        return (scale * (count + shift).cos()).reshape(part.shape).to(part.dtype)

    return tree_map(filled, point)


def _moments(point: Vector) -> list[float]:
    """Two numbers of a point: its sum of squares, and its sum with weights."""
    flat = torch.cat([part.detach().reshape(-1).double() for part in leaves(point)])
    weights = torch.arange(1, len(flat) + 1, device=flat.device, dtype=torch.float64).sin()
    return [float(flat.square().sum()), float((flat * weights).sum())]


def _rounding(y: Vector) -> float:
    return max(ROUNDING.get(part.dtype, 1e-4) for part in leaves(y))


def _agree(was: Any, now: Any, tol: float) -> bool:
    if not isinstance(was, list) or not isinstance(now, list) or len(was) != len(now):
        return False
    numbers = [v for v in (*was, *now) if isinstance(v, float)]
    return was == now or (len(numbers) == 2 * len(was) and math.dist(was, now) <= tol * max(map(abs, numbers)))


def _shown(was: Any, now: Any) -> str:
    if not (isinstance(was, list) and isinstance(now, list) and len(was) == len(now)):
        return f"{was!r:.80} then, {now!r:.80} now"
    a, b = next((pair for pair in zip(was, now, strict=True) if not _agree([pair[0]], [pair[1]], 1e-8)), (was, now))
    if isinstance(a, str) and a.startswith("sha256:"):
        return "its values differ"
    return f"{a:.9g} then, {b:.9g} now, at a point made to compare" if isinstance(a, float) else f"{a} then, {b} now"
