"""The interface of convex sets: projection, derivative of the projection, membership."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from .. import tolerances
from ..errors import EmptySetError, InvalidInputError, InvalidTypeError, NonFiniteError
from ..spaces import leaves, tree_map


@dataclass(frozen=True)
class Membership:
    """The result of `ConvexSet.contains`: true or false, with the violation and the reason.

    Parameters
    ----------
    inside
        Whether the point is in the set.
    violation
        The distance outside, relative to its size.
    reason
        The reason in words.

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


class ProjectionJacobian(ABC):
    """One element H of the generalised Jacobian of P_Y at a point, as the linear map v -> H v in the dtype of v.

    P_Y is the gradient of a convex function, so H is symmetric with eigenvalues in [0, 1], and one product serves
    forward and reverse. For a polyhedral set H is the orthogonal projector onto the directions of a face.

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
    >>> H = L1Ball(1.0).jacobian(torch.tensor([1.5, -1.0, 0.1]))
    >>> H.apply(torch.tensor([1.0, 0.0, 0.0])), H.support, int(H.dimension)
    (tensor([0.5000, 0.5000, 0.0000]), tensor([ True,  True, False]), 1)
    """

    is_projector: bool = False
    support: Any = None
    dimension: Any = None

    @abstractmethod
    def apply(self, v: Any) -> Any:
        """H v, for v of the shape of the point (leading dimensions may be added); v itself where H = I."""


class Parameterized:
    """The base of sets and penalties, which are defined by the arguments of their constructors."""

    parameters: tuple[str, ...] = ()
    """The arguments of the constructor, each also an attribute; the tensors among them carry derivatives."""

    event_ndim: Any = 1
    """An integer; for points that are dictionaries, one for each entry by name."""

    def per_point(self, name: str, z: Tensor, *, keepdim: bool = True) -> Tensor:
        """The parameter `name`, one value for all points or one for each, in the dtype of z; it broadcasts against z.

        Without `keepdim` it broadcasts against the batch alone.
        """
        return per_point(getattr(self, name), z, self.event_ndim, name=name, keepdim=keepdim)

    def per_entry(self, name: str, z: Tensor) -> Tensor:
        """The parameter `name`, one value for all entries or one for each, in the dtype of z; broadcasts against z."""
        value = getattr(self, name)
        if isinstance(value, Tensor) and value.ndim:
            joint, event = _joint_shape(value.shape, z.shape), z.shape[z.ndim - self.event_ndim :]
            if joint is None or joint[len(joint) - self.event_ndim :] != event:
                raise InvalidInputError(
                    f"{name} of shape {tuple(value.shape)} does not fit points of shape {tuple(z.shape)}: give one "
                    f"number, a tensor of shape {tuple(event)}, or one such tensor for each element of the batch"
                )
        return _converted(name, value, z)

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.parameters}
        shown = (f"{name}={show(value)}" for name, value in values.items() if value is not None)
        return f"{type(self).__name__}({', '.join(shown)})"


