"""The contract suite of convex sets: a new set's test is two methods."""

from __future__ import annotations

from .derivative import DerivativeTests
from .projection import ProjectionTests


class SetTestCase(ProjectionTests, DerivativeTests):
    """The test suite of convex sets: a subclass defines two methods, and pytest collects the inherited tests.

    Examples
    --------
    >>> import torch
    >>> from bilevel.sets import L2Ball
    >>> class TestL2Ball(SetTestCase):
    ...     def make_set(self, generator, dimension, scale):
    ...         radius = torch.rand((), generator=generator, dtype=torch.float64) + 0.1
    ...         return L2Ball(radius * scale)
    ...
    ...     def oracle(self, y, Y):
    ...         import cvxpy
    ...
    ...         return [cvxpy.norm2(y) <= Y.radius.item()]

    `make_set` must return scale * Y for the same draws of the generator, so that projections at scales from 1e-12 to
    1e12 can be compared with that of the oracle at scale 1. Class attributes (`dimensions`, `accuracy`, `half`,
    `traceable`, `margin_exact`, ...) declare the limits of a set.
    """
