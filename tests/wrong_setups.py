"""A zoo of wrong setups: small problems that are wrong in one way each, with the cause that a check must name.

All start from  g = (y - A x - b)' G (y - A x - b) / 2  over a set Y and  f = |y - t|^2 / 2 + |x|^2 / 20 + sin(x_1) y_1.
Each entry of `WRONG_SETUPS` is (name, cause, seed -> Setup); `right_setup` draws correct ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bilevel import sets
from bilevel.diagnostics import Cause
from bilevel.hypergradients import Hypergradient, LinearSolve, Neumann
from bilevel.problem import AutogradLinearization, Linearization, Problem
from bilevel.random import RandomStreams
from bilevel.sets.base import ConvexSet, ProjectionJacobian
from bilevel.solvers import AiPOD
from bilevel.solvers.base import State


@dataclass(frozen=True)
class Setup:
    """What `check_hypergradient(problem, x, **options)` is given."""

    problem: Problem
    x: Tensor
    options: dict[str, Any] = field(default_factory=dict)


class WrongSetup(NamedTuple):
    """A wrong setup: its name, the cause to be named, and how to draw it."""

    name: str
    cause: Cause
    draw: Callable[[int], Setup]


WRONG_SETUPS: list[WrongSetup] = []


def wrong(cause: Cause) -> Callable[[Callable[[Parts], Any]], Callable[[Parts], Any]]:
    """Enter a constructor in the zoo; it is given fresh parts and returns a problem or a whole setup."""

    def enter(function: Callable[[Parts], Any]) -> Callable[[Parts], Any]:
        def draw(seed: int) -> Setup:
            parts = Parts(seed)
            made = function(parts)
            return made if isinstance(made, Setup) else Setup(made, parts.x)

        WRONG_SETUPS.append(WrongSetup(function.__name__.replace("_", " "), cause, draw))
        return function

    return enter


class Parts:
    """The random parts of one problem."""

    def __init__(self, seed: int, n: int = 0, m: int = 0) -> None:
        self.seed, self.generator = seed, torch.Generator().manual_seed(1000 + seed)
        self.n = n or 3 + seed % 4
        self.m = m or 2 + seed % 3
        self.A = self.normal(self.n, self.m)
        self.b, self.t, self.x = self.normal(self.n), self.normal(self.n), self.normal(self.m)
        basis = torch.linalg.qr(self.normal(self.n, self.n)).Q
        self.G = basis @ torch.diag(torch.linspace(0.5, 2.0, self.n, dtype=torch.float64)) @ basis.T
        self.y0 = torch.zeros(self.n, dtype=torch.float64)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def lower(self, x: Tensor, y: Tensor) -> Tensor:
        miss = y - self.A @ x - self.b
        return miss @ self.G @ miss / 2

    def upper(self, x: Tensor, y: Tensor) -> Tensor:
        return (y - self.t).square().sum() / 2 + x.square().sum() / 20 + x[0].sin() * y[0]

    def problem(
        self, upper: Any = None, lower: Any = None, constraint: Any = None, y0: Tensor | None = None
    ) -> Problem:
        constraint = sets.L1Ball(1.0) if constraint is None else constraint
        y0 = self.y0 if y0 is None else y0
        return Problem(upper or self.upper, lower or self.lower, constraint, x0=self.x, y0=y0)

    def setup(self, problem: Problem, **options: Any) -> Setup:
        return Setup(problem, self.x, options)


def right_setup(seed: int) -> Setup:
    """A correct problem: one of seven kinds of sets, of any size, moving or not, with g quadratic or not."""
    parts = Parts(seed, n=2 + seed % 9, m=1 + seed % 5)
    radius = 0.5 + float(parts.normal(1).abs())
    kinds = [
        sets.L1Ball(radius), sets.Box(-radius, radius), sets.L2Ball(radius), sets.Simplex(radius), sets.FreeSpace(),
        sets.NonNegative(), lambda x: sets.L1Ball(radius + x.square().sum()),
    ]  # fmt: skip
    bend = 0.0 if seed % 2 else 0.3
    lower = lambda x, y: parts.lower(x, y) + bend * torch.nn.functional.softplus(y * x[0]).sum()  # noqa: E731
    constraint: Any = kinds[seed % len(kinds)]
    at = constraint if isinstance(constraint, ConvexSet) else constraint(parts.x)
    return parts.setup(parts.problem(lower=lower, constraint=constraint, y0=at.project(parts.y0)))


def large_entry_beside_a_small_one(seed: int) -> Setup:
    """A correct problem at x = (1e4, ...) whose f and g bend on the scale of 1."""
    parts = Parts(seed)
    parts.x[0] = 1e4
    upper = lambda x, y: (y - parts.t).square().sum() / 2 + x[0].sin() * y[0]  # noqa: E731
    lower = lambda x, y: parts.lower(torch.cat([x[:1].cos(), x[1:]]), y)  # noqa: E731
    return parts.setup(parts.problem(upper, lower, sets.Box(-9.0, 9.0)))


def near_the_end_of_the_domain(seed: int) -> Setup:
    """A correct problem with f = sum of x log x and more at x_1 = 1e-5, X = [1e-6, 1]^m."""
    parts = Parts(seed)
    x = parts.x.sigmoid()
    x[0] = 1e-5
    upper = lambda x, y: (y - parts.t).square().sum() / 2 + (x * x.log()).sum()  # noqa: E731
    domain = sets.Box(1e-6, 1.0)
    return Setup(Problem(upper, parts.lower, sets.Box(-9.0, 9.0), upper_constraint=domain, y0=parts.y0), x)


HARD_SETUPS = (large_entry_beside_a_small_one, near_the_end_of_the_domain)
"""Correct problems whose differences need care: seed -> Setup."""


# The graph is cut.


@wrong(Cause.DETACHED_UPPER)
def upper_detaches_y(p: Parts) -> Problem:
    return p.problem(upper=lambda x, y: p.upper(x, y.detach()) + 0 * y.sum())


@wrong(Cause.DETACHED_UPPER)
def upper_detaches_x_in_one_term(p: Parts) -> Problem:
    return p.problem(upper=lambda x, y: p.upper(x.detach(), y) + x.sum())


@wrong(Cause.DETACHED_LOWER)
def lower_detaches_x(p: Parts) -> Problem:
    return p.problem(lower=lambda x, y: p.lower(x.detach(), y))


@wrong(Cause.DETACHED_LOWER)
def lower_takes_a_number_from_x(p: Parts) -> Problem:
    return p.problem(lower=lambda x, y: p.lower(x, y) + x[0].item() * y.sum())


@wrong(Cause.DETACHED_LOWER)
def lower_detaches_y_in_one_term(p: Parts) -> Problem:
    return p.problem(lower=lambda x, y: p.lower(x, y) + y.detach() @ y)


@wrong(Cause.DETACHED_SET)
def radius_is_a_number(p: Parts) -> Problem:
    return p.problem(constraint=lambda x: sets.L1Ball(0.5 + x.square().sum().item()))


# Linearisations written by hand.


class HandWritten(Linearization):
    """The closed forms of the base problem, with a flaw in one of them."""

    def __init__(self, problem: HandProblem, x: Any, y: Any, batch: Any = None) -> None:
        super().__init__(problem, x, y, batch)
        self.parts, self.flaw = problem.parts, problem.flaw

    def _miss(self) -> Tensor:
        x, y = self._point()
        return y - self.parts.A @ x - self.parts.b

    def _point(self) -> tuple[Any, Any]:
        return self.x, self.y

    def _upper_value(self) -> Tensor:
        return self.parts.upper(*self._point())

    def _lower_value(self) -> Tensor:
        return self.parts.lower(*self._point())

    def _upper_gradients(self) -> tuple[Tensor, Tensor]:
        x, y = self._point()
        first_x, first_y = torch.zeros_like(x), torch.zeros_like(y)
        first_x[0], first_y[0] = x[0].cos() * y[0], x[0].sin()
        f_y = y - self.parts.t + first_y
        return x / 10 + first_x, (-f_y if self.flaw == "upper gradient" else f_y)

    def _lower_gradient_x(self) -> Tensor:
        gradient = -self.parts.A.T @ (self.parts.G @ self._miss())
        return -gradient if self.flaw == "lower gradient in x" else gradient

    def _lower_gradient_y(self) -> Tensor:
        gradient = self.parts.G @ self._miss()
        return gradient - self.parts.b if self.flaw == "lower gradient" else gradient

    def _lower_hvp(self, v: Any) -> Tensor:
        near = torch.exp(-1e4 * self._miss().square().sum()) if self.flaw == "hessian at the solution" else 0.0
        return self.parts.G @ v + 0.5 * near * v - (0.1 * v if self.flaw == "hessian" else 0.0)

    def _lower_cross(self, v: Any) -> Tensor:
        if self.flaw == "cross transposed":
            return -self.parts.A @ (self.parts.G @ v)
        product = self.parts.A.T @ (self.parts.G @ v)
        return product if self.flaw == "cross sign" else -product


class HandProblem(Problem):
    """The base problem with a linearisation of its own."""

    def __init__(self, parts: Parts, flaw: str, constraint: ConvexSet | None = None) -> None:
        super().__init__(parts.upper, parts.lower, constraint or sets.L1Ball(1.0), x0=parts.x, y0=parts.y0)
        self.parts, self.flaw = parts, flaw

    def linearize(self, x: Any, y: Any, batch: Any = None) -> Linearization:
        return HandWritten(self, x, y, batch)


@wrong(Cause.WRONG_UPPER_GRADIENT)
def sign_of_the_upper_gradient(p: Parts) -> Problem:
    return HandProblem(p, "upper gradient")


@wrong(Cause.WRONG_LOWER_GRADIENT)
def term_missing_in_the_lower_gradient(p: Parts) -> Problem:
    return HandProblem(p, "lower gradient")


@wrong(Cause.WRONG_HESSIAN)
def ridge_missing_in_the_hessian_product(p: Parts) -> Problem:
    return HandProblem(p, "hessian")


@wrong(Cause.WRONG_LOWER_GRADIENT)
def sign_of_the_lower_gradient_in_x(p: Parts) -> Problem:
    return HandProblem(p, "lower gradient in x")


@wrong(Cause.WRONG_HESSIAN)
def hessian_product_wrong_at_the_solution_only(p: Parts) -> Problem:
    return HandProblem(p, "hessian at the solution", sets.Box(-99.0, 99.0))


class HalfWritten(AutogradLinearization):
    """Autograd but for one product, which has the wrong sign."""

    def _lower_cross(self, v: Any) -> Any:
        return -super()._lower_cross(v)  # type: ignore[operator]


class HalfWrittenProblem(Problem):
    """The base problem with one product written by hand."""

    def linearize(self, x: Any, y: Any, batch: Any = None) -> Linearization:
        return HalfWritten(self, x, y, batch)


@wrong(Cause.WRONG_CROSS)
def sign_of_one_product_beside_autograd(p: Parts) -> Problem:
    return HalfWrittenProblem(p.upper, p.lower, sets.L1Ball(1.0), y0=p.y0)


@wrong(Cause.DETACHED_UPPER)
def upper_detached_beside_a_product_written_by_hand(p: Parts) -> Problem:
    return HalfWrittenProblem(lambda x, y: p.upper(x, y.detach()) + 0 * y.sum(), p.lower, sets.L1Ball(1.0), y0=p.y0)


@wrong(Cause.WRONG_CROSS)
def sign_of_the_cross_product(p: Parts) -> Problem:
    return HandProblem(p, "cross sign")


@wrong(Cause.WRONG_CROSS)
def cross_product_not_transposed(p: Parts) -> Setup:
    square = Parts(p.seed, n=p.n, m=p.n)
    return Setup(HandProblem(square, "cross transposed"), square.x)


# Sets written by hand.


class HandSet(ConvexSet):
    """A set given by its projection and the matrix of its Jacobian."""

    def __init__(self, project: Any, jacobian: Any = None, *, inside: Any = None, projector: bool = False) -> None:
        self._project, self._jacobian, self._inside, self._projector = project, jacobian, inside, projector

    def project(self, z: Tensor) -> Tensor:
        return self._project(z) + 0.0

    def jacobian(self, z: Tensor) -> ProjectionJacobian:
        matrix = self._jacobian or (lambda point: torch.func.jacrev(self._project)(point))
        return MatrixFace(matrix(z), self._projector)

    def excess(self, y: Tensor) -> tuple[Tensor, float, str]:
        amount = (y - self._project(y)).norm() if self._inside is None else self._inside(y)
        return amount, 1.0, "the point is outside"


class MatrixFace(ProjectionJacobian):
    """H as a matrix."""

    def __init__(self, matrix: Tensor, projector: bool) -> None:
        self._matrix, self.is_projector = matrix, projector

    def apply(self, v: Tensor) -> Tensor:
        return self._matrix.to(v) @ v


@wrong(Cause.NOT_A_PROJECTION)
def projection_missing(p: Parts) -> Problem:
    return p.problem(constraint=HandSet(lambda z: z, inside=lambda y: (y.abs().sum() - 1.0).clamp_min(0.0)))


@wrong(Cause.NOT_A_PROJECTION)
def projection_that_shrinks(p: Parts) -> Problem:
    return p.problem(constraint=HandSet(lambda z: 0.9 * z.clamp(-1.0, 1.0)))


@wrong(Cause.NOT_A_PROJECTION)
def oblique_projection(p: Parts) -> Problem:
    a = torch.ones(p.n, dtype=torch.float64)
    along = a + 3 * torch.cat([p.normal(1).abs() + 1, torch.zeros(p.n - 1, dtype=torch.float64)])
    return p.problem(constraint=HandSet(lambda z: z - (a @ z) / (a @ along) * along))


@wrong(Cause.NOT_A_PROJECTION)
def radial_scaling_onto_the_l1_ball(p: Parts) -> Problem:
    return p.problem(constraint=sets.from_projection(lambda z: z / z.abs().sum(-1, keepdim=True).clamp_min(1.0)))


@wrong(Cause.WRONG_SET_JACOBIAN)
def straight_through_jacobian(p: Parts) -> Problem:
    identity = lambda z: torch.eye(len(z), dtype=z.dtype)  # noqa: E731
    return p.problem(constraint=HandSet(lambda z: z.clamp(-0.3, 0.3), identity, projector=True))


@wrong(Cause.WRONG_SET_JACOBIAN)
def curved_boundary_taken_for_flat(p: Parts) -> Problem:
    def jacobian(z: Tensor) -> Tensor:
        normal, size = z / z.norm(), float(z.norm())
        eye = torch.eye(len(z), dtype=z.dtype)
        return eye if size <= 1 else eye - torch.outer(normal, normal)  # the factor 1/|z| is missing

    return p.problem(constraint=HandSet(lambda z: z / z.norm().clamp_min(1.0), jacobian, projector=True))


@wrong(Cause.WRONG_SET_JACOBIAN)
def jacobian_with_the_wrong_sign(p: Parts) -> Problem:
    return p.problem(constraint=HandSet(lambda z: z.clamp_min(0.0), lambda z: -torch.diag((z > 0).double())))


# Methods, gradients, solvers and points of the user's own.


@dataclass(frozen=True)
class HandMethod:
    """h = f_x + sign * G_xy w with the adjoint w of the linear solve, or of G_yy w = f_y without the projection."""

    sign: float = -1.0
    projected: bool = True
    eta: float | str = "auto"

    def estimate(self, lin: Any, streams: Any, *, curvature: Any = None, start: Any = None) -> Hypergradient:
        problem = lin.problem if self.projected else Problem(lin.problem.upper, lin.problem.lower)
        free = problem.linearize(lin.x, lin.y)
        w = LinearSolve().estimate(free, streams).adjoint
        return Hypergradient(lin.upper_grad_x + self.sign * lin.lower_cross(w), w)


@dataclass(frozen=True)
class HandSolver:
    """Plain descent on both levels, with a sign and a projection that may be wrong."""

    sign: float = -1.0
    projected: bool = True

    def init(self, problem: Problem, x: Any, y: Any, seeds: Any) -> State:
        return State(x=x, y=y, seeds=seeds)

    def step(self, problem: Problem, state: State) -> State:
        lin = problem.linearize(state.x, state.y)
        h = LinearSolve().estimate(lin, state.streams()).gradient
        y: Any = state.y - 0.1 * lin.lower_grad_y  # type: ignore[operator]
        y = lin.constraint.project(y) if self.projected else y
        return replace(state, x=state.x + self.sign * 0.01 * h, y=y, step=state.step + 1)  # type: ignore[operator]


@wrong(Cause.WRONG_SIGN)
def method_with_the_wrong_sign(p: Parts) -> Setup:
    return p.setup(p.problem(constraint=sets.Box(-3.0, 3.0)), method=HandMethod(sign=1.0))


@wrong(Cause.WRONG_METHOD)
def method_without_the_projection(p: Parts) -> Setup:
    return p.setup(
        p.problem(constraint=sets.Simplex(1.0), y0=sets.Simplex(1.0).project(p.y0)), method=HandMethod(projected=False)
    )


@wrong(Cause.WRONG_METHOD)
def three_terms_of_the_series(p: Parts) -> Setup:
    return p.setup(p.problem(constraint=sets.Box(-9.0, 9.0)), method=Neumann(terms=3, eta=0.05, truncation="full"))


@wrong(Cause.SERIES_DIVERGES)
def series_beyond_its_range(p: Parts) -> Setup:
    return p.setup(p.problem(constraint=sets.Box(-9.0, 9.0)), method=Neumann(terms=30, eta=1.5, truncation="full"))


@dataclass(frozen=True)
class NoisyMethod:
    """factor * h + normal draws of a standard deviation."""

    factor: float
    deviation: float
    eta: float | str = "auto"

    def estimate(self, lin: Any, streams: Any, *, curvature: Any = None, start: Any = None) -> Hypergradient:
        exact = LinearSolve().estimate(lin, streams)
        drawn = torch.randn(lin.x.shape, generator=streams.generator("smoothing"), dtype=torch.float64)
        return replace(exact, gradient=self.factor * exact.gradient + self.deviation * drawn)  # type: ignore[operator]


@wrong(Cause.UNDECIDED)
def wrong_sign_under_much_noise(p: Parts) -> Setup:
    return p.setup(p.problem(constraint=sets.Box(-9.0, 9.0)), method=NoisyMethod(-1.0, 1e3))


@wrong(Cause.WRONG_SIGN)
def wrong_sign_under_some_noise(p: Parts) -> Setup:
    return p.setup(p.problem(constraint=sets.Box(-9.0, 9.0)), method=NoisyMethod(-1.0, 0.3))


@wrong(Cause.WRONG_METHOD)
def zero_under_some_noise(p: Parts) -> Setup:
    return p.setup(p.problem(constraint=sets.Box(-9.0, 9.0)), method=NoisyMethod(0.0, 0.3))


@wrong(Cause.WRONG_METHOD)
def three_terms_of_the_series_drawn_at_random(p: Parts) -> Setup:
    """In many dimensions the spread of the draws is as long as the gradient."""
    large = Parts(p.seed, n=60, m=60)
    problem = large.problem(constraint=sets.Box(-99.0, 99.0))
    return Setup(problem, large.x, {"method": Neumann(terms=3, eta=0.1, truncation="random")})


@wrong(Cause.WRONG_METHOD)
def gradient_without_its_implicit_part(p: Parts) -> Setup:
    problem = p.problem(constraint=sets.Box(-9.0, 9.0))
    y = p.A @ p.x + p.b
    return p.setup(problem, gradient=problem.linearize(p.x, y).upper_grad_x)


@wrong(Cause.WRONG_SIGN)
def gradient_of_minus_f(p: Parts) -> Setup:
    problem = p.problem(constraint=sets.Box(-9.0, 9.0))
    y = p.A @ p.x + p.b
    return p.setup(problem, gradient=-LinearSolve().estimate(problem.linearize(p.x, y), RandomStreams()).gradient)  # type: ignore[operator]


@wrong(Cause.INFEASIBLE)
def solver_without_projection(p: Parts) -> Setup:
    return p.setup(
        p.problem(constraint=sets.Simplex(1.0), y0=sets.Simplex(1.0).project(p.y0)), solver=HandSolver(projected=False)
    )


@wrong(Cause.WRONG_SIGN)
def solver_that_ascends(p: Parts) -> Setup:
    return p.setup(p.problem(constraint=sets.Box(-9.0, 9.0)), solver=HandSolver(sign=1.0))


@wrong(Cause.INCOMPATIBLE)
def solver_for_affine_sets_on_an_l1_ball(p: Parts) -> Setup:
    return p.setup(p.problem(), solver=AiPOD())


@wrong(Cause.INFEASIBLE)
def point_outside_the_set(p: Parts) -> Setup:
    return p.setup(p.problem(), y=p.normal(p.n) + 1.0)


@wrong(Cause.UNSOLVED)
def lower_level_stopped_early(p: Parts) -> Setup:
    problem = p.problem(constraint=sets.Box(-9.0, 9.0))
    gradient: Any = problem.lower_grad(p.x, p.y0)
    return p.setup(problem, y=-0.2 * gradient)


# Problems outside the theory.


@wrong(Cause.NOT_STRONGLY_CONVEX)
def lower_level_with_a_saddle(p: Parts) -> Problem:
    return p.problem(lower=lambda x, y: p.lower(x, y) - 2 * y[0].square())


@wrong(Cause.NOT_STRONGLY_CONVEX)
def lower_level_with_two_wells(p: Parts) -> Problem:
    return p.problem(
        lower=lambda x, y: (y.square() - 1).square().sum() + 0.1 * x.sum() * y.sum(), constraint=sets.Box(-2.0, 2.0)
    )


@wrong(Cause.SINGULAR_HESSIAN)
def fewer_rows_than_columns(p: Parts) -> Problem:
    return p.problem(lower=lambda x, y: (p.A[:, :2].T @ y - x[:2]).square().sum(), constraint=sets.Box(-9.0, 9.0))


@wrong(Cause.UPPER_IGNORES_Y)
def upper_without_y(p: Parts) -> Problem:
    return p.problem(upper=lambda x, y: x.square().sum() + x.sin().sum())


@wrong(Cause.LOWER_IGNORES_X)
def lower_without_x(p: Parts) -> Problem:
    return p.problem(lower=lambda x, y: p.lower(p.x, y) + x.square().sum())


@wrong(Cause.KINK)
def corner_of_a_box(p: Parts) -> Setup:
    """One multiplier and its slack are both zero at x."""
    return _kinked(p, 0.0)


@wrong(Cause.KINK)
def corner_of_a_box_too_near_to_see(p: Parts) -> Setup:
    return _kinked(p, 1e-9)


@wrong(Cause.KINK)
def absolute_value_just_left_of_its_minimum(p: Parts) -> Setup:
    """F(x) = |x| in one dimension, 1e-7 to 1e-9 from the kink: y* = 0, and every term of grad_y g is about zero."""
    problem = Problem(
        lambda x, y: (2 * y - x).sum(), lambda x, y: (y - x).square().sum() / 2, sets.NonNegative(), y0=p.y0[:1]
    )
    return Setup(problem, -torch.tensor([10.0 ** (-7 - p.seed % 3)]).double())


def _kinked(p: Parts, offset: float) -> Setup:
    center = p.A @ p.x + p.b
    scaled = lambda x, y: (y - p.A @ x - p.b).square().sum() / 2  # noqa: E731
    low = center - 1.0 - p.normal(p.n).abs()
    high = center + 1.0 + p.normal(p.n).abs()
    high[0] = center[0] + offset
    box = sets.Box(low, high)
    target = center.clone()
    target[0] = center[0] - 1.0
    upper = lambda x, y: (y - target).square().sum() / 2 + x.square().sum() / 20  # noqa: E731
    return p.setup(p.problem(upper=upper, lower=scaled, constraint=box, y0=box.project(p.y0)))


@wrong(Cause.UPPER_NOT_DIFFERENTIABLE)
def absolute_value_in_the_upper_level(p: Parts) -> Problem:
    """|y_1 - c_1| at y* = c."""
    center = p.A @ p.x + p.b
    upper = lambda x, y: (y[0] - center[0]).abs() + p.upper(x, y)  # noqa: E731
    return p.problem(upper=upper, constraint=sets.Box(-9.0, 9.0))


@wrong(Cause.LOWER_NOT_DIFFERENTIABLE)
def absolute_value_in_the_lower_level(p: Parts) -> Problem:
    return p.problem(lower=lambda x, y: p.lower(x, y) + 20 * y.abs().sum(), constraint=sets.Box(-9.0, 9.0), y0=p.y0 + 1)


@wrong(Cause.LOWER_NOT_DIFFERENTIABLE)
def lower_level_only_once_differentiable(p: Parts) -> Problem:
    """relu(y_1 - c_1)^2 bends only on one side of y* = c."""
    center = p.A @ p.x + p.b
    lower = lambda x, y: p.lower(x, y) + 3 * (y[0] - center[0]).relu().square()  # noqa: E731
    return p.problem(lower=lower, constraint=sets.Box(-9.0, 9.0))


@wrong(Cause.PRECISION)
def upper_level_computed_in_float32(p: Parts) -> Problem:
    return p.problem(upper=lambda x, y: (1e6 + p.upper(x, y).float()).double() + 0 * y.sum())


@wrong(Cause.PRECISION)
def small_error_within_the_rounding_of_float32(p: Parts) -> Setup:
    problem = p.problem(
        upper=lambda x, y: (1e4 + p.upper(x, y).float()).double() + 0 * y.sum(), constraint=sets.Box(-9.0, 9.0)
    )
    y = p.A @ p.x + p.b
    truth: Any = (
        LinearSolve().estimate(p.problem(constraint=sets.Box(-9.0, 9.0)).linearize(p.x, y), RandomStreams()).gradient
    )
    return p.setup(problem, gradient=1.001 * truth)


@wrong(Cause.PRECISION)
def cancellation_in_float32(p: Parts) -> Setup:
    """(y + c) - c with c = 1e6 leaves one digit of y in float32."""
    large = 1e6 * (1 + torch.rand(p.n, generator=p.generator, dtype=torch.float64))
    upper = lambda x, y: (y + large.to(y) - large.to(y) - p.t.to(y)).square().sum() + x.sum()  # noqa: E731
    lower = lambda x, y: (y - p.A.to(x) @ x - p.b.to(x)).square().sum()  # noqa: E731
    return Setup(p.problem(upper, lower, sets.Box(-9.0, 9.0), p.y0.float()), p.x.float())


@wrong(Cause.NOT_DETERMINISTIC)
def dropout_in_the_upper_level(p: Parts) -> Problem:
    return p.problem(upper=lambda x, y: p.upper(x, y * (torch.rand(p.n, generator=p.generator) > 0.5)))


@wrong(Cause.NOT_FINITE)
def logarithm_of_a_negative_number(p: Parts) -> Problem:
    return p.problem(upper=lambda x, y: p.upper(x, y) + (-x.abs() - 1).log().sum())
