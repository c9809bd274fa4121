"""The choice of a method for solver="auto", with its reason."""

from __future__ import annotations

import torch
from torch import Tensor

from ..lower import uncounted
from ..newton import lower_level
from ..problem import Problem
from ..solvers import DMLCBO, BiCGAFFA, SmoothedBFGS, Solver
from ..solvers.base import changes_between_calls, unmet
from ..spaces import Vector, leaves

LARGEST_LOWER = 100_000
"""The largest size of y for which the lower level is solved at every step."""
CHEAP_DATA = 20_000_000
"""The largest number of values that f and g on all the data of a sampler may store for their derivatives."""
CHECKED_LOWER = 600
"""The largest size of y for which the first lower level is solved before SmoothedBFGS is chosen."""


def choose_solver(problem: Problem, x: Vector, y: Vector) -> tuple[Solver, str]:
    """Return the solver for a problem, and the reason: `SmoothedBFGS` if f and g can be evaluated exactly and the lower
    level can be solved, `BiCGAFFA` for function constraints, and `DMLCBO` otherwise.

    The choice depends only on the problem and its starting point, never on time.
    """
    with torch.random.fork_rng(devices=[]):  # a run that draws from the generator finds it as it was
        return _choose(uncounted(problem), x, y)


def _choose(problem: Problem, x: Vector, y: Vector) -> tuple[Solver, str]:
    size = sum(u.numel() for u in leaves(y))
    if problem.inequality is not None:
        return BiCGAFFA(), "h(x, y) <= 0 has no projection"
    missing = unmet(SmoothedBFGS(), problem, problem.constraint_at(x), y)
    if missing:
        return DMLCBO(), f"SmoothedBFGS needs {missing[0].what}"
    if size > LARGEST_LOWER:
        return DMLCBO(), f"y has {size} entries, which are too many to solve the lower level at every step"
    if problem.sampler is not None and not _cheap(problem, x, y):
        return DMLCBO(), "f and g take batches of more data than can be used at once"
    if changes_between_calls(problem.linearize(x, y)):
        return DMLCBO(), "f or g differ between two calls at one point"
    if size <= CHECKED_LOWER and not lower_level(problem, x, y).solvable():
        return DMLCBO(), "Newton steps do not solve the lower level at the start"
    data = "" if problem.sampler is None else " on all the data of the sampler"
    return SmoothedBFGS(), f"f and g are deterministic{data}"


def _cheap(problem: Problem, x: Vector, y: Vector) -> bool:
    """Whether g supports all the data at once, batch=None, and stores at most CHEAP_DATA values."""
    count = 0

    def add(saved: Tensor) -> Tensor:
        nonlocal count
        count += saved.numel()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(add, lambda saved: saved):
        lin = problem.linearize(x, y)
        _ = lin.upper_value, lin.lower_value
    return count <= CHEAP_DATA
