"""A set of vectors as a set of matrices: all entries of a matrix are one vector."""

from __future__ import annotations

from typing import Any, Self

from torch import Tensor

from ..errors import InvalidInput, InvalidType
from .base import ConvexSet, Face


class Flattened(ConvexSet):
    """{Y : vec(Y) in base}, all entries of Y taken as one vector; P(Z) = P_base(vec(Z)), and H likewise.

    A set of vectors holds for each row of a matrix on its own; `Flattened(base)` holds for all of its entries together.

    Parameters
    ----------
    base
        A convex set of vectors.
    ndim
        How many trailing dimensions are one vector.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> import torch
    >>> from bilevel.sets import L1Ball
    >>> Flattened(L1Ball(1.0)).project(torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    parameters = ("base", "ndim")

    def __init__(self, base: ConvexSet, ndim: int = 2) -> None:
        if not isinstance(base, ConvexSet) or base.event_ndim != 1:
            raise InvalidType(f"base must be a convex set of vectors, got {base!r}")
        if isinstance(ndim, bool) or not isinstance(ndim, int) or ndim < 1:
            raise InvalidInput(f"ndim must be an integer of at least 1, got {ndim!r}")
        self.base, self.ndim = base, ndim
        self.event_ndim = ndim  # type: ignore[misc]
        self.separable, self.polyhedral = base.separable, base.polyhedral  # type: ignore[misc]

    def project(self, z: Tensor) -> Tensor:
        z = self.checked(z)
        return _shaped(self.base.project(z.flatten(-self.ndim)), z.shape[-self.ndim :])

    def jacobian(self, z: Tensor) -> Face:
        z = self.checked(z)
        return FlattenedFace(self.base.jacobian(z.flatten(-self.ndim)), z.shape[-self.ndim :])

    def excess(self, y: Tensor) -> tuple[Tensor, Tensor | float, str]:
        return self.base.excess(y.flatten(-self.ndim))

    def margin(self, z: Tensor) -> Tensor | None:
        return self.base.margin(self.checked(z).flatten(-self.ndim))

    def tensor_parameters(self) -> dict[str, Tensor]:
        return {f"base.{name}": value for name, value in self.base.tensor_parameters().items()}

    def replace(self, **values: Any) -> Self:
        inner = {name[5:]: values.pop(name) for name in list(values) if name.startswith("base.")}
        return super().replace(**({"base": self.base.replace(**inner)} if inner else {}), **values)

    def __repr__(self) -> str:
        return f"Flattened({self.base}{'' if self.ndim == 2 else f', ndim={self.ndim}'})"


class FlattenedFace(Face):
    """H of the base, between matrices."""

    def __init__(self, face: Face, shape: tuple[int, ...]) -> None:
        self._face, self._shape = face, shape
        self.is_projector, self.dimension = face.is_projector, face.dimension
        self.support = None if face.support is None else _shaped(face.support, shape)

    def apply(self, v: Tensor) -> Tensor:
        return _shaped(self._face.apply(v.flatten(-len(self._shape))), self._shape)

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        products = self._face.parameter_vjp(u.flatten(-len(self._shape)))
        return {f"base.{name}": value for name, value in products.items()}


def _shaped(vector: Tensor, shape: tuple[int, ...]) -> Tensor:
    return vector.unflatten(-1, shape)
