"""Sets given by function constraints: {y in Y : h(y) <= 0} with h convex and differentiable.

The nearest point u of z is found by successive linearisation. Around a point v the constraints read
h(v) + J (u - v) <= 0, and the nearest point of that polyhedron is u = z - J' m, where the multipliers m >= 0
minimise m' J J' m / 2 - m' (h(v) + J (z - v)). For affine h one round is exact. A fixed point of the rounds is the
nearest point of the set itself, whatever the damping s, which replaces z by (z + s v) / (1 + s) when curvature
makes the rounds overshoot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import Incompatible, NotConverged
from ..spaces import Space, Vector, tree_map
from .base import ConvexSet, Face
from .free_space import FreeSpace

ROUNDS = 200
"""Linearisations before giving up."""

Function = Callable[[Tensor], Tensor]


class InequalitySet(ConvexSet):
    """{y in Y : h(y) <= 0}.

    Parameters
    ----------
    function
        h, from a point to a tensor of shape (m,); each entry convex.
    within
        The set Y; its projection is combined with that on h(y) <= 0 by Dykstra's algorithm.

    Examples
    --------
    >>> ball = InequalitySet(lambda y: (y.square().sum() - 1.0).reshape(1))
    >>> [round(v, 6) for v in ball.project(torch.tensor([3.0, 4.0]).double()).tolist()]
    [0.6, 0.8]
    """

    def __init__(self, function: Callable[[Any], Tensor], within: ConvexSet | None = None) -> None:
        self.function = function
        self.within = FreeSpace() if within is None else within
        self.event_ndim = self.within.event_ndim  # type: ignore[misc]

    def project(self, z: Any) -> Any:
        space = Space()

        def inequality(flat: Tensor) -> Tensor:
            return self.function(space.unravel(flat, z))

        def within(flat: Tensor) -> Tensor:
            return space.ravel(self.within.project(space.unravel(flat, z)))

        free = isinstance(self.within, FreeSpace)
        nearest = project_on_inequalities(space.ravel(z).detach(), inequality, None if free else within)
        return tree_map(torch.clone, space.unravel(nearest, z))

    def jacobian(self, z: Any) -> Face:
        raise Incompatible(
            "function constraints have no projection Jacobian here: use a set of bilevel.sets, or a solver that takes "
            "h(x, y) <= 0 itself (BiCGAFFA, LVHBA)"
        )

    def excess(self, y: Any) -> tuple[Tensor, Tensor | float, str]:
        """The largest h(y), or the distance from Y in units of its scale when that is larger."""
        amount = self.function(y).detach().max().clamp_min(0)
        out, scale, what = self.within.excess(y)
        relative = torch.where(out > 0, out / torch.as_tensor(scale).to(out), out).max().to(amount)
        return (relative, 1.0, what) if bool(relative > amount) else (amount, 1.0, "h(y) <= 0 fails")

    def of_kind(self, z: Any) -> Any:
        return self.within.of_kind(z)

    def distance(self, y: Any) -> Tensor:
        return Space().norm(Space().add(y, self.project(y), -1.0))

    def __repr__(self) -> str:
        return f"InequalitySet(h, within={self.within!r})"


def project_on_inequalities(z: Tensor, inequality: Function, within: Function | None = None) -> Tensor:
    """The nearest point of {u in W : h(u) <= 0} to the flat point z, of shape (n,)."""
    small = 16 * torch.finfo(z.dtype).eps
    point = z if within is None else within(z)
    if bool((inequality(point) <= 0).all()):
        return point.detach()
    damping, previous = 0.0, float("inf")
    move = previous
    for _ in range(ROUNDS):
        value, rows = _linearised(inequality, point)
        target = (z + damping * point) / (1.0 + damping)
        nearest = _on_polyhedron(target, rows, rows @ point - value, within, small)
        move, size = float((nearest - point).norm()), 1.0 + float(nearest.norm())
        point = nearest
        if move <= small * size:
            break
        if move > previous:
            damping = 2.0 * damping + 0.5
        previous = move
    # A damped step may be short far from the answer: the answer is a fixed point of the undamped one.
    value, rows = _linearised(inequality, point)
    nearest = _on_polyhedron(z, rows, rows @ point - value, within, small)
    error = max(float((nearest - point).norm()), float(value.max())) / (1.0 + float(point.norm()))
    if error > small**0.5:
        raise NotConverged(
            f"the projection on h(y) <= 0 is off by {error:.2g} after {ROUNDS} rounds: is h convex, and is there a "
            "point with h(y) < 0? Where a set of bilevel.sets describes the constraint, use that"
        )
    return point


def _linearised(inequality: Function, point: Tensor) -> tuple[Tensor, Tensor]:
    """h and its Jacobian, one reverse pass per row."""
    leaf = point.detach().requires_grad_()
    with torch.enable_grad():
        value = inequality(leaf)
    rows = [
        torch.autograd.grad(entry, leaf, retain_graph=True, allow_unused=True, materialize_grads=True)[0]
        if entry.requires_grad
        else torch.zeros_like(leaf)
        for entry in value
    ]
    return value.detach(), torch.stack(rows)


def _on_polyhedron(z: Tensor, rows: Tensor, side: Tensor, within: Function | None, small: float) -> Tensor:
    """The nearest point of {u in W : rows u <= side}; Dykstra's algorithm when there is a W."""
    gram = rows @ rows.mT
    if within is None:
        return z - rows.mT @ multipliers(gram, rows @ z - side)
    u, p, q = z, torch.zeros_like(z), torch.zeros_like(z)
    for _ in range(10_000):
        cut = u + p - rows.mT @ multipliers(gram, rows @ (u + p) - side)
        p = u + p - cut
        new = within(cut + q)
        q = cut + q - new
        move = float((new - u).norm()) + float((new - cut).norm())
        u = new
        if move <= small * (1.0 + float(u.norm())):
            break
    return u


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
    for _ in range(10_000):
        before = m.clone()
        for i in range(len(m)):
            if float(diagonal[i]) > 0:
                m[i] = (m[i] + (excess[i] - gram[i] @ m) / diagonal[i]).clamp_min(0)
        if float((m - before).abs().max()) <= 1e-14 * float(m.abs().max()):
            break
    return m


def joint_projection(parts: list[Vector], inequality: Callable[..., Tensor], sets: list[ConvexSet]) -> list[Vector]:
    """The nearest point of {(a, b, ...) in A x B x ... : h(a, b, ...) <= 0}, for vectors a, b, ..."""
    space = Space()
    flats = [space.ravel(part).detach() for part in parts]
    sizes = [len(flat) for flat in flats]

    def split(flat: Tensor) -> list[Vector]:
        return [space.unravel(piece, part) for piece, part in zip(flat.split(sizes), parts, strict=True)]

    def within(flat: Tensor) -> Tensor:
        return torch.cat([space.ravel(a.project(v)) for a, v in zip(sets, split(flat), strict=True)])

    free = all(isinstance(a, FreeSpace) for a in sets)
    nearest = project_on_inequalities(torch.cat(flats), lambda flat: inequality(*split(flat)), None if free else within)
    return [tree_map(torch.clone, part) for part in split(nearest)]
