"""When the problem is right: what a user's point, method or solver may have wrong."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..hypergradients import LinearSolve
from ..randomness import Noise, Seeds
from .causes import Cause
from .judge import Finding
from .probe import SPACE, Probe

STEPS = 10
"""How many steps of a solver are watched."""
ASCENT = 0.5
"""A solver whose x moves along h with a cosine above this goes the wrong way."""
OPPOSITE = -0.9
"""A gradient of the wrong sign has a cosine below this to the true one, noise included."""


def check_point(probe: Probe, y: Tensor, *, feasible_only: bool) -> Finding | None:
    """A user's y lies in Y, and is the solution."""
    constraint = probe.set_at(probe.x)
    member = constraint.contains(probe.as_y(y), tol=1e-5)
    if not member:
        return Finding(Cause.INFEASIBLE, member.reason)
    residual = float((y - probe.project(y - probe.lower_grad(probe.x, y))).norm())
    if feasible_only or residual <= 1e-8 * max(1.0, float(y.norm())):
        return None
    return Finding(Cause.UNSOLVED, f"|y - P(y - grad_y g)| = {residual:.2e}")


def check_solver(solver: Any, probe: Probe, y: Tensor, seeds: Seeds) -> Finding | None:
    """The set suits the solver; from (x, y*(x)) its y stays in Y and its x moves against the hypergradient."""
    if solver is None:
        return None
    problem, constraint = probe.problem, probe.set_at(probe.x)
    needs = (*getattr(solver, "needs", ()), *getattr(solver, "needs_of_settings", ()))
    missing = [need.what for need in needs if not need.met(problem, constraint, probe.as_y(y))]
    if missing:
        return Finding(Cause.INCOMPATIBLE, f"{type(solver).__name__} needs {' and '.join(missing)}, not {constraint!r}")
    state = solver.init(problem, probe.as_x(probe.x), probe.as_y(y), seeds)
    for _ in range(STEPS):
        state = solver.step(problem, state)
        member = problem.constraint_at(state.x).contains(state.y, tol=1e-5)
        if not member:
            return Finding(Cause.INFEASIBLE, f"after {state.step} steps of {type(solver).__name__}: {member.reason}")
    return _ascends(solver, probe, y, SPACE.ravel(state.x) - probe.x)


def _ascends(solver: Any, probe: Probe, y: Tensor, moved: Tensor) -> Finding | None:
    truth = SPACE.ravel(LinearSolve().estimate(probe.linearize(probe.x, y), Noise()).gradient)
    sizes = float(moved.norm() * truth.norm())
    cosine = float(moved @ truth) / sizes if sizes > 0 else 0.0
    if cosine <= ASCENT:
        return None
    return Finding(Cause.WRONG_SIGN, f"{type(solver).__name__} moves x along the gradient of F (cosine {cosine:.2f})")


def blame_method(method: Any, lin: Any, h: Tensor, truth: Tensor, noise: float, seeds: Seeds) -> Finding:
    """Why h, known up to `noise`, is not the gradient `truth`, when the problem is right."""
    contraction = getattr(method, "contraction", None)
    factor = 0.0 if contraction is None else float(contraction(lin, Noise(seeds)))
    if factor >= 1.0:
        return Finding(Cause.SERIES_DIVERGES, f"its terms grow by a factor {factor:.3g}")
    direct = SPACE.ravel(lin.upper_grad_x)
    if _opposite(h, truth, noise):
        return Finding(Cause.WRONG_SIGN, "it is the gradient of -F")
    if _opposite(h - direct, truth - direct, noise):
        return Finding(Cause.WRONG_SIGN, "its implicit part grad_x f - h is the opposite of what it should be")
    name = "the gradient given" if method is None else type(method).__name__
    miss = float((h - truth).norm() / truth.norm())
    text = f"{name} has relative error {miss:.2g} and cosine {_cosine(h, truth):.3f} to the gradient"
    return Finding(Cause.WRONG_METHOD, text)


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / max(float(a.norm() * b.norm()), 1e-300)


def _opposite(a: Tensor, b: Tensor, noise: float) -> bool:
    """a = -b up to a tenth and to noise, and noise alone does not make it so."""
    return _cosine(a, b) <= OPPOSITE and float((a + b).norm()) <= 0.1 * float(b.norm()) + noise
