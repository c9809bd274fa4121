"""Row losses of linear models as functions of the scores, with their first two derivatives in closed form.

A row has the scores s (one column for two classes, else one per class) and counts q_j >= 0 times as class j:

    loss(s, q) = sum_j q_j l_j(s)

The plain case q = e_b is a row with the label b. Every method takes a batch: s of shape (n, columns) and q of shape
(n, classes).
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from ..errors import IncompatibleError, InvalidInputError, InvalidTypeError, ProblemWarning

__all__ = ["Logistic", "Softmax", "SmoothedHinge", "Squared"]

LinearMap = Callable[[Tensor], Tensor]


class Loss(ABC):
    """The interface of losses: l_j(s) for every class j, and derivatives of sum_j q_j l_j(s) in s."""

    @abstractmethod
    def columns(self, classes: int) -> int:
        """The number of scores of a row."""

    @abstractmethod
    def per_label(self, s: Tensor) -> Tensor:
        """l_j(s_i), shape (n, classes)."""

    @abstractmethod
    def per_label_jvp(self, s: Tensor, v: Tensor) -> Tensor:
        """grad l_j(s_i) . v_i, shape (n, classes)."""

    @abstractmethod
    def gradient(self, s: Tensor, q: Tensor) -> Tensor:
        """sum_j q_ij grad l_j(s_i), of the shape of s."""

    @abstractmethod
    def curvature(self, s: Tensor, q: Tensor) -> LinearMap:
        """v -> sum_j q_ij grad^2 l_j(s_i) v_i: a function of v of the shape of s, for many v at one s."""

    def of_label(self, s: Tensor, labels: Tensor) -> tuple[Tensor, LinearMap]:
        """grad l_b(s_i) and v -> grad^2 l_b(s_i) v_i for the label b = labels_i of each row."""
        q = one_hot(labels, max(2, s.shape[-1]), s.new_ones(()))
        return self.gradient(s, q), self.curvature(s, q)

    @abstractmethod
    def probabilities(self, s: Tensor) -> Tensor:
        """The class probabilities for which s minimises the expected loss, shape (n, classes)."""


class LogLikelihood(Loss):
    """l_j(s) = -log p_j(s) with p the probabilities of a softmax (of the scores (0, s) when there is one column)."""

    @abstractmethod
    def log_probabilities(self, s: Tensor) -> Tensor:
        """log p_j(s_i), shape (n, classes)."""

    def per_label(self, s: Tensor) -> Tensor:
        return -self.log_probabilities(s)

    def probabilities(self, s: Tensor) -> Tensor:
        return self.log_probabilities(s).exp()


@dataclass(frozen=True)
class Softmax(LogLikelihood):
    """l_j(s) = log sum_m exp(s_m) - s_j; one score per class.

    References
    ----------
    Hastie, Tibshirani & Friedman (2009), section 4.4.

    Examples
    --------
    >>> Softmax().per_label(torch.tensor([[0.0, 0.0]]))
    tensor([[0.6931, 0.6931]])
    """

    def columns(self, classes: int) -> int:
        return classes

    def log_probabilities(self, s: Tensor) -> Tensor:
        return s.log_softmax(-1)

    def per_label_jvp(self, s: Tensor, v: Tensor) -> Tensor:
        return (s.softmax(-1) * v).sum(-1, keepdim=True) - v

    def gradient(self, s: Tensor, q: Tensor) -> Tensor:
        return torch.addcmul(-q, q.sum(-1, keepdim=True), s.softmax(-1))

    def curvature(self, s: Tensor, q: Tensor) -> LinearMap:
        """|q| (diag(p) - p p')."""
        p, total = s.softmax(-1), q.sum(-1, keepdim=True)
        return lambda v: (v - (p * v).sum(-1, keepdim=True)).mul_(p).mul_(total)


@dataclass(frozen=True)
class Logistic(LogLikelihood):
    """l_1(s) = log(1 + exp(-s)), l_0(s) = log(1 + exp(s)); two classes, one score.

    References
    ----------
    Shi, Chang & Gu (2024), the paper of DMLCBO, section 5.2.

    Examples
    --------
    >>> Logistic().per_label(torch.tensor([[0.0], [2.0]]))
    tensor([[0.6931, 0.6931],
            [2.1269, 0.1269]])
    """

    def columns(self, classes: int) -> int:
        if classes != 2:
            raise IncompatibleError(f"the logistic loss takes 2 classes, got {classes}: use the softmax loss")
        return 1

    def per_label(self, s: Tensor) -> Tensor:
        return softplus(torch.cat([s, -s], -1), threshold=50.0)

    def log_probabilities(self, s: Tensor) -> Tensor:
        return logsigmoid(torch.cat([-s, s], -1))

    def probabilities(self, s: Tensor) -> Tensor:
        return torch.cat([-s, s], -1).sigmoid()

    def per_label_jvp(self, s: Tensor, v: Tensor) -> Tensor:
        return torch.cat([s.sigmoid() * v, -(-s).sigmoid() * v], -1)

    def gradient(self, s: Tensor, q: Tensor) -> Tensor:
        return q[:, :1] * s.sigmoid() - q[:, 1:] * (-s).sigmoid()  # both without cancellation

    def curvature(self, s: Tensor, q: Tensor) -> LinearMap:
        second = q.sum(-1, keepdim=True) * s.sigmoid() * (-s).sigmoid()
        return lambda v: second * v

    def of_label(self, s: Tensor, labels: Tensor) -> tuple[Tensor, LinearMap]:
        """t sigmoid(t s) and sigmoid(s) sigmoid(-s), with t = 1 for class 0 and -1 for class 1."""
        signs = torch.rsub(labels, 1, alpha=2)[:, None]
        m = s * signs
        p = m.sigmoid()
        return p * signs, lambda v: (-m).sigmoid_().mul_(p).mul_(v)


class OneVersusRest(Loss):
    """l_j(s) = h(s_j) + sum over m != j of h(-s_m), h a function of the margin; with two classes h(s) and h(-s)."""

    @abstractmethod
    def margin_loss(self, m: Tensor) -> Tensor:
        """h(m)."""

    @abstractmethod
    def margin_slope(self, m: Tensor) -> Tensor:
        """h'(m)."""

    @abstractmethod
    def margin_curvature(self, m: Tensor) -> Tensor:
        """h''(m)."""

    @abstractmethod
    def margin_probability(self, m: Tensor) -> Tensor:
        """P(class) for which m minimises P h(m) + (1 - P) h(-m)."""

    def columns(self, classes: int) -> int:
        return 1 if classes == 2 else classes

    def per_label(self, s: Tensor) -> Tensor:
        return self._per_label(self.margin_loss(s), self.margin_loss(-s))

    def per_label_jvp(self, s: Tensor, v: Tensor) -> Tensor:
        return self._per_label(self.margin_slope(s) * v, -self.margin_slope(-s) * v)

    def gradient(self, s: Tensor, q: Tensor) -> Tensor:
        own, other = _own_and_other(s, q)
        return own * self.margin_slope(s) - other * self.margin_slope(-s)

    def curvature(self, s: Tensor, q: Tensor) -> LinearMap:
        own, other = _own_and_other(s, q)
        second = own * self.margin_curvature(s) + other * self.margin_curvature(-s)
        return lambda v: second * v

    def probabilities(self, s: Tensor) -> Tensor:
        p = self.margin_probability(s)
        if s.shape[-1] == 1:
            return torch.cat([1 - p, p], -1)
        p = p.clamp_min(torch.finfo(p.dtype).eps)  # a row that is outside of every class: all alike
        return p / p.sum(-1, keepdim=True)

    @staticmethod
    def _per_label(own: Tensor, other: Tensor) -> Tensor:
        """From h(s_m) and h(-s_m) (or their derivatives) to one number per class."""
        if own.shape[-1] == 1:
            return torch.cat([other, own], -1)
        return other.sum(-1, keepdim=True) + (own - other)


def _own_and_other(s: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """How much a row counts for, and against, the class of each score column."""
    if s.shape[-1] == 1:
        return q[:, 1:], q[:, :1]
    return q, q.sum(-1, keepdim=True) - q


@dataclass(frozen=True)
class Squared(OneVersusRest):
    """h(m) = (1 - m)^2 / 2: least squares on the codes +1 (the class) and -1 (the rest).

    References
    ----------
    Hastie, Tibshirani & Friedman (2009), section 4.2.

    Examples
    --------
    >>> Squared().per_label(torch.tensor([[1.0], [0.0]]))
    tensor([[2.0000, 0.0000],
            [0.5000, 0.5000]])
    """

    def margin_loss(self, m: Tensor) -> Tensor:
        return (1 - m).square() / 2

    def margin_slope(self, m: Tensor) -> Tensor:
        return m - 1

    def margin_curvature(self, m: Tensor) -> Tensor:
        return torch.ones_like(m)

    def margin_probability(self, m: Tensor) -> Tensor:
        return ((1 + m) / 2).clamp(0, 1)


@dataclass(frozen=True)
class SmoothedHinge(OneVersusRest):
    """h(m) = 0 for m >= 1, (1 - m)^2 / 2 for 0 <= m <= 1, 1/2 - m for m <= 0 (Rennie & Srebro 2005).

    Examples
    --------
    >>> SmoothedHinge().per_label(torch.tensor([[0.5], [0.0]]))
    tensor([[1.0000, 0.1250],
            [0.5000, 0.5000]])
    """

    def margin_loss(self, m: Tensor) -> Tensor:
        short = (1 - m).clamp(0, 1)
        return short * (1 - m - short / 2)

    def margin_slope(self, m: Tensor) -> Tensor:
        return -(1 - m).clamp(0, 1)

    def margin_curvature(self, m: Tensor) -> Tensor:
        return ((m > 0) & (m < 1)).to(m.dtype)

    def margin_probability(self, m: Tensor) -> Tensor:
        """1/(2 - m) for 0 <= m <= 1: there P h'(m) = (1 - P) h'(-m); symmetric about P = 1/2."""
        above = 1 / (2 - m.abs().clamp_max(1))
        return torch.where(m >= 0, above, 1 - above)


def one_hot(labels: Tensor, classes: int, weight: Tensor) -> Tensor:
    """q with q_ib = weight_i for the label b of row i and 0 elsewhere, shape (n, classes)."""
    q = weight.new_zeros(len(labels), classes)
    return q.scatter_(1, labels[:, None], weight.expand(len(labels))[:, None])


BY_NAME: dict[str, type[Loss]] = {
    "logistic": Logistic,
    "softmax": Softmax,
    "squared": Squared,
    "smoothed hinge": SmoothedHinge,
}


def loss_of(loss: str | Loss, classes: int | None = None) -> Loss:
    """The loss, given as an object or by its name; "auto" is logistic for two classes and softmax for more.

    Examples
    --------
    >>> loss_of("softmax")
    Softmax()
    """
    if classes is not None and isinstance(loss, str) and loss == "auto":
        return Logistic() if classes == 2 else Softmax()
    return object_of("loss", loss, BY_NAME, Loss, auto=classes is not None)


def warn_of_wrong_derivatives(loss: Loss, classes: int) -> None:
    """Warn (`ProblemWarning`) if derivatives of a user's loss disagree with finite differences at random scores."""
    if type(loss).__module__.startswith("bilevel."):
        return
    generator, h = torch.Generator().manual_seed(0), 1e-5
    s, v = torch.randn(2, 20, loss.columns(classes), generator=generator, dtype=torch.float64)
    q = torch.rand(20, classes, generator=generator, dtype=torch.float64)

    def slope(function: LinearMap) -> Tensor:
        return (function(s + h * v) - function(s - h * v)) / (2 * h)

    derivatives = {
        "per_label_jvp": (loss.per_label_jvp(s, v), slope(loss.per_label)),
        "gradient": ((loss.gradient(s, q) * v).sum(1), slope(lambda u: (q * loss.per_label(u)).sum(1))),
        "curvature": (loss.curvature(s, q)(v), slope(lambda u: loss.gradient(u, q))),
    }
    for name, (given, expected) in derivatives.items():
        if not torch.allclose(given, expected, rtol=1e-3, atol=1e-4):
            off = float((given - expected).norm() / expected.norm())
            text = f"{name} of {type(loss).__name__} differs by {off:.0%} from finite differences: correct it"
            warnings.warn(text, ProblemWarning, stacklevel=4)
            return


def object_of(argument: str, value: Any, kinds: Mapping[str, type], base: Any, *, auto: bool = False) -> Any:
    """An object of the class `base`, given as an object or by name; with `auto`, "auto" is a name too."""
    if isinstance(value, str) and value in kinds:
        return kinds[value]()
    if isinstance(value, base):
        return value
    example = [*kinds.values()][-1].__name__
    error = InvalidInputError if isinstance(value, str) else InvalidTypeError
    names = [*(["auto"] if auto else []), *sorted(kinds)]
    raise error(f"{argument} must be one of {names} or an object such as {example}(), got {value!r}")
