"""Points whose smallest smoothed hypergradient is known, for testing certificates.

All have g = (y - x)' G (y - x) / 2 over a set Y, and f = a'y + c'x, linear: so f_x = c, f_y = a, G_xy = -G.
With G = I and eta = 1 the formula is linear in H, h = c + H a, and the smallest norm is a distance to a convex set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bilevel import sets
from bilevel.diagnostics.jacobian_hull import nearest_combination
from bilevel.problem import Problem
from bilevel.sets.base import ConvexSet


@dataclass(frozen=True)
class KnownStationarity:
    """A point, a radius and a step, with the smallest |h(H)| over Jacobians H within delta."""

    name: str
    problem: Problem
    x: Tensor
    delta: float
    smallest: float
    eta: float = 1.0


def _problem(a: Tensor, c: Tensor, constraint: ConvexSet, x: Tensor) -> Problem:
    return Problem(
        upper=lambda x, y: a @ y + c @ x,
        lower=lambda x, y: (y - x).square().sum() / 2,
        constraint=constraint,
        y0=constraint.project(x),
    )


def corner(seed: int) -> KnownStationarity:
    """y >= 0 near the origin of R^3: H = diag(l), l in [0, 1]^3, and |h|^2 = sum_j min_l (c_j + l a_j)^2."""
    draw = _normal(seed)
    a, c, x = draw(3), 0.5 * draw(3), 0.02 * draw(3)
    nearest = torch.minimum(torch.maximum(torch.zeros(3).double(), torch.minimum(c, c + a)), torch.maximum(c, c + a))
    return KnownStationarity("corner", _problem(a, c, sets.NonNegative(), x), x, 0.2, float(nearest.norm()))


def one_kink(seed: int) -> KnownStationarity:
    """y_1 <= 1 at a distance of 0.2 to 0.95 delta from the kink: h = c + a - t a_1 e_1 with t in [0, 1]."""
    draw = _normal(seed)
    a, c = draw(2), draw(2)
    apart = 0.2 + 0.75 * (seed % 7) / 6
    x = torch.tensor([1.0 - 0.1 * apart, 0.3]).double()
    free = c + a
    low, high = sorted((float(c[0]), float(free[0])))
    first = min(max(0.0, low), high)
    half_space = sets.HalfSpace(torch.tensor([1.0, 0.0]).double(), 1.0)
    smallest = (first**2 + float(free[1]) ** 2) ** 0.5
    return KnownStationarity("one kink", _problem(a, c, half_space, x), x, 0.1, smallest)


def no_kink(seed: int) -> KnownStationarity:
    """Inside a box: H = I, h = c + a."""
    draw = _normal(seed)
    a, c, x = draw(4), draw(4), 0.1 * draw(4)
    return KnownStationarity("no kink", _problem(a, c, sets.Box(-9.0, 9.0), x), x, 0.1, float((a + c).norm()))


def disc(seed: int) -> KnownStationarity:
    """The unit disc near its boundary: H = I inside, (I - n n')/|z| outside; the hull by a fine grid of the ball."""
    draw = _normal(seed)
    a, c, angle = draw(2), draw(2), float(draw(1))
    x = 1.02 * torch.tensor([torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))]).double()
    known = KnownStationarity("disc", _problem(a, c, sets.L2Ball(1.0), x), x, 0.3, 0.0)
    r, t = torch.linspace(0, 0.3, 31).double(), torch.linspace(0, 2 * torch.pi, 721).double()
    z = x + (r[:, None, None] * torch.stack([t.cos(), t.sin()], -1)).reshape(-1, 2)
    size = z.norm(dim=1, keepdim=True)
    outside = (a - z * (z @ a)[:, None] / size**2) / size
    values = c + torch.cat([outside[size[:, 0] > 1], a[None].expand(int((size <= 1).any()), 2)])
    return KnownStationarity(known.name, known.problem, x, known.delta, distance_to_hull_in_the_plane(values))


