"""Jacobians of the projection sampled around a point, and the hull of the different ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInput
from ..problem import Linearization
from ..randomness import Noise, Seeds
from ..sets.base import Face
from ..sets.box import Box
from ..sets.free_space import FreeSpace
from ..spaces import tree_map
from .directed_points import JOINTLY, axes, points_beyond, prefixes, slanted, towards_the_nearest, ways_to_kinks
from .jacobian_hull import JacobianHull
from .lower_level import FaceFacts, smallest_margin
from .probe import SPACE, Probe

BATCHES = 10
"""The samples are split into so many batches for the interval."""
ROUNDS = 6
"""How often the combination that was best so far shows which kinks to go beyond next."""
LARGEST = 1000
"""The largest number of entries of y that the sampled faces may touch together."""


def draws(probe: Probe, z: Tensor, delta: float, samples: int, seeds: Seeds) -> list[Tensor]:
    """Points in the ball of radius delta around z and on its sphere in turn."""
    noise, like = Noise(seeds), probe.as_y(z)
    points = []
    for k in range(samples):
        generator = noise.generator("smoothing", k)
        draw: Any = SPACE.ball(like, generator) if k % 2 else SPACE.sphere(like, generator)
        points.append(z + delta * SPACE.ravel(draw))
    return points


class Faces:
    """The different Jacobians met so far, that of z first, each with the point where it was met."""

    def __init__(self, probe: Probe, lin: Linearization, z: Tensor) -> None:
        self.probe, self.lin = probe, lin
        self._marks = [SPACE.random_like(lin.y, torch.Generator().manual_seed(k)) for k in range(2)]
        self.known: list[Any] = []
        self._signatures: list[Tensor] = []
        self.visit(z)

    def visit(self, point: Tensor) -> int:
        """The number of the Jacobian at this point."""
        face, signature = self._look(point)
        for number, other in enumerate(self._signatures):
            if _same(other, signature):
                return number
        self.known.append((face, point))
        self._signatures.append(signature)
        return len(self.known) - 1

    def is_that_of_z(self, point: Tensor) -> bool:
        """Whether the Jacobian is that of z; nothing is remembered."""
        return _same(self._signatures[0], self._look(point)[1])

    def _look(self, point: Tensor) -> tuple[Face, Tensor]:
        """The Jacobian at a point, and its products with two marks, by which it is known."""
        face = self.lin.constraint.jacobian(self.probe.as_y(point))
        return face, torch.cat([SPACE.ravel(face.apply(mark)) for mark in self._marks])

    def visit_directed(self, z: Tensor, delta: float, eta: float) -> None:
        """Go beyond the kinks around z: singly, jointly, and jointly beyond those that make |h| smaller."""
        upper_y, constraint = SPACE.ravel(self.lin.upper_grad_y), self.lin.constraint
        on_face = SPACE.ravel(self.known[0][0].apply(self.probe.as_y(upper_y)))
        margin = lambda point: smallest_margin(constraint.margin(self.probe.as_y(point)))  # noqa: E731
        moves = self._beyond(z, delta, axes(upper_y))
        others = slanted(z, upper_y, on_face, self.probe.project) + towards_the_nearest(z, margin, delta)
        moves |= self._beyond(z, delta, others)
        for _ in range(ROUNDS if len(moves) > JOINTLY else 0):
            count, helpful = len(self.known), self.hull(eta).helpful(list(moves))
            for point in prefixes(z, delta, [moves[number] for number in helpful]):
                self.visit(point)
            if len(self.known) == count:
                break

    def _beyond(self, z: Tensor, delta: float, directions: list[Tensor]) -> dict[int, Tensor]:
        """The shortest move to each new face that a kink along the directions leads to; their combinations as well."""
        old, moves = len(self.known), {}
        for move in ways_to_kinks(z, delta, directions, self.is_that_of_z):
            moves.setdefault(self.visit(z + move), move)
        moves = {number: move for number, move in moves.items() if number >= old}
        for point in points_beyond(z, delta, list(moves.values())):
            self.visit(point)
        return moves

    def hull(self, eta: float) -> JacobianHull:
        """The formula of the hypergradient over their convex combinations."""
        return _hull(self.probe, self.lin, self.known, eta)


def _same(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) <= 1e-9 * (1 + float(a.norm()))


def batches(faces: Faces, points: list[Tensor]) -> list[list[int]]:
    """Which Jacobians each batch of the points met; z itself, in all of them, would make their minima agree."""
    met = [faces.visit(point) for point in points]
    return [sorted(set(met[b::BATCHES])) for b in range(BATCHES)]


def all_known(faces: Faces, facts: FaceFacts, z: Tensor, delta: float) -> bool:
    """Whether every face of the ball was met: H is constant up to the margin; a box has one kink for each bound."""
    constraint = faces.lin.constraint
    if constraint.polyhedral and facts.margin >= delta:
        return True
    if not isinstance(constraint, Box) or faces.lin.problem.moving:
        return False
    point = faces.probe.as_y(z)
    within, ones = constraint.gaps(point) < delta, torch.ones_like(point)
    diagonals = torch.stack([face.apply(ones) for face, _ in faces.known])
    met = (diagonals != diagonals[0]).any(0)
    return int(within.sum()) <= JOINTLY and bool((met | ~within).all())


def _hull(probe: Probe, lin: Linearization, known: list[Any], eta: float) -> JacobianHull:
    """Dense parts, on the entries of y that some face touches."""
    size, moving = SPACE.size(lin.y), lin.problem.moving
    touched = torch.arange(size) if moving else _touched([face for face, _ in known], size)
    if len(touched) > LARGEST:
        raise InvalidInput(
            f"the faces within delta touch {len(touched)} entries of y, more than {LARGEST}: take a smaller delta, or "
            "look at |h| alone (bilevel.hypergradient)"
        )
    units = [SPACE.unravel(e, lin.y) for e in torch.eye(size, dtype=probe.dtype)[touched]]
    inside = len(touched)
    faces = [_matrix([SPACE.ravel(face.apply(e))[touched] for e in units], inside, probe) for face, _ in known]
    return JacobianHull(
        faces=torch.stack(faces),
        upper_x=SPACE.ravel(lin.upper_grad_x),
        upper_y=SPACE.ravel(lin.upper_grad_y)[touched],
        hessian=_matrix([SPACE.ravel(lin.lower_hvp(e))[touched] for e in units], inside, probe),
        cross=_matrix([SPACE.ravel(lin.lower_cross(e)) for e in units], len(probe.x), probe),
        eta=eta,
        motions=torch.stack([_motion(probe, point, units) for _, point in known]) if moving else None,
        residual=measure_of(probe),
    )


def _matrix(columns: list[Tensor], rows: int, probe: Probe) -> Tensor:
    """The columns side by side; (rows, 0) when there are none."""
    return torch.stack(columns, -1) if columns else torch.zeros(rows, 0, dtype=probe.dtype)


def _touched(faces: list[Any], size: int) -> Tensor:
    """The entries of y outside of which every H is zero."""
    mask = torch.zeros(size, dtype=torch.bool)
    for face in faces:
        support = face.support
        if not isinstance(support, Tensor) or support.numel() != size:
            return torch.arange(size)
        mask |= support.reshape(-1)
    return mask.nonzero()[:, 0]


def _motion(probe: Probe, point: Tensor, units: list[Any]) -> Tensor:
    """V: u -> theta_x' P_theta(z)' u as a matrix (n, d)."""
    columns = []
    for e in units:
        column = probe.problem.constraint_vjp(probe.as_x(probe.x), probe.as_y(point), e)
        if column is None:
            raise InvalidInput("constraint_vjp returned None for a set that moves with x: return a vector like x")
        columns.append(SPACE.ravel(column))
    return _matrix(columns, len(probe.x), probe)


def measure_of(probe: Probe) -> Any:
    """h -> (h itself, or x - P_X(x - h); its derivative applied to the columns of a matrix)."""
    constraint = probe.problem.upper_constraint
    if isinstance(constraint, FreeSpace):
        return lambda h: (h, lambda slope: slope)

    def measure(h: Tensor) -> Any:
        moved = probe.as_x(probe.x - h)
        face = constraint.jacobian(moved)
        value = probe.x - SPACE.ravel(tree_map(Tensor.detach, constraint.project(moved)))
        return value, lambda slope: torch.stack([SPACE.ravel(face.apply(probe.as_x(s))) for s in slope.T], -1)

    return measure
