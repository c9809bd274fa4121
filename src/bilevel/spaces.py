"""The vector spaces of x and y: solvers reduce, combine and draw vectors only through this module.

A vector is a tensor or a dictionary of tensors (a module's parameters). A `Space` knows how many trailing
dimensions make one factor of a product set, so that step sizes can be one scalar per factor, and which tensors are
divided among ranks, so that sums over their entries are sums over ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .errors import IncompatibleError
from .ranks import Ranks

Vector = Tensor | dict[str, Tensor]
"""A point of the upper or lower space: one tensor, or tensors by name."""
SHORT = 1 << 16
"""Below this many entries torch.dot is as accurate as a sum of products, in float32 too."""
SMALLEST = 1e-30
"""Sums of squares below this value are computed in float64: float32 ends at 1e-38."""


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


def in_order(tree: Vector, vector: Vector) -> Vector:
    """The vector with its entries in the order of the names of `tree`."""
    return {name: vector[name] for name in tree} if isinstance(tree, dict) else vector  # type: ignore[index]


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether no entry is NaN or infinite."""
    # A sum is finite only where all entries are; where the sum of finite entries overflows they are looked at.
    return math.isfinite(sum([float(u.sum() if u.ndim else u) for u in tensors])) or all(
        bool(torch.isfinite(u).all()) for u in tensors
    )


@dataclass(frozen=True)
class Space:
    """The Euclidean space of a tensor or of a dictionary of tensors.

    Numbers about all entries (dot, norm, mean_square, size, is_finite) are the same bits on every rank.

    Parameters
    ----------
    event_ndim
        How many trailing dimensions of a tensor form one factor (see `mean_square`); a dictionary gives one
        number per name, None takes each tensor as one factor.
    ranks
        The processes of the run.
    divided
        Whether each rank holds its own rows (the first dimension) of the tensors, instead of all of them; a tuple has
        the names of the entries that are divided where a vector is a dictionary.
    """

    event_ndim: int | dict[str, int] | None = None
    ranks: Ranks = field(default_factory=Ranks, compare=False)
    divided: bool | tuple[str, ...] = False
    _is_divided: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_is_divided", bool(self.divided) and self.ranks.size > 1)

    def dot(self, a: Vector, b: Vector) -> Tensor:
        """<a, b>, a 0-dimensional tensor."""
        if isinstance(a, dict):
            return self._total(a, [_dot(u, b[name]) for name, u in a.items()])  # type: ignore[index]
        return self._total(a, [_dot(a, b)]) if self._is_divided else _dot(a, b)  # type: ignore[arg-type]

    def dots(self, stack: Vector, v: Vector) -> Tensor:
        """<stack_i, v> for each of the vectors stacked along a first dimension."""
        rows = leaves(in_order(v, stack))
        return self._total(v, [u.flatten(1) @ w.reshape(-1) for u, w in zip(rows, leaves(v), strict=True)])

    def norm(self, a: Vector) -> Tensor:
        """|a|, a 0-dimensional tensor."""
        square = self.dot(a, a)
        if square.dtype != torch.float64 and not SMALLEST < square < math.inf:  # squares leave the range of float32
            wide = tree_map(Tensor.double, a)
            square = self.dot(wide, wide)
        return square.sqrt()

    def mean_square(self, a: Vector) -> Any:
        """The mean of a_i^2 over each factor, in a shape that broadcasts against `a`."""
        if not (self._is_divided or isinstance(a, dict)):
            return _factor_mean_square(a, self.event_ndim)  # type: ignore[arg-type]
        if not self._is_divided:
            return tree_map(_factor_mean_square, a, self.event_ndim)
        sums = [torch.stack([u.square().sum(), u.new_tensor(u.numel())]) for u in leaves(a)]
        means = like(a, [square / size for square, size in self._by_tensor(a, sums)])
        return tree_map(_factor_mean_square, a, self.event_ndim, means)

    def size(self, a: Vector) -> int:
        """The dimension of the space."""
        return int(self._total(a, [u.numel() for u in leaves(a)]))

    def is_finite(self, a: Vector) -> bool:
        """Whether no entry is NaN or infinite."""
        return not bool(self._total(a, [(~torch.isfinite(u)).sum() for u in leaves(a)]))

    def zeros_like(self, a: Vector) -> Vector:
        """The origin."""
        return tree_map(torch.zeros_like, a)

    def add(self, a: Vector, b: Vector, scale: float = 1.0) -> Vector:
        """a + scale * b, with one number for all entries; `scaled` takes one per factor."""
        if not isinstance(a, dict):
            return torch.add(a, b, alpha=scale)  # type: ignore[arg-type]
        return {name: torch.add(u, b[name], alpha=scale) for name, u in a.items()}  # type: ignore[index]

    def scaled(self, a: Vector, scale: Any) -> Vector:
        """scale * a."""
        return tree_map(lambda u, s: s * u, a, scale) if isinstance(a, dict) else scale * a

    def lerp(self, a: Vector, b: Vector, weight: float) -> Vector:
        """(1 - weight) a + weight b, exactly b at weight 1."""
        if not isinstance(a, dict):
            return torch.lerp(a, b, weight)  # type: ignore[arg-type]
        return {name: torch.lerp(u, b[name], weight) for name, u in a.items()}  # type: ignore[index]

    def ravel(self, a: Vector) -> Tensor:
        """All entries as one flat tensor; raise if this rank does not hold them all."""
        if self._is_divided:
            raise IncompatibleError(
                f"this method needs all entries as one vector, but they are divided among {self.ranks.size} ranks: "
                "use it in one process, on a sample of the rows"
            )
        return torch.cat([u.reshape(-1) for u in leaves(a)])

    def unravel(self, flat: Tensor, template: Vector) -> Vector:
        """The inverse of `ravel`; leading dimensions of `flat` are kept in front of each entry."""
        parts = flat.split([u.numel() for u in leaves(template)], dim=-1)
        shaped = [part.reshape((*flat.shape[:-1], *u.shape)) for part, u in zip(parts, leaves(template), strict=True)]
        return like(template, shaped)

    def random_like(self, a: Vector, generator: torch.Generator, count: int | None = None) -> Vector:
        """Independent standard normal entries; `count` adds one leading dimension of that many draws."""
        lead, sources = () if count is None else (count,), [generator] * len(leaves(a))
        if self._is_divided:  # the same draws of what is whole, and other ones on each rank of what is divided
            seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
            own = torch.Generator(generator.device).manual_seed(seed + self.ranks.rank)
            sources = [own if divided else generator for divided in self.flags(a)]
        drawn = zip(leaves(a), sources, strict=True)
        return like(a, [torch.randn((*lead, *u.shape), generator=g, dtype=u.dtype, device=u.device) for u, g in drawn])

    def sphere(self, a: Vector, generator: torch.Generator, count: int | None = None) -> Vector:
        """Points uniform on the unit sphere of the whole space."""
        draws = self.random_like(a, generator, count)
        lead = 0 if count is None else 1
        square = self._total(a, [u.square().flatten(lead).sum(-1) for u in leaves(draws)])
        return tree_map(lambda u: u / _pad(square.sqrt(), u.ndim), draws)

    def ball(self, a: Vector, generator: torch.Generator) -> Vector:
        """A point uniform in the unit ball of the whole space: U^(1/d) times a point of the sphere."""
        draw = self.random_like(a, generator)
        uniform = torch.rand((), generator=generator, dtype=torch.float64, device=generator.device)
        return self.scaled(draw, float(uniform) ** (1.0 / self.size(a)) / float(self.norm(draw)))

    def flags(self, a: Vector) -> list[bool]:
        """For each tensor of `a`, whether it is divided."""
        if isinstance(a, dict) and isinstance(self.divided, tuple):
            return [name in self.divided for name in a]
        return [bool(self.divided)] * len(leaves(a))

    def map_divided(self, move: Callable[..., Any], a: Vector, *others: Vector) -> Vector:
        """`a` with `move` applied to each tensor that is divided, and to those of `others` beside it."""
        if not self._is_divided:
            return a
        parts = zip(self.flags(a), *map(leaves, (a, *others)), strict=True)
        return like(a, [move(u, *beside) if divided and u.ndim else u for divided, u, *beside in parts])

    def _total(self, a: Vector, numbers: Sequence[Any]) -> Any:
        """The sum of numbers of each tensor of `a`, over all ranks where the tensor is divided."""
        return self._by_tensor(a, numbers).sum(0) if self._is_divided else sum(numbers)

    def _by_tensor(self, a: Vector, numbers: Sequence[Any]) -> Tensor:
        """Numbers of each tensor of `a`, summed over the ranks where the tensor is divided, in one exchange."""
        given = zip(self.flags(a), map(torch.as_tensor, numbers), strict=True)
        counted = [n if divided or self.ranks.rank == 0 else torch.zeros_like(n) for divided, n in given]
        return self.ranks.sum(torch.stack(counted))


