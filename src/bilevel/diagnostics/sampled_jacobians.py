"""Jacobians of the projection around a point: at drawn points, and at points behind the nearest kinks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..problem import Linearization
from ..random import RandomStreams, Seeds
from ..sets.base import ProjectionJacobian
from ..sets.box import Box
from ..sets.free_space import FreeSpace
from ..spaces import tree_map
from .finite_differences import SPACE, Probe, dense_matrix
from .jacobian_hull import JacobianHull
from .lower_level import FaceFacts, all_parts

AXES = 100
"""At most so many axes are followed, those along which f changes most."""
FAR = 10
"""Along so many of them it is asked for the normal far away."""
HALVINGS = 12
"""Bisections of the way to a kink."""
JOINTLY = 7
"""Up to so many kinks all their combinations are visited, beyond that the nearest ones first."""
BEYOND = 1 + 1e-3
"""Just behind a kink."""

SameFace = Callable[[Tensor], bool]
"""Whether the Jacobian at a point is that at z."""


def ways_to_kinks(z: Tensor, delta: float, directions: list[Tensor], same_face: SameFace) -> list[Tensor]:
    """The shortest move along each of the directions and its opposite that leaves the face of z, if within delta."""
    moves = (_first_change(z, sign * delta * u, same_face) for u in directions for sign in (1.0, -1.0))
    return sorted((move for move in moves if move is not None), key=lambda move: float(move.norm()))


def _first_change(z: Tensor, whole: Tensor, same_face: SameFace) -> Tensor | None:
    """t * whole with the smallest t found, 0 < t <= 1, at which the face is another."""
    last = next((t for t in (0.25, 0.5, 0.75, 1.0) if not same_face(z + t * whole)), None)
    if last is None:
        return None
    first = last - 0.25
    for _ in range(HALVINGS):
        middle = (first + last) / 2
        first, last = (middle, last) if same_face(z + middle * whole) else (first, middle)
    return min(1.0, BEYOND * last) * whole


def axes(upper_y: Tensor) -> list[Tensor]:
    """Unit vectors along the entries of y, those that matter most to f first."""
    order = upper_y.abs().argsort(descending=True, stable=True)[:AXES]
    return list(torch.eye(len(upper_y), dtype=upper_y.dtype)[order])


def normal_directions(z: Tensor, upper_y: Tensor, on_face: Tensor, project: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Unit vectors along normals of the set, at z and far away, and along f_y, its part on the face and the rest."""
    away = 10 * (1.0 + float(z.norm()))
    far = [z + sign * away * u for u in (*axes(upper_y)[:FAR], normalised(upper_y)) for sign in (1.0, -1.0)]
    found = [*(w - project(w) for w in (z, *far)), upper_y, on_face, upper_y - on_face]
    return [normalised(v) for v in found if float(v.norm()) > 1e-12 * away]


def normalised(v: Tensor) -> Tensor:
    """v / |v|; zero stays zero."""
    return v / (float(v.norm()) or 1.0)


def towards_nearest_kink(z: Tensor, margin: Callable[[Tensor], float], delta: float) -> list[Tensor]:
    """Minus the gradient of the margin, by differences: the direction in which the nearest kink lies."""
    here = margin(z)
    if not 0 < here < delta or len(z) > AXES:
        return []
    step = 1e-4 * here
    slopes = [(margin(z + step * e) - here) / step for e in torch.eye(len(z), dtype=z.dtype)]
    return [normalised(torch.tensor(slopes, dtype=z.dtype))]


def points_beyond(z: Tensor, delta: float, moves: list[Tensor]) -> Iterator[Tensor]:
    """z moved beyond one kink, and beyond several at once, as far as delta allows."""
    yield from (z + move for move in moves)
    yield from (z + delta / float(move.norm()) * move for move in moves)
    if len(moves) <= JOINTLY:
        chosen = (c for size in range(2, len(moves) + 1) for c in itertools.combinations(moves, size))
        totals = (torch.stack(several).sum(0) for several in chosen)
        yield from (z + total for total in totals if float(total.norm()) <= delta)
    else:
        yield from prefixes(z, delta, moves)


def prefixes(z: Tensor, delta: float, moves: list[Tensor]) -> Iterator[Tensor]:
    """z moved by more and more of the moves, as far as delta allows."""
    total = torch.zeros_like(z)
    for move in moves:
        if float((total + move).norm()) > delta:
            return
        total = total + move
        yield z + total


BATCHES = 10
"""The samples are split into so many batches for the interval."""
ROUNDS = 6
"""How often the combination that was best so far shows which kinks to go beyond next."""
LARGEST = 1000
"""The largest number of entries of y that the sampled faces may touch together."""


def draws(probe: Probe, z: Tensor, delta: float, samples: int, seeds: Seeds) -> list[Tensor]:
    """Points in the ball of radius delta around z and on its sphere in turn."""
    streams, like = RandomStreams(seeds), probe.as_y(z)
    points = []
    for k in range(samples):
        generator = streams.generator("smoothing", k)
        draw: Any = SPACE.ball(like, generator) if k % 2 else SPACE.sphere(like, generator)
        points.append(z + delta * SPACE.ravel(draw))
    return points