def octahedron(seed: int) -> KnownStationarity:
    """The l1 ball of R^3, somewhere near its surface: finitely many faces, found by many points in and on the ball."""
    draw = _normal(seed)
    a, c, x = draw(3), draw(3), draw(3)
    x = 1.3 * x / x.abs().sum()
    points = torch.randn(400_000, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    lengths = torch.linspace(0, 2, len(points)).double().clamp_max(1) ** (1 / 3)
    points = x + 0.3 * lengths[:, None] * points / points.norm(dim=1, keepdim=True)
    turned = sets.L1Ball(1.0).jacobian(points).apply(a.expand(points.shape))
    values = c + torch.unique((turned * 1e9).round() / 1e9, dim=0)
    weights = nearest_combination(values.T, torch.zeros(3).double())
    smallest = float((values.T @ weights).norm())
    return KnownStationarity("octahedron", _problem(a, c, sets.L1Ball(1.0), x), x, 0.3, smallest)


def coupled(seed: int) -> KnownStationarity:
    """Erratum 11: y >= 0 with a coupled Hessian; the set of h is not convex, and its smallest norm is 0.078."""
    G = torch.tensor([[1.0, 0.8], [0.8, 1.0]]).double()
    a, c = torch.tensor([1.0, 0.2]).double(), torch.tensor([0.5, -0.3]).double()
    problem = Problem(
        upper=lambda x, y: a @ y + c @ x,
        lower=lambda x, y: y @ G @ y / 2 + x @ y,
        constraint=sets.NonNegative(),
        y0=torch.zeros(2).double(),
    )
    x = 1e-3 * _normal(seed)(2)
    return KnownStationarity("coupled", problem, x, 0.05, COUPLED, eta=0.5)


def corner_in_many_dimensions(seed: int) -> KnownStationarity:
    """y >= 0 in R^10 to R^50, 1 to 7 bounds in reach together: H = diag(l), l in [0, 1] there and 1 elsewhere."""
    draw, d, k = _normal(seed), _many(seed), 1 + seed % 7
    a, c, x, near = draw(d), 0.5 * draw(d), 1.0 + draw(d).abs(), draw(k)
    x[:k] = 0.2 * (0.3 + 0.65 * (seed % 4) / 3) * near / near.norm()
    low, high = torch.minimum(c, c + a), torch.maximum(c, c + a)
    best = torch.cat([torch.zeros(k).double().clamp(low[:k], high[:k]), (a + c)[k:]])
    return KnownStationarity(
        "corner in many dimensions", _problem(a, c, sets.NonNegative(), x), x, 0.2, float(best.norm())
    )


def one_kink_in_many_dimensions(seed: int) -> KnownStationarity:
    """n'y <= 1 in R^10 to R^50, |n| = 1, at 0.2 to 0.95 delta from the kink: h = c + a - t n n'a with t in [0, 1]."""
    draw, d = _normal(seed), _many(seed)
    a, c, n, x = draw(d), draw(d), draw(d), 0.3 * draw(d)
    n = n / n.norm()
    apart = 0.1 * (0.2 + 0.75 * (seed % 7) / 6) * (1 if seed % 2 else -1)
    x = x + (1.0 - apart - n @ x) * n
    turn, slope = c + a, n * (n @ a)
    t = float((turn @ slope) / (slope @ slope))
    smallest = float((turn - min(max(t, 0.0), 1.0) * slope).norm())
    return KnownStationarity("one kink in many dimensions", _problem(a, c, sets.HalfSpace(n, 1.0), x), x, 0.1, smallest)


def no_kink_in_many_dimensions(seed: int) -> KnownStationarity:
    """The l1 ball in R^10 to R^50 from far away: y* is a vertex, H = 0 and h = c."""
    draw, d = _normal(seed), _many(seed)
    a, c, x = draw(d), draw(d), 0.1 * draw(d)
    x[seed % d] = 3.0
    return KnownStationarity("no kink in many dimensions", _problem(a, c, sets.L1Ball(1.0), x), x, 0.1, float(c.norm()))


def _many(seed: int) -> int:
    return (10, 20, 30, 50)[seed % 4]


COUPLED = 0.07808688746
"""min over H = diag(p, q) in [0, 1]^2 of |c - eta H' [I - (I - eta G) H']^-1 a| (a test recomputes it)."""

KNOWN_STATIONARITY: tuple[Callable[[int], KnownStationarity], ...] = (
    corner, one_kink, no_kink, disc, octahedron, coupled,
    corner_in_many_dimensions, one_kink_in_many_dimensions, no_kink_in_many_dimensions,
)  # fmt: skip


def distance_to_hull_in_the_plane(values: Tensor) -> float:
    """The distance from 0 to the hull of points in the plane: max over directions of the support function's gap."""
    t = torch.linspace(0, 2 * torch.pi, 3601).double()
    directions = torch.stack([t.cos(), t.sin()], -1)
    return max(0.0, float(torch.stack([(values @ d).min() for d in directions]).max()))


def _normal(seed: int) -> Callable[[int], Tensor]:
    generator = torch.Generator().manual_seed(5000 + seed)
    return lambda n: torch.randn(n, generator=generator, dtype=torch.float64)
