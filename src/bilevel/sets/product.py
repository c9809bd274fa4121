"""Products of sets over the entries of a dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInput, InvalidType
from .base import ConvexSet, Face


class ProductSet(ConvexSet):
    """{y : y[name] in sets[name] for every name}, for points that are dictionaries of tensors.

    Projection and Jacobian act entry by entry.

    Parameters
    ----------
    sets
        One convex set per name.

    Examples
    --------
    >>> from bilevel.sets import FreeSpace, NonNegative
    >>> Y = ProductSet({"weight": NonNegative(), "bias": FreeSpace()})
    >>> Y.project({"weight": torch.tensor([-1.0, 2.0]), "bias": torch.tensor([-1.0])})
    {'weight': tensor([0., 2.]), 'bias': tensor([-1.])}
    """

    def __init__(self, sets: Mapping[str, ConvexSet]) -> None:
        if not isinstance(sets, Mapping) or not sets:
            raise InvalidType(f"sets must be a non-empty dictionary of convex sets, got {sets!r}")
        for name, part in sets.items():
            if not isinstance(part, ConvexSet):
                raise InvalidType(f"sets[{name!r}] must be a convex set, got {part!r}")
        self.sets = dict(sets)
        self.event_ndim = {name: part.event_ndim for name, part in self.sets.items()}  # type: ignore[misc]
        self.separable = all(part.separable for part in self.sets.values())  # type: ignore[misc]

    def _named(self, z: Any) -> Mapping[str, Tensor]:
        if not isinstance(z, Mapping) or set(z) != set(self.sets):
            got = f"a dictionary with {sorted(z)}" if isinstance(z, Mapping) else type(z).__name__
            raise InvalidInput(f"ProductSet takes a dictionary with entries {sorted(self.sets)}, got {got}")
        return z

    def project(self, z: Any) -> Any:
        return {name: self.sets[name].project(entry) for name, entry in self._named(z).items()}

    def jacobian(self, z: Any) -> Face:
        return ProductFace({name: self.sets[name].jacobian(entry) for name, entry in self._named(z).items()})

    def excess(self, y: Any) -> tuple[Tensor, Tensor, str]:
        """The entry that is furthest outside, in units of its own set's scale."""
        judged = []
        for name, entry in self._named(y).items():
            amount, scale, what = self.sets[name].excess(entry)
            relative = (amount / torch.as_tensor(scale, device=amount.device).clamp_min(1e-300)).max()
            judged.append((float(relative.nan_to_num(torch.inf)), relative, f"in entry {name!r}: {what}"))
        _, worst, message = max(judged, key=lambda entry: entry[0])
        return worst, torch.tensor(1.0), message

    def __repr__(self) -> str:
        return f"ProductSet({self.sets})"


class ProductFace(Face):
    """H acts on each entry by that entry's face."""

    def __init__(self, faces: dict[str, Face]) -> None:
        self.faces = faces
        self.is_projector = all(face.is_projector for face in faces.values())
        self.support = {name: face.support for name, face in faces.items()}
        self.dimension = {name: face.dimension for name, face in faces.items()}

    def apply(self, v: Any) -> Any:
        return {name: self.faces[name].apply(entry) for name, entry in v.items()}

    def parameter_vjp(self, u: Any) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": product
            for name, face in self.faces.items()
            for key, product in face.parameter_vjp(u[name]).items()
        }
