"""A support vector machine as the last layer of a network, solved for every task."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from .._checks import check_count, check_number, check_object
from ..errors import InvalidInputError, InvalidTypeError
from ..hypergradients import Estimator, LinearSolve
from ..random import RandomStreams, Seeds
from .inputs import check_features, check_finite, check_labels, check_mask
from .label_coding import Coded, CodingName, coding_class
from .svm_dual import Dual, with_ridge
from .svm_layer import solved


class SVMHead(nn.Module):
    """A support vector machine for each task: class scores of queries from support and query features.

        scores_c(a) = scale * sum_i alpha_ic phi(a_i).phi(a),      alpha from the dual of the machine of the task

    with the sum over the support examples a_i (see `coding` for the two duals). All tasks of a batch are solved
    together, in float64 for any dtype of the features. `loss(scores).backward()` differentiates through the solution:
    on its face of the box, dy = -(G_FF)^{-1} (dG y)_F.

    Parameters
    ----------
    ways
        k, the number of classes of a task.
    C
        The bound of the dual variables, which limits the influence of one example.
    ridge
        A number that is added to the diagonal of the quadratic form, because the dual of linearly dependent features
        has many solutions.
    coding
        "centred", as in the paper, or "crammer-singer", as in MetaOptNet.
    hypergradient
        Any estimator of the library, for the derivative of the solution. The default, `LinearSolve()`, is computed in
        closed form, with one small system per task.
    scale
        A factor on the scores, 1 in the paper. At the margin the scores of a support example differ by 1, which the
        cross-entropy loss treats as low confidence, so that well-classified examples contribute to it too.
    tol
        The largest entry of L |y - P(y - gradient / L)| that counts as solved, with L the largest row sum of |G|. It
        does not depend on the scale of the features.

    Examples
    --------
    >>> head = SVMHead(ways=2, scale=1.0)
    >>> support, labels = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 1])
    >>> head(support, labels, torch.tensor([[2.0, 5.0]]))  # one query, on the side of class 0
    tensor([[ 0.9998, -0.9998]])
    """

    def __init__(
        self,
        ways: int,
        *,
        C: float = 10.0,
        ridge: float = 1e-3,
        coding: CodingName = "centred",
        hypergradient: Estimator | None = None,
        scale: float = 5.0,
        tol: float = 1e-6,
    ) -> None:
        super().__init__()
        check_count("ways", ways, least=2)
        for name, value in (("C", C), ("ridge", ridge), ("scale", scale), ("tol", tol)):
            check_number(name, value)
        coding_class(coding)
        hypergradient = LinearSolve() if hypergradient is None else hypergradient
        check_object("hypergradient", hypergradient, "LinearSolve()", "estimate")
        self.ways = ways
        self.C: float = float(C)
        self.ridge: float = float(ridge)
        self.coding: CodingName = coding
        self.hypergradient = hypergradient
        self.scale: float = float(scale)
        self.tol: float = float(tol)
        self._calls = 0

    def with_ways(self, ways: int) -> SVMHead:
        """The same head for tasks of another number of classes.

        Examples
        --------
        >>> SVMHead(ways=20, C=1.0).with_ways(5)
        SVMHead(ways=5, C=1, ridge=0.001, coding='centred', scale=5)
        """
        check_count("ways", ways, least=2)
        head = copy.copy(self)
        head.ways = ways
        return head

    def forward(self, support: Tensor, labels: Tensor, query: Tensor, mask: Tensor | None = None) -> Tensor:
        """The scores of the queries, (..., m, k).

        Parameters
        ----------
        support
            Features of the support examples, (..., n, d); the leading dimensions count tasks.
        labels
            Their classes, integers from 0 to ways - 1, (..., n).
        query
            Features of the queries, (..., m, d).
        mask
            Booleans (..., n): which support examples exist, for tasks of different sizes; features and labels where it
            is false are ignored.
        """
        mask = self.check(support, labels, query, mask)
        batch = support.shape[:-2]
        support, query, labels, mask = (
            part.reshape(-1, *part.shape[len(batch) :]) for part in (support, query, labels, mask)
        )
        support = support.where(mask.unsqueeze(-1), 0.0)
        coded = self.coded(labels, mask)
        quadratic = self.quadratic(coded, support)
        self._calls += 1  # an estimator that draws draws anew
        streams = RandomStreams(Seeds(), self._calls)
        y = solved(Dual(coded, quadratic.detach()), quadratic, self.hypergradient, streams, tol=self.tol)
        scores = self.scores(coded, y, support, query)
        return scores.reshape(*batch, *scores.shape[1:])

    def coded(self, labels: Tensor, mask: Tensor | None = None) -> Coded:
        """Labels (t, n) as the dual sees them."""
        mask = torch.ones_like(labels, dtype=torch.bool) if mask is None else mask
        return coding_class(self.coding)(labels, mask, self.ways, self.C, torch.float64)

    def quadratic(self, coded: Coded, support: Tensor) -> Tensor:
        """G of the dual with its ridge, (t, n, n) in float64, from features (t, n, d)."""
        support = support.double()
        return with_ridge(coded.quadratic(support @ support.mT), self.ridge)

    def scores(self, coded: Coded, y: Tensor, support: Tensor, query: Tensor) -> Tensor:
        """The scores (t, m, k) of the machines with the dual variables y (t, n, p)."""
        weights = (self.scale * coded.alpha(y)).to(support.dtype).mT @ support
        return query @ weights.mT

    def check(self, support: Any, labels: Any, query: Any, mask: Any = None) -> Tensor:
        """Shapes, dtypes and values fit each other; returns the mask."""
        check_features("support", support)
        check_features("query", query)
        if query.shape[:-2] != support.shape[:-2] or query.shape[-1] != support.shape[-1]:
            raise InvalidInputError(
                f"query of shape {tuple(query.shape)} does not fit support of shape {tuple(support.shape)}: give "
                "(..., m, d) and (..., n, d) with the same tasks and the same number of features"
            )
        if query.dtype != support.dtype:
            raise InvalidTypeError(
                f"query is {query.dtype} and support {support.dtype}: convert one, query.to(support.dtype)"
            )
        mask = check_mask(labels, support.shape[:-1], mask)
        check_labels(labels, mask, self.ways)
        check_finite("support", support, mask)
        check_finite("query", query)
        return mask

    def extra_repr(self) -> str:
        return f"ways={self.ways}, C={self.C:g}, ridge={self.ridge:g}, coding={self.coding!r}, scale={self.scale:g}"
