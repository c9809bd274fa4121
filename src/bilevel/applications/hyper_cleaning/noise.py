"""What the upper variable x says about the labels, and the row loss phi_i(x, s_i) of the lower level it leads to.

    RowWeights     phi_i = sigmoid(x_i) l_{b_i}(s_i)                  one weight per row (the paper's)
    ClassPairs     phi_i = sum_j Q_{b_i j} l_j(s_i)                   how much a row labelled b counts as class j
    Transition     phi_i = -log sum_j T_{j b_i} p_j(s_i)              how often a row of class j is labelled b

b_i is the given label, l_j the loss of class j and p the class probabilities of the model, both functions of the
scores s_i. Every derivative is in closed form, for a batch of rows: s (n, columns), labels (n,) of int64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...errors import Incompatible, InvalidInput, InvalidType
from .losses import LinearMap, LogLikelihood, Loss


class NoiseModel(ABC):
    """The contract: phi_i(x, s_i), its derivatives in s_i, and sums over rows of its derivatives in x.

    Where x has one entry per row (`per_row`), every method is given the entries of its rows.
    """

    per_row: ClassVar[bool] = False
    convex: ClassVar[bool] = True
    """Whether phi_i is convex in the model when the loss is."""
    takes: ClassVar[type[Loss]] = Loss
    """The kind of loss that phi_i can be made of."""

    @abstractmethod
    def start(self, labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        """x before anything is known."""

    def check(self, loss: Loss) -> None:
        """Refuse a loss that this model cannot use."""
        if not isinstance(loss, self.takes):
            raise Incompatible(
                f"{type(self).__name__} needs class probabilities, which {loss!r} does not model: "
                'use the loss "softmax" (or "logistic" for two classes), or the noise model ClassPairs'
            )

    @abstractmethod
    def value(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        """phi_i, shape (n,)."""

    @abstractmethod
    def gradient(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        """grad_s phi_i, of the shape of s."""

    @abstractmethod
    def curvature(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> LinearMap:
        """v -> grad^2_ss phi_i v_i, a function of v of the shape of s."""

    @abstractmethod
    def gradient_x(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        """sum_i grad_x phi_i, of the shape of x."""

    @abstractmethod
    def cross(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor, v: Tensor) -> Tensor:
        """sum_i grad_x <grad_s phi_i, v_i>, of the shape of x."""


@dataclass(frozen=True, kw_only=True)
class RowWeights(NoiseModel):
    """phi_i = sigmoid(x_i) l_{b_i}(s_i): one weight per row, the model of the paper.

    So flexible that, run to the end, the cleaned model only repeats the trusted rows: stop early.

    Parameters
    ----------
    weight
        The weight of every row at the start.

    Examples
    --------
    >>> RowWeights().start(torch.tensor([0, 1, 1]), classes=2, dtype=torch.float32)
    tensor([0., 0., 0.])
    """

    per_row: ClassVar[bool] = True
    weight: float = 0.5

    def __post_init__(self) -> None:
        _check_share("weight", self.weight)

    def start(self, labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        return torch.full(labels.shape, self.weight, dtype=dtype, device=labels.device).logit()

    def weights(self, x: Tensor) -> Tensor:
        """The weight of each row, sigmoid(x)."""
        return x.sigmoid()

    def value(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return x.sigmoid() * _of_label(loss.per_label(s), labels)

    def gradient(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return loss.gradient(s, one_hot(labels, _classes(s), x.sigmoid()))

    def curvature(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> LinearMap:
        return loss.curvature(s, one_hot(labels, _classes(s), x.sigmoid()))

    def gradient_x(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return _sigmoid_slope(x) * _of_label(loss.per_label(s), labels)

    def cross(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor, v: Tensor) -> Tensor:
        return _sigmoid_slope(x) * _of_label(loss.per_label_jvp(s, v), labels)


@dataclass(frozen=True, kw_only=True)
class ClassPairs(NoiseModel):
    """phi_i = sum_j Q_{b_i j} l_j(s_i) with Q = softmax of the rows of x: convex in the model.

    A row labelled b counts Q_bj times as class j. x has the shape (classes, classes).

    Parameters
    ----------
    trust
        Q_bb at the start; the rest is spread evenly.

    References
    ----------
    Ours; compare the loss corrections of Patrini, Rozza, Menon, Nock & Qu (2017).

    Examples
    --------
    >>> model = ClassPairs(trust=0.9)
    >>> model.matrix(model.start(torch.tensor([0, 1]), classes=2, dtype=torch.float32))
    tensor([[0.9000, 0.1000],
            [0.1000, 0.9000]])
    """

    trust: float = 0.9

    def __post_init__(self) -> None:
        _check_share("trust", self.trust)

    def start(self, labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        return _diagonal_logits(self.trust, classes, dtype, labels.device)

    def matrix(self, x: Tensor) -> Tensor:
        """Q: row b says what the label b stands for."""
        return x.softmax(-1)

    def value(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return (x.softmax(-1)[labels] * loss.per_label(s)).sum(-1)

    def gradient(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return loss.gradient(s, x.softmax(-1)[labels])

    def curvature(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> LinearMap:
        return loss.curvature(s, x.softmax(-1)[labels])

    def gradient_x(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return _through_softmax(x, sum_by_label(loss.per_label(s), labels))

    def cross(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor, v: Tensor) -> Tensor:
        return _through_softmax(x, sum_by_label(loss.per_label_jvp(s, v), labels))


@dataclass(frozen=True, kw_only=True)
class Transition(NoiseModel):
    """phi_i = -log sum_j T_{j b_i} p_j(s_i) with T = softmax of the rows of x: the likelihood of the label as given.

    A row of class j carries the label b with probability T_jb. x has the shape (classes, classes). With
    r_j = T_jb p_j / sum_m T_mb p_m, the probability of class j once the label is seen,

        grad_s phi = p - r,       grad^2_ss phi = (diag(p) - p p') - (diag(r) - r r').

    **Not convex in the model**: the second term may outweigh the first. Strong convexity of the lower level, constants
    and certificates that rest on it, and the theory of the solvers do not cover this model; Hessian products may show
    negative curvature. For the losses "softmax" and "logistic".

    Parameters
    ----------
    trust
        T_jj at the start; the rest is spread evenly.

    Examples
    --------
    >>> model = Transition(trust=0.8)
    >>> model.matrix(model.start(torch.tensor([0, 1]), classes=2, dtype=torch.float32))
    tensor([[0.8000, 0.2000],
            [0.2000, 0.8000]])
    """

    convex: ClassVar[bool] = False
    takes: ClassVar[type[Loss]] = LogLikelihood
    trust: float = 0.9

    def __post_init__(self) -> None:
        _check_share("trust", self.trust)

    def start(self, labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        return _diagonal_logits(self.trust, classes, dtype, labels.device)

    def matrix(self, x: Tensor) -> Tensor:
        """T: row j says which labels rows of class j carry."""
        return x.softmax(-1)

    def value(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return -_log_joint(loss, x, s, labels)[1].logsumexp(-1)

    def gradient(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        log_p, joint = _log_joint(loss, x, s, labels)
        return (log_p.exp() - joint.softmax(-1))[:, -s.shape[-1] :]

    def curvature(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> LinearMap:
        log_p, joint = _log_joint(loss, x, s, labels)
        p, r = log_p.exp(), joint.softmax(-1)
        if s.shape[-1] == 1:
            second = p.prod(-1, keepdim=True) - r.prod(-1, keepdim=True)
            return lambda v: second * v
        return lambda v: p * (v - (p * v).sum(-1, keepdim=True)) - r * (v - (r * v).sum(-1, keepdim=True))

    def gradient_x(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        """d phi_i / d log T_jb = -r_ij where b = b_i."""
        r = _log_joint(loss, x, s, labels)[1].softmax(-1)
        return _through_log_softmax(x, -sum_by_label(r, labels).T)

    def cross(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor, v: Tensor) -> Tensor:
        """d <p - r, v> / d log T_jb = -r_j (v_j - r.v) where b = b_i."""
        r, v = _log_joint(loss, x, s, labels)[1].softmax(-1), _per_class(v)
        return _through_log_softmax(x, -sum_by_label(r * (v - (r * v).sum(-1, keepdim=True)), labels).T)


@dataclass(frozen=True)
class Certain(NoiseModel):
    """phi_i = l_{b_i}(s_i): every label is right, and there is no x. For trusted rows."""

    def start(self, labels: Tensor, classes: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros((), dtype=dtype, device=labels.device)

    def value(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return _of_label(loss.per_label(s), labels)

    def gradient(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return loss.gradient(s, one_hot(labels, _classes(s), s.new_ones(())))

    def curvature(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> LinearMap:
        return loss.curvature(s, one_hot(labels, _classes(s), s.new_ones(())))

    def gradient_x(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def cross(self, loss: Loss, x: Tensor, s: Tensor, labels: Tensor, v: Tensor) -> Tensor:
        return torch.zeros_like(x)


BY_NAME: dict[str, type[NoiseModel]] = {"rows": RowWeights, "class-pairs": ClassPairs, "transition": Transition}


def noise_of(noise: str | NoiseModel) -> NoiseModel:
    """The noise model itself, also by its name.

    Examples
    --------
    >>> noise_of("rows")
    RowWeights(weight=0.5)
    """
    if isinstance(noise, NoiseModel):
        return noise
    if not isinstance(noise, str):
        raise InvalidType(f"noise must be one of {sorted(BY_NAME)} or a model such as RowWeights(), got {noise!r}")
    if noise not in BY_NAME:
        raise InvalidInput(f"noise must be one of {sorted(BY_NAME)} or a model such as RowWeights(), got {noise!r}")
    return BY_NAME[noise]()


def one_hot(labels: Tensor, classes: int, weight: Tensor) -> Tensor:
    """q with q_ib = weight_i for the label b of row i and 0 elsewhere, shape (n, classes)."""
    q = weight.new_zeros(len(labels), classes)
    return q.scatter_(1, labels[:, None], weight.expand(len(labels))[:, None])


def sum_by_label(values: Tensor, labels: Tensor) -> Tensor:
    """Row b holds the sum of values_i over the rows i with the label b, shape (classes, classes)."""
    classes = values.shape[1]
    return values.new_zeros(classes, classes).index_add_(0, labels, values)


def _of_label(per_label: Tensor, labels: Tensor) -> Tensor:
    return per_label.gather(1, labels[:, None]).squeeze(1)


def _classes(s: Tensor) -> int:
    """One score column stands for two classes."""
    return max(2, s.shape[-1])


def _per_class(v: Tensor) -> Tensor:
    """One column s stands for the scores (0, s) of two classes."""
    return pad(v, (1, 0)) if v.shape[-1] == 1 else v


def _log_joint(loss: Loss, x: Tensor, s: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """log p_ij and log (T_{j b_i} p_ij), both (n, classes)."""
    assert isinstance(loss, LogLikelihood)  # as `check` has seen to
    log_p = loss.log_probabilities(s)
    return log_p, x.log_softmax(-1).T[labels] + log_p


def _sigmoid_slope(x: Tensor) -> Tensor:
    return x.sigmoid() * (-x).sigmoid()


def _through_softmax(x: Tensor, change: Tensor) -> Tensor:
    """From d/dQ to d/dx for Q = softmax of the rows of x."""
    Q = x.softmax(-1)
    return Q * (change - (Q * change).sum(-1, keepdim=True))


def _through_log_softmax(x: Tensor, change: Tensor) -> Tensor:
    """From d/d log T to d/dx for T = softmax of the rows of x."""
    return change - x.softmax(-1) * change.sum(-1, keepdim=True)


def _diagonal_logits(trust: float, classes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Logits of a matrix with `trust` on the diagonal and the rest of each row spread evenly."""
    odds = torch.tensor(trust * (classes - 1) / (1 - trust), dtype=dtype, device=device)
    return odds.log() * torch.eye(classes, dtype=dtype, device=device)


def _check_share(name: str, value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise InvalidInput(f"{name} must lie strictly between 0 and 1, got {value!r}")
