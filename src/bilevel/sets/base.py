"""The contract of a convex set: nearest point, derivative of the nearest point, membership."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import tolerances
from ..errors import EmptySet, InvalidInput, InvalidType, NotFinite
from ..spaces import leaves, tree_map


@dataclass(frozen=True)
class Membership:
    """The answer of `ConvexSet.contains`: true or false, with the number and the reason.

    Parameters
    ----------
    inside
        Whether the point is in the set.
    violation
        How far it is outside, relative to its size.
    reason
        The same in words.

    Examples
    --------
    >>> Membership(False, 0.5, "the l1 norm is 1.5 > radius 1")
    Membership(inside=False, violation=0.5, reason='the l1 norm is 1.5 > radius 1')
    """

    inside: bool
    violation: float
    reason: str

    def __bool__(self) -> bool:
        return self.inside


class Face(ABC):
    """One element H of the generalised Jacobian of P_Y at a point, as the linear map v -> H v in the dtype of v.

    P_Y is the gradient of a convex function, so H is symmetric with eigenvalues in [0, 1], and one product serves
    forward and reverse. For a polyhedral set H is the orthogonal projector on the directions of a face.

    Attributes
    ----------
    is_projector : bool
        Whether H H = H.
    support : Tensor or None
        Boolean mask (shape of the point) outside of which H v is zero and v is ignored; None when not sparse.
    dimension : Tensor or None
        The rank of H for each batch element (or one number for all), when cheap.

    References
    ----------
    Clarke (1983); Shi, Chang & Gu (2024), the paper of DMLCBO, section 3.1.

    Examples
    --------
    >>> import torch
    >>> from bilevel.sets import L1Ball
    >>> face = L1Ball(1.0).jacobian(torch.tensor([1.5, -1.0, 0.1]))
    >>> face.apply(torch.tensor([1.0, 0.0, 0.0])), face.support, int(face.dimension)
    (tensor([0.5000, 0.5000, 0.0000]), tensor([ True,  True, False]), 1)
    """

    is_projector: bool = False
    support: Any = None
    dimension: Any = None

    @abstractmethod
    def apply(self, v: Any) -> Any:
        """H v, for v of the shape of the point (leading dimensions may be added); v itself where H = I."""

    def parameter_vjp(self, u: Any) -> dict[str, Tensor]:
        """P_theta' u for each tensor parameter theta of the set, by name; empty when the set has none."""
        return {}

    def basis(self) -> Tensor | None:
        """Orthonormal columns (n, dimension) that span the range of H, for one vector; None when not cheap."""
        return None


