"""Sets given by cvxpy constraints."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.errors import EmptySetError, IncompatibleError, InvalidInputError
from bilevel.sets import L1Ball, L2Ball, NuclearNormBall, PSDCone, Simplex, from_cvxpy
from bilevel.testing import SetTestCase

F64 = {"dtype": torch.float64}


class TestFromCvxpy(SetTestCase):
    """A ball cut by a half-space and bounds. A projection is a conic programme and costs several milliseconds, about a
    hundred times as much as with the other sets: so the quick suite has a tenth as many cases, the slow one all.
    """

    oracle_cases = 20
    most_small_cases = 3
    half = traceable = False
    small_dimensions = (1, 2)
    accuracy = 1e-7

    def make_set(self, generator, dimension, scale):
        center, normal = torch.randn(2, dimension, generator=generator, **F64)
        radius, room = torch.rand(2, generator=generator, **F64) + 0.3

        def rule(y):
            return [
                cvxpy.norm2(y - center.numpy() * scale) <= radius.item() * scale,
                normal.numpy() @ y <= (normal @ center + 0.2 * room).item() * scale,
                y >= (center.numpy() - 0.5) * scale,
            ]

        Y = from_cvxpy(rule, dimension)
        Y.rule, Y.center, Y.radius = rule, center.numpy() * scale, radius.item() * scale
        return Y

    def oracle(self, y, Y):
        """The ball squared and in units of its radius: as a norm, the solver's own residual is too large too often."""
        return [cvxpy.sum_squares((y - Y.center) / Y.radius) <= 1, *Y.rule(y)[1:]]

    @pytest.mark.slow
    def test_kinks(self):
        super().test_kinks()

    @pytest.mark.slow
    def test_parameter_derivatives(self):
        super().test_parameter_derivatives()

    @pytest.mark.slow
    @pytest.mark.parametrize("ratio", [1.0, 1e3, 1e6, 1e12])
    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_gradients_leave_the_value(self, ratio, dtype):
        super().test_gradients_leave_the_value(ratio, dtype)

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_derivative_in_lower_precision(self, dtype):
        super().test_derivative_in_lower_precision(dtype)


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
    with pytest.raises(IncompatibleError, match="exponential or power cone"):
        from_cvxpy(lambda y: [cvxpy.sum(cvxpy.exp(y)) <= 1], 2)
    with pytest.raises(EmptySetError, match="no point satisfies the constraints"):
        from_cvxpy(lambda y: [y >= 1, y <= 0], 2).project(torch.zeros(2))


def test_cvxpy_sets_know_the_shape_of_their_points():
    Y = from_cvxpy(lambda y: cvxpy.norm1(y) <= 1, 2)  # one constraint needs no list
    for ask in (Y.project, Y.jacobian, Y.contains, Y.distance):
        for size in (3, 4):
            with pytest.raises(InvalidInputError, match=rf"takes points of shape \(2,\), .*, got \({size},\)"):
                ask(torch.ones(size))
    torch.testing.assert_close(Y.project(torch.tensor([1.0, 2.0], **F64)), torch.tensor([0.0, 1.0], **F64))
