"""The gradient under test: its mean over draws, its comparison with slopes of F, and which part is to blame."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import EmptySetError, NonFiniteError
from ..hypergradients import Estimator, LinearSolve
from ..problem import Linearization
from ..random import RandomStreams, Seeds
from ..solvers.base import unmet
from ..spaces import Vector, leaves, tree_map
from .finite_differences import SPACE, Finding, Probe, slope
from .lower_level import curvature
from .report import Cause

DRAWS = (200, 1000)
"""How many draws of a random estimator are averaged; the second number when the first does not decide."""
SURE = 5.0
"""So many standard errors are what noise leaves open."""
SOLVER_STEPS = 10
"""How many steps of a solver are watched."""
ASCENT = 0.5
"""A solver whose x moves along h with a cosine above this goes the wrong way."""
OPPOSITE = -0.9
"""A gradient of the wrong sign has a cosine below this to the true one, noise included."""
SHORTER_STEPS = 5
"""How many steps of differences are tried, each a tenth of the one before."""
NEAR = 1e-4
"""The step where x is of size 1: a kink within it is a verdict."""


class Averaged(NamedTuple):
    """A hypergradient as the mean of independent draws, (draws, size); one draw where they do not differ."""

    draws: Tensor

    @property
    def mean(self) -> Tensor:
        return self.draws.mean(0)

    @property
    def random(self) -> bool:
        """Whether the draws differ."""
        return len(self.draws) > 1

    def doubt(self, directions: list[Tensor]) -> float:
        """The largest of SURE standard errors of <mean, d> over the directions d."""
        if not self.random:
            return 0.0
        spread = (self.draws @ torch.stack(directions, -1)).std(0) / math.sqrt(len(self.draws))
        return SURE * float(spread.max())

    @property
    def noise(self) -> float:
        """What noise may leave of |mean - expectation|."""
        return 2 * float(self.draws.var(0).sum().sqrt()) / math.sqrt(len(self.draws)) if self.random else 0.0


@dataclass(frozen=True, kw_only=True)
class GradientUnderTest:
    """A gradient of the user's own, or that of a method at the user's x and y, in their dtype."""

    x: Any
    y: Any
    method: Estimator | None
    gradient: Tensor | None
    seeds: Seeds

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the user works in."""
        return leaves(self.x)[0].dtype

    def hypergradient(self, probe: Probe, y: Tensor, draws: int) -> Averaged:
        """The hypergradient to be judged, flat."""
        if self.gradient is not None:
            return Averaged(self.gradient[None])
        point = probe.as_y(y) if self.y is None else self.y
        lin = probe.problem.linearize(self.x, tree_map(lambda u: u.to(probe.dtype_of_y), point))
        return self.averaged(lin, probe, draws)

    def averaged(self, lin: Linearization, probe: Probe, draws: int) -> Averaged:
        """The method's draws; one of them when they are the same up to rounding."""
        method = LinearSolve() if self.method is None else self.method

        def draw(k: int) -> Tensor:
            return SPACE.ravel(method.estimate(lin, RandomStreams(self.seeds, k)).gradient).to(probe.dtype)

        drawn = [draw(k) for k in range(4)]
        # A Krylov method whose eta comes from a random start differs in the last digits, and is not random for that.
        rounding = max(100 * torch.finfo(self.dtype).eps, 1e-9) * float(drawn[0].norm())
        if all(float((drawn[0] - other).norm()) <= rounding for other in drawn[1:]):
            return Averaged(drawn[0][None])
        return Averaged(torch.stack([*drawn, *(draw(k) for k in range(4, draws))]))


def check_point(probe: Probe, y: Vector | None, *, feasible_only: bool) -> Finding | None:
    """A user's y lies in Y, and is the solution."""
    if y is None:
        return None
    flat = SPACE.ravel(y).to(probe.dtype)
    member = probe.set_at(probe.x).contains(probe.as_y(flat), tol=1e-5)
    if not member:
        return Finding(Cause.INFEASIBLE, member.reason)
    residual = float((flat - probe.project(flat - probe.lower_grad(probe.x, flat))).norm())
    if feasible_only or residual <= 1e-8 * max(1.0, float(flat.norm())):
        return None
    return Finding(Cause.UNSOLVED, f"|y - P(y - grad_y g)| = {residual:.2e}")


def check_solver(solver: Any, probe: Probe, y: Tensor, seeds: Seeds) -> Finding | None:
    """The set suits the solver; from (x, y*(x)) its y stays in Y and its x moves against the hypergradient."""
    if solver is None:
        return None
    problem, constraint, name = probe.problem, probe.set_at(probe.x), type(solver).__name__
    missing = [need.what for need in unmet(solver, problem, constraint, probe.as_y(y))]
    if missing:
        return Finding(Cause.INCOMPATIBLE, f"{name} needs {' and '.join(missing)}, not {constraint!r}")
    state = solver.init(problem, probe.as_x(probe.x), probe.as_y(y), seeds)
    for _ in range(SOLVER_STEPS):
        state = solver.step(problem, state)
        member = problem.constraint_at(state.x).contains(state.y, tol=1e-5)
        if not member:
            return Finding(Cause.INFEASIBLE, f"after {state.step} steps of {name}: {member.reason}")
    cosine = _cosine(SPACE.ravel(state.x) - probe.x, probe.hypergradient(probe.x, y)[0])
    if cosine <= ASCENT:
        return None
    return Finding(Cause.WRONG_SIGN, f"{name} moves x along the gradient of F (cosine {cosine:.2f})")


