"""The space of a vector whose entries are divided among ranks: sums over all entries are sums over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..errors import Incompatible
from ..spaces import Space, Vector, leaves, like
from .ranks import Ranks


@dataclass(frozen=True)
class ShardedSpace(Space):
    """<a, b> = sum over ranks of <a_r, b_r>, for vectors of which rank r holds the part a_r.

    Numbers that are the same for all entries (dot, norm, mean_square, size, is_finite) are the same bits on every rank.
    Every rank must ask the same questions in the same order.

    Parameters
    ----------
    ranks
        Who holds the parts.
    whole
        The names of those entries of a dictionary that every rank holds as a whole, such as "log_radius".

    Examples
    --------
    >>> from bilevel.distributed import Ranks
    >>> space = ShardedSpace(ranks=Ranks())
    >>> space.norm(torch.tensor([3.0, 4.0]))  # of all parts: here there is one
    tensor(5.)
    """

    ranks: Ranks = field(default_factory=Ranks)
    whole: frozenset[str] = frozenset()

    def dot(self, a: Vector, b: Vector) -> Tensor:
        products = [(u * v).sum() for u, v in zip(leaves(a), leaves(b), strict=True)]
        return self._totals(a, products).sum()

    def mean_square(self, a: Vector) -> Any:
        sums = self._totals(a, [torch.stack([u.square().sum(), u.new_tensor(u.numel())]) for u in leaves(a)])
        return like(a, [square / size for square, size in sums])

    def size(self, a: Vector) -> int:
        return int(self._totals(a, [torch.tensor(u.numel(), device=u.device) for u in leaves(a)]).sum())

    def is_finite(self, a: Vector) -> bool:
        return not bool(self._totals(a, [(~torch.isfinite(u)).sum() for u in leaves(a)]).any())

    def random_like(self, a: Vector, generator: torch.Generator, count: int | None = None) -> Vector:
        """As in `Space`, with other draws on each rank for the entries that are divided."""
        common = mine = super().random_like(a, generator, count)
        if self.ranks.rank > 0:
            own = torch.Generator(generator.device).manual_seed(generator.initial_seed() // 2 + self.ranks.rank)
            mine = super().random_like(a, own, count)
        drawn = zip(self._divided(a), leaves(mine), leaves(common), strict=True)
        return like(a, [u if divided else v for divided, u, v in drawn])

    def sphere(self, a: Vector, generator: torch.Generator, count: int | None = None) -> Vector:
        draws = self.random_like(a, generator, count)
        lead = 0 if count is None else 1
        squares = self._totals(a, [u.square().flatten(lead).sum(-1) for u in leaves(draws)]).sum(0)
        return like(a, [u / squares.sqrt().reshape(squares.shape + (1,) * (u.ndim - lead)) for u in leaves(draws)])

    def ravel(self, a: Vector) -> Tensor:
        """All entries as one flat tensor, where one rank has them all."""
        if self.ranks.size > 1:
            raise Incompatible(
                "this method looks at all entries as one flat vector, and they are divided among "
                f"{self.ranks.size} ranks: use DMLCBO, ProjectedSOBA or Approx with LinearSolve or Neumann, or one "
                "process"
            )
        return super().ravel(a)

    def _divided(self, a: Vector) -> Iterator[bool]:
        return (name not in self.whole for name in (a if isinstance(a, dict) else [""]))

    def _totals(self, a: Vector, numbers: list[Tensor]) -> Tensor:
        """Numbers of each tensor of `a`, summed over the ranks where the tensor is divided; one round."""
        first = self.ranks.rank == 0
        given = zip(self._divided(a), numbers, strict=True)
        return self.ranks.all_sum(torch.stack([n if divided or first else torch.zeros_like(n) for divided, n in given]))