class ConvexSet(ABC):
    """A closed convex set Y in R^n, by its projection P(z) = argmin over y in Y of |y - z|.

    The last `event_ndim` dimensions of a tensor are one point; the dimensions in front are a batch, and each
    element of the batch is projected on its own. Parameters with a batch of their own broadcast against it. Device
    and dtype are those of the point.

    `project` finds the face of the answer without gradients, then writes the projection on that face as a plain
    formula of z and of the parameters: autograd then gives first and second derivatives. `jacobian` gives the
    same products in closed form.

    References
    ----------
    Moreau (1965): the nearest point; Clarke (1983): the generalised Jacobian.

    Examples
    --------
    >>> import torch
    >>> from bilevel.sets import L1Ball
    >>> Y, z = L1Ball(1.0), torch.tensor([2.0, 0.5])
    >>> Y.project(z), Y.jacobian(z).apply(torch.tensor([1.0, 1.0])), Y.contains(z).inside
    (tensor([1., 0.]), tensor([0., 0.]), False)
    """

    event_ndim: ClassVar[int | dict[str, int]] = 1
    separable: ClassVar[bool] = False
    """Whether Y is a product of intervals, so that a different step per coordinate keeps the fixed points."""
    polyhedral: ClassVar[bool] = False
    """Whether Y is a polyhedron: then every H is the orthogonal projector on the directions of a face, and constant
    between kinks. Products, intersections, moved and stretched sets are polyhedral when their parts are.
    """
    parameters: ClassVar[tuple[str, ...]] = ()
    """The arguments of the constructor, each also an attribute; the tensors among them carry derivatives."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in ("project", "jacobian", "margin"):
            if name in cls.__dict__:
                setattr(cls, name, nan_without_answer(cls.__dict__[name]))

    @abstractmethod
    def project(self, z: Any) -> Any:
        """P_Y(z), the nearest point of Y, in memory of its own; differentiable by autograd where P_Y is."""

    @abstractmethod
    def jacobian(self, z: Any) -> Face:
        """An element of the generalised Jacobian of P_Y at z."""

    @abstractmethod
    def excess(self, y: Any) -> tuple[Tensor, Tensor | float, str]:
        """How far y breaks the constraint: amount >= 0 per batch element, the scale to judge it by, what is broken."""

    def contains(self, y: Any, *, tol: float | None = None) -> Membership:
        """Whether y lies in Y up to `tol` times the scale of the set (default: the tolerance of the dtype).

        Of a batch, all points must lie in Y; the reason tells the one that is furthest outside.
        """
        if tol is not None and not tol >= 0:
            raise InvalidInput(f"tol must be at least 0, got {tol}")
        y = tree_map(Tensor.detach, self.of_kind(y))
        bad = sum(int((~torch.isfinite(u)).sum()) for u in leaves(y))
        if bad:
            return Membership(False, math.inf, f"the point has {bad} NaN or infinite entries")
        if not any(u.numel() for u in leaves(y)):
            return Membership(True, 0.0, "inside")
        with torch.no_grad():
            amount, scale, what = self.excess(tree_map(widened, y))
        if tol is None:
            tol = max(tolerances.feasibility(u.dtype) for u in leaves(y))
        return judged(amount, scale, what, tol)

    def distance(self, y: Any) -> Tensor:
        """|y - P_Y(y)| for each batch element."""
        return event_norm(y - self.project(y), int(self.event_ndim))  # type: ignore[arg-type]

    def random_point(
        self, generator: torch.Generator, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None
    ) -> Any:
        """A random point of Y of the given shape (batch and event): between the projections of two normal draws.

        `scale` is the standard deviation of the draws; half of the points are such projections themselves, so
        that the boundary is visited as well as the interior.
        """
        event = int(self.event_ndim)  # type: ignore[arg-type]
        check_draw(type(self).__name__, generator, shape)
        options: Any = {"generator": generator, "dtype": dtype, "device": generator.device}
        first, second = (self.project(scale * torch.randn(shape, **options)) for _ in range(2))
        batch = (*shape[: len(shape) - event], *(1,) * event)
        weight = (2 * torch.rand(batch, **options)).clamp_max(1)
        return torch.where(weight < 1, torch.lerp(second, first, weight), first)

    def margin(self, z: Any) -> Tensor | None:
        """Distance from z to the nearest kink of P_Y, per batch element (inf without kinks); None: no formula.

        Within that distance of z the projection is smooth and, for a polyhedral set, H does not change.
        """
        return None

    def tensor_parameters(self) -> dict[str, Tensor]:
        """The parameters that are tensors, under the names that `Face.parameter_vjp` gives their derivatives."""
        values = {name: getattr(self, name) for name in self.parameters}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def replace(self, **values: Any) -> Self:
        """The same set with some parameters changed."""
        unknown = set(values) - set(self.parameters)
        if unknown:
            raise InvalidInput(
                f"{type(self).__name__} has no parameter {sorted(unknown)}; it has {list(self.parameters)}"
            )
        return type(self)(**{**{name: getattr(self, name) for name in self.parameters}, **values})

    def of_kind(self, z: Any) -> Any:
        """z itself, once it is known to be a floating-point tensor of non-empty points, finite or not."""
        return tensor_of_points(type(self).__name__, z, int(self.event_ndim))  # type: ignore[arg-type]

    def checked(self, z: Any) -> Any:
        """z itself, once it is known to be of the kind that the set takes, and finite: every method starts with it.

        Under torch.compile and torch.func values cannot be looked at, and nothing is refused for them: there the
        answers at a point that is not `answerable` are NaN.
        """
        z = self.of_kind(z)
        ndim = 0 if self.separable else int(self.event_ndim)  # type: ignore[arg-type]
        check_finite(type(self).__name__, z, ndim)
        return z

    def answerable(self, z: Tensor) -> Tensor:
        """Which points have an answer, (..., 1): finite ones, of a set with a point. Only asked under torch transforms.

        `parameter` marks a value that leaves the set without a point by NaN; a set that can be empty for another
        reason says so here.
        """
        event = tuple(range(-min(int(self.event_ndim), z.ndim), 0))  # type: ignore[arg-type]
        size, wide = z.detach().abs(), torch.float32 if z.dtype in HALF else z.dtype
        if self.separable:
            fine = size.amax(event, keepdim=True) < torch.inf
        else:
            fine = size.sum(event, keepdim=True, dtype=wide) <= largest(wide)
        for value in self.tensor_parameters().values():
            fine = fine & ~value.detach().isnan().any()
        return fine


def judged(amount: Tensor, scale: Tensor | float, what: str, tol: float) -> Membership:
    """Whether the amounts by which points of a batch break a constraint are within tol times the scale."""
    outside = ~(amount <= tol * torch.as_tensor(scale, device=amount.device))
    if not bool(outside.any()):
        return Membership(True, float(amount.max()), "inside")
    amount = torch.where(outside, amount, -1)
    worst, where = float(amount.max()), ""
    if amount.ndim:
        index = tuple(int(k) for k in torch.unravel_index(amount.argmax(), amount.shape))
        where = f" at point {index[0] if amount.ndim == 1 else index} of the batch"
    return Membership(False, worst, f"{what} (by {worst:.3g}{where})")


def nan_without_answer(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Let `project`, `jacobian` or `margin` answer NaN at points without an answer, where errors cannot be raised.

    The method itself sees finite points. Products with NaN, unlike a choice of it, have the derivative NaN as well.
    """

    @functools.wraps(method)
    def marked(self: ConvexSet, z: Any) -> Any:
        if can_look_at_values() or not isinstance(z := self.of_kind(z), Tensor):
            return method(self, z)
        mark = torch.where(self.answerable(z), 1.0, torch.nan).to(z.dtype)
        z = z.nan_to_num(0.0, 0.0, 0.0)
        answer = method(self, z)
        if isinstance(answer, Face):
            return MarkedFace(answer, mark)
        if method.__name__ == "project":
            return answer * mark + z * (mark - 1)
        return None if answer is None else answer * mark.reshape(mark.shape[: z.ndim - int(self.event_ndim)])  # type: ignore[arg-type]

    return marked


