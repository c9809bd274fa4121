"""Ten bilevel problems whose answers are known in closed form, for testing solvers and hypergradients.

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
from ..spaces import Vector

RIDGE = 0.1
"""rho, the weight of the upper level's own term in x."""


@dataclass(frozen=True, kw_only=True)
class KnownProblem:
    """A problem with its closed forms. Vectors are tensors; `dictionary` problems also split them by name.

    Parameters
    ----------
    name
        What it is called in test reports.
    problem
        The problem, ready for `minimize`.
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
    return [
        make.free_space(),
        make.box(),
        make.non_negative(),
        make.l1_ball(),
        make.l2_ball(),
        make.simplex(),
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
        metric: Tensor,
        outside: Tensor,
        solution: Callable[[Tensor], Tensor],
        jacobian: Callable[[Tensor], Tensor],
        *,
        shape: tuple[int, ...] | None = None,
        split: dict[str, int] | None = None,
    ) -> KnownProblem:
        """The problem with c(x_bar) = `outside`."""
        n = outside.numel()
        matrix = torch.eye(n, dtype=torch.float64) + 0.3 * self.normal(n, n) / n**0.5
        optimum = self.normal(n)
        offset = outside - matrix @ optimum
        target = solution(outside)
        cast = lambda tensor: tensor.to(self.dtype)  # noqa: E731
        A, b, G, t, x_bar = map(cast, (matrix, offset, metric, target, optimum))
        shape = (n,) if shape is None else shape

        def ravel(v: Any) -> Tensor:
            return torch.cat([part.reshape(-1) for part in v.values()]) if split else v.reshape(-1)

        def shaped(v: Tensor) -> Any:
            if split:
                return dict(zip(split, v.split(list(split.values())), strict=True))
            return v.reshape(shape)

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

    def free_space(self) -> KnownProblem:
        n = 6
        return self.build("free space", None, self.spd(n), self.normal(n), lambda c: c, lambda c: torch.eye(n).double())

    def box(self) -> KnownProblem:
        n = 6
        metric = torch.diag(torch.linspace(0.5, 2.0, n, dtype=torch.float64))
        return self.build(
            "box", sets.Box(-0.5, 0.5), metric, self.normal(n),
            lambda c: c.clamp(-0.5, 0.5), lambda c: torch.diag((c.abs() < 0.5).double()),
        )  # fmt: skip

    def non_negative(self) -> KnownProblem:
        n = 6
        metric = torch.diag(torch.linspace(0.5, 2.0, n, dtype=torch.float64))
        return self.build(
            "non-negative", sets.NonNegative(), metric, self.normal(n),
            lambda c: c.clamp_min(0.0), lambda c: torch.diag((c > 0).double()),
        )  # fmt: skip

    def l1_ball(self) -> KnownProblem:
        n = 6
        return self.build(
            "l1 ball", sets.L1Ball(1.0), 2.0 * torch.eye(n).double(), self.normal(n), _l1_project, _l1_jacobian
        )

    def l2_ball(self) -> KnownProblem:
        n = 6

        def project(c: Tensor) -> Tensor:
            return c / max(1.0, float(c.norm()))

        def jacobian(c: Tensor) -> Tensor:
            size = float(c.norm())
            if size <= 1.0:
                return torch.eye(n).double()
            return (torch.eye(n).double() - torch.outer(c, c) / size**2) / size

        return self.build("l2 ball", sets.L2Ball(1.0), 2.0 * torch.eye(n).double(), self.normal(n), project, jacobian)

    def simplex(self) -> KnownProblem:
        n = 6
        return self.build(
            "simplex", sets.Simplex(1.0), 2.0 * torch.eye(n).double(), self.normal(n) / 2, _simplex_project,
            _simplex_jacobian,
        )  # fmt: skip

    def half_space(self) -> KnownProblem:
        """In the metric of G: y* = c - (a.c - 0.3)_+ G^-1 a / (a' G^-1 a)."""
        n = 6
        metric, a = self.spd(n), torch.ones(n).double()
        direction = torch.linalg.solve(metric, a) / (a @ torch.linalg.solve(metric, a))
        return self.build(
            "half-space", sets.HalfSpace(a, 0.3), metric, self.normal(n) + 1.0,
            lambda c: c - (a @ c - 0.3).clamp_min(0.0) * direction,
            lambda c: torch.eye(n).double() - float(a @ c > 0.3) * torch.outer(direction, a),
        )  # fmt: skip

    def affine_set(self) -> KnownProblem:
        """y* = c - G^-1 M' (M G^-1 M')^-1 (M c - o)."""
        n, m = 6, 2
        metric, rows, offset = self.spd(n), self.normal(m, n), self.normal(m)
        back = torch.linalg.solve(metric, rows.T) @ torch.linalg.inv(rows @ torch.linalg.solve(metric, rows.T))
        return self.build(
            "affine set", sets.AffineSet(rows, offset), metric, self.normal(n),
            lambda c: c - back @ (rows @ c - offset), lambda c: torch.eye(n).double() - back @ rows,
        )  # fmt: skip

    def batch_of_simplices(self) -> KnownProblem:
        """Three simplices at once, as the rows of a matrix."""
        k, n = 3, 4
        return self.build(
            "batch of simplices", sets.Simplex(1.0), 1.5 * torch.eye(k * n).double(), self.normal(k * n) / 2,
            lambda c: torch.cat([_simplex_project(row) for row in c.reshape(k, n)]),
            lambda c: torch.block_diag(*[_simplex_jacobian(row) for row in c.reshape(k, n)]),
            shape=(k, n),
        )  # fmt: skip

    def dictionary(self) -> KnownProblem:
        """x and y are dictionaries: a weight in an l1 ball and a free bias."""
        n, m = 5, 2

        def project(c: Tensor) -> Tensor:
            return torch.cat([_l1_project(c[:n]), c[n:]])

        def jacobian(c: Tensor) -> Tensor:
            return torch.block_diag(_l1_jacobian(c[:n]), torch.eye(m).double())

        return self.build(
            "dictionary", sets.ProductSet({"weight": sets.L1Ball(1.0), "bias": sets.FreeSpace()}),
            2.0 * torch.eye(n + m).double(), self.normal(n + m), project, jacobian,
            split={"weight": n, "bias": m},
        )  # fmt: skip


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
        return torch.eye(len(c)).double()
    signs = _l1_project(c).sign()
    return torch.diag(signs.abs()) - torch.outer(signs, signs) / signs.abs().sum()
