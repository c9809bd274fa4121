"""Why a hypergradient can be wrong: every cause with its remedy, written once."""

from __future__ import annotations

from enum import Enum


class Cause(Enum):
    """The verdict of `check_hypergradient`, with cause and remedy.

    Examples
    --------
    >>> print(Cause.KINK.remedy)
    take a one-sided derivative as what it is, smooth with Perturbed(radius=...), or ask bilevel.certificate
    """

    CORRECT = ("the hypergradient agrees with differences of F", "nothing to do")
    KINK = (
        "F has a kink here: the projection on Y is not differentiable at y - eta grad_y g",
        "take a one-sided derivative as what it is, smooth with Perturbed(radius=...), or ask bilevel.certificate",
    )
    NOT_STRONGLY_CONVEX = (
        "g is not convex in y: it has negative curvature, and y*(x) may jump or be a saddle",
        "write g as a convex function of y, or add a ridge c |y|^2 larger than the negative curvature",
    )
    SINGULAR_HESSIAN = (
        "g is flat in some direction of the face: y*(x) is not unique, and the linear system is singular",
        "give g curvature in y, for example + 1e-3 * y.square().sum()",
    )
    UPPER_NOT_DIFFERENTIABLE = (
        "f is not differentiable at (x, y*(x))",
        "replace abs, relu, max or a rounding in f by a smooth function",
    )
    LOWER_NOT_DIFFERENTIABLE = (
        "g is not twice differentiable at (x, y*(x))",
        "replace abs, relu or max in g by a smooth function; a penalty |y|_1 is better written as an l1 ball",
    )
    UPPER_IGNORES_Y = (
        "y does not matter: f does not depend on y, so F(x) = f(x)",
        "check which variable f reads; if it is right, minimise f with torch.optim",
    )
    LOWER_IGNORES_X = (
        "y does not matter: neither grad_y g nor the set depends on x, so y*(x) is constant",
        "check which variable g reads, and that x enters a term together with y",
    )
    DETACHED_UPPER = (
        "the graph of f is cut: f changes in a way that autograd does not see",
        "look for detach(), item(), float(), numpy(), .data or torch.no_grad() in f, or a wrong custom backward",
    )
    DETACHED_LOWER = (
        "the graph of g is cut: g changes in a way that autograd does not see",
        "look for detach(), item(), float(), numpy(), .data or torch.no_grad() in g, or a wrong custom backward",
    )
    DETACHED_SET = (
        "the graph of the set is cut: constraint(x) moves with x in a way that autograd does not see",
        "build the parameters of the set from x with torch operations, without float(), item() or detach()",
    )
    WRONG_UPPER_GRADIENT = (
        "the linearisation's gradient of f is wrong",
        "correct Linearization._upper_gradients: (grad_x f, grad_y f)",
    )
    WRONG_LOWER_GRADIENT = (
        "the linearisation's gradient of g, in y or in x, is wrong",
        "correct Linearization._lower_gradient_y (or Problem.lower_grad), or _lower_gradient_x",
    )
    WRONG_HESSIAN = (
        "the linearisation's product with the second derivative of g in y is wrong",
        "correct Linearization._lower_hvp: grad^2_yy g . v",
    )
    WRONG_CROSS = (
        "the linearisation's product with the mixed second derivative of g is wrong",
        "correct Linearization._lower_cross: the gradient in x of <grad_y g, v>, of the shape of x",
    )
    NOT_A_PROJECTION = (
        "the set's `project` is not the projection on a convex set",
        "return the nearest point of one fixed convex set; bilevel.testing.SetTestCase checks your own",
    )
    WRONG_SET_JACOBIAN = (
        "the set's `jacobian` is not the derivative of its `project`",
        "correct ConvexSet.jacobian (and Face.is_projector), or use sets.from_projection, which differentiates for you",
    )
    WRONG_SIGN = (
        "the hypergradient has the wrong sign",
        "h = grad_x f - G_xy w: check the minus sign, and that x moves against h",
    )
    WRONG_METHOD = (
        "every part is right, but the method's hypergradient is not the gradient of F",
        "use LinearSolve(), more terms of the series, or correct the method; compare its adjoint with LinearSolve's",
    )
    SERIES_DIVERGES = (
        "the method's Neumann series diverges: eta is at or beyond 2/L on the face",
        'use eta="auto", a smaller eta, or LinearSolve()',
    )
    INCOMPATIBLE = (
        "the set does not suit the method",
        "choose a solver that takes this set (the page 'How to choose a solver'), or another set",
    )
    INFEASIBLE = (
        "y is not in the set Y",
        "project y after each step: constraint.project(y)",
    )
    UNSOLVED = (
        "y is not the lower-level solution y*(x)",
        "solve the lower level further: more steps, a smaller tol, or a better conditioned g",
    )
    PRECISION = (
        "rounding hides the derivative: the numbers are too coarse to judge it to tol",
        "compute in float64 (x, y and the data), subtract large constants from f and g, or ask for a larger tol",
    )
    UNDECIDED = (
        "the method is so random that its mean may or may not be the gradient of F",
        "ask for a larger tol=..., or judge a form with less noise (truncation='full', Perturbed instead of TwoPoint)",
    )
    NOT_DETERMINISTIC = (
        "f or g gives two values at one point",
        "fix the noise: no dropout or fresh draws in f and g; pass batches through Problem(..., sampler=...)",
    )
    NOT_FINITE = (
        "f, g or one of their derivatives is NaN or infinite here",
        "check the data and the domain of f and g (log, sqrt, division), or choose another x",
    )
    UNEXPLAINED = (
        "the hypergradient and the differences disagree, and no part was found to be wrong",
        "repeat with another seed and more directions; if it stays, please report the problem",
    )

    @property
    def text(self) -> str:
        """What is the case."""
        return self.value[0]

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return self.value[1]

    def __str__(self) -> str:
        return self.text