def check_draw(owner: str, generator: Any, shape: tuple[Any, ...]) -> None:
    """Refuse what `random_point` cannot draw with."""
    if not isinstance(generator, torch.Generator):
        raise InvalidType(
            f"{owner}.random_point takes a torch.Generator, got {generator!r}: use torch.Generator().manual_seed(0)"
        )
    if not all(hasattr(size, "__index__") and size >= 0 for size in shape):
        raise InvalidType(f"{owner}.random_point takes sizes, as in random_point(generator, 4, 3), got {shape}")


def tensor_of_points(owner: str, z: Any, event_ndim: int) -> Tensor:
    """z itself, once it is known to be a floating-point tensor whose last `event_ndim` dimensions are not empty."""
    if not isinstance(z, Tensor):
        hint = "for dictionaries use ProductSet" if isinstance(z, dict) else "use torch.as_tensor(z)"
        raise InvalidType(f"{owner} takes a tensor, got {type(z).__name__}: {hint}")
    check_holds_values("the point", z)
    if not z.is_floating_point():
        raise InvalidType(f"{owner} takes floating-point tensors, got {z.dtype}: use z.double()")
    if z.ndim < event_ndim:
        raise InvalidInput(
            f"{owner} takes points of {event_ndim} dimension(s), got shape {tuple(z.shape)}: reshape the tensor"
        )
    if not z.numel() and 0 in z.shape[z.ndim - event_ndim :]:
        raise InvalidInput(f"{owner}: a point of shape {tuple(z.shape)} has no entries: give at least one")
    return z