class ConvexSet(Parameterized, ABC):
    """A closed convex set Y in R^n, by its projection P(z) = argmin over y in Y of |y - z|.

    The last `event_ndim` dimensions of a tensor are one point; the leading dimensions are a batch, and each
    element of the batch is projected separately. Parameters with batch dimensions broadcast against it. Device
    and dtype are those of the point.

    `project` determines the face without gradients, then computes the projection onto that face as a formula of z and
    the parameters, so that autograd gives first and second derivatives, also with respect to the parameters. `jacobian`
    gives products with the first derivative in closed form. Both, and `margin`, are decorated with `validated` and
    receive validated points.

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

    point_shape: tuple[int, ...] | None = None
    """The shape of one point, where the parameters determine it."""
    vectors: tuple[str, ...] = ()
    """Parameters (..., k) whose batch dimensions must fit those of the points; None is skipped."""
    separable: bool = False
    """Whether Y is a product of intervals, so that a different step per coordinate keeps the fixed points."""
    polyhedral: bool = False
    """Whether Y is a polyhedron: then every H is the orthogonal projector onto the directions of a face, and constant
    between kinks. Products, intersections, moved and stretched sets are polyhedral when their parts are.
    """

    @abstractmethod
    def project(self, z: Any) -> Any:
        """P_Y(z), the nearest point of Y, in memory of its own; differentiable by autograd where P_Y is."""

    @abstractmethod
    def jacobian(self, z: Any) -> ProjectionJacobian:
        """An element of the generalised Jacobian of P_Y at z."""

    @abstractmethod
    def excess(self, y: Any) -> tuple[Tensor, Tensor | float, str]:
        """The violation of the constraint by y: amount >= 0 per batch element, its scale, and a description."""

    def contains(self, y: Any, *, tol: float | None = None) -> Membership:
        """Whether y lies in Y up to `tol` times the scale of the set (default: the tolerance of the dtype).

        All points of a batch must lie in Y; the reason names the point that is furthest outside.
        """
        if tol is not None and not tol >= 0:
            raise InvalidInputError(f"tol must be at least 0, got {tol}")
        y = tree_map(Tensor.detach, self.check_shape(y))
        bad = sum(int((~torch.isfinite(u)).sum()) for u in leaves(y))
        if bad:
            return Membership(False, math.inf, f"the point has {bad} NaN or infinite entries")
        if not any(u.numel() for u in leaves(y)):
            return Membership(True, 0.0, "inside")
        with torch.no_grad():
            amount, scale, what = self.excess(tree_map(widened, y))
        if tol is None:
            tol = max(tolerances.feasibility(u.dtype) for u in leaves(y))
        return _membership(amount, scale, what, tol)

    def distance(self, y: Any) -> Tensor:
        """|y - P_Y(y)| for each batch element."""
        return event_norm(y - self.project(y), self.event_ndim)

    def random_point(
        self, generator: torch.Generator, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None
    ) -> Any:
        """A random point of Y of the given shape (batch and event), between the projections of two normal draws.

        `scale` is the standard deviation of the draws. Half of the points are such projections themselves, so that
        points of the boundary are drawn too.
        """
        event = self.event_ndim
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

    def parts(self) -> dict[str, ConvexSet]:
        """The sets of which this one consists, by name."""
        values = {name: getattr(self, name) for name in self.parameters}
        return {name: value for name, value in values.items() if isinstance(value, ConvexSet)}

    def with_parts(self, parts: dict[str, ConvexSet]) -> Self:
        """The same set with other parts, all of them given by name."""
        return self.replace(**parts)

    def tensor_parameters(self) -> dict[str, Tensor]:
        """The parameters that carry derivatives, by name; those of a part as "part.name"."""
        values = {name: getattr(self, name) for name in self.parameters}
        own = {name: v for name, v in values.items() if isinstance(v, Tensor) and v.is_floating_point()}
        parts = {name: part.tensor_parameters() for name, part in self.parts().items()}
        return own | {f"{part}.{name}": value for part, inner in parts.items() for name, value in inner.items()}

    def replace(self, **values: Any) -> Self:
        """The same set with some parameters changed."""
        parts, inner = self.parts(), {}
        for name in list(values):
            part = next((part for part in parts if name.startswith(f"{part}.")), None)
            if part is not None:
                inner.setdefault(part, {})[name[len(part) + 1 :]] = values.pop(name)
        unknown = set(values) - set(self.parameters)
        if unknown:
            known = list(dict.fromkeys([*self.parameters, *self.tensor_parameters()]))
            raise InvalidInputError(f"{type(self).__name__} has no parameter {sorted(unknown)}; it has {known}")
        if inner:
            changed = self.with_parts(parts | {part: parts[part].replace(**new) for part, new in inner.items()})
            return changed.replace(**values) if values else changed
        return type(self)(**{**{name: getattr(self, name) for name in self.parameters}, **values})

    def check_shape(self, z: Any) -> Any:
        """Return z; raise unless it is a floating-point tensor of non-empty points, finite or not."""
        name, shape = type(self).__name__, self.point_shape
        z = tensor_of_points(name, z, self.event_ndim)
        if shape is not None and z.shape[z.ndim - len(shape) :] != shape:
            raise InvalidInputError(
                f"{name} takes points of shape {tuple(shape)}, batch dimensions in front, got {tuple(z.shape)}"
            )
        for name in self.vectors:
            check_batch(name, getattr(self, name), z, self.event_ndim)
        return z

    def checked(self, z: Any) -> Any:
        """Return z; raise unless it is finite and of the kind that the set supports.

        Under torch.compile and torch.func values cannot be checked. There the results at a point that is not
        `answerable` are NaN.
        """
        z = self.check_shape(z)
        if can_look_at_values():
            check_finite(type(self).__name__, z, 0 if self.separable else self.event_ndim)
        return z

    def answerable(self, z: Tensor) -> Tensor:
        """Which points have a projection, (..., 1): finite ones, if the set is not empty. For torch transforms only.

        `parameter` replaces a value that makes the set empty by NaN; a set that can be empty for another reason
        overrides this method.
        """
        event = tuple(range(-min(self.event_ndim, z.ndim), 0))
        size, wide = z.detach().abs(), torch.float32 if z.dtype in HALF else z.dtype
        if self.separable:
            fine = size.amax(event, keepdim=True) < torch.inf
        else:
            fine = size.sum(event, keepdim=True, dtype=wide) <= largest(wide)
        for value in self.tensor_parameters().values():
            fine = fine & ~value.detach().isnan().any()
        return fine


class SetWithRadius(ConvexSet):
    """A set whose one parameter is a radius, at least 0: a number, or a tensor with one value per batch element."""

    parameters: tuple[str, ...] = ("radius",)

    def __init__(self, radius: float | Tensor = 1.0) -> None:
        self.radius: float | Tensor = parameter("radius", radius, low=0.0)


def _membership(amount: Tensor, scale: Tensor | float, what: str, tol: float) -> Membership:
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


Answer = TypeVar("Answer")


def validated(method: Callable[[Any, Any], Answer]) -> Callable[[Any, Any], Answer]:
    """Pass checked points to `project`, `jacobian` or `margin` of a set, in float32 instead of half precision.

    The result is rounded once. `jacobian` and `margin` get points without a graph. If values cannot be checked, the
    method gets finite points, and the result is multiplied by NaN at points without a projection, so that its
    derivative is NaN as well.
    """

    @functools.wraps(method)
    def wrapped(self: ConvexSet, z: Any) -> Any:
        z, projects = self.checked(z), method.__name__ == "project"
        if not isinstance(z, Tensor):  # the sets of a product validate the entries of a dictionary
            return method(self, z)
        z = z if projects else z.detach()
        if can_look_at_values():
            if z.dtype not in HALF:
                return method(self, z)
            mark = torch.ones((), dtype=z.dtype, device=z.device)
        else:
            mark = torch.where(self.answerable(z), 1.0, torch.nan).to(z.dtype)
            z = z.nan_to_num(0.0, 0.0, 0.0)
        answer: Any = method(self, widened(z))
        if isinstance(answer, ProjectionJacobian):
            return GuardedJacobian(answer, mark)
        if answer is None:
            return None
        answer = _rounded(type(self).__name__, answer, z.dtype)
        if projects:
            return answer * mark + z * (mark - 1)
        return answer * mark.reshape(mark.shape[: z.ndim - self.event_ndim])

    return wrapped


class GuardedJacobian(ProjectionJacobian):
    """H with its products taken in float32 rather than half precision, and NaN where the mark is NaN."""

    def __init__(self, inner: ProjectionJacobian, mark: Tensor) -> None:
        self._inner, self._mark = inner, mark
        self.is_projector: bool = inner.is_projector
        self.support: Any = inner.support
        self.dimension: Any = inner.dimension

    def apply(self, v: Tensor) -> Tensor:
        return self._inner.apply(widened(v)).to(v.dtype) * self._mark.to(v.dtype)


def check_draw(owner: str, generator: Any, shape: tuple[Any, ...]) -> None:
    """Raise for invalid arguments of `random_point`."""
    if not isinstance(generator, torch.Generator):
        raise InvalidTypeError(
            f"{owner}.random_point takes a torch.Generator, got {generator!r}: use torch.Generator().manual_seed(0)"
        )
    if not all(hasattr(size, "__index__") and size >= 0 for size in shape):
        raise InvalidTypeError(f"{owner}.random_point takes sizes, as in random_point(generator, 4, 3), got {shape}")


def tensor_of_points(owner: str, z: Any, event_ndim: int) -> Tensor:
    """Return z; raise unless it is a floating-point tensor whose last `event_ndim` dimensions are not empty."""
    if not isinstance(z, Tensor):
        hint = "for dictionaries use ProductSet" if isinstance(z, dict) else "use torch.as_tensor(z)"
        raise InvalidTypeError(f"{owner} takes a tensor, got {type(z).__name__}: {hint}")
    if z.is_meta or z.is_nested or z.layout is not torch.strided:
        check_holds_values("the point", z)
    if not z.dtype.is_floating_point:
        raise InvalidTypeError(f"{owner} takes floating-point tensors, got {z.dtype}: use z.double()")
    if z.ndim < event_ndim:
        raise InvalidInputError(
            f"{owner} takes points of {event_ndim} dimension(s), got shape {tuple(z.shape)}: reshape the tensor"
        )
    if 0 in z.shape[z.ndim - event_ndim :]:
        raise InvalidInputError(f"{owner}: a point of shape {tuple(z.shape)} has no entries: give at least one")
    return z


def check_holds_values(name: str, tensor: Tensor) -> None:
    """Raise for tensors without values in memory and for layouts other than strided."""
    if tensor.is_meta:
        raise InvalidInputError(
            f"{name} is on the device 'meta', where tensors have a shape but no values: create it on a real device"
        )
    if tensor.is_nested:
        raise InvalidTypeError(f"{name} is a nested tensor: use a dictionary of tensors")
    if tensor.layout is not torch.strided:
        raise InvalidTypeError(f"{name} has the layout {tensor.layout}: use to_dense()")


def check_finite(owner: str, z: Tensor, event_ndim: int) -> None:
    """Raise for NaN, infinite values, and values so large that their sum over `event_ndim` dimensions overflows."""
    # A finite z.z proves all that is asked, at the price of one fast pass; only then is every entry looked at.
    flat = z.detach() if z.requires_grad else z
    flat = flat if z.ndim == 1 else flat.reshape(-1)
    if math.isfinite(torch.dot(flat, flat)):
        return
    bad = int((~torch.isfinite(z)).sum())
    if bad:
        raise NonFiniteError(f"{owner}: {bad} of {z.numel()} entries of the point are NaN or infinite")
    if event_ndim == 0:
        return
    wide = torch.float32 if z.dtype in HALF else z.dtype
    sums = torch.linalg.vector_norm(z.detach().flatten(z.ndim - event_ndim), 1, dim=-1, dtype=wide)
    if bool((sums > largest(wide)).any()):
        raise InvalidInputError(
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


def _rounded(owner: str, answer: Tensor, dtype: torch.dtype) -> Tensor:
    """The answer in half precision; float16 ends at 65504."""
    rounded = answer.to(dtype)
    if can_look_at_values() and bool((rounded.isinf() & answer.isfinite()).any()):
        raise InvalidInputError(
            f"{owner}: the answer has numbers up to {float(answer.detach().abs().max()):.3g}, too large for {dtype}: "
            "use z.float()"
        )
    return rounded


def parameter(
    name: str,
    value: Any,
    *,
    low: float = -math.inf,
    strict: bool = False,
    error: type[InvalidInputError] = EmptySetError,
) -> float | Tensor:
    """A checked scalar or tensor parameter of a set: finite and at least (strictly above) `low`, else `error`.

    If values cannot be checked, invalid ones become NaN (`ConvexSet.answerable`).
    """
    if isinstance(value, Tensor):
        check_holds_values(name, value)
        if not value.is_floating_point():
            raise InvalidTypeError(f"{name} has dtype {value.dtype}: give a floating-point tensor")
        if value.numel() == 0:
            raise InvalidInputError(f"{name} is an empty tensor of shape {tuple(value.shape)}: give a value")
        if not can_look_at_values():
            known = value.detach()
            allowed = known.isfinite() & ((known > low) if strict else (known >= low))
            return value * torch.where(allowed, 1.0, torch.nan).to(value.dtype)
        smallest, finite = float(value.detach().min()), bool(torch.isfinite(value.detach()).all())
    else:
        value = number(name, value)
        smallest, finite = value, math.isfinite(value)
    if not finite:
        raise InvalidInputError(f"{name} must be finite, got {value}")
    if smallest < low or (strict and smallest <= low):
        raise error(f"{name} must be {'above' if strict else 'at least'} {low:g}, got {smallest:g}")
    return value


def tensor_parameter(name: str, value: Any, shape: str = "(..., n)", low: float = -math.inf) -> Tensor:
    """A checked parameter that is a tensor: of vectors, shape "(..., n)", or one matrix, "(m, n)"."""
    if not isinstance(value, Tensor) or (value.ndim != 2 if shape == "(m, n)" else value.ndim == 0):
        raise InvalidInputError(f"{name} must be a tensor of shape {shape}, {got(value)}")
    checked: Any = parameter(name, value, low=low)
    return checked


def number(name: str, value: Any) -> float:
    """A parameter that is not a tensor, as a float; arrays and lists raise."""
    try:
        if isinstance(value, str) or getattr(value, "ndim", 0):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise InvalidTypeError(f"{name} must be a number or a tensor, {got(value)}") from None


def got(value: Any) -> str:
    """Describe an argument of a wrong type for a message, with the remedy for arrays."""
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
        raise InvalidInputError(
            f"{name} of shape {tuple(value.shape)} does not fit points of shape {tuple(z.shape)}: give one number, or "
            f"one for each element of the batch {tuple(batch)}"
        )
    value = _converted(name, value, z)
    return value.reshape(*value.shape, *(1,) * event_ndim) if keepdim else value


def check_batch(name: str, value: Tensor | None, points: Tensor, event_ndim: int = 1) -> None:
    """Raise if the batch dimensions of a parameter (..., k) do not broadcast against those of the points."""
    batch = points.shape[: points.ndim - event_ndim]
    if value is not None and value.ndim > 1 and _joint_shape(value.shape[:-1], batch) is None:
        raise InvalidInputError(
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
        raise InvalidInputError(
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
    """The scale for `contains` that allows a few rounding errors of numbers of this size."""
    return size * min(1.0, tolerances.rounding(size.dtype) / tolerances.feasibility(size.dtype))


def show(value: Any) -> str:
    """A parameter in a repr or a message: a number, the shape of a tensor with several, the name of a function."""
    if isinstance(value, Tensor):
        one = value.numel() == 1 and can_look_at_values()
        return f"{float(value.detach()):g}" if one else f"tensor{tuple(value.shape)}"
    if isinstance(value, float):
        return f"{value:g}"
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(value)


def tracked(*tensors: Tensor) -> bool:
    """Whether results computed from these tensors may be differentiated."""
    if forward_ad._current_level >= 0 or not can_look_at_values():
        return True
    for tensor in tensors:
        if tensor.requires_grad:
            return torch.is_grad_enabled()
    return False


def with_value(value: Tensor, formula: Tensor) -> Tensor:
    """`value` with the derivatives of `formula`: the two are equal, but rounding spoils the value of the second."""
    return value.detach() + (formula - formula.detach())


def constant_on_a_point(z: Tensor, radius: Tensor) -> Tensor:
    """z, detached where the radius of a ball is 0: the ball is then a single point, and P is constant."""
    return torch.where(radius.detach() > 0, z, z.detach())


def can_look_at_values() -> bool:
    """Whether Python code may depend on values of a tensor: not under torch.compile or a torch.func transform."""
    return not torch.compiler.is_compiling() and peek_interpreter_stack() is None
