"""Random cases for the contract suite of convex sets: sets of many sizes, points inside, on and outside them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from ..sets.base import ConvexSet, ProjectionJacobian, event_norm


@dataclass(frozen=True)
class Case:
    """A set, points of one batch dimension, and the recipe to make the same set at another scale."""

    Y: ConvexSet
    z: Tensor
    scale: float
    seed: int
    dimension: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one point."""
        return tuple(self.z.shape[1:])

    def size(self) -> Tensor:
        """max(|z|, size of the set) for each point: what errors are measured by."""
        return event_norm(self.z, len(self.shape)).clamp_min(self.scale)


class SetCases:
    """The two methods that a new set's test writes, and the knobs that it may turn."""

    dimensions: tuple[int, ...] = (1, 2, 3, 5, 8, 13, 21, 34, 60)
    """Dimensions of vectors, or sides of matrices (give a tuple up to 12 then)."""
    small_dimensions: tuple[int, ...] = (1, 2, 3)
    """Dimensions for the tests that form H as a matrix."""
    accuracy: float = 1e-11
    """Relative error of `project` in float64 (sets that iterate or call a solver have a larger one)."""
    difference_step: float = 1e-5
    half: bool = True
    """Whether bfloat16 makes sense."""
    traceable: bool = True
    """Whether `project` runs under torch.func.vmap and torch.compile."""
    traceable_parameters: bool = True
    """Whether the set can be made under torch.func.vmap, of the values of a batch."""
    takes_numbers: bool = False
    """Whether a tensor without dimensions is a point."""
    margin_exact: bool = True
    """Whether `margin` is the distance itself and not only a lower bound."""
    points_per_set: int = 5
    oracle_cases: int = 60
    """Points that are compared with the oracle in every run of the tests."""
    most_small_cases: int = 12
    """The largest number of sets in tests that form H as a matrix or look at a set in several ways."""
    parameter_cases: int = 6
    """Sets whose derivatives in parameters are compared with differences."""

    def make_set(self, generator: torch.Generator, dimension: int, scale: float) -> ConvexSet:
        """A random set with float64 tensor parameters; scale * Y for the same draws of the generator."""
        raise NotImplementedError(f"{type(self).__name__} must define make_set(generator, dimension, scale)")

    def oracle(self, y: Any, Y: ConvexSet) -> list[Any]:
        """The constraint y in Y in cvxpy, for a cvxpy variable y."""
        raise NotImplementedError(f"{type(self).__name__} must define oracle(y, Y)")

    def shape(self, dimension: int) -> tuple[int, ...]:
        """The shape of one point: (n,) for vectors, (n, n) for matrices; override for others."""
        return (dimension,)

    def points(self, generator: torch.Generator, Y: ConvexSet, shape: tuple[int, ...], scale: float) -> Tensor:
        """Eight points: near, far, tied, inside, on the boundary, along a normal, zero, constant."""
        normal = torch.randn((6, *shape), generator=generator, dtype=torch.float64) * scale
        exponents = torch.rand((2,), generator=generator, dtype=torch.float64)
        near = normal[0] * 10 ** (2 * exponents[0] - 1)
        far = normal[1] * 10 ** (6 * exponents[1] - 3)
        tied = (2 * normal[2] / scale).round() / 2 * scale
        inside = Y.random_point(generator, *shape, scale=scale, dtype=torch.float64).detach()
        boundary = Y.project(4 * normal[3]).detach()
        foot = Y.project(3 * normal[4]).detach()
        along = foot + 0.5 * (3 * normal[4] - foot)
        constant = torch.ones(shape, dtype=torch.float64) * scale * 2 * normal[5].flatten()[0] / scale
        return torch.stack([near, far, tied, inside, boundary, along, torch.zeros_like(near), constant])

    def set_at(self, seed: int, dimension: int, scale: float) -> ConvexSet:
        """The set of this seed at any scale."""
        return self.make_set(torch.Generator().manual_seed(seed), dimension, scale)

    def case(self, seed: int, dimension: int, scale: float = 1.0) -> Case:
        """All eight kinds of points around one set."""
        Y = self.set_at(seed, dimension, scale)
        generator = torch.Generator().manual_seed(seed + 1)
        return Case(Y, self.points(generator, Y, self.shape(dimension), scale), scale, seed, dimension)

    def cases(self, name: str, count: int) -> Iterator[Case]:
        """`count` points in all, `points_per_set` around each set, at scales 1e-6 to 1e6."""
        for k in range(math.ceil(count / self.points_per_set)):
            seed = zlib.crc32(f"{type(self).__name__}/{name}/{k}".encode())
            dimension = self.dimensions[k % len(self.dimensions)]
            full = self.case(seed, dimension, 10.0 ** (seed % 13 - 6))
            chosen = [(k + j) % len(full.z) for j in range(self.points_per_set)]
            yield Case(full.Y, full.z[chosen], full.scale, seed, dimension)

    def small_cases(self, name: str, count: int = 6) -> Iterator[Case]:
        """Sets of scale 1 in few dimensions."""
        for k in range(min(count, self.most_small_cases)):
            seed = zlib.crc32(f"{type(self).__name__}/{name}/{k}".encode())
            yield self.case(seed, self.small_dimensions[k % len(self.small_dimensions)])

    def largest_small_case(self, name: str) -> Case:
        """One of them, in the largest of these dimensions."""
        return self.case(next(self.small_cases(name)).seed, max(self.small_dimensions))

    def need_half(self, dtype: torch.dtype) -> None:
        """Skip a test in bfloat16 where that makes no sense."""
        if dtype is torch.bfloat16 and not self.half:
            pytest.skip("bfloat16 makes no sense for this set")

    def smooth_points(self, case: Case, count: int = 8) -> Tensor:
        """Random points around the set at which the projection has no kink within 100 difference steps."""
        generator = torch.Generator().manual_seed(case.seed + 2)
        spread = torch.logspace(-0.5, 1, 4 * count, dtype=torch.float64)
        z = torch.randn((4 * count, *case.shape), generator=generator, dtype=torch.float64)
        z = z * spread.reshape(-1, *(1,) * len(case.shape)) * case.scale
        far = torch.stack([self._is_smooth(case.Y, point, generator) for point in z])
        return z[far][:count]

    def _is_smooth(self, Y: ConvexSet, z: Tensor, generator: torch.Generator) -> Tensor:
        reach = 100 * self.difference_step
        margin = Y.margin(z)
        if margin is not None:
            return margin.detach() > reach
        d = torch.randn((6, *z.shape), generator=generator, dtype=z.dtype)
        near = torch.cat([z[None], z + reach * d / d.norm()])
        H = dense_batch(Y.jacobian(near), near)
        return (H - H[0]).abs().amax() < 30 * reach


def unit_directions(count: int, z: Tensor, generator: torch.Generator) -> Tensor:
    """Random tensors of the shape of z and of norm 1, (count, *z.shape)."""
    d = torch.randn((count, *z.shape), generator=generator, dtype=z.dtype)
    return d / d.flatten(1).norm(dim=1).reshape(-1, *(1,) * z.ndim)


def dense(jacobian: ProjectionJacobian, z: Tensor) -> Tensor:
    """H as a matrix (N, N), for one point z with N entries."""
    return dense_batch(jacobian, z[None])[0] if z.ndim else jacobian.apply(torch.ones_like(z))


def dense_batch(jacobian: ProjectionJacobian, z: Tensor) -> Tensor:
    """H as matrices (K, N, N), for K points z or one that stands for all."""
    size = z[0].numel()
    eye = torch.eye(size, dtype=z.dtype).reshape(size, 1, *z.shape[1:]).expand(size, *z.shape)
    return jacobian.apply(eye).reshape(size, len(z), size).transpose(0, 1)