def check_holds_values(name: str, tensor: Tensor) -> None:
    """Refuse tensors that have no numbers in memory, or have them in another way than by strides."""
    if tensor.is_meta:
        raise InvalidInput(f"{name} is on the device 'meta', where tensors have a shape and no values: make it anew")
    if tensor.layout is not torch.strided:
        raise InvalidType(f"{name} has the layout {tensor.layout}: use to_dense()")


def check_finite(owner: str, z: Tensor, event_ndim: int) -> None:
    """Refuse NaN, infinite values, and values so large that their sum over `event_ndim` dimensions overflows."""
    if not can_look_at_values():
        return
    # A finite z.z proves all that is asked, at the price of one fast pass; only then is every entry looked at.
    flat = z.detach() if z.ndim == 1 else z.detach().reshape(-1)
    if math.isfinite(torch.dot(flat, flat).item()):
        return
    bad = int((~torch.isfinite(z)).sum())
    if bad:
        raise NotFinite(f"{owner}: {bad} of {z.numel()} entries of the point are NaN or infinite")
    if event_ndim == 0:
        return
    wide = torch.float32 if z.dtype in HALF else z.dtype
    sums = torch.linalg.vector_norm(z.detach().flatten(z.ndim - event_ndim), 1, dim=-1, dtype=wide)
    if bool((sums > largest(wide)).any()):
        raise InvalidInput(
            f"{owner}: entries up to {float(z.detach().abs().max()):.3g} cannot be added up in {z.dtype}: "
            "use z.double(), or a larger unit for z and the set"
        )


HALF = (torch.float16, torch.bfloat16)
"""In these dtypes sums are taken in float32, and the answer is rounded once."""


def widened(z: Tensor) -> Tensor:
    """z in float32 when its own dtype is too coarse to sum in."""
    return z.float() if z.dtype in HALF else z


def largest(dtype: torch.dtype) -> float:
    """Numbers up to this size can be added and subtracted a few times without overflow (not done in half precision)."""
    return torch.finfo(dtype).max / (1 if dtype in HALF else 4)


Answer = TypeVar("Answer")


def in_float32(method: Callable[[Any, Any], Answer]) -> Callable[[Any, Any], Answer]:
    """Let `project`, `jacobian` or `margin` see half-precision points in float32, and round the answer once."""

    @functools.wraps(method)
    def wide(self: ConvexSet, z: Any) -> Any:
        if not isinstance(z, Tensor) or z.dtype not in HALF:
            return method(self, z)
        answer: Any = method(self, z.float())
        if isinstance(answer, Face):
            return RoundedFace(answer)
        return None if answer is None else _rounded(type(self).__name__, answer, z.dtype)

    return wide


def _rounded(owner: str, answer: Tensor, dtype: torch.dtype) -> Tensor:
    """The answer in half precision; float16 ends at 65504."""
    rounded = answer.to(dtype)
    if can_look_at_values() and bool((rounded.isinf() & answer.isfinite()).any()):
        raise InvalidInput(
            f"{owner}: the answer has numbers up to {float(answer.detach().abs().max()):.3g}, too large for {dtype}: "
            "use z.float()"
        )
    return rounded


class RoundedFace(Face):
    """H found in float32: its products are taken in float32 and rounded once, to the dtype of v."""

    def __init__(self, face: Face) -> None:
        self._face = face
        self.is_projector, self.support, self.dimension = face.is_projector, face.support, face.dimension

    def apply(self, v: Tensor) -> Tensor:
        return self._face.apply(widened(v)).to(v.dtype)

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        return {name: product.to(u.dtype) for name, product in self._face.parameter_vjp(widened(u)).items()}

    def basis(self) -> Tensor | None:
        return self._face.basis()


