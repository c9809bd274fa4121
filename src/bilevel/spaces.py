"""The vector spaces of x and y: the only place where solvers reduce, combine and draw vectors.

A vector is a tensor or a dictionary of tensors (a module's parameters). A `Space` knows how many trailing
dimensions make one factor of a product set, so that step sizes can be one scalar per factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Vector = Tensor | dict[str, Tensor]
"""A point of the upper or lower space: one tensor, or tensors by name."""


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply `function` entry by entry; in `others`, anything but a dictionary is shared by all entries."""
    if not isinstance(tree, dict):
        return function(tree, *others)
    return {
        name: function(entry, *(other[name] if isinstance(other, dict) else other for other in others))
        for name, entry in tree.items()
    }


def leaves(tree: Vector) -> list[Tensor]:
    """The tensors of a vector, in the order of its names."""
    return list(tree.values()) if isinstance(tree, dict) else [tree]


def like(tree: Vector, tensors: list[Tensor] | tuple[Tensor, ...]) -> Vector:
    """A vector with the names of `tree` and the given tensors: the inverse of `leaves`."""
    return dict(zip(tree, tensors, strict=True)) if isinstance(tree, dict) else tensors[0]


@dataclass(frozen=True)
class Space:
    """The Euclidean space of a tensor or of a dictionary of tensors.

    Parameters
    ----------
    event_ndim
        How many trailing dimensions of a tensor form one factor (see `mean_square`); a dictionary gives one
        number per name, None takes each tensor as one factor.
    """

    event_ndim: int | dict[str, int] | None = None

    def dot(self, a: Vector, b: Vector) -> Tensor:
        """<a, b>, a 0-dimensional tensor."""
        return sum((u * v).sum() for u, v in zip(leaves(a), leaves(b), strict=True))  # type: ignore[return-value]

    def dots(self, stack: Vector, v: Vector) -> Tensor:
        """<stack_i, v> for each of the vectors stacked along a first dimension."""
        return sum(  # type: ignore[return-value]
            u.flatten(1) @ w.reshape(-1) for u, w in zip(leaves(stack), leaves(v), strict=True)
        )

    def norm(self, a: Vector) -> Tensor:
        """|a|, a 0-dimensional tensor."""
        return self.dot(a, a).sqrt()

    def mean_square(self, a: Vector) -> Any:
        """The mean of a_i^2 over each factor, in a shape that broadcasts against `a`."""
        return tree_map(_factor_mean_square, a, self.event_ndim)

    def size(self, a: Vector) -> int:
        """The dimension of the space."""
        return sum(u.numel() for u in leaves(a))

    def is_finite(self, a: Vector) -> bool:
        """Whether no entry is NaN or infinite."""
        return all(bool(torch.isfinite(u).all()) for u in leaves(a))

    def zeros_like(self, a: Vector) -> Vector:
        """The origin."""
        return tree_map(torch.zeros_like, a)

    def add(self, a: Vector, b: Vector, scale: Any = 1.0) -> Vector:
        """a + scale * b, with one scale for all or one per factor."""
        return tree_map(lambda u, v, s: u + s * v, a, b, scale)

    def scaled(self, a: Vector, scale: Any) -> Vector:
        """scale * a."""
        return tree_map(lambda u, s: s * u, a, scale)

    def lerp(self, a: Vector, b: Vector, weight: float) -> Vector:
        """(1 - weight) a + weight b, exactly b at weight 1."""
        return tree_map(lambda u, v: torch.lerp(u, v, weight), a, b)

    def ravel(self, a: Vector) -> Tensor:
        """All entries as one flat tensor."""
        return torch.cat([u.reshape(-1) for u in leaves(a)])

    def unravel(self, flat: Tensor, template: Vector) -> Vector:
        """The inverse of `ravel`; leading dimensions of `flat` are kept in front of each entry."""
        parts = flat.split([u.numel() for u in leaves(template)], dim=-1)
        shaped = [part.reshape((*flat.shape[:-1], *u.shape)) for part, u in zip(parts, leaves(template), strict=True)]
        return like(template, shaped)

    def random_like(self, a: Vector, generator: torch.Generator, count: int | None = None) -> Vector:
        """Independent standard normal entries; `count` adds one leading dimension of that many draws."""
        lead = () if count is None else (count,)
        return tree_map(
            lambda u: torch.randn((*lead, *u.shape), generator=generator, dtype=u.dtype, device=u.device), a
        )

    def sphere(self, a: Vector, generator: torch.Generator, count: int | None = None) -> Vector:
        """Points uniform on the unit sphere of the whole space."""
        draws = self.random_like(a, generator, count)
        lead = 0 if count is None else 1
        square = sum(u.square().flatten(lead).sum(-1) for u in leaves(draws))
        return tree_map(lambda u: u / _pad(square.sqrt(), u.ndim), draws)  # type: ignore[union-attr]

    def ball(self, a: Vector, generator: torch.Generator) -> Vector:
        """A point uniform in the unit ball of the whole space: U^(1/d) times a point of the sphere."""
        direction = self.sphere(a, generator)
        first = leaves(direction)[0]
        uniform = torch.rand((), generator=generator, dtype=torch.float64, device=first.device)
        return self.scaled(direction, float(uniform) ** (1.0 / self.size(a)))


def _factor_mean_square(u: Tensor, event_ndim: int | None) -> Tensor:
    if event_ndim is None or event_ndim >= u.ndim:
        return u.square().mean()
    if event_ndim == 0:
        return u.square()
    return u.square().mean(dim=tuple(range(-event_ndim, 0)), keepdim=True)


def _pad(scale: Tensor, ndim: int) -> Tensor:
    """`scale` with trailing dimensions of size 1 until it has `ndim` of them (or stays 0-dimensional)."""
    return scale.reshape(*scale.shape, *(1,) * (ndim - scale.ndim)) if scale.ndim else scale
