"""Ten bilevel problems with solutions in closed form, for testing solvers and hypergradients.

Lower level  g(x, y) = (y - c)' G (y - c) / 2  with  c = A x + b,  over a set Y.
Upper level  f(x, y) = |y - t|^2 / 2 + rho |x - x_bar|^2 / 2.

b is chosen so that y*(x_bar) = t with the constraint active at x_bar: hence F* = F(x_bar) = 0. For each set the
matrix G is as general as a closed form of y* allows, and `lower_jacobian` is dy*/dc, written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import sets
from ..problem import Problem
from ..spaces import Space, Vector

RIDGE = 0.1
"""rho, the weight of the upper level's own term in x."""
N = 6
"""Entries of y, where nothing else is said."""


@dataclass(frozen=True, kw_only=True)
class KnownProblem:
    """A problem with its closed forms. Vectors are tensors; `dictionary` problems also split them by name.

    Parameters
    ----------
    name
        The name in test reports.
    problem
        The problem.
    x0, y0
        A feasible start, of the shapes of x and y, at which no constraint has a kink.
    optimum
        x_bar, of the shape (n,), where F* = 0.
    center
        c(x) = A x + b, flat.
    lower_solution
        c -> y*, flat.
    lower_jacobian
        c -> dy*/dc, a matrix.
    target
        t, of the shape (m,).
    matrix
        A, of the shape (m, n).

    Examples
    --------
    >>> import bilevel
    >>> from bilevel.testing.known_problems import known_problems
    >>> known = known_problems()[0]
    >>> bool(known.value(known.optimum) < 1e-12)
    True
    >>> y = bilevel.solve_lower(known.problem, known.x0, known.y0).y
    >>> h = bilevel.hypergradient(known.problem, known.x0, y)
    >>> bool((known.flat(h) - known.gradient(known.x0)).abs().max() < 1e-8)
    True
    """

    name: str
    problem: Problem
    x0: Vector
    y0: Vector
    optimum: Tensor
    center: Callable[[Tensor], Tensor]
    lower_solution: Callable[[Tensor], Tensor]
    lower_jacobian: Callable[[Tensor], Tensor]
    target: Tensor
    matrix: Tensor

    def flat(self, x: Vector) -> Tensor:
        """All entries of x in one tensor."""
        return self.problem.x_space.ravel(x)

    def value(self, x: Vector) -> Tensor:
        """F(x)."""
        x = self.flat(x)
        miss = self.lower_solution(self.center(x)) - self.target
        return miss.square().sum() / 2 + RIDGE * (x - self.optimum).square().sum() / 2

    def gradient(self, x: Vector) -> Tensor:
        """grad F(x) = rho (x - x_bar) + A' (dy*/dc)' (y* - t), flat."""
        x = self.flat(x)
        c = self.center(x)
        miss = self.lower_solution(c) - self.target
        return RIDGE * (x - self.optimum) + self.matrix.T @ (self.lower_jacobian(c).T @ miss)


def known_problems(dtype: torch.dtype = torch.float64, seed: int = 0) -> list[KnownProblem]:
    """The ten problems.

    Examples
    --------
    >>> [known.name for known in known_problems()][:3]
    ['free space', 'box', 'non-negative']
    """
    make = _Maker(dtype, seed)
    box, cone = sets.Box(-0.5, 0.5), sets.NonNegative()
    stretched = torch.diag(torch.linspace(0.5, 2.0, N, dtype=torch.float64))
    return [
        make.build("free space", None, lambda c: c, lambda c: _eye(N), metric=make.spd(N)),
        make.build("box", box, lambda c: c.clamp(-0.5, 0.5), lambda c: _diagonal(c.abs() < 0.5), metric=stretched),
        make.build("non-negative", cone, lambda c: c.clamp_min(0), lambda c: _diagonal(c > 0), metric=stretched),
        make.build("l1 ball", sets.L1Ball(1.0), _l1_project, _l1_jacobian),
        make.build("l2 ball", sets.L2Ball(1.0), lambda c: c / max(1.0, float(c.norm())), _l2_jacobian),
        make.build("simplex", sets.Simplex(1.0), _simplex_project, _simplex_jacobian, outside=make.normal(N) / 2),
        make.half_space(),
        make.affine_set(),
        make.batch_of_simplices(),
        make.dictionary(),
    ]