class MarkedFace(Face):
    """H where the mark is 1; NaN where it is NaN."""

    def __init__(self, face: Face, mark: Tensor) -> None:
        self._face, self._mark = face, mark
        self.is_projector, self.support, self.dimension = face.is_projector, face.support, face.dimension

    def apply(self, v: Tensor) -> Tensor:
        return self._face.apply(v) * self._mark.to(v.dtype)

    def parameter_vjp(self, u: Tensor) -> dict[str, Tensor]:
        mark = self._mark.prod().to(u.dtype)
        return {name: product * mark for name, product in self._face.parameter_vjp(u).items()}

    def basis(self) -> Tensor | None:
        return self._face.basis()


def parameter(
    name: str, value: Any, *, low: float = -math.inf, strict: bool = False, error: type[InvalidInput] = EmptySet
) -> float | Tensor:
    """A checked scalar or tensor parameter of a set: finite and at least (strictly above) `low`, else `error`.

    Where values cannot be looked at, those that would be refused become NaN (`ConvexSet.answerable`).
    """
    if isinstance(value, Tensor):
        check_holds_values(name, value)
        if not value.is_floating_point():
            raise InvalidType(f"{name} has dtype {value.dtype}: give a floating-point tensor")
        if value.numel() == 0:
            raise InvalidInput(f"{name} is an empty tensor of shape {tuple(value.shape)}: give a value")
        if not can_look_at_values():
            known = value.detach()
            allowed = known.isfinite() & ((known > low) if strict else (known >= low))
            return value * torch.where(allowed, 1.0, torch.nan).to(value.dtype)
        smallest, finite = float(value.detach().min()), bool(torch.isfinite(value.detach()).all())
    else:
        value = number(name, value)
        smallest, finite = value, math.isfinite(value)
    if not finite:
        raise InvalidInput(f"{name} must be finite, got {value}")
    if smallest < low or (strict and smallest <= low):
        raise error(f"{name} must be {'above' if strict else 'at least'} {low:g}, got {smallest:g}")
    return value


def number(name: str, value: Any) -> float:
    """A parameter that is no tensor, as a float; an array or a list is none."""
    try:
        if isinstance(value, str) or getattr(value, "ndim", 0):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise InvalidType(f"{name} must be a number or a tensor, {got(value)}") from None


def got(value: Any) -> str:
    """What was given instead of the tensor or number that a message speaks of, and the remedy for arrays."""
    if isinstance(value, Tensor):
        return f"got a tensor of shape {tuple(value.shape)}"
    hint = ": use torch.as_tensor(...)" if isinstance(value, (list, tuple, np.ndarray)) else ""
    return f"got {value!r}{hint}"


def per_point(
    value: float | Tensor, z: Tensor, event_ndim: int = 1, *, name: str = "a parameter", keepdim: bool = True
) -> Tensor:
    """A per-batch-element parameter (one value, or shape (...batch)) in the dtype of z, broadcasting against it.

    Without `keepdim` it broadcasts against the batch alone.
    """
    if not isinstance(value, Tensor) or value.ndim == 0:
        return _converted(name, value, z)
    batch = z.shape[: z.ndim - event_ndim]
    if _joint_shape(value.shape, batch) is None:
        raise InvalidInput(
            f"{name} of shape {tuple(value.shape)} does not fit points of shape {tuple(z.shape)}: give one number, or "
            f"one for each element of the batch {tuple(batch)}"
        )
    value = _converted(name, value, z)
    return value.reshape(*value.shape, *(1,) * event_ndim) if keepdim else value


