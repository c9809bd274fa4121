"""Noise models: the meaning of the upper variable x, and the row loss phi_i(x, s_i) of the lower level.

    RowWeights     phi_i = sigmoid(x_i) l_{b_i}(s_i)                  one weight per row (the paper's)
    ClassPairs     phi_i = sum_j Q_{b_i j} l_j(s_i)                   how much a row labelled b counts as class j
    Transition     phi_i = -log sum_j T_{j b_i} p_j(s_i)              how often a row of class j is labelled b

b_i is the given label, l_j the loss of class j and p the class probabilities of the model, both functions of the
scores s_i. Every derivative is in closed form, for a batch of rows: s (n, columns), labels (n,) of int64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .._checks import check_number
from ..errors import IncompatibleError
from .losses import LinearMap, LogLikelihood, Loss, object_of


class RowTerms(NamedTuple):
    """The derivatives of phi_i(x, s_i) at one point, for a batch of rows."""

    residual: Tensor  # grad_s phi_i, of the shape of s
    curvature: LinearMap  # v -> grad^2_ss phi_i v_i, for v of the shape of s
    gradient_x: Callable[[], Tensor]  # sum_i grad_x phi_i, of the shape of x
    cross: LinearMap  # v -> sum_i grad_x <grad_s phi_i, v_i>, of the shape of x


class NoiseModel(ABC):
    """The interface of noise models: phi_i(x, s_i) and its derivatives.

    If x has one entry per row (`per_row`), every method gets the entries of its rows.
    """

    name: ClassVar[str]
    """The name of the model in `HyperCleaner`."""
    per_row: ClassVar[bool] = False
    takes: ClassVar[type[Loss]] = Loss
    """The class of losses that the model supports."""

    @abstractmethod
    def start(self, labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        """The starting value of x."""

    def check(self, loss: Loss) -> None:
        """Raise if this model cannot use the loss."""
        if not isinstance(loss, self.takes):
            raise IncompatibleError(
                f"{type(self).__name__} needs class probabilities, which {loss!r} does not model: "
                'use the loss "softmax" (or "logistic" for two classes), or the noise model ClassPairs'
            )

    def matrix(self, x: Tensor) -> Tensor | None:
        """The matrix of pairs of labels that x represents, shape (classes, classes), or None."""
        return None

    @abstractmethod
    def belief(self, x: Tensor, labels: Tensor, probabilities: Callable[[], Tensor]) -> Tensor:
        """The weight of each label, in [0, 1], given the class probabilities of its row; shape (n,)."""

    @abstractmethod
    def value(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        """phi_i, shape (n,)."""

    @abstractmethod
    def terms(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> RowTerms:
        """The derivatives of phi_i at one point, in a form that several products share."""


@dataclass(frozen=True, kw_only=True)
class RowWeights(NoiseModel):
    """phi_i = sigmoid(x_i) l_{b_i}(s_i): one weight per row, the model of the paper.

    The model is so flexible that after many steps the cleaned model overfits the trusted rows: use few steps.

    Parameters
    ----------
    weight
        The weight of every row at the start.

    Examples
    --------
    >>> RowWeights().start(torch.tensor([0, 1, 1]), classes=2, dtype=torch.float32)
    tensor([0., 0., 0.])
    """

    name: ClassVar[str] = "rows"
    per_row: ClassVar[bool] = True
    weight: float = 0.5

    def __post_init__(self) -> None:
        check_number("weight", self.weight, high=1.0)

    def start(self, labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        return torch.full(labels.shape, self.weight, dtype=dtype, device=labels.device).logit()

    def weights(self, x: Tensor) -> Tensor:
        """The weight of each row, sigmoid(x)."""
        return x.sigmoid()

    def belief(self, x: Tensor, labels: Tensor, probabilities: Callable[[], Tensor]) -> Tensor:
        return self.weights(x)

    def value(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return x.sigmoid() * _of_label(loss.per_label(s), labels)

    def terms(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> RowTerms:
        weight, (slope, bend) = x.sigmoid()[:, None], loss.of_label(s, labels)

        def through_weight(change: Tensor) -> Tensor:
            """From d/d weight to d/dx."""
            return change * (weight[:, 0] * (-x).sigmoid())

        return RowTerms(
            weight * slope,
            lambda v: weight * bend(v),
            lambda: through_weight(_of_label(loss.per_label(s), labels)),
            lambda v: through_weight((slope * v).sum(-1)),
        )


@dataclass(frozen=True, kw_only=True)
class ClassMatrix(NoiseModel):
    """x holds the logits of a matrix whose rows are probabilities, shape (classes, classes)."""

    trust: float = 0.9

    def __post_init__(self) -> None:
        check_number("trust", self.trust, high=1.0)

    def start(self, labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        """`trust` on the diagonal, the rest of each row distributed evenly."""
        odds = torch.tensor(self.trust * (classes - 1) / (1 - self.trust), dtype=dtype, device=labels.device)
        return odds.log() * torch.eye(classes, dtype=dtype, device=labels.device)

    def matrix(self, x: Tensor) -> Tensor:
        """Q of `ClassPairs` (row b: what the label b stands for), T of `Transition` (row j: the labels of class j)."""
        return x.softmax(-1)

    def start_at(self, pairs: Tensor) -> Tensor:
        """x for counted pairs of label and class, shape (classes, classes)."""
        pairs = pairs + (1.0 + 9.0 * torch.eye(len(pairs), dtype=pairs.dtype, device=pairs.device))
        return (pairs / pairs.sum(-1, keepdim=True)).log()


@dataclass(frozen=True, kw_only=True)
class ClassPairs(ClassMatrix):
    """phi_i = sum_j Q_{b_i j} l_j(s_i) with Q = softmax of the rows of x: convex in the model.

    A row labelled b counts Q_bj times as class j. x has the shape (classes, classes).

    Parameters
    ----------
    trust
        Q_bb at the start; the rest of the row is distributed evenly.

    References
    ----------
    Compare the loss corrections of Patrini, Rozza, Menon, Nock & Qu (2017).

    Examples
    --------
    >>> model = ClassPairs(trust=0.9)
    >>> model.matrix(model.start(torch.tensor([0, 1]), classes=2, dtype=torch.float32))
    tensor([[0.9000, 0.1000],
            [0.1000, 0.9000]])
    """

    name: ClassVar[str] = "class-pairs"

    def belief(self, x: Tensor, labels: Tensor, probabilities: Callable[[], Tensor]) -> Tensor:
        """Q_bb: how much a row with this label counts as of this class."""
        return self.matrix(x).diagonal()[labels]

    def value(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return (x.softmax(-1)[labels] * loss.per_label(s)).sum(-1)

    def terms(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> RowTerms:
        q = x.softmax(-1)[labels]
        return RowTerms(
            loss.gradient(s, q),
            loss.curvature(s, q),
            lambda: _through_softmax(x, sum_by_label(loss.per_label(s), labels)),
            lambda v: _through_softmax(x, sum_by_label(loss.per_label_jvp(s, v), labels)),
        )


@dataclass(frozen=True, kw_only=True)
class Transition(ClassMatrix):
    """phi_i = -log sum_j T_{j b_i} p_j(s_i) with T = softmax of the rows of x: the likelihood of the label as given.

    A row of class j has the label b with probability T_jb. x has the shape (classes, classes). With
    r_j = T_jb p_j / sum_m T_mb p_m, the probability of class j given the label,

        grad_s phi = p - r,       grad^2_ss phi = (diag(p) - p p') - (diag(r) - r r').

    **Not convex in the model**, because the second term may exceed the first. Constants, certificates and the theory of
    the solvers assume a strongly convex lower level and do not cover this model. It needs the loss "softmax" or
    "logistic".

    Parameters
    ----------
    trust
        T_jj at the start; the rest of the row is distributed evenly.

    Examples
    --------
    >>> model = Transition(trust=0.8)
    >>> model.matrix(model.start(torch.tensor([0, 1]), classes=2, dtype=torch.float32))
    tensor([[0.8000, 0.2000],
            [0.2000, 0.8000]])
    """

    name: ClassVar[str] = "transition"
    takes: ClassVar[type[Loss]] = LogLikelihood

    def start_at(self, pairs: Tensor) -> Tensor:
        return super().start_at(pairs.T)

    def belief(self, x: Tensor, labels: Tensor, probabilities: Callable[[], Tensor]) -> Tensor:
        """r_b: the probability that the class is the label, given the label."""
        joint = probabilities() * self.matrix(x).T[labels]
        return joint.gather(1, labels[:, None])[:, 0] / joint.sum(-1)

    def value(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return -_log_joint(loss, x, s, labels)[1].logsumexp(-1)

    def terms(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> RowTerms:
        log_p, joint = _log_joint(loss, x, s, labels)
        p, r = log_p.exp(), joint.softmax(-1)

        def curvature(v: Tensor) -> Tensor:
            if s.shape[-1] == 1:
                return (p.prod(-1, keepdim=True) - r.prod(-1, keepdim=True)) * v
            return p * (v - (p * v).sum(-1, keepdim=True)) - r * (v - (r * v).sum(-1, keepdim=True))

        def cross(v: Tensor) -> Tensor:
            """d <p - r, v> / d log T_jb = -r_j (v_j - r.v) where b = b_i."""
            v = _per_class(v)
            return _through_log_softmax(x, -sum_by_label(r * (v - (r * v).sum(-1, keepdim=True)), labels).T)

        return RowTerms(
            (p - r)[:, -s.shape[-1] :],
            curvature,
            lambda: _through_log_softmax(x, -sum_by_label(r, labels).T),  # d phi_i / d log T_jb = -r_ij where b = b_i
            cross,
        )


@dataclass(frozen=True)
class Certain(NoiseModel):
    """phi_i = l_{b_i}(s_i): every label is right, and there is no x. For trusted rows."""

    def start(self, labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros((), dtype=dtype, device=labels.device)

    name: ClassVar[str] = "certain"

    def belief(self, x: Tensor, labels: Tensor, probabilities: Callable[[], Tensor]) -> Tensor:
        return x.new_ones(len(labels))

    def value(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return _of_label(loss.per_label(s), labels)

    def terms(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> RowTerms:
        slope, bend = loss.of_label(s, labels)
        return RowTerms(slope, bend, lambda: torch.zeros_like(x), lambda v: torch.zeros_like(x))


BY_NAME: dict[str, type[NoiseModel]] = {kind.name: kind for kind in (Transition, ClassPairs, RowWeights)}
"""Noise models, simpler ones first."""


def noise_of(noise: str | NoiseModel, *, auto: bool = False) -> NoiseModel:
    """The noise model, given as an object or by its name.

    Examples
    --------
    >>> noise_of("rows")
    RowWeights(weight=0.5)
    """
    return object_of("noise", noise, BY_NAME, NoiseModel, auto=auto)


def sum_by_label(values: Tensor, labels: Tensor) -> Tensor:
    """Row b holds the sum of values_i over the rows i with the label b, shape (classes, classes)."""
    classes = values.shape[1]
    return values.new_zeros(classes, classes).index_add_(0, labels, values)


def _of_label(per_label: Tensor, labels: Tensor) -> Tensor:
    return per_label.gather(1, labels[:, None]).squeeze(1)


def _per_class(v: Tensor) -> Tensor:
    """One column s stands for the scores (0, s) of two classes."""
    return pad(v, (1, 0)) if v.shape[-1] == 1 else v


def _log_joint(loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """log p_ij and log (T_{j b_i} p_ij), both (n, classes)."""
    assert isinstance(loss, LogLikelihood)  # as `check` has seen to
    log_p = loss.log_probabilities(s)
    return log_p, x.log_softmax(-1).T[labels] + log_p


def _through_softmax(x: Tensor, change: Tensor) -> Tensor:
    """From d/dQ to d/dx for Q = softmax of the rows of x."""
    Q = x.softmax(-1)
    return Q * (change - (Q * change).sum(-1, keepdim=True))


def _through_log_softmax(x: Tensor, change: Tensor) -> Tensor:
    """From d/d log T to d/dx for T = softmax of the rows of x."""
    return change - x.softmax(-1) * change.sum(-1, keepdim=True)