class _Maker:
    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        self.dtype, self.generator = dtype, torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def spd(self, n: int) -> Tensor:
        """A symmetric matrix with eigenvalues from 0.5 to 2."""
        basis = torch.linalg.qr(self.normal(n, n)).Q
        return basis @ torch.diag(torch.linspace(0.5, 2.0, n, dtype=torch.float64)) @ basis.T

    def build(
        self,
        name: str,
        constraint: Any,
        solution: Callable[[Tensor], Tensor],
        jacobian: Callable[[Tensor], Tensor],
        *,
        outside: Tensor | None = None,
        metric: Tensor | None = None,
        shaped: Callable[[Tensor], Any] = lambda v: v,
    ) -> KnownProblem:
        """The problem with c(x_bar) = `outside`, a random point by default, and G = `metric`, 2 I by default."""
        outside = self.normal(N) if outside is None else outside
        n = outside.numel()
        matrix = _eye(n) + 0.3 * self.normal(n, n) / n**0.5
        optimum = self.normal(n)
        offset = outside - matrix @ optimum
        cast = lambda tensor: tensor.to(self.dtype)  # noqa: E731
        A, b, t, x_bar = map(cast, (matrix, offset, solution(outside), optimum))
        G = cast(2.0 * _eye(n) if metric is None else metric)
        ravel: Callable[[Any], Tensor] = Space().ravel

        def lower(x: Any, y: Any) -> Tensor:
            miss = ravel(y) - (A @ ravel(x) + b)
            return miss @ (G @ miss) / 2

        def upper(x: Any, y: Any) -> Tensor:
            return (ravel(y) - t).square().sum() / 2 + RIDGE * (ravel(x) - x_bar).square().sum() / 2

        start = optimum + self.normal(n)
        x0, y0 = (shaped(cast(v)) for v in (start, solution(matrix @ start + offset)))
        return KnownProblem(
            name=name,
            problem=Problem(upper, lower, constraint, x0=x0, y0=y0),
            x0=x0,
            y0=y0,
            optimum=x_bar,
            center=lambda x: A @ x + b,
            lower_solution=lambda c: cast(solution(c.double())),
            lower_jacobian=lambda c: cast(jacobian(c.double())),
            target=t,
            matrix=A,
        )

    def half_space(self) -> KnownProblem:
        """In the metric of G: y* = c - (a.c - 0.3)_+ G^-1 a / (a' G^-1 a)."""
        metric, a = self.spd(N), torch.ones(N).double()
        direction = torch.linalg.solve(metric, a) / (a @ torch.linalg.solve(metric, a))
        return self.build(
            "half-space",
            sets.HalfSpace(a, 0.3),
            lambda c: c - (a @ c - 0.3).clamp_min(0.0) * direction,
            lambda c: _eye(N) - float(a @ c > 0.3) * torch.outer(direction, a),
            outside=self.normal(N) + 1.0,
            metric=metric,
        )

    def affine_set(self) -> KnownProblem:
        """y* = c - G^-1 M' (M G^-1 M')^-1 (M c - o)."""
        metric, rows, offset = self.spd(N), self.normal(2, N), self.normal(2)
        back = torch.linalg.solve(metric, rows.T) @ torch.linalg.inv(rows @ torch.linalg.solve(metric, rows.T))
        project, jacobian = lambda c: c - back @ (rows @ c - offset), lambda c: _eye(N) - back @ rows
        return self.build("affine set", sets.AffineSet(rows, offset), project, jacobian, metric=metric)

    def batch_of_simplices(self) -> KnownProblem:
        """Three simplices at once, as the rows of a matrix."""
        k, n = 3, 4
        return self.build(
            "batch of simplices",
            sets.Simplex(1.0),
            lambda c: torch.cat([_simplex_project(row) for row in c.reshape(k, n)]),
            lambda c: torch.block_diag(*[_simplex_jacobian(row) for row in c.reshape(k, n)]),
            outside=self.normal(k * n) / 2,
            metric=1.5 * _eye(k * n),
            shaped=lambda v: v.reshape(k, n),
        )

    def dictionary(self) -> KnownProblem:
        """x and y are dictionaries: a weight in an l1 ball and a free bias."""
        n, m = 5, 2
        return self.build(
            "dictionary",
            sets.ProductSet({"weight": sets.L1Ball(1.0), "bias": sets.FreeSpace()}),
            lambda c: torch.cat([_l1_project(c[:n]), c[n:]]),
            lambda c: torch.block_diag(_l1_jacobian(c[:n]), _eye(m)),
            outside=self.normal(n + m),
            shaped=lambda v: {"weight": v[:n], "bias": v[n:]},
        )


def _eye(n: int) -> Tensor:
    return torch.eye(n, dtype=torch.float64)


def _diagonal(inside: Tensor) -> Tensor:
    return torch.diag(inside.double())


def _l2_jacobian(c: Tensor) -> Tensor:
    size = float(c.norm())
    return _eye(N) if size <= 1.0 else (_eye(N) - torch.outer(c, c) / size**2) / size


def _simplex_project(c: Tensor) -> Tensor:
    """max(c - theta, 0) by bisection on theta: slow, and nothing in common with `sets.Simplex`."""
    low, high = float(c.min()) - 1.0, float(c.max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if float((c - middle).clamp_min(0).sum()) > 1.0 else (low, middle)
    return (c - (low + high) / 2).clamp_min(0.0)


def _simplex_jacobian(c: Tensor) -> Tensor:
    ones = (_simplex_project(c) > 0).double()
    return torch.diag(ones) - torch.outer(ones, ones) / ones.sum()


def _l1_project(c: Tensor) -> Tensor:
    return c if float(c.abs().sum()) <= 1.0 else c.sign() * _simplex_project(c.abs())


def _l1_jacobian(c: Tensor) -> Tensor:
    if float(c.abs().sum()) <= 1.0:
        return _eye(len(c))
    signs = _l1_project(c).sign()
    return torch.diag(signs.abs()) - torch.outer(signs, signs) / signs.abs().sum()
