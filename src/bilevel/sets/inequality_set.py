"""Sets given by function constraints: {y in Y : h(y) <= 0} with h convex and differentiable.

The nearest point u of z minimises |u - z|^2 / 2 over h(u) <= 0 and u in Y. The method of multipliers (Rockafellar
1976) keeps a multiplier m >= 0 for each constraint and one, l, for the set, and minimises in turn the smooth function

    phi(u) = |u - z|^2 / 2 + rho/2 |( h(u) + m/rho )_+|^2 + rho/2 dist(u + l/rho, Y)^2

by Newton's method, then sets m <- (m + rho h(u))_+ and l <- rho (u + l/rho - P_Y(u + l/rho)). phi is strongly convex,
with generalised Hessian I + rho J_a' J_a + sum_i (m + rho h)_+ h_i'' + rho (I - H): products of it come from
autograd, and conjugate gradients need few of them because the active rows have low rank. Curvature of h, however
large, is in the Hessian; each entry of h is divided by the length of its gradient first. An affine h needs none of
this: its linearisation at z is the set, and the multipliers solve a small quadratic problem.

That the set is empty is proved, not guessed: for any y in it convexity gives, with e = u - P_Y(u),
|h(u)_+|^2 + |e|^2 <= |J' h(u)_+ + e| |u - y|.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._krylov import conjugate_gradients
from ..errors import EmptySetError, IncompatibleError, NonFiniteError, NotConvergedError
from ..spaces import Space, Vector, tree_map
from .base import ConvexSet, ProjectionJacobian
from .free_space import FreeSpace

ROUNDS = 40
"""Updates of the multipliers before giving up."""
NEWTON_STEPS = 100
"""Newton steps per update at most."""
FAR = 1e6
"""An empty set is one without a point within so many times 1 + |z| of z."""

Function = Callable[[Tensor], Tensor]


class InequalitySet(ConvexSet):
    """{y in Y : h(y) <= 0}.

    Parameters
    ----------
    function
        h, from a point to a tensor of shape (m,); each entry convex.
    within
        The set Y.

    Examples
    --------
    >>> ball = InequalitySet(lambda y: (y.square().sum() - 1.0).reshape(1))
    >>> [round(v, 6) for v in ball.project(torch.tensor([3.0, 4.0]).double()).tolist()]
    [0.6, 0.8]
    """

    parameters: tuple[str, ...] = ("function", "within")

    def __init__(self, function: Callable[[Any], Tensor], within: ConvexSet | None = None) -> None:
        self.function = function
        self.within: FreeSpace | ConvexSet = FreeSpace() if within is None else within
        self.event_ndim: Any = self.within.event_ndim

    def project(self, z: Any) -> Any:
        return joint_projection([z], self.function, [self.within]).parts[0]

    def jacobian(self, z: Any) -> ProjectionJacobian:
        raise IncompatibleError(
            "function constraints have no projection Jacobian here: use a set of bilevel.sets, or a solver that takes "
            "h(x, y) <= 0 itself (BiCGAFFA, LVHBA)"
        )

    def excess(self, y: Any) -> tuple[Tensor, Tensor | float, str]:
        """The largest h(y), or the distance from Y in units of its scale when that is larger."""
        amount = self.function(y).detach().max().clamp_min(0)
        out, scale, what = self.within.excess(y)
        relative = torch.where(out > 0, out / torch.as_tensor(scale).to(out), out).max().to(amount)
        return (relative, 1.0, what) if bool(relative > amount) else (amount, 1.0, "h(y) <= 0 fails")

    def check_shape(self, z: Any) -> Any:
        return self.within.check_shape(z)

    def distance(self, y: Any) -> Tensor:
        return Space().norm(Space().add(y, self.project(y), -1.0))


class JointProjection(NamedTuple):
    """The nearest point, in the parts it was given in, and how many products with h's derivatives it took."""

    parts: list[Vector]
    products: int


def joint_projection(parts: list[Vector], inequality: Callable[..., Tensor], sets: list[ConvexSet]) -> JointProjection:
    """The nearest point of {(a, b, ...) in A x B x ... : h(a, b, ...) <= 0}, for vectors a, b, ..."""
    space = Space()
    flats = [space.ravel(part).detach() for part in parts]
    sizes = [len(flat) for flat in flats]

    def split(flat: Tensor) -> list[Vector]:
        return [space.unravel(piece, part) for piece, part in zip(flat.split(sizes), parts, strict=True)]

    def within(flat: Tensor) -> Tensor:
        return torch.cat([space.ravel(a.project(v)) for a, v in zip(sets, split(flat), strict=True)])

    free = all(isinstance(a, FreeSpace) for a in sets)
    search = _Search(torch.cat(flats), lambda flat: inequality(*split(flat)), None if free else within)
    nearest = search.run()
    return JointProjection([tree_map(torch.clone, part) for part in split(nearest)], search.products)


