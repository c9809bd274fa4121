"""Points towards the kinks around z: random ones in d dimensions see only kinks within about delta / sqrt(d)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

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


def slanted(z: Tensor, upper_y: Tensor, on_face: Tensor, project: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Unit vectors along normals of the set, at z and far away, and along f_y, its part on the face and the rest."""
    away = 10 * (1.0 + float(z.norm()))
    far = [z + sign * away * u for u in (*axes(upper_y)[:FAR], unit_of(upper_y)) for sign in (1.0, -1.0)]
    found = [*(w - project(w) for w in (z, *far)), upper_y, on_face, upper_y - on_face]
    return [unit_of(v) for v in found if float(v.norm()) > 1e-12 * away]


def unit_of(v: Tensor) -> Tensor:
    """v / |v|; zero stays zero."""
    return v / max(float(v.norm()), 1e-300)


def towards_the_nearest(z: Tensor, margin: Callable[[Tensor], float], delta: float) -> list[Tensor]:
    """Minus the gradient of the margin, by differences: the direction in which the nearest kink lies."""
    here = margin(z)
    if not 0 < here < delta or len(z) > AXES:
        return []
    step = 1e-4 * here
    slopes = [(margin(z + step * e) - here) / step for e in torch.eye(len(z), dtype=z.dtype)]
    return [unit_of(torch.tensor(slopes, dtype=z.dtype))]


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
