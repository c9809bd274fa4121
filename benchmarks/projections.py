"""Projections on every set, for 20, 1,000 and 100,000 entries: processor time over that of sorting as many numbers.

`python -m benchmarks projections`. `set.project` as users call it, in float64, at a random point; matrices are square
and have about as many entries. Polyhedra and affine sets are measured up to 1,000 entries, intersections at 20.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bilevel import sets

from .harness import Row

SIZES, BUDGET = (20, 1_000, 100_000), 0.1
Projection = tuple[sets.ConvexSet, Any]


def rows() -> list[Row]:
    """One row per set and size."""
    return [row for n in SIZES for row in _rows(n)]


def _rows(n: int) -> Iterator[Row]:
    z = _data(n)
    sort = _seconds(lambda: torch.sort(z))
    for Y, point in _sets(n):
        spent = _seconds(lambda Y=Y, point=point: Y.project(point))
        yield Row(f"{_name(Y)} on {n:,}", spent / sort, "", f"{spent * 1e6:.0f} us / {sort * 1e6:.1f} us")


def _name(Y: sets.ConvexSet) -> str:
    """The set, without long parameters."""
    return f"{Y!r}" if len(f"{Y!r}") < 40 else type(Y).__name__


def _seconds(function: Callable[[], object]) -> float:
    """The best processor time of one call, over blocks of calls of about a millisecond that fit in the budget."""
    function()
    calls, times, began = 1, [], time.process_time()
    while len(times) < 4 or time.process_time() - began < BUDGET:
        start = time.process_time()
        for _ in range(calls):
            function()
        spent = time.process_time() - start
        if spent < 1e-3:
            calls *= 2
        else:
            times.append(spent / calls)
    return min(times)


def _data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _sets(n: int) -> Iterator[Projection]:
    z, weight, radius = _data(n), _data(n, seed=1).abs() + 0.1, n**0.5
    for Y in (
        sets.NonNegative(), sets.Box(0.0, 1.0), sets.LInfBall(0.5), sets.L2Ball(0.5), sets.SecondOrderCone(),
        sets.HalfSpace(weight, 0.1), sets.Hyperplane(weight, 0.1), sets.Simplex(1.0), sets.Simplex(n / 10),
        sets.L1Ball(radius), sets.CappedSimplex(0.25, n / 10), sets.CappedSimplex(weight, n / 10),
        sets.BoxSection(-1.0, 1.0, weight, 0.0), sets.WeightedL1Ball(weight, radius), sets.GroupL1Ball(4, radius),
        sets.ElasticNetBall(1.0, radius), sets.MonotoneCone(),
        sets.Permutahedron(_data(n, seed=2).sort(descending=True).values), sets.Scaled(sets.Simplex(1.0), 2.0),
    ):  # fmt: skip
        yield Y, z
    half = n // 2
    yield sets.ProductSet({"a": sets.Simplex(1.0), "b": sets.Box(0.0, 1.0)}), {"a": z[:half], "b": z[half:]}
    side = round(n**0.5)
    matrix, plan = _data(side, side), _data(side, side, seed=4).abs()
    yield sets.PSDCone(), matrix
    yield sets.NuclearNormBall(2.0), matrix
    yield sets.SpectralNormBall(1.0), matrix
    yield sets.TransportPolytope(plan.sum(1), plan.sum(0)), matrix
    yield sets.BirkhoffPolytope(side), matrix
    if n <= 1_000:
        rows_of = _data(max(n // 20, 3), n, seed=5)
        yield sets.AffineSet(rows_of), z
        yield sets.Polyhedron(rows_of, rows_of.norm(dim=1)), 3 * z
    if n <= 20:
        yield sets.Intersection(sets.L2Ball(radius / 2), sets.Box(-0.5, 1.0)), z