class _Search:
    """The nearest point of {u in W : h(u) <= 0} to the flat point z, of shape (n,); W by its projection, or None."""

    def __init__(self, z: Tensor, inequality: Function, within: Function | None) -> None:
        self.z, self.inequality, self.within = z, inequality, within
        self.eps, self.size = torch.finfo(z.dtype).eps, 1.0 + float(z.norm())
        self.products = 0
        self.lengths = z.new_ones(())

    def run(self) -> Tensor:
        u = self._inside(self.z)
        if bool((self._values(u) <= 0).all()):
            return u
        nearest = self._linearised(self._values(self.z))
        if nearest is not None:
            return nearest
        m, pull, scaled_at = torch.zeros_like(self._values(u)), torch.zeros_like(u), None
        rho, worst, slope, stalls = 100.0, float("inf"), float("inf"), 0
        flat = 1e3 * self.eps * self.size  # a gradient of phi below this is rounding
        for _ in range(ROUNDS):
            if scaled_at is None or float((u - scaled_at).norm()) > 0.01 * (1.0 + float(u.norm())):
                m, scaled_at = self._rescale(u, m), u
            u, slope = self._newton(u, m, pull, rho, max(flat / 50, 1e-3 * min(worst, 1.0)))
            value, moved = self._values(u), u + pull / rho
            shifted = (m + rho * value).clamp_min(0)
            outside = moved - self._inside(moved)
            # h <= 0, complementarity with m, and u in W, all at once.
            error = max(float((shifted - m).abs().max()) / rho, float((outside - pull / rho).norm()))
            m, pull = shifted, rho * outside
            if error <= 8.0 * self.eps * (1.0 + float(u.norm())) and slope <= flat:
                return self._inside(u)
            if error > 0.1 * worst:
                self._check_not_empty(u, value)
                rho = min(10.0 * rho, 1e10)
            stalls += error >= 0.5 * worst
            worst = min(worst, error)
            if stalls >= 2 and max(error, slope / rho) <= self.eps**0.75 * self.size:  # as close as rounding allows
                return self._inside(u)
        error = max(float(self._values(u).max()), slope / rho)
        raise NotConvergedError(
            f"the projection on h(y) <= 0 is off by {error:.2g} after {ROUNDS} rounds: is h convex and twice "
            "differentiable, and is there a point with h(y) < 0? Where a set of bilevel.sets describes the "
            "constraint, use that"
        )

    def _newton(self, u: Tensor, m: Tensor, pull: Tensor, rho: float, tol: float) -> tuple[Tensor, float]:
        """The minimiser of phi from u, and |grad phi| there."""
        here = _Smooth(self, u, m, pull, rho)
        slope = float(here.gradient.norm())
        for _ in range(NEWTON_STEPS):
            if slope <= tol:
                break
            downhill, most = -here.gradient, 2 * len(here.gradient) + 10
            solved: Any = conjugate_gradients(
                here.product, downhill, None, Space(), tol=min(0.1, slope), max_iterations=most
            ).value
            direction = solved if bool((solved != 0).any()) else downhill
            ahead = self._line_search(here, direction, m, pull, rho)
            if ahead is None:
                break
            here, slope = ahead, float(ahead.gradient.norm())
        return here.u, slope

    def _line_search(self, here: _Smooth, direction: Tensor, m: Tensor, pull: Tensor, rho: float) -> _Smooth | None:
        """Armijo's rule; where rounding hides the decrease of phi, a smaller gradient will do."""
        along, step = float(here.gradient @ direction), 1.0
        hidden = 64.0 * self.eps * (abs(here.value) + self.size**2)
        for _ in range(40):
            ahead = _Smooth(self, here.u + step * direction, m, pull, rho)
            drop = here.value - ahead.value
            if drop >= -1e-4 * step * along and drop > hidden:
                return ahead
            if abs(drop) <= hidden and float(ahead.gradient.norm()) < 0.9 * float(here.gradient.norm()):
                return ahead
            step *= 0.5
        return None

    def _values(self, u: Tensor) -> Tensor:
        """h(u), each entry in units of the length of its gradient."""
        with torch.no_grad():
            return self._checked(self.inequality(u)) / self.lengths

    def _checked(self, value: Tensor) -> Tensor:
        if not bool(torch.isfinite(value).all()):
            bad = int((~torch.isfinite(value)).sum())
            raise NonFiniteError(f"{bad} of {len(value)} entries of h(y) are NaN or infinite")
        return value

    def _inside(self, u: Tensor) -> Tensor:
        return u if self.within is None else self.within(u).detach()

    def _jacobian_rows(self, u: Tensor) -> Tensor:
        leaf = u.detach().requires_grad_()
        with torch.enable_grad():
            value = self.inequality(leaf)
        self.products += len(value)
        return torch.stack([_gradient(entry, leaf) for entry in value])

    def _rescale(self, u: Tensor, m: Tensor) -> Tensor:
        """Measure h in units of its gradients at u; the multipliers in these units."""
        before, lengths = self.lengths, self._jacobian_rows(u).norm(dim=1)
        self.lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
        return m * self.lengths / before

    def _linearised(self, value: Tensor) -> Tensor | None:
        """The nearest point of {u : h(z) + J (u - z) <= 0}, which contains the set, if it lies in the set itself."""
        rows = self._jacobian_rows(self.z)
        u = self.z - rows.T @ multipliers(rows @ rows.T, value)
        inside, small = self._inside(u), 8.0 * self.eps * self.size
        reached = (self._values(inside) <= small * rows.norm(dim=1)).all() and float((inside - u).norm()) <= small
        return inside if bool(reached) else None

    def _check_not_empty(self, u: Tensor, value: Tensor) -> None:
        excess, outside = value.clamp_min(0), u - self._inside(u)
        g = (self._jacobian_rows(u) / self.lengths[:, None]).T @ excess + outside
        square = float(excess.square().sum() + outside.square().sum())
        if square > FAR * self.size * float(g.norm()) + self.eps * self.size:
            shown = float((value * self.lengths).max())
            where = "" if self.within is None else " in its set"
            raise EmptySetError(
                f"no point y{where} has h(y) <= 0: the largest entry of h cannot be brought below about {shown:.3g} "
                "(up to the scales of the entries). Relax h, or change the x it depends on"
            )


