"""Convex sets of vectors that are divided among ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from .. import tolerances
from ..errors import Incompatible, InvalidInput, InvalidType, NotFinite
from ..sets.base import (
    ConvexSet,
    Face,
    Membership,
    can_look_at_values,
    check_draw,
    check_holds_values,
    in_float32,
    judged,
    per_point,
    tracked,
    widened,
)
from ..sets.box import Box, LInfBall, NonNegative
from ..sets.free_space import FreeSpace
from ..sets.l2_ball import L2Ball
from ..sets.simplex import L1Ball, Simplex
from .geometry import Geometry, Round, Separate, Thresholded, largest_entry, norm_over_ranks
from .meeting import Given, meet
from .mesh import over_mesh
from .ranks import Ranks
from .sums import added_up, held_by_all, largest_of

GEOMETRIES: dict[type[ConvexSet], Any] = {
    L1Ball: Thresholded,
    Simplex: Thresholded,
    L2Ball: Round,
    Box: Separate,
    NonNegative: Separate,
    LInfBall: Separate,
    FreeSpace: Separate,
}


class ShardedSet(ConvexSet):
    """A set of the catalogue for divided vectors: see `sharded`."""

    def __init__(self, base: ConvexSet, ranks: Ranks) -> None:
        if type(base) not in GEOMETRIES:
            known = ", ".join(kind.__name__ for kind in GEOMETRIES)
            raise InvalidType(f"sharded takes {known} and ProductSet of these, got {base!r}")
        self.base, self.ranks = base, ranks
        self.separable, self.polyhedral = base.separable, base.polyhedral  # type: ignore[misc]

    def of_kind(self, z: Any) -> Any:
        """z itself, once it is known to be a floating-point tensor; a part may be empty."""
        if not can_look_at_values():
            raise Incompatible(
                f"{self!r} meets other ranks, which torch.compile and torch.func cannot: call it outside"
            )
        owner = type(self.base).__name__
        if not isinstance(z, Tensor):
            hint = "for dictionaries use ProductSet" if isinstance(z, Mapping) else "use torch.as_tensor(z)"
            raise InvalidType(f"{owner} takes a tensor, got {type(z).__name__}: {hint}")
        check_holds_values("the point", z)
        if not z.is_floating_point() or not z.ndim:
            raise InvalidType(f"{owner} takes floating-point vectors, got {z.dtype} of shape {tuple(z.shape)}")
        return z

    def _given(self, method: str, z: Any) -> Given:
        """What this rank brings to a meeting: sizes of entries, and the radius from above and from below."""
        z = self.of_kind(z)
        base = self._followed()
        geometry: Geometry = GEOMETRIES[type(base)](base, self.ranks)
        rows = [torch.where(u.isnan(), torch.inf, u) for u in (largest_entry(z.detach().abs()), *geometry.sizes(z))]
        if "radius" in base.parameters:
            radius = per_point(base.radius, z, name="radius", keepdim=False).detach()  # type: ignore[attr-defined]
            rows += [radius, -radius]
        batch = torch.broadcast_shapes(*(row.shape for row in rows))
        follow = tracked(z, *(value for value in base.tensor_parameters().values()))
        told = {"the set": type(base).__name__, "the method": method, "the batch": list(batch), "dtype": str(z.dtype)}
        told |= {"whether a derivative is asked": bool(follow)}
        return Given(told, torch.stack([row.double().expand(batch) for row in rows]), (z, geometry))

    def _followed(self) -> ConvexSet:
        """The set with parameters that pass their derivatives to all ranks, where all ranks hold them."""
        if not torch.is_grad_enabled():
            return self.base
        common = {
            name: held_by_all(value, self.ranks)
            for name, value in self.base.tensor_parameters().items()
            if value.requires_grad and (name == "radius" or not value.ndim)
        }
        return self.base.replace(**common) if common else self.base

    def _met(self, method: str, z: Any) -> tuple[Geometry, Tensor, list[Tensor]]:
        """The geometry, z, and the largest sizes over ranks, once all are known to have a finite part of one thing."""
        given, largest = meet(self.ranks, repr(self), lambda: self._given(method, z))
        z, geometry = given.kept
        self._check_radius(largest)
        if bool(torch.isposinf(largest[0]).any()):
            bad, total = self.ranks.total(int((~torch.isfinite(z)).sum()), z.numel())
            raise NotFinite(f"{self!r}: {bad:.0f} of {total:.0f} entries of the point are NaN or infinite")
        if bool(torch.isneginf(largest[0]).any()):
            raise InvalidInput(f"{self!r}: no rank has an entry of the point: give at least one")
        return geometry, z, [row.to(z.dtype) for row in largest[1:]]

    def _check_radius(self, largest: Tensor) -> None:
        if "radius" in self.base.parameters and bool((largest[-2] != -largest[-1]).any()):
            low, high = float((-largest[-1]).min()), float(largest[-2].max())
            raise InvalidInput(
                f"{self!r}: radius is {low:.17g} on one rank and {high:.17g} on another: give all ranks the same"
            )

    @in_float32
    def project(self, z: Any) -> Any:
        if isinstance(z, DTensor):
            return over_mesh(self, z, lambda Y, u: Y.project(u))
        geometry, z, peaks = self._met("project", z)
        return geometry.project(z, peaks)

    @in_float32
    def jacobian(self, z: Any) -> Face:
        if isinstance(z, DTensor):
            return over_mesh(self, z, lambda Y, u: Y.jacobian(u))
        with torch.no_grad():
            geometry, z, peaks = self._met("jacobian", z)
            return geometry.face(z.detach(), peaks)

    @in_float32
    def margin(self, z: Any) -> Any:
        if isinstance(z, DTensor):
            return over_mesh(self, z, lambda Y, u: Y.margin(u))
        with torch.no_grad():
            geometry, z, peaks = self._met("margin", z)
            return geometry.margin(z.detach(), peaks)

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor | float, str]:
        return GEOMETRIES[type(self.base)](self.base, self.ranks).excess(y)

    @torch.no_grad()
    def contains(self, y: Any, *, tol: float | None = None) -> Membership:
        if isinstance(y, DTensor):
            return over_mesh(self, y, lambda Y, u: Y.contains(u, tol=tol))
        try:
            _, y, _ = self._met("contains", y)
        except NotFinite as error:
            return Membership(False, math.inf, str(error).partition(": ")[2])
        if tol is not None and not tol >= 0:
            raise InvalidInput(f"tol must be at least 0, got {tol}")
        return judged(*self.excess(widened(y)), tolerances.feasibility(y.dtype) if tol is None else tol)

    def distance(self, y: Any) -> Any:
        if isinstance(y, DTensor):
            return over_mesh(self, y, lambda Y, u: Y.distance(u))
        away = y - self.project(y)
        peak = largest_of(largest_entry(away.detach().abs()), self.ranks)
        return norm_over_ranks(away, peak.unsqueeze(-1), self.ranks).squeeze(-1)

    def random_point(
        self, generator: torch.Generator, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None
    ) -> Tensor:
        """This rank's part of the point that the plain set draws: generators must be in the same state on all ranks.

        `shape` is that of the part. The whole point is drawn on every rank.
        """
        check_draw(repr(self), generator, shape)
        first, total = whole_length(shape[-1], self.ranks)
        whole = self.base.random_point(generator, *shape[:-1], total, scale=scale, dtype=dtype)
        return whole[..., first : first + shape[-1]].clone()

    def on(self, ranks: Ranks, change: Callable[[ConvexSet], ConvexSet] = lambda base: base) -> ShardedSet:
        """The same set for vectors that other ranks hold."""
        return ShardedSet(change(self.base), ranks)

    def tensor_parameters(self) -> dict[str, Tensor]:
        return self.base.tensor_parameters()

    def replace(self, **values: Any) -> Self:
        return type(self)(self.base.replace(**values), self.ranks)

    def __repr__(self) -> str:
        return f"sharded({self.base!r})"


def whole_length(length: int, ranks: Ranks) -> tuple[int, int]:
    """Where this rank's part of a vector begins, and how long the whole is: parts are in the order of ranks."""
    lengths = torch.zeros(ranks.size, dtype=torch.int64)
    lengths[ranks.rank] = length
    lengths = added_up(lengths, ranks)
    return int(lengths[: ranks.rank].sum()), int(lengths.sum())