def blame_method(method: Any, lin: Any, h: Tensor, truth: Tensor, noise: float, seeds: Seeds) -> Finding:
    """Why h, known up to `noise`, is not the gradient `truth`, when the problem is right."""
    contraction = getattr(method, "contraction", None)
    factor = 0.0 if contraction is None else float(contraction(lin, RandomStreams(seeds)))
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


class Path:
    """F and z along lines through x, each lower level started from y*(x)."""

    def __init__(self, probe: Probe, y: Tensor) -> None:
        self.probe = probe
        self.y = y
        self._solved = {}

    def solution(self, d: Tensor, t: float) -> Tensor:
        """y*(x + t d)."""
        if t == 0.0:
            return self.y
        key = (id(d), t)
        if key not in self._solved:
            self._solved[key] = self._solve(self.probe.x + t * d)
        return self._solved[key]

    def _solve(self, x: Tensor) -> Tensor:
        try:
            return SPACE.ravel(self.probe.solve(x, self.y).y)
        except (NonFiniteError, EmptySetError):  # beyond the domain of g or of the set
            return torch.full_like(self.y, math.nan)

    def value(self, d: Tensor, t: float) -> float:
        """F(x + t d), NaN where it is not defined."""
        return self.probe.upper(self.probe.x + t * d, self.solution(d, t))

    def distance(self, margin: float, drawn: list[Tensor], step: float) -> float:
        """margin / (the speed of z): how far x can move before z meets a kink, to first order."""
        if math.isnan(margin) or math.isinf(margin):
            return margin
        eta = 1.0 / max(curvature(self.probe.linearize(self.probe.x, self.y)).largest, 1e-300)
        speeds = [self._speed(d, step, eta) for d in drawn]
        return margin / max(speeds) if max(speeds) > 0 else math.inf

    def _speed(self, d: Tensor, step: float, eta: float) -> float:
        ends = []
        for t in (step, -step):
            x, y = self.probe.x + t * d, self.solution(d, t)
            ends.append(y - eta * self.probe.lower_grad(x, y))
        return float((ends[0] - ends[1]).norm()) / (2 * step)


class SlopeComparison:
    """<h, d> beside the slopes of F along each d; all errors are relative to `scale`, the largest of these numbers."""

    def __init__(self, path: Path, drawn: list[Tensor], step: float, noise: float, h: Averaged, tol: float) -> None:
        self.drawn = drawn
        self.step = step
        self.h = h
        self.tol = tol
        self.slopes = tuple(slope(lambda t, d=d: path.value(d, t), float(h.mean @ d), step, noise) for d in drawn)
        rows = [(s.predicted, s.central, s.forward, s.backward) for s in self.slopes]
        numbers = torch.tensor(rows, dtype=torch.float64)
        self.scale: float = float(numbers.abs().max())  # NaN if one of them is
        size = self.scale if self.scale > 0 else 1.0
        self.error: float = max(s.error for s in self.slopes) / size if math.isfinite(self.scale) else math.nan
        self.blur: float = 10 * noise / step / size  # of the differences
        self.spread: float = h.doubt(drawn) / size  # of the draws

    @property
    def doubt(self) -> float:
        """What noise leaves open."""
        return self.blur + self.spread

    @property
    def correct(self) -> bool:
        """The error and what noise leaves open are within tol."""
        return self.error <= self.tol and self.doubt <= self.tol

    @property
    def kinked(self) -> bool:
        """F has different slopes on the two sides."""
        return any(s.kinked and s.jump > 1e-3 * self.scale for s in self.slopes)

    @property
    def decided(self) -> bool:
        """A shorter step would not tell more."""
        return self.correct or self.undecided or (self.kinked and self.step <= NEAR)

    @property
    def undecided(self) -> bool:
        """The true error may lie on either side of tol."""
        return not self.correct and self.error <= self.tol + self.doubt

    @property
    def worth_more_draws(self) -> bool:
        """With more draws the spread would fall below tol, or below the error."""
        spread = self.spread * math.sqrt(DRAWS[0] / DRAWS[1])
        would_decide = self.blur + spread <= self.tol or self.error > self.tol + self.blur + spread
        return self.h.random and self.undecided and would_decide

    def why_undecided(self) -> Finding:
        """The larger of the two kinds of noise."""
        if self.blur >= self.spread:
            return Finding(Cause.PRECISION, f"the differences of F are known to {self.blur:.1e}, tol is {self.tol:g}")
        known = f"the mean of {len(self.h.draws)} draws is known to {self.spread:.1e}"
        return Finding(Cause.UNDECIDED, f"{known}, its error is {self.error:.1e}, tol is {self.tol:g}")


def compare_slopes(
    path: Path, drawn: list[Tensor], step: float, noise: float, h: Averaged, tol: float
) -> SlopeComparison:
    """The first step that agrees: F may bend on a shorter scale than that of x, or end nearby. Else a kink that stays.

    A long step can take a wave for a kink, so that kinks count from NEAR on.
    """
    tried = [SlopeComparison(path, drawn, step, noise, h, tol)]
    while not tried[-1].decided and len(tried) < SHORTER_STEPS:
        shorter = SlopeComparison(path, drawn, tried[-1].step / 10, noise, h, tol)
        if shorter.blur > tol:
            break
        tried.append(shorter)
    if tried[-1].correct or tried[-1].kinked:
        return tried[-1]
    return next((t for t in tried if math.isfinite(t.error)), tried[0])