def multipliers(gram: Tensor, excess: Tensor) -> Tensor:
    """argmin over m >= 0 of m' K m / 2 - m' r: a primal-dual active set, then coordinate descent if it cycles."""
    active = excess > 0
    scale = float(excess.abs().max())
    for _ in range(3 * len(excess) + 10):
        m = torch.zeros_like(excess)
        if bool(active.any()):
            block = gram[active][:, active]
            m[active] = torch.linalg.lstsq(block, excess[active, None], driver="gelsd").solution[:, 0]
        missing = excess - gram @ m > 1e-13 * scale
        new = (active & (m > 0)) | (~active & missing)
        if bool((new == active).all()):
            return m
        active = new
    m, diagonal = torch.zeros_like(excess), gram.diagonal()
    for _ in range(1000):
        before = m.clone()
        for i in range(len(m)):
            if float(diagonal[i]) > 0:
                m[i] = (m[i] + (excess[i] - gram[i] @ m) / diagonal[i]).clamp_min(0)
        if float((m - before).abs().max()) <= 1e-14 * float(m.abs().max()):
            break
    return m


class _Smooth:
    """phi at one point u: value, gradient, and products with its generalised Hessian."""

    def __init__(self, search: _Search, u: Tensor, m: Tensor, pull: Tensor, rho: float) -> None:
        self.search, self.u, self.rho = search, u.detach(), rho
        self._leaf = self.u.clone().requires_grad_()
        with torch.enable_grad():
            excess = (search._checked(search.inequality(self._leaf)) / search.lengths + m / rho).clamp_min(0)
            penalty = rho / 2 * excess.square().sum()
            moved = self._leaf + pull / rho
            self._nearest = None if search.within is None else search.within(moved)
        search.products += 1
        self._slope = _gradient(penalty, self._leaf, create_graph=True)
        self.gradient = self.u - search.z + self._slope.detach()
        self.value = float((self.u - search.z).square().sum() / 2 + penalty.detach())
        if self._nearest is not None:
            outside = moved.detach() - self._nearest.detach()
            self.gradient = self.gradient + rho * outside
            self.value += rho / 2 * float(outside.square().sum())

    def product(self, v: Tensor) -> Tensor:
        """v + (penalty'') v + rho (v - H v)."""
        self.search.products += 1
        result = v + _gradient(self._slope, self._leaf, v)
        if self._nearest is not None:
            result = result + self.rho * (v - _gradient(self._nearest, self._leaf, v))
        return result


def _gradient(output: Tensor, leaf: Tensor, vector: Tensor | None = None, *, create_graph: bool = False) -> Tensor:
    if not output.requires_grad:
        return torch.zeros_like(leaf)
    return torch.autograd.grad(
        output, leaf, vector, retain_graph=True, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )[0]
