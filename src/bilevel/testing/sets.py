"""The contract suite of convex sets: a new set's test is two methods."""

from __future__ import annotations

from .derivative import DerivativeTests
from .projection import ProjectionTests


class SetTestCase(ProjectionTests, DerivativeTests):
    """Everything that must hold for a convex set; pytest collects the inherited tests.

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

    `make_set` must return scale * Y for the same draws of the generator, so that the oracle can be asked at
    scale 1 and the answers compared from 1e-12 to 1e12. Class attributes (`dimensions`, `accuracy`, `half`,
    `traceable`, `margin_exact`, ...) say what a set cannot do.
    """
