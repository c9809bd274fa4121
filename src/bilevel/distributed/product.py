"""Products of sets for divided vectors: entries of a dictionary, each divided, or slices of one divided tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from ..errors import InvalidInput, InvalidType
from ..sets.base import ConvexSet, Face, Membership, check_draw
from ..sets.product import ProductFace, ProductSet
from .geometry import largest_entry, norm_over_ranks
from .meeting import Given, meet
from .mesh import over_mesh
from .ranks import Ranks
from .sets import ShardedSet, whole_length
from .sums import largest_of


class ShardedProduct(ConvexSet):
    """{y : y[name] in sets[name] for every name}, each divided among ranks: see `sharded`.

    With `sizes`, a point is one tensor whose last dimension is divided, wherever the borders between slices are: one
    round finds out which rank has what of them. The parts are projected one after the other.
    """

    def __init__(self, base: ProductSet, ranks: Ranks) -> None:
        self.base, self.ranks = base, ranks
        self.sets = {name: ShardedSet(part, ranks) for name, part in base.sets.items()}
        self.separable, self.polyhedral = base.separable, base.polyhedral  # type: ignore[misc]
        self.event_ndim = base.event_ndim  # type: ignore[misc]
        for name, value in base.tensor_parameters().items():
            if base.sizes is not None and value.ndim and not name.endswith(".radius"):
                raise InvalidInput(
                    f"{name} is a tensor of shape {tuple(value.shape)}: in slices of a divided vector give one number, "
                    "or use a dictionary, in which each rank gives its part"
                )

    def _parts(self, method: str, z: Any) -> tuple[dict[str, Any], list[int] | None]:
        """What is here of each part, in the order of the sets, and how long the slices here are."""
        sizes = self.base.sizes
        if sizes is None:
            given, _ = meet(self.ranks, repr(self), lambda: self._entries(method, z))
            return given.kept, None
        meet(self.ranks, repr(self), lambda: self._slices(method, z))
        first, total = whole_length(z.shape[-1], self.ranks)
        if total != sum(sizes):
            raise InvalidInput(f"{self!r} takes {sum(sizes)} entries (sizes {sizes}), and all ranks have {total}")
        here, start = [], 0
        for size in sizes:
            here.append(max(0, min(start + size, first + z.shape[-1]) - max(start, first)))
            start += size
        return dict(zip(self.sets, z.split(here, -1), strict=True)), here

    def _entries(self, method: str, z: Any) -> Given:
        if not isinstance(z, Mapping) or set(z) != set(self.sets):
            got = f"one with {sorted(map(str, z))}" if isinstance(z, Mapping) else type(z).__name__
            raise InvalidInput(f"ProductSet takes a dictionary with entries {sorted(self.sets)}, got {got}")
        told = {"the method": method, "the order of entries": list(z)}  # in which faces and spaces take them
        return Given(told, torch.zeros(0), {name: z[name] for name in self.sets})

    def _slices(self, method: str, z: Any) -> Given:
        if not isinstance(z, Tensor) or not z.ndim:
            raise InvalidType(f"ProductSet takes a tensor of one dimension or more, got {type(z).__name__}")
        return Given({"the method": method, "the batch": list(z.shape[:-1])}, torch.zeros(0))

    def _joined(self, parts: Mapping[str, Any], sizes: list[int] | None) -> Any:
        return dict(parts) if sizes is None else torch.cat(list(parts.values()), -1)

    def project(self, z: Any) -> Any:
        if isinstance(z, DTensor):
            return over_mesh(self, z, lambda Y, u: Y.project(u))
        parts, sizes = self._parts("project", z)
        return self._joined({name: self.sets[name].project(part) for name, part in parts.items()}, sizes)

    def jacobian(self, z: Any) -> Face:
        if isinstance(z, DTensor):
            return over_mesh(self, z, lambda Y, u: Y.jacobian(u))
        parts, sizes = self._parts("jacobian", z)
        return ProductFace({name: self.sets[name].jacobian(part) for name, part in parts.items()}, sizes, z)

    def margin(self, z: Any) -> Any:
        if isinstance(z, DTensor):
            return over_mesh(self, z, lambda Y, u: Y.margin(u))
        parts, sizes = self._parts("margin", z)
        margins = {name: self.sets[name].margin(part) for name, part in parts.items()}
        if sizes is None:
            return margins
        return torch.stack(torch.broadcast_tensors(*margins.values())).amin(0)  # type: ignore[arg-type]

    def excess(self, y: Any) -> tuple[Tensor, Tensor | float, str]:
        raise NotImplementedError("a divided product is judged by `contains`, part by part")

    def contains(self, y: Any, *, tol: float | None = None) -> Membership:
        """Of the parts, the one that is furthest outside."""
        if isinstance(y, DTensor):
            return over_mesh(self, y, lambda Y, u: Y.contains(u, tol=tol))
        parts, _ = self._parts("contains", y)
        answers = {name: self.sets[name].contains(part, tol=tol) for name, part in parts.items()}
        name, worst = max(answers.items(), key=lambda item: (not item[1].inside, item[1].violation))
        return worst if worst else Membership(False, worst.violation, f"in entry {name!r}: {worst.reason}")

    def distance(self, y: Any) -> Any:
        if isinstance(y, DTensor):
            return over_mesh(self, y, lambda Y, u: Y.distance(u))
        if self.base.sizes is None:
            parts, _ = self._parts("distance", y)
            return {name: self.sets[name].distance(part) for name, part in parts.items()}
        away = y - self.project(y)
        peak = largest_of(largest_entry(away.detach().abs()), self.ranks)
        return norm_over_ranks(away, peak.unsqueeze(-1), self.ranks).squeeze(-1)

    def random_point(
        self, generator: torch.Generator, *shape: Any, scale: float = 1.0, dtype: torch.dtype | None = None
    ) -> Any:
        """As that of `sharded`; for dictionaries `shape` is one dictionary of the shapes of parts."""
        options: Any = {"scale": scale, "dtype": dtype}
        if self.base.sizes is None:
            shapes = {name: shape[0][name] for name in self.sets}
            return {name: self.sets[name].random_point(generator, *shapes[name], **options) for name in self.sets}
        check_draw(repr(self), generator, shape)
        first, total = whole_length(shape[-1], self.ranks)
        whole = self.base.random_point(generator, *shape[:-1], total, **options)
        return whole[..., first : first + shape[-1]].clone()

    def on(self, ranks: Ranks, change: Callable[[ConvexSet], ConvexSet] = lambda base: base) -> ShardedProduct:
        """The same set for vectors that other ranks hold."""
        return ShardedProduct(change(self.base), ranks)  # type: ignore[arg-type]

    def tensor_parameters(self) -> dict[str, Tensor]:
        return self.base.tensor_parameters()

    def replace(self, **values: Any) -> Self:
        return type(self)(self.base.replace(**values), self.ranks)

    def __repr__(self) -> str:
        return f"sharded({self.base!r})"
