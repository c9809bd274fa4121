"""Sets of DTensors: placements decide who must meet, and the answers carry them on.

Of the dimensions of a mesh, one that divides the vectors (the last dimension of the tensor) is where sums are taken;
one that divides the batch, or replicates, needs none. A sum that is still to be made (Partial) has no entries yet.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import reduce
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from ..errors import InvalidInput, InvalidType
from ..sets.base import ConvexSet, Face, Membership
from .ranks import Ranks
from .sums import added_up, held_by_all


class Placed:
    """Where the parts of a DTensor are: `ranks` that divide its vectors (or None), `others` that divide its batch."""

    def __init__(self, owner: str, z: DTensor) -> None:
        self.like, vectors, batch = z, [], []
        for dim, placement in enumerate(z.placements):
            if type(placement) is Shard:
                (vectors if placement.dim % z.ndim == z.ndim - 1 else batch).append(dim)
            elif type(placement) is not Replicate:
                raise InvalidInput(
                    f"{owner} cannot take a DTensor with placement {placement!r}: redistribute it first, for example "
                    f"z.redistribute(placements=[Shard({z.ndim - 1})])"
                )
        if len(vectors) > 1:
            raise InvalidInput(
                f"{owner} cannot take a DTensor whose last dimension is divided over {len(vectors)} dimensions of its "
                f"mesh, placements {z.placements}: redistribute it to one of them"
            )
        groups = [[z.device_mesh.get_group(dim) for dim in dims] for dims in (vectors, batch)]
        self.ranks = ranks_of(groups[0][0]) if groups[0] else None
        self.others = [ranks_of(group) for group in groups[1]]

    def part(self, name: str, v: Any) -> Any:
        """The local part of a DTensor that is placed alike."""
        if not isinstance(v, DTensor) or (v.device_mesh, v.placements) != (self.like.device_mesh, self.like.placements):
            placed = v.placements if isinstance(v, DTensor) else f"no DTensor but {type(v).__name__}"
            raise InvalidInput(
                f"{name} has placements {placed}, and the point {self.like.placements}: distribute it like the point"
            )
        return v.to_local()

    def whole(self, part: Tensor) -> DTensor:
        """The DTensor of which this is the local part: placed like the point, or like its batch."""
        z, mesh, placements = self.like, self.like.device_mesh, self.like.placements
        shape = z.shape
        if part.ndim == z.ndim - 1:
            last = z.ndim - 1
            placements = [Replicate() if p.is_shard(last) or p.is_shard(-1) else p for p in placements]
            shape = z.shape[:-1]
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(part, mesh, placements, run_check=False, shape=shape, stride=stride)


_RANKS: dict[Any, Ranks] = {}


def ranks_of(group: Any) -> Ranks:
    """The ranks of a process group; always the same object, so that it counts all rounds."""
    if group not in _RANKS:
        _RANKS[group] = Ranks(group)
    return _RANKS[group]


def over_mesh(Y: Any, z: DTensor, ask: Callable[[ConvexSet, Tensor], Any]) -> Any:
    """The answer of a divided set Y at a DTensor: of the set itself where the mesh does not divide the vectors."""
    placed = Placed(repr(Y), z)

    def here(base: ConvexSet) -> ConvexSet:
        return _with_parts(base, placed)

    answer = ask(here(Y.base) if placed.ranks is None else Y.on(placed.ranks, here), z.to_local())
    if isinstance(answer, Membership):
        return _of_all(answer, placed.others)
    if isinstance(answer, Face):
        parameters = Y.base.tensor_parameters().items()
        return MeshFace(answer, placed, {name for name, value in parameters if isinstance(value, DTensor)})
    return None if answer is None else placed.whole(answer)


class MeshFace(Face):
    """H for DTensors that are placed like the point."""

    def __init__(self, face: Face, placed: Placed, divided: Container[str] = ()) -> None:
        self._face, self._placed, self._divided, self.is_projector = face, placed, divided, face.is_projector
        self.support = None if face.support is None else placed.whole(face.support)
        self.dimension = None if face.dimension is None else placed.whole(face.dimension)

    def apply(self, v: Any) -> Any:
        return self._placed.whole(self._face.apply(self._placed.part("v", v)))

    def parameter_vjp(self, u: Any) -> dict[str, Tensor]:
        """Of a parameter that all ranks hold, over the whole batch; of one that is placed like the point, its part."""
        found = self._face.parameter_vjp(self._placed.part("u", u))
        for ranks in self._placed.others:
            found = {name: value if name in self._divided else added_up(value, ranks) for name, value in found.items()}
        return found


def _with_parts(base: ConvexSet, placed: Placed) -> ConvexSet:
    """The set with this rank's parts of its bounds or center, which are placed like the point."""
    changed = {}
    for name, value in base.tensor_parameters().items():
        if isinstance(value, DTensor):
            changed[name] = placed.part(name, value)
        elif value.ndim == 0 and value.requires_grad:
            changed[name] = reduce(held_by_all, placed.others, value)
        elif value.ndim and (placed.others or not name.endswith("radius")):
            raise InvalidType(
                f"{name} is a tensor of shape {tuple(value.shape)}, and the point a DTensor with placements "
                f"{placed.like.placements}: give a number, or a DTensor that is placed like the point"
            )
    return base.replace(**changed) if changed else base


def _of_all(answer: Membership, others: list[Ranks]) -> Membership:
    """The worst of the parts of a divided batch."""
    for ranks in others:
        told = ranks.gather([answer.inside, answer.violation, answer.reason])
        answer = Membership(*max(told, key=lambda each: (not each[0], each[1])))
    return answer