class Faces:
    """The different Jacobians met so far, that of z first, each with the point where it was met."""

    def __init__(self, probe: Probe, lin: Linearization, z: Tensor) -> None:
        self.probe = probe
        self.lin = lin
        self._marks = [SPACE.random_like(lin.y, torch.Generator().manual_seed(k)) for k in range(2)]
        self.known: list[tuple[ProjectionJacobian, Tensor, Tensor]] = []  # with products by which it is known
        self.visit(z)

    def visit(self, point: Tensor) -> int:
        """The number of the Jacobian at this point."""
        face, signature = self._look(point)
        number = next((k for k, (*_, other) in enumerate(self.known) if _same(other, signature)), len(self.known))
        if number == len(self.known):
            self.known.append((face, point, signature))
        return number

    def is_same_face(self, point: Tensor) -> bool:
        """Whether the Jacobian is that of z; nothing is remembered."""
        return _same(self.known[0][2], self._look(point)[1])

    def _look(self, point: Tensor) -> tuple[ProjectionJacobian, Tensor]:
        """The Jacobian at a point, and its products with two marks, by which it is known."""
        face = self.lin.constraint.jacobian(self.probe.as_y(point))
        return face, torch.cat([SPACE.ravel(face.apply(mark)) for mark in self._marks])

    def visit_directed(self, z: Tensor, delta: float, eta: float) -> None:
        """Go beyond the kinks around z: singly, jointly, and jointly beyond those that make |h| smaller."""
        upper_y, constraint = SPACE.ravel(self.lin.upper_grad_y), self.lin.constraint
        on_face = SPACE.ravel(self.known[0][0].apply(self.probe.as_y(upper_y)))
        margin = lambda point: float(all_parts(constraint.margin(self.probe.as_y(point))).min())  # noqa: E731
        moves = self._beyond(z, delta, axes(upper_y))
        others = normal_directions(z, upper_y, on_face, self.probe.project) + towards_nearest_kink(z, margin, delta)
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
        for move in ways_to_kinks(z, delta, directions, self.is_same_face):
            moves.setdefault(self.visit(z + move), move)
        moves = {number: move for number, move in moves.items() if number >= old}
        for point in points_beyond(z, delta, list(moves.values())):
            self.visit(point)
        return moves

    def hull(self, eta: float) -> JacobianHull:
        """The formula of the hypergradient over convex combinations, on the entries of y that some face touches."""
        lin, faces, moving = self.lin, [face for face, *_ in self.known], self.lin.problem.moving
        touched = torch.arange(SPACE.size(lin.y)) if moving else _touched(faces, SPACE.size(lin.y))
        if len(touched) > LARGEST:
            raise InvalidInputError(
                f"the faces within delta touch {len(touched)} entries of y, more than {LARGEST}: take a smaller delta, "
                "or look at |h| alone (bilevel.hypergradient)"
            )
        motions = [dense_matrix(lambda u, z=z: self._through_set(z, u), lin.y) for _, z, _ in self.known if moving]
        return JacobianHull(
            faces=torch.stack([dense_matrix(face.apply, lin.y, touched)[touched] for face in faces]),
            upper_x=SPACE.ravel(lin.upper_grad_x),
            upper_y=SPACE.ravel(lin.upper_grad_y)[touched],
            hessian=dense_matrix(lin.lower_hvp, lin.y, touched)[touched],
            cross=dense_matrix(lin.lower_cross, lin.y, touched),
            eta=eta,
            motions=torch.stack(motions) if moving else None,
            residual=stationarity_measure(self.probe),
        )

    def _through_set(self, z: Tensor, u: Any) -> Any:
        """V u = theta_x' P_theta(z)' u."""
        product = self.lin.problem.constraint_vjp(self.probe.as_x(self.probe.x), self.probe.as_y(z), u)
        if product is None:
            raise InvalidInputError("constraint_vjp returned None for a set that moves with x: return a vector like x")
        return product


def _same(a: Tensor, b: Tensor) -> bool:
    return float((a - b).norm()) <= 1e-9 * (1 + float(a.norm()))


def batches(faces: Faces, points: list[Tensor]) -> list[list[int]]:
    """Which Jacobians each batch of the points met; z itself, in all of them, would make their minima agree."""
    met = [faces.visit(point) for point in points]
    return [sorted(set(met[b::BATCHES])) for b in range(BATCHES)]


def all_faces_met(faces: Faces, facts: FaceFacts, z: Tensor, delta: float) -> bool:
    """Whether every face of the ball was met: H is constant up to the margin; a box has one kink for each bound."""
    constraint = faces.lin.constraint
    if constraint.polyhedral and facts.margin >= delta:
        return True
    if not isinstance(constraint, Box) or faces.lin.problem.moving:
        return False
    point = faces.probe.as_y(z)
    within, ones = constraint.gaps(point) < delta, torch.ones_like(point)
    diagonals = torch.stack([face.apply(ones) for face, *_ in faces.known])
    met = (diagonals != diagonals[0]).any(0)
    return int(within.sum()) <= JOINTLY and bool((met | ~within).all())


def _touched(faces: list[Any], size: int) -> Tensor:
    """The entries of y outside of which every H is zero."""
    mask = torch.zeros(size, dtype=torch.bool)
    for face in faces:
        support = face.support
        if not isinstance(support, Tensor) or support.numel() != size:
            return torch.arange(size)
        mask |= support.reshape(-1)
    return mask.nonzero()[:, 0]


def stationarity_measure(probe: Probe) -> Any:
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
