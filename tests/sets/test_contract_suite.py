"""The contract suite has teeth: a set with one mistake fails the test that is there to find it."""

from __future__ import annotations

import cvxpy
import pytest
import torch

from bilevel.sets import L2Ball, Simplex
from bilevel.sets.jacobians import Identity
from bilevel.testing import SetTestCase


class _Suite(SetTestCase):
    __test__ = False
    family = L2Ball

    def make_set(self, generator, dimension, scale):
        return self.family((torch.rand((), generator=generator, dtype=torch.float64) + 0.2) * scale)

    def oracle(self, y, Y):
        return [cvxpy.norm2(y) <= Y.radius.item()]


def suite(family):
    return type("Suite", (_Suite,), {"family": family})()


class Short(L2Ball):
    """Projects a millionth too far inside."""

    def project(self, z):
        return (1 - 1e-6) * super().project(z)


class Outside(L2Ball):
    """Projects a millionth outside."""

    def project(self, z):
        return (1 + 1e-6) * super().project(z)


class BatchNorm(L2Ball):
    """Shrinks all elements of a batch alike."""

    def project(self, z):
        return z * (self.radius / z.norm()).clamp_max(1)


class WrongSide(L2Ball):
    """The Jacobian of the inside everywhere."""

    def jacobian(self, z):
        return Identity(z)


class Lopsided(L2Ball):
    """A Jacobian that is not symmetric."""

    def jacobian(self, z):
        jacobian = super().jacobian(z)
        apply = jacobian.apply
        jacobian.apply = lambda v: apply(v) + 1e-3 * v.flip(-1) * torch.arange(v.shape[-1])
        return jacobian


class DoubleRadius(L2Ball):
    """The right value, with twice the derivative in the radius."""

    def project(self, z):
        return L2Ball(2 * self.radius - self.radius.detach()).project(z)


class Detached(L2Ball):
    """Cuts the graph at the norm, so that autograd misses the curvature."""

    def project(self, z):
        norm = z.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        return z * (self.radius / norm).clamp_max(1).detach()


class Silent(L2Ball):
    """Lets NaN through."""

    def checked(self, z):
        return z


class Careless(L2Ball):
    """Calls every point answerable, so that NaN is taken for 0 under vmap."""

    def answerable(self, z):
        return torch.ones_like(z[..., :1], dtype=torch.bool)


class BigMargin(L2Ball):
    """Claims to be far from the kink."""

    def margin(self, z):
        return 3 * super().margin(z)


class Textbook(Simplex):
    """Sums z itself: wrong by percents at z = 1e6 + noise in float32, and at 1e12."""

    def project(self, z):
        ordered = z.sort(-1, descending=True).values
        levels = (ordered.cumsum(-1) - self.radius) / torch.arange(1, z.shape[-1] + 1)
        return (z - levels.amax(-1, keepdim=True)).clamp_min(0)


class Constant(L2Ball):
    """Gives up on large points in float32."""

    def project(self, z):
        if z.dtype is torch.float32 and z.abs().max() > 1e5:
            return torch.full_like(z, 3.0)
        return super().project(z)


class Cancelling(L2Ball):
    """Subtracts the step to the ball from z where gradients are asked for: exact near the ball only."""

    def project(self, z):
        if not z.requires_grad:
            return super().project(z)
        norm = z.norm(dim=-1, keepdim=True).clamp_min(1e-300)
        return z - z * (1 - self.radius / norm).clamp_min(0)


class CancellingRadius(Cancelling):
    """The same while the radius is followed."""

    def project(self, z):
        following = self.radius.requires_grad and not z.requires_grad
        return super().project(z.clone().requires_grad_() if following else z)


@pytest.mark.parametrize(
    ("family", "test"),
    [
        (Short, "test_agrees_with_the_oracle"),
        (Outside, "test_agrees_with_the_oracle"),
        (BatchNorm, "test_batch_is_a_loop"),
        (WrongSide, "test_jacobian_is_the_derivative"),
        (Lopsided, "test_jacobian_is_symmetric_between_0_and_1"),
        (DoubleRadius, "test_parameter_derivatives"),
        (Detached, "test_jacobian_is_the_derivative"),
        (Silent, "test_bad_points_are_refused"),
        (Careless, "test_no_answer_is_nan_under_vmap"),
        (BigMargin, "test_margin"),
        (Textbook, "test_huge_offset_in_float32"),
        (Constant, "test_huge_offset_in_float32"),
    ],
)
def test_mistakes_are_found(family, test):
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        getattr(suite(family), test)()


@pytest.mark.parametrize("family", [Cancelling, CancellingRadius])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_value_that_cancels_with_gradients_is_found(family, dtype):
    with pytest.raises(AssertionError, match="exceeds the radius|times the rounding"):
        suite(family).test_gradients_leave_the_value(1e12, dtype)


def test_the_correct_set_passes():
    tests = (
        "batch_is_a_loop",
        "parameter_derivatives",
        "margin",
        "no_answer_is_nan_under_vmap",
        "huge_offset_in_float32",
    )
    for test in tests:
        getattr(suite(L2Ball), f"test_{test}")()
    suite(Simplex).test_huge_offset_in_float32()
    suite(L2Ball).test_gradients_leave_the_value(1e12, torch.float32)


def test_the_shift_by_the_maximum_matters():
    z = 1e6 + torch.randn(1_000, generator=torch.Generator().manual_seed(0))
    exact = Simplex(30.0).project(z.double())
    assert (Simplex(30.0).project(z) - exact).abs().max() < 1e-5
    assert (Textbook(30.0).project(z) - exact).abs().max() > 1e-2
