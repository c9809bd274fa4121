"""Intersections, and sets given by a projection or by cvxpy."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import EmptySet, Incompatible, InvalidType
from bilevel.sets import (
    Box,
    HalfSpace,
    Intersection,
    L1Ball,
    L2Ball,
    NonNegative,
    NuclearNormBall,
    PSDCone,
    Simplex,
    from_cvxpy,
    from_projection,
)
from bilevel.testing import SetTestCase

F64 = {"dtype": torch.float64}


class TestIntersection(SetTestCase):
    """A ball, a box and a half-space around a common point."""

    accuracy = 1e-10
    half = traceable = False
    dimensions = (1, 2, 3, 5, 8, 13)
    small_dimensions = (1, 2)

    def make_set(self, generator, dimension, scale):
        center, normal = torch.randn(2, dimension, generator=generator, **F64)
        radius, room = torch.rand(2, generator=generator, **F64) + 0.3
        box = Box((center - 0.5) * scale, (center + 0.6) * scale)
        ball = L2Ball(radius * scale, center * scale)
        return Intersection(ball, box, HalfSpace(normal, (normal @ center + 0.2 * room) * scale))

    def oracle(self, y, Y):
        ball, box, half = Y.sets
        return [
            # Squared and in units of the radius: as a norm, the solver's own residual is too large in 4 % of the cases.
            cvxpy.sum_squares((y - ball.center.numpy()) / ball.radius.item()) <= 1,
            y >= box.lower.numpy(),
            y <= box.upper.numpy(),
            half.normal.numpy() @ y <= half.offset.item(),
        ]


class TestFromProjection(SetTestCase):
    def make_set(self, generator, dimension, scale):
        ball = L1Ball((torch.rand((), generator=generator, **F64) + 0.2) * scale)
        return from_projection(ball.project)

    def oracle(self, y, Y):
        return [cvxpy.norm1(y) <= Y.function.__self__.radius.item()]

    def test_bad_points_are_refused(self):
        with pytest.raises(ValueError, match="NaN or infinite"):
            from_projection(torch.relu).project(torch.tensor([float("nan")]))

    test_torch_func = None  # the Jacobian product is a backward pass of its own


def test_intersections_that_have_a_closed_form():
    z = torch.randn(20, 6, generator=torch.Generator().manual_seed(0), **F64) * 2
    pairs = [
        (Intersection(L1Ball(1.0), NonNegative(), HalfSpace(-torch.ones(6, **F64), -1.0)), Simplex(1.0)),
        (Intersection(NonNegative(), Box(-1.0, 0.5)), Box(0.0, 0.5)),
        (Intersection(L2Ball(1.0), L2Ball(2.0)), L2Ball(1.0)),
    ]
    for Y, known in pairs:
        torch.testing.assert_close(Y.project(z), known.project(z), rtol=0, atol=1e-11)


def test_matrices_with_a_second_derivative():
    Y = Intersection(PSDCone(), NuclearNormBall(torch.tensor(1.0, **F64)))
    z = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(3), **F64).requires_grad_()
    assert Y.contains(Y.project(z))
    assert torch.autograd.gradcheck(Y.project, (z,))
    assert torch.autograd.gradgradcheck(Y.project, (z,))


def test_an_empty_intersection_is_noticed():
    with pytest.raises(EmptySet, match="after 6 rounds the sets are still .* apart"):
        Intersection(Box(0.0, 1.0), Box(2.0, 3.0), max_rounds=6).project(torch.zeros(2))
    with pytest.raises(Incompatible, match="points of the same kind"):
        Intersection(PSDCone(), L2Ball())


CONES = {
    "l1": (lambda y: [cvxpy.norm1(y) <= 1], (4,), L1Ball(1.0)),
    "l2": (lambda y: [cvxpy.norm2(y) <= 1], (4,), L2Ball(1.0)),
    "simplex": (lambda y: [y >= 0, cvxpy.sum(y) == 1], (5,), Simplex(1.0)),
    "nuclear": (lambda y: [cvxpy.normNuc(y) <= 1], (3, 2), NuclearNormBall(1.0)),
    "psd": (lambda y: [y >> 0, y == y.T], (3, 3), PSDCone()),
}


@pytest.mark.parametrize("name", CONES)
def test_cvxpy_sets_agree_with_closed_forms(name):
    constraints, shape, known = CONES[name]
    Y = from_cvxpy(constraints, shape)
    z, v = torch.randn(2, 3, *shape, generator=torch.Generator().manual_seed(0), **F64)
    torch.testing.assert_close(Y.project(z), known.project(z), rtol=0, atol=1e-7)
    torch.testing.assert_close(Y.jacobian(z).apply(v), known.jacobian(z).apply(v), rtol=0, atol=1e-6)
    point = z[0].clone().requires_grad_()
    (grad,) = torch.autograd.grad(Y.project(point), point, v[0])
    torch.testing.assert_close(grad, known.jacobian(z[0]).apply(v[0]), rtol=0, atol=1e-6)
    assert Y.contains(known.project(z), tol=1e-9)
    assert "violated" in Y.contains(100 + z).reason


def test_cvxpy_refusals():
    with pytest.raises(Incompatible, match="exponential or power cone"):
        from_cvxpy(lambda y: [cvxpy.sum(cvxpy.exp(y)) <= 1], 2)
    with pytest.raises(EmptySet, match="no point satisfies the constraints"):
        from_cvxpy(lambda y: [y >= 1, y <= 0], 2).project(torch.zeros(2))
    with pytest.raises(InvalidType, match="takes a function"):
        from_projection(1.0)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match="must give as many"):
        from_projection(lambda z: z[..., :1]).project(torch.zeros(3))
