"""Products of sets, over the entries of a dictionary or over slices of one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from ..errors import InvalidInputError, InvalidTypeError
from .base import ConvexSet, ProjectionJacobian, validated


class ProductSet(ConvexSet):
    """{y : y[name] in sets[name] for every name}; projection and Jacobian act entry by entry.

    A point is a dictionary of tensors (a module's parameters). With `sizes`, a point is one tensor whose last
    dimension is cut into slices of these lengths, the first for the first set, and so on.

    Parameters
    ----------
    sets
        One convex set per name; with `sizes`, also a sequence of sets, which are then named "0", "1", ...
    sizes
        The lengths of the slices, one per set.

    References
    ----------
    Parikh & Boyd (2014), Proximal algorithms, section 6.

    Examples
    --------
    >>> from bilevel.sets import FreeSpace, NonNegative
    >>> Y = ProductSet({"weight": NonNegative(), "bias": FreeSpace()})
    >>> Y.project({"weight": torch.tensor([-1.0, 2.0]), "bias": torch.tensor([-1.0])})
    {'weight': tensor([0., 2.]), 'bias': tensor([-1.])}
    >>> ProductSet([NonNegative(), FreeSpace()], sizes=[2, 1]).project(torch.tensor([-1.0, 2.0, -1.0]))
    tensor([ 0.,  2., -1.])
    """

    parameters: tuple[str, ...] = ("sets", "sizes")

    def __init__(self, sets: Mapping[str, ConvexSet] | Sequence[ConvexSet], sizes: Sequence[int] | None = None) -> None:
        if sizes is not None and isinstance(sets, Sequence):
            sets = {str(k): part for k, part in enumerate(sets)}
        if not isinstance(sets, Mapping) or not sets:
            raise InvalidTypeError(
                f"sets must be a non-empty dictionary of convex sets, or a sequence of them with sizes, got {sets!r}"
            )
        for name, part in sets.items():
            if not isinstance(part, ConvexSet):
                raise InvalidTypeError(f"sets[{name!r}] must be a convex set, got {part!r}")
        self.sets: dict[str, ConvexSet] = dict(sets)
        self.sizes: list[int] | None = None if sizes is None else list(sizes)
        self.separable: bool = all(part.separable for part in self.sets.values())
        self.polyhedral: bool = all(part.polyhedral for part in self.sets.values())
        if self.sizes is None:
            self.event_ndim: Any = {name: part.event_ndim for name, part in self.sets.items()}
            return
        if len(self.sizes) != len(self.sets) or not all(isinstance(k, int) and k > 0 for k in self.sizes):
            raise InvalidInputError(f"sizes must be {len(self.sets)} positive integers, one per set, got {self.sizes}")
        for name, part in self.sets.items():
            if part.event_ndim != 1:
                raise InvalidInputError(
                    f"slices are vectors, but sets[{name!r}] = {part} has points of {part.event_ndim} dimensions"
                )

    def check_shape(self, z: Any) -> Any:
        if self.sizes is None:
            return self._each("check_shape", z)
        z = super().check_shape(z)
        if z.shape[-1] != sum(self.sizes):
            raise InvalidInputError(
                f"ProductSet takes {sum(self.sizes)} entries (sizes {self.sizes}), got {z.shape[-1]}"
            )
        return z

    def checked(self, z: Any) -> Any:
        return self._each("checked", z) if self.sizes is None else super().checked(z)

    def _each(self, check: str, z: Any) -> dict[str, Any]:
        """A dictionary of points, each checked by its own set."""
        if not isinstance(z, Mapping):
            raise InvalidTypeError(
                f"ProductSet takes a dictionary with entries {sorted(self.sets)}, got {type(z).__name__}"
            )
        if set(z) != set(self.sets):
            raise InvalidInputError(
                f"ProductSet takes a dictionary with entries {sorted(self.sets)}, got one with {sorted(map(str, z))}"
            )
        points = {}
        for name, entry in z.items():
            try:
                points[name] = getattr(self.sets[name], check)(entry)
            except (InvalidInputError, InvalidTypeError) as error:
                raise type(error)(f"ProductSet, entry {name!r}: {error}") from None
        return points

    def _split(self, z: Any) -> dict[str, Any]:
        """The parts of a point, by name."""
        return z if self.sizes is None else dict(zip(self.sets, z.split(self.sizes, -1), strict=True))

    def _join(self, parts: Mapping[str, Any]) -> Any:
        return dict(parts) if self.sizes is None else _cat([parts[name] for name in self.sets])

    @validated
    def project(self, z: Any) -> Any:
        parts = self._split(z)
        return self._join({name: self.sets[name].project(entry) for name, entry in parts.items()})

    @validated
    def jacobian(self, z: Any) -> ProjectionJacobian:
        jacobians = {name: self.sets[name].jacobian(entry) for name, entry in self._split(z).items()}
        return ProductJacobian(jacobians, self.sizes, z)

    def excess(self, y: Any) -> tuple[Tensor, Tensor, str]:
        """The part that is furthest outside, in units of its own set's scale."""
        parts = []
        for name, entry in self._split(y).items():
            amount, scale, what = self.sets[name].excess(entry)
            scale = torch.as_tensor(scale, dtype=amount.dtype, device=amount.device)
            relative = torch.where(amount > 0, amount / scale, amount).amax()  # NaN stays, 0/0 is inside
            parts.append((float(relative.nan_to_num(torch.inf)), relative, f"in entry {name!r}: {what}"))
        _, worst, message = max(parts, key=lambda entry: entry[0])
        return worst, torch.ones_like(worst), message

    def distance(self, y: Any) -> Any:
        """|y - P(y)| of a sliced point; for dictionaries, that of each entry by name, as `{"bias": tensor(0.5)}`."""
        if self.sizes is not None:
            return super().distance(y)
        return {name: self.sets[name].distance(entry) for name, entry in self.checked(y).items()}

    def random_point(
        self, generator: torch.Generator, *shape: Any, scale: float = 1.0, dtype: torch.dtype | None = None
    ) -> Any:
        """As `ConvexSet.random_point`; for dictionaries `shape` is one dictionary of shapes."""
        if self.sizes is not None:
            shapes = {name: (*shape[:-1], size) for name, size in zip(self.sets, self.sizes, strict=True)}
            if not shape or shape[-1] != sum(self.sizes):
                raise InvalidInputError(f"ProductSet has points of {sum(self.sizes)} entries, got shape {shape}")
        elif len(shape) == 1 and isinstance(shape[0], Mapping) and set(shape[0]) == set(self.sets):
            shapes = {name: (size,) if isinstance(size, int) else size for name, size in shape[0].items()}
        else:
            example = "{" + ", ".join(f"{name!r}: (3,)" for name in self.sets) + "}"
            raise InvalidTypeError(
                f"random_point of a dictionary takes a dictionary of shapes like {example}, got {shape}"
            )
        draws = {}
        for name, part in self.sets.items():
            draws[name] = part.random_point(generator, *shapes[name], scale=scale, dtype=dtype)
        return self._join(draws)

    @validated
    def margin(self, z: Any) -> Any:
        """The smallest of the parts' margins; for dictionaries, that of each entry by name, as `{"bias": tensor(0.5)}`.

        None where a part has no formula.
        """
        margins = {name: self.sets[name].margin(entry) for name, entry in self._split(z).items()}
        if self.sizes is None:
            return margins
        if any(margin is None for margin in margins.values()):
            return None
        return torch.stack(torch.broadcast_tensors(*margins.values())).amin(0)

    def parts(self) -> dict[str, ConvexSet]:
        return self.sets

    def with_parts(self, parts: dict[str, ConvexSet]) -> Self:
        return type(self)(parts, self.sizes)


class ProductJacobian(ProjectionJacobian):
    """H acts on each part by the Jacobian of that part."""

    def __init__(self, jacobians: dict[str, ProjectionJacobian], sizes: list[int] | None, z: Any) -> None:
        self.jacobians = jacobians
        self._sizes, self._z = sizes, z
        self.is_projector: bool = all(jacobian.is_projector for jacobian in jacobians.values())

    @cached_property
    def support(self) -> Any:
        if self._sizes is None:
            return {name: jacobian.support for name, jacobian in self.jacobians.items()}
        parts = zip(self.jacobians.values(), self._z.detach().split(self._sizes, -1), strict=True)
        return _cat([torch.ones_like(z, dtype=torch.bool) if j.support is None else j.support for j, z in parts])

    @cached_property
    def dimension(self) -> Any:
        dimensions = {name: jacobian.dimension for name, jacobian in self.jacobians.items()}
        if self._sizes is None:
            return dimensions
        return None if any(each is None for each in dimensions.values()) else sum(dimensions.values())

    def _split(self, v: Any) -> Mapping[str, Tensor]:
        return v if self._sizes is None else dict(zip(self.jacobians, v.split(self._sizes, -1), strict=True))

    def apply(self, v: Any) -> Any:
        parts = {name: self.jacobians[name].apply(entry) for name, entry in self._split(v).items()}
        return parts if self._sizes is None else _cat(list(parts.values()))


def _cat(parts: list[Tensor]) -> Tensor:
    """Join slices whose batch dimensions may have been broadcast by batched parameters."""
    batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], -1)
