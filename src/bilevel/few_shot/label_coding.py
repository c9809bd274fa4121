"""Two codings of class labels in the dual of a support vector machine: centred, and Crammer and Singer's.

With K the Gram matrix of the support examples, class c has the score sum_i alpha_ic phi(a_i).phi(a), and

    centred           alpha_ic = y_i V_ic,  V_ic = 1 for the example's own class and -1/(k-1) for the k-1 others
                      min over 0 <= y_i <= C of  1/2 y'(K o VV')y - sum_i y_i
    crammer-singer    alpha = y
                      min over y_ic <= C [c own class], sum_c y_ic = 0  of  1/2 sum_c y_c' K y_c - sum_i y_i,own

The first is the paper's with the sign of erratum 7: with +1/(k-1) the codes would not be centred. The second is that of
Crammer & Singer (JMLR 2001), as MetaOptNet uses it (Lee et al., CVPR 2019).
Both are `Coded`: the dual variables have p columns, p = 1 or k, and the quadratic form is (G + ridge I) (x) I_p.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..sets.base import ConvexSet
from ..sets.box import Box
from ..sets.box_section import BoxSection

CodingName = Literal["centred", "crammer-singer"]


class Coded(ABC):
    """The labels of a batch of tasks, coded for the dual.

    Parameters
    ----------
    labels
        Integers from 0, ..., ways - 1, shape (t, n); anything where the mask is false.
    mask
        Which examples exist, booleans of shape (t, n).
    ways
        k.
    C
        The bound of the dual variables.
    dtype
        The dtype of the dual variables.
    """

    balanced: ClassVar[bool]
    """Whether the entries of each example sum to zero."""

    indicator: Tensor
    """b of the linear term <b, y>, shape (t, n, p); the upper bound of y is C b."""

    def __init__(self, labels: Tensor, mask: Tensor, ways: int, C: float, dtype: torch.dtype) -> None:
        present = mask.to(dtype).unsqueeze(-1)
        self.own: Tensor = torch.nn.functional.one_hot(labels.where(mask, 0), ways).to(dtype) * present
        self.ways = ways
        self.C = C
        self.present = present

    @cached_property
    def upper(self) -> Tensor:
        """The upper bound of the dual variables, (t, n, p)."""
        return self.C * self.indicator

    def take(self, tasks: Tensor | slice) -> Self:
        """The tasks of these numbers."""
        some = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(some, name, value[tasks])
        return some

    def alpha(self, y: Tensor) -> Tensor:
        """The weight of each example in each class score, (t, n, k), from y of shape (t, n, p)."""
        return y

    def quadratic(self, kernel: Tensor) -> Tensor:
        """G of the quadratic form, (t, n, n), from the Gram matrix K."""
        return kernel

    @abstractmethod
    def constraint(self) -> ConvexSet:
        """The set of the dual variables, of points of the shape `plain` gives."""

    def plain(self, y: Tensor) -> Tensor:
        """y of shape (t, n, p) in the shape in which the library's problem has it."""
        return y

    def columns(self, y: Tensor) -> Tensor:
        """The inverse of `plain`."""
        return y


class Centred(Coded):
    """alpha_ic = y_i V_ic with 0 <= y_i <= C; y has shape (t, n)."""

    balanced = False

    def __init__(self, labels: Tensor, mask: Tensor, ways: int, C: float, dtype: torch.dtype) -> None:
        super().__init__(labels, mask, ways, C, dtype)
        self.indicator: Tensor = self.present
        self.codes: Tensor = (self.own * ways - self.present) / (ways - 1)

    def alpha(self, y: Tensor) -> Tensor:
        return y * self.codes

    def quadratic(self, kernel: Tensor) -> Tensor:
        return kernel * (self.codes @ self.codes.mT)

    def constraint(self) -> Box:
        return Box(0.0, self.plain(self.upper))

    def plain(self, y: Tensor) -> Tensor:
        return y.squeeze(-1)

    def columns(self, y: Tensor) -> Tensor:
        return y.unsqueeze(-1)


class CrammerSinger(Coded):
    """alpha = y with y_ic <= C for the own class, <= 0 for others, and sum_c y_ic = 0; y has shape (t, n, k)."""

    balanced = True

    def __init__(self, labels: Tensor, mask: Tensor, ways: int, C: float, dtype: torch.dtype) -> None:
        super().__init__(labels, mask, ways, C, dtype)
        self.indicator: Tensor = self.own

    def constraint(self) -> BoxSection:
        return BoxSection(-torch.inf, self.upper, 1.0, 0.0)


CODINGS: dict[str, type[Coded]] = {"centred": Centred, "crammer-singer": CrammerSinger}


def coding_class(name: str) -> type[Coded]:
    """The class of a coding.

    Examples
    --------
    >>> coding_class("centred").__name__
    'Centred'
    """
    if name not in CODINGS:
        raise InvalidInputError(f"coding must be one of {', '.join(map(repr, CODINGS))}, got {name!r}")
    return CODINGS[name]