def sum_whole(tensors: list[Tensor], divided: list[bool], ranks: Ranks) -> list[Tensor]:
    """The sums over ranks of the tensors that are not divided, in one exchange; the others as they are."""
    whole = [u for u, own in zip(tensors, divided, strict=True) if not own]
    if ranks.size == 1 or not whole:
        return tensors
    flat = ranks.sum(torch.cat([u.reshape(-1) for u in whole]))
    sums = iter(flat.split([u.numel() for u in whole]))
    return [u if own else next(sums).reshape(u.shape).to(u.dtype) for u, own in zip(tensors, divided, strict=True)]


def _dot(u: Tensor, v: Tensor) -> Tensor:
    """<u, v>: short vectors in one operation; products of long ones are added up pairwise, with less rounding."""
    return torch.dot(u, v) if u.ndim == 1 and u.shape[0] < SHORT and u.dtype == v.dtype else (u * v).sum()


def _factor_mean_square(u: Tensor, event_ndim: int | None, over_ranks: Tensor | None = None) -> Tensor:
    if event_ndim is None or event_ndim >= u.ndim:
        return u.square().mean() if over_ranks is None else over_ranks
    if event_ndim == 0:
        return u.square()
    return u.square().mean(dim=tuple(range(-event_ndim, 0)), keepdim=True)


def _pad(scale: Tensor, ndim: int) -> Tensor:
    """`scale` with trailing dimensions of size 1 until it has `ndim` of them (or stays 0-dimensional)."""
    return scale.reshape(*scale.shape, *(1,) * (ndim - scale.ndim)) if scale.ndim else scale