def as_point(value: float | Tensor, z: Tensor, event_ndim: int = 1, *, name: str = "a parameter") -> Tensor:
    """A parameter with a value for each entry (or one for all), in the dtype of z, broadcasting against it."""
    if isinstance(value, Tensor) and value.ndim:
        joint = _joint_shape(value.shape, z.shape)
        event = z.shape[z.ndim - event_ndim :]
        if joint is None or joint[len(joint) - event_ndim :] != event:
            raise InvalidInput(
                f"{name} of shape {tuple(value.shape)} does not fit points of shape {tuple(z.shape)}: give one number, "
                f"a tensor of shape {tuple(event)}, or one such tensor for each element of the batch"
            )
    return _converted(name, value, z)


def check_batch(name: str, value: Tensor, points: Tensor, event_ndim: int = 1) -> None:
    """Refuse a parameter (..., k) whose batch does not broadcast against that of the points."""
    batch = points.shape[: points.ndim - event_ndim]
    if value.ndim > 1 and _joint_shape(value.shape[:-1], batch) is None:
        raise InvalidInput(
            f"{name} of shape {tuple(value.shape)} does not fit points of shape {tuple(points.shape)}: give one for "
            f"all, or one for each element of the batch {tuple(batch)}"
        )


def _joint_shape(*shapes: torch.Size) -> tuple[int, ...] | None:
    """The shape that all broadcast to, if there is one. (torch's own function costs a hundred times more.)"""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _converted(name: str, value: float | Tensor, z: Tensor) -> Tensor:
    """`value` in the dtype and on the device of z; finite values must stay finite."""
    if isinstance(value, Tensor):
        if torch.finfo(value.dtype).max > torch.finfo(z.dtype).max and can_look_at_values():
            size = value.detach().abs()
            _check_size(name, float(size.where(size.isfinite(), 0).max()), z.dtype)
        return value.to(z)
    if math.isfinite(value):
        _check_size(name, abs(value), z.dtype)
    return torch.full((), value, dtype=z.dtype, device=z.device)


def _check_size(name: str, size: float, dtype: torch.dtype) -> None:
    if size > largest(dtype):
        raise InvalidInput(
            f"{name} = {size:.3g} is too large for points in {dtype}: use z.double(), or a larger unit for both"
        )


def event_norm(v: Tensor, event_ndim: int = 1, *, keepdim: bool = False) -> Tensor:
    """|v| over the last `event_ndim` dimensions; no overflow or underflow, derivative 0 at v = 0."""
    dims = tuple(range(-event_ndim, 0))
    scale = v.detach().abs().amax(dims, keepdim=True)
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    square = (v / scale).square().sum(dims, keepdim=True)
    norm = torch.where(square == 0, torch.ones_like(square), square).sqrt() * scale * (square != 0)
    return norm if keepdim else norm.reshape(norm.shape[: norm.ndim - event_ndim])


def rounding_scale(size: Tensor) -> Tensor:
    """The scale for `contains` that forgives a few roundings of numbers of this size, and no more."""
    return size * min(1.0, tolerances.rounding(size.dtype) / tolerances.feasibility(size.dtype))


def show(value: float | Tensor) -> str:
    """A parameter in a repr or a message: the number, or the shape of a tensor with several."""
    if isinstance(value, Tensor) and (value.numel() > 1 or not can_look_at_values()):
        return f"tensor{tuple(value.shape)}"
    return f"{float(value.detach() if isinstance(value, Tensor) else value):g}"


def tracked(*tensors: Tensor) -> bool:
    """Whether a derivative may be asked of what is computed from these tensors."""
    return (
        not can_look_at_values()
        or forward_ad._current_level >= 0
        or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
    )


def with_value(value: Tensor, formula: Tensor) -> Tensor:
    """`value` with the derivatives of `formula`: the two are equal, but rounding spoils the value of the second."""
    return value.detach() + (formula - formula.detach())


def unless_one_point(z: Tensor, radius: Tensor) -> Tensor:
    """z, as a constant where the radius of a ball is 0: the ball is one point then, and P does not move with z."""
    return torch.where(radius.detach() > 0, z, z.detach())


def can_look_at_values() -> bool:
    """Whether a tensor's values may steer Python: not under torch.compile or a torch.func transform."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None  # type: ignore[attr-defined]
